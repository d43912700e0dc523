"""Facts about invented places: a corpus, and questions of several hops with known answers.

A region is a country with its cities and people. All facts of a region stay within it, so that the
held-out regions share no fact with the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random

from arenas.questions.arena import question_task
from arenas.questions.demonstrations import answered
from arenas.splits import Split
from selfplay.rng import derive
from selfplay.tools.search import Document
from selfplay.types import Demonstration, Observation, Task

STARTS = ("Bel", "Dor", "Fen", "Gal", "Hir", "Jun", "Kal", "Lom", "Mar", "Nev", "Ost", "Pel", "Rud",
          "Sav", "Tir", "Ulm", "Vas", "Wen", "Yar", "Zub", "Arn", "Cor", "Eld", "Ish")  # fmt: skip
ENDS = ("ada", "bor", "cia", "dun", "eth", "fur", "gan", "hol", "ika", "jor", "kei", "lan", "mor",
        "nia", "oss", "pur", "ric", "sen", "tav", "uma", "vik", "wyn", "xis", "zal")  # fmt: skip
NAMES = tuple(start + end for start in STARTS for end in ENDS)
RELATIONS = {
    "country": {"capital": "city", "port": "city"},
    "city": {"mayor": "person", "founder": "person"},
    "person": {"birthplace": "city", "teacher": "person"},
}
"""Relations of each kind of entity, and the kind to which each leads."""
SIZES = {"country": 1, "city": 3, "person": 4}
"""Number of entities of each kind in a region."""
REGIONS = len(NAMES) // sum(SIZES.values())
"""Largest number of regions, whose names all differ."""
HOPS = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Region:
    """A country with its cities and people, and all facts about them."""

    kinds: dict[str, str]
    """Kind of each entity, by name."""
    facts: dict[tuple[str, str], str]
    """Name to which a relation of an entity leads, by (name, relation)."""

    @classmethod
    def drawn(cls, rng: Random, names: Sequence[str]) -> "Region":
        """Return a region with random facts; `names` are those of its entities."""
        kinds = [kind for kind, count in SIZES.items() for _ in range(count)]
        entities = dict(zip(names, kinds, strict=True))
        facts = {}
        for name, kind in entities.items():
            taken = {name}
            for relation, wanted in RELATIONS[kind].items():
                free = [n for n, k in entities.items() if k == wanted and n not in taken]
                facts[name, relation] = rng.choice(free)
                taken.add(facts[name, relation])
        return cls(kinds=entities, facts=facts)

    def text(self, name: str) -> str:
        """Return the document about an entity."""
        relations = RELATIONS[self.kinds[name]]
        return " ".join(sentence(f"{r} of {name}", self.facts[name, r]) for r in relations)

    def chains(self, hops: int) -> list["Chain"]:
        """Return all chains of a number of hops that do not return to an earlier name."""
        found = [Chain(relations=(), names=(name,)) for name in self.kinds]
        for _ in range(hops):
            found = [
                Chain(
                    relations=(*c.relations, relation), names=(*c.names, self.facts[end, relation])
                )
                for c in found
                for end in c.names[-1:]
                for relation in RELATIONS[self.kinds[end]]
            ]
        return [chain for chain in found if len(set(chain.names)) == hops + 1]

    def shows_early(self, chain: "Chain") -> bool:
        """Return True if a document before the last one on the way already contains the answer."""
        return any(chain.names[-1] in self.text(name) for name in chain.names[:-2])


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A chain of facts from one entity to another, and the question about its end."""

    relations: tuple[str, ...]
    """[hops] relations, the first one first."""
    names: tuple[str, ...]
    """[hops + 1] names on the way, the answer last."""

    @property
    def question(self) -> str:
        """Question, such as "the mayor of the capital of Beldun"."""
        return "".join(f"the {each} of " for each in reversed(self.relations)) + self.names[0]

    @property
    def queries(self) -> list[str]:
        """Searches that lead to the answer, one for each hop."""
        return [f"{r} of {name}" for r, name in zip(self.relations, self.names, strict=False)]


def sentence(query: str, value: str) -> str:
    """Return the sentence that answers a query, such as "The mayor of Doreth is Fenika."."""
    return f"The {query} is {value}."


