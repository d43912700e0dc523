"""Designs of a service desk: the domain, the temper of the customer, and the wish that is allowed.

The customer has one or two wishes and asks for the second one if the first one is refused. The
database, the rules and the wishes are drawn anew for every play.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, get_args

from arenas.design.space import DesignSpace, RefusedDesign, Settings, check_keys
from arenas.desk.arena import Desk
from arenas.desk.domains import DOMAINS
from arenas.desk.tasks import TEMPERS, Kind, desk_tasks
from selfplay.arena import Arena
from selfplay.types import Task

ENDS = get_args(Kind)


class DeskDesigns(DesignSpace):
    """Service desks with a scripted customer, such as {"domain": "loans", "temper": "sly", "end":
    "refuse"}.

    There are few different designs, so use the arena without a buffer: no design is a duplicate.
    """

    kind = "desk"

    def __init__(
        self,
        *,
        domains: Sequence[str] = tuple(DOMAINS),
        tempers: Sequence[str] = TEMPERS,
        terse: bool = False,
        answers: int = 4,
    ) -> None:
        """Args:
        domains, tempers: Choices of a designer.
        terse: True if the customer uses few words.
        answers: Largest number of answers of the agent.
        """
        self.choices = {"domain": tuple(domains), "temper": tuple(tempers), "end": ENDS}
        for key, known in (("domain", tuple(DOMAINS)), ("temper", TEMPERS)):
            if not self.choices[key] or not set(self.choices[key]) <= set(known):
                raise ValueError(f"{key}s: some of {', '.join(known)}")
        self.terse, self.answers = terse, answers
        self.seats = {"agent": 1}

    def describe(self) -> str:
        """Return the form and the choices of a design."""
        words = {key: " or ".join(f'"{each}"' for each in c) for key, c in self.choices.items()}
        return (
            'A service desk is {"domain": d, "temper": t, "end": e}. The domain d is '
            f"{words['domain']}, the temper t of the customer {words['temper']}. The end e is "
            f"{words['end']}: the policy of the desk allows the customer's first wish, only the "
            "second, or neither."
        )

    def read(self, given: Mapping[str, Any]) -> Settings:
        """Return domain, temper and end; raises RefusedDesign for anything else."""
        check_keys(given, tuple(self.choices))
        for key, known in self.choices.items():
            if not isinstance(given[key], str) or given[key] not in known:
                raise RefusedDesign(f"unknown_{key}")
        return {key: given[key] for key in self.choices}

    def canonical(self, settings: Settings) -> Any:
        """Return the three choices."""
        return [settings[key] for key in self.choices]

    def draw(self, rng: Random) -> Settings:
        """Return a random design."""
        return {key: rng.choice(known) for key, known in self.choices.items()}

    def game(self, settings: Settings) -> Arena:
        """Return a desk with a scripted customer."""
        return Desk(terse=self.terse, answers=self.answers)

    def game_task(self, settings: Settings, rng: Random) -> Task:
        """Return a drawn task of the design."""
        return desk_tasks(
            count=ENDS.index(settings["end"]) + 1,  # `desk_tasks` goes through the ends in order
            domains=[settings["domain"]],
            tempers=[settings["temper"]],
            seed=rng.getrandbits(32),
        )[-1]

    def score(self, settings: Settings, game: Arena) -> float:
        """Return 1 if the final database is right and no change was forbidden, else 0."""
        return game.metrics["success"]
