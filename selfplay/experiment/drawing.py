"""Draw recorded episodes: play their actions again and ask the arena for pictures.

No model is used, and no advantage is computed. The command is `selfplay replay RUN --draw`. Pages
cannot draw, because they never load an arena.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from selfplay.arena import Arena
from selfplay.drawing import StateDrawing
from selfplay.errors import RunError, SelfplayError, one_line
from selfplay.experiment.replay import restore_tasks
from selfplay.rollout.setup import Components
from selfplay.run.drawings import DrawnEpisode, match_of, write_drawings
from selfplay.run.record_reader import Recorded, episodes_of, nearest_steps, recorded_steps
from selfplay.types import Status


@dataclass(kw_only=True)
class DrawingResult:
    """The result of drawing a run."""

    steps: int = 0
    """Number of drawn steps."""
    episodes: int = 0
    """Number of drawn episodes."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of episodes without drawings, by reason."""

    def lines(self) -> list[str]:
        """Return the lines for the user."""
        found = [f"{self.steps} steps, {self.episodes} episodes drawn"]
        skipped = self.skipped.most_common()
        return [*found, *(f"{count} not drawn: {reason}" for reason, count in skipped)]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {"steps": self.steps, "episodes": self.episodes, "skipped": dict(self.skipped)}


class RunDrawer:
    """A drawer of the recorded episodes of a run, with the arena of its config."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        """Build the components without policies; raises ConfigError or RunError."""
        self.run = run
        self.components = Components(config)
        try:
            self._known_until = restore_tasks(run, config, self.components)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release services that hold processes."""
        self.components.close()

    def draw(self, steps: Sequence[int] = ()) -> DrawingResult:
        """Draw all recorded steps, or only those in `steps`, and write the drawings.

        Raises RunError if no such step is recorded.
        """
        known = recorded_steps(self.run)
        chosen = [step for step in known if not steps or step in steps]
        if not chosen:
            if not known:
                raise RunError(f"{self.run}: no episodes to draw; none is recorded")
            asked = f"--steps {' '.join(map(str, steps))}"
            raise RunError(f"{self.run}: no episodes of {asked}; {nearest_steps(known, steps[0])}")
        result = DrawingResult()
        for step in chosen:
            late = self._known_until is not None and step > self._known_until
            drawn = [
                each
                for record in episodes_of(self.run, step)
                if (each := self._episode(record, result, late)) is not None
            ]
            result.steps += bool(drawn)
            result.episodes += len(drawn)
            if drawn:
                write_drawings(self.run, step, drawn)
        return result

    def _episode(self, record: Recorded, result: DrawingResult, late: bool) -> DrawnEpisode | None:
        """Return the drawings of an episode; None, and count the reason, if it has none."""
        if late:
            result.skipped["the step comes after the newest checkpoint; resume the run first"] += 1
            return None
        if record.episode.status is Status.FAILED:
            result.skipped["it failed when it was recorded"] += 1
            return None
        try:
            states, turns = self._states(record)
            different = list(dict.fromkeys(state for state in states if state is not None))
        except SelfplayError:
            raise
        except Exception as error:  # an error of the arena's code costs this episode's drawings
            result.skipped[one_line(error)] += 1
            return None
        if not any(states):
            result.skipped["the arena draws nothing (Arena.draw)"] += 1
            return None
        place = {drawing: number for number, drawing in enumerate(different)}
        places = [None if state is None else place[state] for state in states]
        return DrawnEpisode(
            line=record.line,
            match=match_of(record.episode),
            drawings=tuple(different),
            turns=tuple(places[stage] for stage in turns),
            end=places[-1],
        )

    def _states(self, record: Recorded) -> tuple[list[StateDrawing | None], list[int]]:
        """Return the drawings before each stage and at the end, and [turns] index of the stage.

        Raises ValueError if the record does not fit the arena, and TypeError if the arena draws
        anything but a `StateDrawing`.
        """
        episode, arena = record.episode, self.components.arena()
        arena.begin(episode.task, episode.seed)
        states, places = [_drawn(arena)], list[int]()
        for _, group in groupby(episode.turns, key=lambda turn: turn.stage):
            turns = list(group)
            places += [len(states) - 1] * len(turns)
            arena.play_stage({turn.agent: turn.action for turn in turns if turn.final})
            states.append(_drawn(arena))
        if arena.finished != (episode.status is Status.FINISHED):
            raise ValueError("the replay does not end as recorded")
        return states, places


def _drawn(arena: Arena) -> StateDrawing | None:
    """Return the arena's drawing. Raises TypeError if `Arena.draw` returns anything else."""
    drawn: Any = arena.draw()
    if drawn is not None and not isinstance(drawn, StateDrawing):
        raise TypeError(f"{arena.name}: draw() returned {type(drawn).__name__}, not a StateDrawing")
    return drawn
