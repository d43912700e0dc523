"""Passages and answers about invented places for a proposer, and a check of its proposals."""

from collections.abc import Mapping
from hashlib import blake2b
from random import Random
from typing import Any

from arenas.questions.places import REGIONS, regions
from arenas.questions.verifiers import meaning
from arenas.splits import Split
from selfplay.rng import derive
from selfplay.types import Task


def passage_tasks(
    *, count: int, split: Split = "train", regions_count: int = REGIONS, seed: int = 0
) -> list[Task]:
    """Return tasks to ask about a passage: the documents of an entity and of one that it names.

    So a question about a passage can follow one fact or two. Regions and seed are those of
    `corpus`. Raises ValueError if the split has fewer passages.

    Args:
        count: Number of tasks.
        split: train or held_out.
        regions_count: Number of regions of the corpus.
        seed: Seed of the draw.
    """
    every = [
        f"{region.text(chain.names[0])} {region.text(chain.names[1])}"
        for region in regions(count=regions_count, seed=seed)[split]
        for chain in region.chains(1)
    ]
    drawn = _drawn(every, count, Random(derive(seed, "passages", split)))
    return [_proposal("passage", passage=passage) for passage in drawn]


def answer_tasks(
    *, count: int, split: Split = "train", regions_count: int = REGIONS, seed: int = 0
) -> list[Task]:
    """Return tasks to ask for an answer: the name of a city or of a person.

    Every name is the end of a fact. Regions and seed are those of `corpus`. Raises ValueError if
    the split has fewer names.

    Args:
        count: Number of tasks.
        split: train or held_out.
        regions_count: Number of regions of the corpus.
        seed: Seed of the draw.
    """
    every = sorted(
        {
            name
            for region in regions(count=regions_count, seed=seed)[split]
            for name in region.facts.values()
        }
    )
    drawn = _drawn(every, count, Random(derive(seed, "answers", split)))
    return [_proposal("answer", answer=answer) for answer in drawn]


def _drawn(every: list[str], count: int, rng: Random) -> list[str]:
    if not 1 <= count <= len(every):
        raise ValueError(f"count: the split has {len(every)} of them, not {count}")
    return rng.sample(every, count)


def _proposal(kind: str, **given: str) -> Task:
    name = blake2b("".join(given.values()).encode(), digest_size=8).hexdigest()
    return Task(id=f"{kind}-{name}", type=kind, payload={"mode": "propose", **given})


class PlaceOracle:
    """Verifier that finds the answer to a question about the places itself, in the facts."""

    def __init__(self, *, regions_count: int = REGIONS, seed: int = 0) -> None:
        """Regions and seed are those of the corpus."""
        self.facts = {
            key: end
            for part in regions(count=regions_count, seed=seed).values()
            for region in part
            for key, end in region.facts.items()
        }

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return 1 if the answer is the one to which the question leads, and 0 otherwise, also for
        a question of another form."""
        *relations, name = str(payload.get("question", "")).split(" of ")
        for relation in reversed(relations):
            name = self.facts.get((name, relation.removeprefix("the ")), "")
        return float(bool(relations and name) and meaning(answer) == meaning(name))
