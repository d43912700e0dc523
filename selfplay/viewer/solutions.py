"""Equilibrium and exact probabilities that a study of behaviour left in the run folder."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from selfplay.errors import RunError
from selfplay.run.record_reader import DIGITS, decode
from selfplay.run.untrusted import open_regular
from selfplay.viewer.heat_map import HeatMap
from selfplay.viewer.usage_index import digest_of

FILE = "studies/behaviour.json"
"""File of the study, relative to the run folder."""

_Chance = Annotated[float, Field(ge=0, le=1.000001, allow_inf_nan=False)]
_Step = Annotated[int, Field(ge=0, lt=10**DIGITS)]


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Probabilities of a situation's legal moves, read from a checkpoint."""

    step: _Step
    """Step of the checkpoint."""
    chances: dict[str, _Chance]
    """Move to its probability."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One situation of the study: an agent that is to move, and the text that it saw."""

    agent: str
    """Name of the agent."""
    view: str
    """Text that the agent saw."""
    equilibrium: dict[str, _Chance] | None = None
    """Move to its probability in one equilibrium of the game."""
    exact: list[Exact] = field(default_factory=list)
    """Probabilities by checkpoint."""


@dataclass(frozen=True)
class _Study:
    situations: list[Situation] = field(default_factory=list)


_STUDY: TypeAdapter[_Study] = TypeAdapter(_Study)


@dataclass(frozen=True, kw_only=True)
class StoredSolution:
    """Equilibrium and exact probabilities of the cells of a heat map. Page and JSON show them."""

    equilibrium: list[list[float | None]] | None
    """[V][A] probabilities in one equilibrium; None for a game that was not solved."""
    exact: list[list[list[float | None]] | None]
    """[S][V][A] probabilities under the checkpoint of each step; None without one."""

    def to_json(self) -> dict[str, Any]:
        """Return the probabilities as plain data."""
        return {"equilibrium": self.equilibrium, "exact": self.exact}


@dataclass(frozen=True, kw_only=True)
class Solutions:
    """All situations of the study of a run."""

    situations: Mapping[tuple[str, str], Situation] = field(default_factory=dict)
    """(agent, digest of the view) to its situation."""
    problem: str = ""
    """Error of a damaged file; empty otherwise."""

    def of(self, shown: HeatMap) -> StoredSolution | None:
        """Return the study's probabilities for the cells of a heat map; None if it has none."""
        found = [self.situations.get((shown.agent, view.digest)) for view in shown.views]
        if shown.kind != "move" or not any(found):
            return None
        moves = [action.shown if action.id else None for action in shown.actions]

        def row(chances: Mapping[str, float] | None) -> list[float | None]:
            known = chances or {}
            return [None if move is None else known.get(move) for move in moves]

        solved = any(each and each.equilibrium for each in found)
        by_step: list[dict[int, Mapping[str, float]]] = [
            {exact.step: exact.chances for exact in each.exact} if each else {} for each in found
        ]
        return StoredSolution(
            equilibrium=[row(each.equilibrium if each else None) for each in found]
            if solved
            else None,
            exact=[
                [row(at.get(step)) for at in by_step] if any(step in at for at in by_step) else None
                for step in shown.steps
            ],
        )


def read_solutions(run: Path) -> Solutions:
    """Read the study of behaviour in a run folder, as data; empty if there is none."""
    path = run / FILE
    if not os.path.lexists(path):
        return Solutions()
    try:
        with open_regular(path, root=run) as file:
            study = _STUDY.validate_python(decode(file.read()))
    except (OSError, ValueError, RunError, ValidationError) as error:
        return Solutions(problem=f"{FILE} cannot be read ({type(error).__name__})")
    return Solutions(
        situations={(each.agent, digest_of(each.view)): each for each in study.situations}
    )
