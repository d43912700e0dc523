"""The games that a person played: a file of one episode each, in a folder of their own."""

from dataclasses import dataclass
from pathlib import Path

from selfplay.errors import RunError
from selfplay.rollout.matches import returns
from selfplay.run.records import Recorded, decode, record_of
from selfplay.run.untrusted import open_regular
from selfplay.viewer.index import EpisodeRow


@dataclass(frozen=True, kw_only=True)
class SavedGame:
    """A game in a list."""

    name: str
    """Its file's, without the ending."""
    row: EpisodeRow | None
    """Its figures; None where the file is no game."""
    seat: str
    """The agent that the person was."""
    problem: str = ""
    """What is wrong with the file."""


class SavedGames:
    """The games in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """All games, the newest first."""
        try:
            return sorted((path.stem for path in self.folder.glob("[!.]*.jsonl")), reverse=True)
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be read ({error.strerror})") from error

    def listed(self, names: list[str]) -> list[SavedGame]:
        """Games by name; what is none is listed with what is wrong."""
        return [self._listed(name) for name in names]

    def read(self, name: str) -> Recorded:
        """A game; raises RunError where there is none of that name."""
        path = self.folder / f"{name}.jsonl"
        try:
            with open_regular(path, root=self.folder) as file:
                return record_of(decode(file.readline()), step=0, line=1, path=path)
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: not a recorded game ({error})") from error

    def _listed(self, name: str) -> SavedGame:
        try:
            record = self.read(name)
        except RunError as error:
            return SavedGame(name=name, row=None, seat="", problem=str(error))
        episode = record.episode
        row = EpisodeRow(
            step=0,
            line=1,
            group=record.group,
            member=record.member,
            arena=episode.arena,
            type=episode.task.type,
            task=episode.task.id,
            status=episode.status.value,
            invalid=sum(turn.action is None for turn in episode.turns),
            turns=len(episode.turns),
            tokens=sum(len(turn.completion_ids) for turn in episode.turns),
            rewards=dict(returns(episode)),
        )
        return SavedGame(name=name, row=row, seat=", ".join(episode.policy_map))