def regions(*, count: int = REGIONS, seed: int = 0) -> dict[Split, list[Region]]:
    """Return the regions of a corpus by split, one in five held out.

    Raises ValueError for a `count` below 2 or above `REGIONS`.
    """
    if not 2 <= count <= REGIONS:
        raise ValueError(f"regions: 2 to {REGIONS} are possible, not {count}")
    rng = Random(derive(seed, "places"))
    names, size = rng.sample(NAMES, len(NAMES)), sum(SIZES.values())
    made = [Region.drawn(rng, names[i * size : (i + 1) * size]) for i in range(count)]
    kept = max(1, count // 5)
    return {"held_out": made[:kept], "train": made[kept:]}


def corpus(
    *, regions_count: int = REGIONS, one_fact: bool = False, seed: int = 0
) -> list[Document]:
    """Return a document for each entity of all regions, of both splits, in random order.

    The id of a document is its place, which says nothing about its split. With `one_fact` there is
    a document for each fact instead.

    Args:
        regions_count: Number of regions of the corpus.
        one_fact: True for a document for each fact, False for one for each entity.
        seed: Seed of the draw.
    """
    every = [region for part in regions(count=regions_count, seed=seed).values() for region in part]
    texts = [region.text(name) for region in every for name in region.kinds]
    if one_fact:
        texts = [
            sentence(f"{relation} of {name}", end)
            for region in every
            for (name, relation), end in region.facts.items()
        ]
    Random(derive(seed, "documents")).shuffle(texts)
    return [Document(id=str(place), text=text) for place, text in enumerate(texts)]


def place_questions(
    *,
    count: int,
    hops: Sequence[int] = (1, 2),
    shortcuts: bool = True,
    split: Split = "train",
    regions_count: int = REGIONS,
    seed: int = 0,
) -> list[Task]:
    """Return questions about the corpus with their answers, equally many for each number of hops.

    If the counts cannot be equal, there is one more question for the first numbers of hops.

    Every question has one chain of facts, and names only its first entity. With documents of two
    facts, the answer to a question of several hops may also be another fact of a document on the
    way, where a solver can guess it: 22 % of the questions of two hops and 39 % of those of three
    in the train split of 72 regions, seed 0. Without `shortcuts` there are no such questions.

    The type of a task is "hops_<number>". Regions and seed are those of `corpus`. Raises ValueError
    if the split has fewer questions.

    Args:
        count: Number of tasks.
        hops: Numbers of facts that a question needs, each once.
        shortcuts: False leaves out questions whose answer a document on the way also has.
        split: train or held_out.
        regions_count: Number of regions of the corpus.
        seed: Seed of the draw.
    """
    if not hops or not set(hops) <= set(HOPS) or len(set(hops)) < len(hops):
        raise ValueError(f"hops are some of {HOPS}, each once")
    part = regions(count=regions_count, seed=seed)[split]
    rng = Random(derive(seed, "place questions", split))
    share, extra = divmod(count, len(hops))
    chosen = []
    for place, number in enumerate(hops):
        every = [
            chain
            for region in part
            for chain in region.chains(number)
            if shortcuts or not region.shows_early(chain)
        ]
        wanted = share + (place < extra)
        if len(every) < wanted:
            raise ValueError(f"count: the split has {len(every)} questions of {number} hops")
        chosen.append(
            [
                question_task(f"hops_{number}", chain.question, chain.names[-1])
                for chain in rng.sample(every, wanted)
            ]
        )
    return [task for together in zip_longest(*chosen) for task in together if task]


class PlaceDemonstrations:
    """Demonstrations of a solver that searches at random, for a tiny model.

    Every demonstration has a region of its own, which is invented for it, so that the model learns
    to search and to read, and no fact of the corpus. An answer without a search is a random name.
    The search may end too early, with a name on the way. The first part practises searches; in the
    last part they are rare.
    """

    def __init__(
        self,
        *,
        searches: float = 0.15,
        persistence: float = 0.5,
        hops: Sequence[int] = (1, 2),
        practice: float = 0.8,
        practice_until: float = 0.8,
    ) -> None:
        """Args:
        searches: Fraction of first completions that search, in the last part.
        persistence: Probability of another search where one is needed, in the last part.
        hops: Numbers of hops of the questions.
        practice: Both fractions in the first part.
        practice_until: Fraction of the warm start after which the last part begins.
        """
        if not all(0 <= x <= 1 for x in (searches, persistence, practice, practice_until)):
            raise ValueError("searches, persistence, practice and practice_until are from 0 to 1")
        if not hops or not set(hops) <= set(HOPS):
            raise ValueError(f"hops are some of {HOPS}")
        self.rates = {0: searches, 1: persistence, 2: persistence}
        self.hops, self.practice, self.practice_until = tuple(hops), practice, practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end; `progress` is the fraction of the warm start so far."""
        while True:
            region = Region.drawn(rng, rng.sample(NAMES, sum(SIZES.values())))
            hops = rng.choice(self.hops)
            chain = rng.choice(region.chains(hops))
            done = rng.randint(0, hops)
            called = [
                (f"<search>{query}</search>", f"[{rng.randrange(len(NAMES))}] {region.text(name)}")
                for query, name in zip(chain.queries, chain.names, strict=False)
            ]
            rate = self.practice if progress < self.practice_until else self.rates[min(done, 2)]
            if done < hops and rng.random() < rate:
                said = called[done][0]
            else:
                said = answered(chain.names[done] if done else rng.choice(NAMES))
            seen = Observation(text=chain.question, fields={"question": chain.question})
            yield Demonstration(
                role="solver", observation=seen, completion=said, called=tuple(called[:done])
            )

    def pieces(self) -> list[str]:
        """Return the tags, the words of facts, and the two parts of names, one token each."""
        tags = ["<answer>", "</answer>", "<search>", "</search>"]
        frame = ["<tool_response>\n", "\n</tool_response>", "The ", "the ", " is ", " of ", ". "]
        relations = [relation for each in RELATIONS.values() for relation in each]
        return [*tags, *frame, *relations, *STARTS, *ENDS]
