"""Demonstrations of proposers, readers and solvers of questions about invented places.

Every demonstration has a region of its own, so that no fact of the corpus is learned. In the last
part proposers slip: the answer that they give is another name of the passage, or the question
contains its answer.
"""

from collections.abc import Iterator, Mapping
from itertools import chain as chained
from random import Random

from arenas.questions.corpus_questions import proposer_view, reader_view
from arenas.questions.demonstrations import answered
from arenas.questions.places import NAMES, RELATIONS, SIZES, Chain, PlaceDemonstrations, Region
from selfplay.tools.search import BETWEEN, Document, divided, listed
from selfplay.types import Demonstration

KINDS = ("solver", "passage_proposer", "answer_proposer", "reader")
IDS = [str(number) for number in range(len(NAMES))]
"""Ids of documents."""
LEADS = {
    kind: [r for each in RELATIONS.values() for r, end in each.items() if end == kind]
    for kind in ("city", "person")
}
"""Relations that lead to a kind of entity."""


class PlaceProposalDemonstrations:
    """Stream of demonstrations in the proportions of `kinds`."""

    def __init__(
        self,
        *,
        kinds: Mapping[str, float],
        solver: PlaceDemonstrations,
        two_hops: float = 0.4,
        wrong: float = 0.15,
        leaks: float = 0.05,
        practice_until: float = 0.8,
    ) -> None:
        """Args:
        kinds: Proportion of each kind: solver, passage_proposer, answer_proposer, reader.
        solver: Demonstrations of the solver.
        two_hops: Fraction of questions that follow two facts.
        wrong: Fraction of proposals and searches in the last part with a wrong answer, or with a
            relation that is drawn at random.
        leaks: Fraction of proposals in the last part whose question contains the answer.
        practice_until: Fraction of the warm start after which the last part begins.
        """
        if (
            not set(kinds) <= set(KINDS)
            or min(kinds.values(), default=0) < 0
            or not any(kinds.values())
        ):
            raise ValueError(f"kinds: proportions of {', '.join(KINDS)}, not all of them 0")
        if not all(0 <= each <= 1 for each in (two_hops, wrong, leaks, practice_until)):
            raise ValueError("two_hops, wrong, leaks and practice_until are from 0 to 1")
        self.kinds, self.solver = dict(kinds), solver
        self.two_hops, self.wrong, self.leaks = two_hops, wrong, leaks
        self.practice_until = practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end; `progress` is the fraction of the warm start so far."""
        solving = self.solver.stream(rng, progress)
        practising = progress < self.practice_until
        wrong, leaks = (0.0, 0.0) if practising else (self.wrong, self.leaks)
        names, weights = list(self.kinds), list(self.kinds.values())
        while True:
            (kind,) = rng.choices(names, weights)
            if kind == "solver":
                yield next(solving)
                continue
            region = Region.drawn(rng, rng.sample(NAMES, sum(SIZES.values())))
            hops = 1 + (rng.random() < self.two_hops)
            chain = rng.choice(region.chains(hops))
            if kind == "passage_proposer":
                yield self._asking(region, chain, rng, wrong=wrong, leaks=leaks)
            elif kind == "answer_proposer":
                yield self._searching(region, chain, rng, wrong=wrong, leaks=leaks)
            else:
                yield self._reading(region, chain, rng)

    def _asking(
        self, region: Region, chain: Chain, rng: Random, *, wrong: float, leaks: float
    ) -> Demonstration:
        """Return a question about a passage, with its answer."""
        documents = [region.text(name) for name in chain.names[:2]]
        if len(chain.relations) == 1 and rng.random() < 0.5:  # ask about the second document
            before = [
                c for c in region.chains(1) if c.names[1] == chain.names[0]
            ]  # entities whose document names the subject
            if before:
                documents = [region.text(rng.choice(before).names[0]), documents[0]]
        passage = " ".join(documents)
        answer, draw = chain.names[-1], rng.random()
        if draw < wrong:
            others = [n for n in region.kinds if n in passage and n != answer]
            answer = rng.choice(others)
        elif draw < wrong + leaks:
            answer = chain.names[0]
        return Demonstration(
            role="proposer",
            observation=proposer_view(passage, ""),
            completion=f"<question>{chain.question}</question>{answered(answer)}",
        )

    def _searching(
        self, region: Region, chain: Chain, rng: Random, *, wrong: float, leaks: float
    ) -> Demonstration:
        """Return a search for facts that lead to an answer, or the question that has it."""
        called = searches(region, chain, rng)
        done = rng.randint(0, len(called))
        if done < len(called):
            said = called[done][0]
            if rng.random() < wrong:
                relation = rng.choice(LEADS[region.kinds[chain.names[-1 - done]]])
                said = f"<search>{relation} of {chain.names[-1 - done]}</search>"
        else:
            question, draw = chain.question, rng.random()
            if draw < wrong:
                relations = (*chain.relations[:-1], rng.choice(LEADS[_kind(region, chain)]))
                question = Chain(relations=relations, names=chain.names).question
            elif draw < wrong + leaks:
                question = Chain(
                    relations=chain.relations, names=(chain.names[-1], *chain.names[1:])
                ).question
            said = f"<question>{question}</question>"
        return Demonstration(
            role="proposer",
            observation=proposer_view("", chain.names[-1]),
            completion=said,
            called=tuple(called[:done]),
        )

    def _reading(self, region: Region, chain: Chain, rng: Random) -> Demonstration:
        """Return an answer from documents, some of which do not matter."""
        results = [divided(result, IDS) for _, result in searches(region, chain, rng)]
        documents = list({text.partition("] ")[2]: text for text in chained(*results)}.values())
        others = [region.text(name) for name in region.kinds if name not in chain.names]
        documents += [_listed(text, rng) for text in rng.sample(others, rng.randint(0, 2))]
        rng.shuffle(documents)
        return Demonstration(
            role="reader",
            observation=reader_view(chain.question, documents),
            completion=answered(chain.names[-1]),
        )

    def pieces(self) -> list[str]:
        """Return the tags, the words of facts, and the two parts of names, one token each."""
        return ["<question>", "</question>", "Ask", "Ask for ", *self.solver.pieces()]


def _kind(region: Region, chain: Chain) -> str:
    return region.kinds[chain.names[-1]]


def _listed(text: str, rng: Random) -> str:
    """Return a document as a search lists it, with a random id."""
    return listed(Document(id=rng.choice(IDS), text=text))


def searches(region: Region, chain: Chain, rng: Random) -> list[tuple[str, str]]:
    """Return the searches that lead from the end of a chain to its beginning, with their results.

    A result has the document of the name that was searched for and the one that leads to it, in
    the format of `selfplay.tools.search.Search`.
    """
    made = []
    for relation, name, end in zip(chain.relations, chain.names, chain.names[1:], strict=False):
        texts = [region.text(end), region.text(name)]
        result = BETWEEN.join(_listed(text, rng) for text in texts)
        made.append((f"<search>{relation} of {end}</search>", result))
    return made[::-1]
