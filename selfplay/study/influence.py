"""Influence of messages: how far words move what the others do, by counterfactuals.

**Definition.** For a listener that is about to move and sees y besides the words m that it has just
heard: the weighted Jensen-Shannon divergence H(p) - sum_m w(m) H(p(.|y, do m)) of its chances to
move, p their mean under w. With w the words that the speaker says in other episodes, it is positive
*listening*: nats of its move that words decide. With w what the speaker would say again in the very
same place, it is the one-step *causal influence of communication* (CIC), 0 for a speaker that
always says the same there. *Change* is the mean total variation between the moves under two
independent draws of other episodes' words. Positive *signalling* is the mutual information of the
first words and what their speaker saw; listening is needed for communication, signalling alone is
not.

**Source.** Lowe et al. 2019, 1903.05168 (whose released code does not renormalise the mean, which
makes every value too large by the logarithm of the number of words); Jaques et al. 2019,
1810.08647.

**Estimator.** Everything but the words is fixed: the recorded moves are played again, one agent's
words replaced in the listener's own view. Chances are read exactly from the listener's policy,
given that it moves legally. Bootstrap over episodes. Listening and change take the words that were
said as given: others are never tried, and their intervals do not know it, so they are biased down.
CIC with M draws is biased down and at most ln M. Mutual information is the jackknife's, tested by
permutations.

**Limits.** Words that move a listener may as well mislead it: read it with `ablate`. Only moves of
the stage right after the words, of listeners whose legal moves are listed (`legal`) and whose role
has memory=none, can be read; of other words, at most 32 different ones are tried.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from selfplay.errors import ConfigError
from selfplay.game import Job
from selfplay.seeds import derive
from selfplay.study.ablate import examples, refuse_wordless
from selfplay.study.channel import Words, heard_by, intact, through
from selfplay.study.games import Games
from selfplay.study.information import mutual_information
from selfplay.study.intervals import Estimate
from selfplay.study.players import Player
from selfplay.study.plots import Intervals
from selfplay.study.result import Result
from selfplay.study.strategy import read
from selfplay.types import Action, Episode, InformationSet, Observation

MOST_WORDS = 32
"""Different words that are tried at each place."""
GIVEN = "given the words that were said"
REDRAWS = 16
"""M: how often a speaker is asked again in the same place."""

Chances: TypeAlias = Callable[[str, Observation], Mapping[str, float]]
"""(agent, what it sees) to the chance of each legal move."""


def study(games: Games, player: Player, *, chances: Chances | None = None) -> Result:
    """Play, and ask what would have been done on hearing something else.

    `chances` reads the listeners; they are read off their models where None.
    """
    seating = player.seats(games.agents)
    record: list[Words] = []
    episodes = games.play(seating, arena=through(games.arena, intact, record))
    refuse_wordless(games, record, "influence")
    found = _Counterfactuals(games, seating, episodes, record, chances or exactly(games, seating))
    draws = games.draws(episodes)
    begins = min(words.stage for words in record)
    first: dict[str, list[Words]] = {}
    for words in record:
        if words.stage == begins:
            first.setdefault(words.speaker, []).append(words)
    estimates = [
        draws.mean(
            "positive listening",
            found.listening(),
            null=0.0,
            direction="biased_down",
            notes=f"nats, at most ln {MOST_WORDS}, {GIVEN}",
        ),
        draws.mean(
            "change of the move",
            found.change(),
            null=0.0,
            direction="biased_down",
            notes=f"total variation, {GIVEN}",
        ),
        draws.mean(
            "causal influence (CIC)",
            found.again(),
            null=0.0,
            direction="biased_down",
            notes=f"nats, M = {REDRAWS}",
        ),
        *(signalling(f"positive signalling of {speaker}", said) for speaker, said in first.items()),
    ]
    notes = [*games.notes]
    if not found.places:
        unread = "whoever hears words answers with words, so that no move could be read"
        if not any(math.isfinite(each.value) for each in estimates):
            raise ConfigError(
                f"influence: in {games.arena().name} {unread}, and too many different words were "
                "said to tell what they signal; measure arena=signal, or what words are worth: "
                "selfplay study ablate"
            )
        notes.append(unread)
    return Result(
        measure="influence",
        title=f"How words move {player.label} in {games.arena().name}",
        definition="Listening: nats of a listener's move that the words of other episodes decide. "
        "CIC: the same for what the speaker would say again in the same place. Signalling: nats "
        "that the first words say of what their speaker saw.",
        estimates=estimates,
        tables=[examples(record)],
        drawings=[
            Intervals(
                title="With 95 % intervals; 0 is no influence",
                estimates=estimates,
                null=0.0,
            )
        ],
        params={**games.record(), "places": len(found.places)},
        notes=notes,
    )


def influence(chances: np.ndarray, weights: np.ndarray) -> float:
    """Weighted Jensen-Shannon divergence in nats of [M, A] chances with [M] weights."""
    share = weights / weights.sum()
    return float(_entropy(share @ chances) - share @ _entropy(chances))


def change(chances: np.ndarray, weights: np.ndarray) -> float:
    """Mean total variation between two independent draws of the [M] rows; they may coincide."""
    share = weights / weights.sum()
    apart = np.abs(chances[:, None] - chances[None]).sum(-1) / 2
    return float(share @ apart @ share)


def _entropy(chances: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(chances > 0, chances * np.log(chances), 0.0).sum(-1)


def signalling(name: str, words: Sequence[Words]) -> Estimate:
    """Mutual information of what was said and what its speaker saw."""
    return mutual_information(name, [w.seen for w in words], [w.text for w in words])


def exactly(games: Games, seating: Mapping[str, str]) -> Chances:
    """Reads the listeners' models; raises ConfigError for what cannot be read."""

    def chances(agent: str, observation: Observation) -> Mapping[str, float]:
        legal = observation.fields.get("legal")
        if not legal:
            raise ConfigError(
                f"influence: the moves of {agent} in {games.arena().name} are not listed, so that "
                "their chances cannot be read; measure a game whose views have `legal`, such as "
                "arena=signal; `ablate` needs no such list"
            )
        policy = seating[agent]
        if policy not in games.models:
            raise ConfigError(f"influence: policy {policy!r} has no model to read chances from")
        actions = {action: number for number, action in enumerate(legal)}
        where = InformationSet(key="", agent=agent, observation=observation, actions=actions)
        seat = games.seat(policy, agent)
        (choice,) = read([where], seats={agent.rpartition("_")[0]: seat}, models=games.models)
        numbers = choice.chances()
        return {action: numbers[number] for action, number in actions.items()}

    return chances


