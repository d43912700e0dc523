"""Designs of ways through the corpus about places: the relations that a question follows.

The region and the first name on the way are drawn anew for every play. The solver needs a search in
the same corpus (`roles=designed_corpus`).
"""

from collections import defaultdict
from collections.abc import Mapping
from random import Random
from typing import Any

from arenas.design.space import DesignSpace, RefusedDesign, Settings, check_keys
from arenas.questions.arena import Questions, question_task
from arenas.questions.places import HOPS, REGIONS, RELATIONS, Chain, regions
from selfplay.arena import Arena
from selfplay.errors import check_choice
from selfplay.types import Task


class CorpusDesigns(DesignSpace):
    """Ways through the corpus, such as {"path": ["capital", "mayor"]}: "the mayor of the capital of
    Beldun".

    There are few different designs, so use the arena without a buffer: no design is a duplicate.
    """

    kind = "corpus"
    seats: Mapping[str, int] = {"solver": 1}

    def __init__(
        self, *, longest: int = max(HOPS), regions_count: int = REGIONS, seed: int = 0
    ) -> None:
        """Args:
        longest: Largest number of relations of a way.
        regions_count: Number of regions of the corpus; ways are in those of the train split.
        seed: Seed of the corpus.
        """
        check_choice("longest", longest, HOPS)
        self.longest = longest
        self._chains: dict[tuple[str, ...], list[Chain]] = defaultdict(list)
        for region in regions(count=regions_count, seed=seed)["train"]:
            for hops in range(1, longest + 1):
                for chain in region.chains(hops):
                    self._chains[chain.relations].append(chain)

    def describe(self) -> str:
        """Return the form and the choices of a design."""
        leads = "; ".join(
            ", ".join(f'"{relation}" to a {end}' for relation, end in relations.items())
            + f" from a {kind}"
            for kind, relations in RELATIONS.items()
        )
        return (
            'A question is {"path": [r, ...]} with 1 to '
            f"{self.longest} relations. Relations lead {leads}. Each relation begins where the one "
            "before it ends."
        )

    def read(self, given: Mapping[str, Any]) -> Settings:
        """Return the path; raises RefusedDesign for anything else."""
        check_keys(given, ("path",))
        path = given["path"]
        if not isinstance(path, list) or not 1 <= len(path) <= self.longest:
            raise RefusedDesign("wrong_shape")
        known = {relation for relations in RELATIONS.values() for relation in relations}
        if not all(isinstance(relation, str) and relation in known for relation in path):
            raise RefusedDesign("unknown_relation")
        if tuple(path) not in self._chains:
            raise RefusedDesign("no_way")
        return {"path": [*path]}

    def canonical(self, settings: Settings) -> Any:
        """Return the path."""
        return settings["path"]

    def draw(self, rng: Random) -> Settings:
        """Return a random design; each way is equally likely."""
        return {"path": [*rng.choice(sorted(self._chains))]}

    def game(self, settings: Settings) -> Arena:
        """Return an arena with one solver."""
        return Questions(proposers=0, solvers=1, label="verifier")

    def game_task(self, settings: Settings, rng: Random) -> Task:
        """Return a question that follows the path from a drawn name."""
        path = settings["path"]
        chain = rng.choice(self._chains[tuple(path)])
        return question_task(f"hops_{len(path)}", chain.question, chain.names[-1])

    def score(self, settings: Settings, game: Arena) -> float:
        """Return 1 if the answer is right, else 0."""
        return game.metrics["solve_rate"]
