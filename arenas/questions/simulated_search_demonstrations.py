"""Demonstrations of a solver that searches at random and of a simulator of its search engine.

Every demonstration has a region of its own, invented for it, so that neither learns a fact of the
corpus. The simulator writes the sentence that the query asks for, in the words of the corpus: with
the true answer if the query asks for the end of the question, otherwise with an invented name. The
first part of the warm start practises. In the last part searches are rare, and both roles slip, so
that both have something to learn.
"""

from collections.abc import Iterator, Sequence
from random import Random

from arenas.questions.demonstrations import answered
from arenas.questions.places import (
    ENDS,
    HOPS,
    NAMES,
    RELATIONS,
    SIZES,
    STARTS,
    Chain,
    Region,
    sentence,
)
from arenas.questions.simulated_search import simulator_view, solver_view
from selfplay.types import Demonstration

Found = list[tuple[str, str]]
SUBJECTS = {relation: kind for kind, each in RELATIONS.items() for relation in each}
"""Kind of entity that has a relation."""


class SimulatedSearchDemonstrations:
    """Stream of moves of solvers and of simulators, two of a solver for each of a simulator."""

    def __init__(
        self,
        *,
        hops: Sequence[int] = (1, 2),
        searches: float = 0.15,
        persistence: float = 0.5,
        slips: float = 0.2,
        noise: float = 0.2,
        misleading: float = 0.5,
        practice: float = 0.8,
        practice_until: float = 0.8,
    ) -> None:
        """Args:
        hops: Numbers of hops of the questions.
        searches: Fraction of the solver's first moves that search, in the last part.
        persistence: Probability of another search where one is needed, in the last part.
        slips: Fraction of moves with an error in the last part: a query or an answer with another
            name or relation, a useful document without the answer.
        noise: Fraction of last documents that are noisy for a solver, which then searches again,
            and of documents that a simulator is to make noisy.
        misleading: Fraction of a simulator's noisy documents with a wrong name for the entity of
            the query; the others are about another entity.
        practice: Fraction of moves that search where a search is needed, in the first part.
        practice_until: Fraction of the warm start after which the last part begins.
        """
        fractions = (searches, persistence, slips, noise, misleading, practice, practice_until)
        if not all(0 <= each <= 1 for each in fractions):
            raise ValueError("all settings but hops are from 0 to 1")
        if not hops or not set(hops) <= set(HOPS):
            raise ValueError(f"hops are some of {HOPS}")
        self.hops, self.rates = tuple(hops), (searches, persistence)
        self.slips, self.noise, self.misleading = slips, noise, misleading
        self.practice, self.practice_until = practice, practice_until

    def stream(self, rng: Random, progress: float) -> Iterator[Demonstration]:
        """Yield demonstrations without end; `progress` is the fraction of the warm start so far."""
        practising = progress < self.practice_until
        rates = (self.practice, self.practice) if practising else self.rates
        slips = 0.0 if practising else self.slips
        while True:
            yield self._solver(rng, rates, slips)
            yield self._solver(rng, rates, slips)
            yield self._simulator(rng, slips)

    def _drawn(self, rng: Random) -> tuple[Chain, int, Found]:
        """Return a chain of facts, the number of those that were found, and their documents."""
        region = Region.drawn(rng, rng.sample(NAMES, sum(SIZES.values())))
        hops = rng.choice(self.hops)
        chain, done = rng.choice(region.chains(hops)), rng.randint(0, hops)
        known = zip(chain.queries[:done], chain.names[1:], strict=False)
        return chain, done, [(query, sentence(query, name)) for query, name in known]

    def _solver(self, rng: Random, rates: tuple[float, float], slips: float) -> Demonstration:
        chain, done, found = self._drawn(rng)
        answer = chain.names[done] if done else rng.choice(NAMES)
        needed = chain.queries[done : done + 1]
        if done and rng.random() < self.noise:  # the last document is noisy: search again
            needed, answer = [chain.queries[done - 1]], rng.choice(NAMES)
            found[-1] = (needed[0], sentence(_about_another(needed[0], rng), answer))
        slip = rng.random() < slips
        if needed and rng.random() < rates[min(len(found), 1)]:
            completion = f"<search>{_slipped(needed[0], rng) if slip else needed[0]}</search>"
        else:
            completion = answered(rng.choice(NAMES) if slip else answer)
        seen = solver_view(chain.question, found, left=3)
        return Demonstration(role="solver", observation=seen, completion=completion)

    def _simulator(self, rng: Random, slips: float) -> Demonstration:
        chain, done, found = self._drawn(rng)
        last = done >= len(chain.relations) - 1
        found = found[: len(chain.relations) - 1]
        query = chain.queries[len(found)]
        noisy, slip = rng.random() < self.noise, rng.random() < slips
        if rng.random() < 0.1:  # a query that leads nowhere, as a solver may write it
            query, last = _slipped(query, rng), False
        value = chain.names[-1] if last and not noisy and not slip else rng.choice(NAMES)
        about = query
        if noisy and rng.random() >= self.misleading:
            about = _about_another(query, rng)
        seen = simulator_view(query, chain.question, found, answer="" if noisy else chain.names[-1])
        said = f"<document>{sentence(about, value)}</document>"
        return Demonstration(role="simulator", observation=seen, completion=said)

    def pieces(self) -> list[str]:
        """Return the tags, the words of facts, and the two parts of names, one token each."""
        tags = [f"<{end}{tag}>" for tag in ("answer", "search", "document") for end in ("", "/")]
        frame = ["Useful\n", "Noisy\n", " > ", "The ", "the ", " is ", " of ", ". "]
        relations = [relation for each in RELATIONS.values() for relation in each]
        return [*tags, *frame, *relations, *STARTS, *ENDS]


def _about_another(query: str, rng: Random) -> str:
    """Return the query with another name."""
    return f"{query.split(' of ')[0]} of {rng.choice(NAMES)}"


def _slipped(query: str, rng: Random) -> str:
    """Return the query with another relation or with another name."""
    relation, name = query.split(" of ")
    if rng.random() < 0.5:
        return f"{rng.choice([each for each in SUBJECTS if each != relation])} of {name}"
    return _about_another(query, rng)