class _Counterfactuals:
    """The places of all episodes in which somebody moves right after words."""

    def __init__(
        self,
        games: Games,
        seating: Mapping[str, str],
        episodes: Sequence[Episode],
        record: Sequence[Words],
        chances: Chances,
    ) -> None:
        self.games, self.seating, self.record, self.chances = games, seating, record, chances
        self.episodes = {episode.seed: episode for episode in episodes}
        self.stages = {episode.seed: _stages(episode) for episode in episodes}
        said = {(words.seed, words.stage) for words in record}
        self.places = [
            (words, listener)
            for words in record
            for listener in self._next(words)
            # Somebody who answers with words again is read when a move comes of it.
            if listener != words.speaker and (words.seed, words.stage + 1) not in said
        ]
        self._cache: dict[tuple[str, str], dict[str, float]] = {}

    def _next(self, words: Words) -> list[str]:
        stages = self.stages[words.seed]
        return list(stages[words.stage + 1]) if words.stage + 1 < len(stages) else []

    def listening(self) -> np.ndarray:
        """[N] per episode: how much other episodes' words decide."""
        return self._means(lambda words, listener: self._under(words, listener, influence))

    def change(self) -> np.ndarray:
        """[N] per episode: how far two draws of other episodes' words lie apart."""
        return self._means(lambda words, listener: self._under(words, listener, change))

    def again(self) -> np.ndarray:
        """[N] per episode: how much what the speaker would say again decides."""
        drawn = self._redrawn()

        def value(words: Words, listener: str) -> float:
            pool = Counter(drawn[words.seed, words.stage, words.speaker])
            return self._of(words, listener, pool, influence)

        return self._means(value)

    def _under(
        self, words: Words, listener: str, measure: Callable[[np.ndarray, np.ndarray], float]
    ) -> float:
        return self._of(words, listener, self._pool(words.stage, words.speaker), measure)

    def _pool(self, stage: int, speaker: str) -> Counter[str]:
        """What the speaker says in this stage of all episodes; the commonest of many."""
        said = [w.text for w in self.record if (w.stage, w.speaker) == (stage, speaker)]
        return Counter(dict(Counter(said).most_common(MOST_WORDS)))

    def _of(
        self,
        words: Words,
        listener: str,
        pool: Counter[str],
        measure: Callable[[np.ndarray, np.ndarray], float],
    ) -> float:
        rows = [self._chances(words, listener, text) for text in pool]
        actions = list(rows[0])
        table = np.array([[row[action] for action in actions] for row in rows])
        return measure(table, np.array(list(pool.values()), dtype=float))

    def _chances(self, words: Words, listener: str, text: str) -> Mapping[str, float]:
        episode = self.episodes[words.seed]
        stages = self.stages[words.seed][: words.stage + 1]
        ear = heard_by(self.games.arena, listener, words, text, task=episode.task, stages=stages)
        view = ear.view(listener)
        key = (listener, repr(view))  # the same view comes back in many episodes
        if key not in self._cache:
            self._cache[key] = dict(self.chances(listener, view))
        return self._cache[key]

    def _means(self, value: Callable[[Words, str], float]) -> np.ndarray:
        found: dict[int, list[float]] = {seed: [] for seed in self.episodes}
        for words, listener in self.places:
            found[words.seed].append(value(words, listener))
        return np.array([np.mean(each) if each else np.nan for each in found.values()])

    def _redrawn(self) -> dict[tuple[int, int, str], list[str]]:
        """(episode, stage, speaker) to what it says there when asked again and again."""
        asked = dict.fromkeys((words.seed, words.stage) for words, _ in self.places)
        found: dict[tuple[int, int, str], list[str]] = {}
        for stage in sorted({stage for _, stage in asked}):
            jobs, turns = [], 0
            for seed in [seed for seed, at in asked if at == stage]:
                episode = self.episodes[seed]
                prefix = tuple(turn for turn in episode.turns if turn.stage < stage)
                turns = max(turns, len(prefix) + len(self.stages[seed][stage]))
                jobs += [
                    Job(
                        task=episode.task,
                        seed=seed,
                        member=derive("again", number),
                        prefix=tuple(replace(turn, reward=0.0) for turn in prefix),
                        seating=self.seating,
                    )
                    for number in range(REDRAWS)
                ]
            for episode in self.games.rollout(max_turns=turns).play(jobs):
                for turn in episode.turns:
                    if turn.stage == stage:
                        key = (episode.seed, stage, turn.agent)
                        found.setdefault(key, []).append(turn.action or "")
        return found


def _stages(episode: Episode) -> list[dict[str, Action | None]]:
    """The moves of each stage."""
    found: list[dict[str, Action | None]] = []
    for turn in episode.turns:
        while len(found) <= turn.stage:
            found.append({})
        found[turn.stage][turn.agent] = turn.action
    return found
