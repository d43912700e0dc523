"""Games played by a person: a folder with one file per game, which holds one episode."""

from dataclasses import dataclass
from pathlib import Path

from selfplay.credit.base import pay_by_agent
from selfplay.errors import RunError
from selfplay.run.record_reader import Recorded, decode, record_of
from selfplay.run.untrusted import open_regular
from selfplay.viewer.episode_list import EpisodeRow


@dataclass(frozen=True, kw_only=True)
class SavedGame:
    """A row of the list of games."""

    name: str
    """Name of the game's file, without its extension."""
    row: EpisodeRow | None
    """The game's data; None if the file is not a recorded game."""
    seat: str
    """The person's agent."""
    problem: str = ""
    """Error of a file that is not a recorded game."""


class SavedGames:
    """Reads the games of one folder. The pages of episodes use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Return the names of all games, the newest first; raise RunError for a folder that cannot
        be read."""
        try:
            return sorted((path.stem for path in self.folder.glob("[!.]*.jsonl")), reverse=True)
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be read ({error.strerror})") from error

    def listed(self, names: list[str]) -> list[SavedGame]:
        """Read games by name; a file that is not a recorded game is listed with its error."""
        return [self._listed(name) for name in names]

    def read(self, name: str) -> Recorded:
        """Read a game; raise RunError if there is no file of this name, or it is no game."""
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
            invalid=sum(turn.invalid for turn in episode.turns),
            turns=len(episode.turns),
            tokens=sum(len(turn.completion_ids) for turn in episode.turns),
            rewards=dict(pay_by_agent(episode)),
        )
        return SavedGame(name=name, row=row, seat=", ".join(episode.policy_map))
