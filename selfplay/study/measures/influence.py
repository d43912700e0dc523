"""Influence of messages: the causal effect of words on the moves of the listeners.

**Definition.** A listener is about to move; it sees y and has just heard the words m. The influence
of the words is the weighted Jensen-Shannon divergence H(p) - sum_m w(m) H(p(.|y, do m)) of its move
probabilities, with p their mean under the weights w. If the weights are the frequencies of the
speaker's words at this stage of all episodes, this is positive *listening*: the nats of the move
that the words decide. If they are the frequencies of the words that the speaker would say when
asked again in the same situation, it is the one-step *causal influence of communication* (CIC),
which is 0 for a speaker that always says the same there. *Change* is the mean total variation
distance between the moves under two independent draws of the words of all episodes. Positive
*signalling* is the mutual information of the first words and their speaker's observation.
Communication needs listening; signalling alone is not communication.

**Source.** Lowe et al. 2019, 1903.05168 (whose released code does not renormalise the mean, which
makes every value too large by the logarithm of the number of words); Jaques et al. 2019,
1810.08647.

**Estimator.** Everything except the words is fixed: the recorded moves are played again, with one
agent's words replaced in the listener's own view. The probabilities are read exactly from the
listener's policy, conditioned on legal moves. The bootstrap of listening and change draws episodes
with their words, so the pool of words varies too. The bias from the size of the pool is estimated
from the resamples and removed. Only words that occurred are tried, so both are still biased down.
CIC with M draws is too small by a fraction of about 1 / M; the jackknife over the draws corrects
this. All intervals are about these tasks. The mutual information is estimated as in `language`,
with a permutation test.

**Limits.** Words that move a listener may also mislead it: read the result with `ablate`. Only
moves of the stage right after the words can be read, and only of listeners with listed legal moves
(`legal`) and a role with memory=none. At most 32 different words are tried.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.study.communication import HeardMessage, heard_by, intact, through
from selfplay.study.matches import StudyMatches
from selfplay.study.measure import PLAYING, Measure, measure_one
from selfplay.study.measures.message_ablation import check_speaks, examples
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import IntervalPlot
from selfplay.study.policy_probs import read
from selfplay.study.result import Result
from selfplay.study.stats.bootstrap import Estimate, divide, mean
from selfplay.study.stats.mutual_information import entropy, mutual_information
from selfplay.types import Action, Episode, InformationSet, Observation, Status, role_of

MOST_WORDS = 32
"""Largest number of different messages that are tried in each situation."""
OTHERS = "only words that occurred are tried"
REDRAWS = 16
"""M, the number of times that a speaker is asked again in the same situation."""

InfluenceFunction: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function of ([M, A] probabilities, [..., M] weights of the rows) to [...] values."""

Chances: TypeAlias = Callable[[str, Observation], Mapping[str, float]]
"""Function of (agent, observation) to the probability of each legal move."""


def study(games: StudyMatches, player: StudyPlayer, *, chances: Chances | None = None) -> Result:
    """Play, and read the listeners' probabilities under other words.

    `chances` gives these probabilities; None reads them from the models. Raises ConfigError if
    there are no messages, or if no effect of them can be read.
    """
    seating = player.seats(games.agents)
    said: list[HeardMessage] = []
    played = games.run(seating, arena=through(games.arena, intact, said))
    check_speaks(games, said, "influence")
    episodes = [episode for episode in played if episode.status is not Status.FAILED]
    known = {episode.seed for episode in episodes}
    record = [words for words in said if words.seed in known]
    unread = set() if chances else {a for a, name in seating.items() if name not in games.models}
    read_by = chances or exactly(games, seating)
    found = _Counterfactuals(games, seating, episodes, record, read_by, unread=unread)
    # The tasks are fixed: a resample without a task would also lack the words for it.
    draws = games.draws(episodes, given=True)
    begins = min(words.stage for words in record)
    first: dict[str, list[HeardMessage]] = {}
    for words in record:
        if words.stage == begins:
            first.setdefault(words.speaker, []).append(words)
    listening, changing = found.under_others(influence), found.under_others(change)
    estimates = [
        draws.of(
            "positive listening",
            listening,
            reflect=True,
            bounds=(0.0, math.log(found.most)),
            null=0.0,
            direction="biased_down",
            notes=f"nats, at most ln {found.most}; {OTHERS}",
        ),
        draws.of(
            "change of the move",
            changing,
            reflect=True,
            bounds=(0.0, 1.0),
            null=0.0,
            direction="biased_down",
            notes=f"total variation; {OTHERS}",
        ),
        draws.mean(
            "causal influence (CIC)",
            found.again(),
            null=0.0,
            notes=f"nats, jackknife over M = {REDRAWS} draws",
        ),
        *(signalling(f"positive signalling of {speaker}", said) for speaker, said in first.items()),
    ]
    notes = [*games.notes]
    if found.deaf:
        who = f"{', '.join(found.deaf)} of {player.label}"
        notes.append(
            f"{who} has no model with probabilities to read, and is left out as a listener"
        )
    if not found.places and not found.deaf:
        why = "agents that hear words answer with words, so no move could be read"
        if not any(math.isfinite(each.value) for each in estimates):
            raise ConfigError(
                f"influence: in {games.arena().name} {why}, and too many different words were "
                "said to tell what they signal; measure arena=signal, or what words are worth: "
                "selfplay study ablate"
            )
        notes.append(why)
    return Result(
        measure="influence",
        title=f"Influence of words on {player.label} in {games.arena().name}",
        definition="Listening: nats of a listener's move that the words of all episodes decide. "
        "CIC: the same for the words that the speaker would say again in the same situation. "
        "Signalling: mutual information of the first words and their speaker's observation, in "
        "nats.",
        estimates=estimates,
        tables=[examples(record)],
        drawings=[
            IntervalPlot(
                title="With 95 % intervals; 0 is no influence",
                estimates=estimates,
                label="effect: nats, or difference of probabilities",
                null=0.0,
            )
        ],
        params={**games.record(), "places": len(found.places)},
        notes=notes,
    )


def influence(chances: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return [...] Jensen-Shannon divergences in nats of the rows of [M, A] probabilities.

    `weights` are [..., M] weights of the rows; NaN for weights whose sum is 0.
    """
    share = divide(weights, weights.sum(-1, keepdims=True))
    return np.asarray(entropy(share @ chances) - share @ entropy(chances))


def change(chances: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return [...] mean total variation distances between two rows that are drawn independently.

    The shapes are those of `influence`. Both draws may be the same row.
    """
    share = divide(weights, weights.sum(-1, keepdims=True))
    apart = np.abs(chances[:, None] - chances[None]).sum(-1) / 2
    return np.asarray(((share @ apart) * share).sum(-1))


def redrawn(chances: np.ndarray, counts: np.ndarray) -> float:
    """Return the influence of words from [M, A] move probabilities and the [M] counts of words.

    The jackknife over the draws corrects the bias of few draws. NaN for fewer than two draws.
    """
    chances, counts = chances[counts > 0], counts[counts > 0]
    total = float(counts.sum())
    if total < 2:
        return math.nan
    without = counts - np.eye(len(counts))  # [M, M] each row lacks one draw of one of the words
    left = float(counts @ influence(chances, without) / total)
    return total * float(influence(chances, counts)) - (total - 1) * left


def signalling(name: str, words: Sequence[HeardMessage]) -> Estimate:
    """Return the mutual information of messages and their speaker's observations, in nats."""
    return mutual_information(name, [w.seen for w in words], [w.text for w in words])


def exactly(games: StudyMatches, seating: Mapping[str, str]) -> Chances:
    """Return a function that reads the listeners' models.

    It raises ConfigError for a listener without listed legal moves or without a model.
    """

    def chances(agent: str, observation: Observation) -> Mapping[str, float]:
        legal = observation.fields.get("legal")
        if not legal:
            raise ConfigError(
                f"influence: the moves of {agent} in {games.arena().name} are not listed, so their "
                "probabilities cannot be read; measure a game whose views have `legal`, such as "
                "arena=signal; `ablate` needs no such list"
            )
        policy = seating[agent]
        if policy not in games.models:
            raise ConfigError(
                f"influence: policy {policy!r} has no model, so its probabilities cannot be read; "
                "name a player with models"
            )
        actions = {action: number for number, action in enumerate(legal)}
        where = InformationSet(key="", agent=agent, observation=observation, actions=actions)
        agent_spec = games.agent_spec(policy, agent)
        (choice,) = read([where], agent_specs={role_of(agent): agent_spec}, models=games.models)
        numbers = choice.chances()
        return {action: numbers[number] for action, number in actions.items()}

    return chances


class _Counterfactuals:
    """All situations in which an agent moves right after a message, and their counterfactuals."""

    def __init__(
        self,
        games: StudyMatches,
        seating: Mapping[str, str],
        episodes: Sequence[Episode],
        record: Sequence[HeardMessage],
        chances: Chances,
        *,
        unread: Container[str] = (),
    ) -> None:
        """Args:
        unread: Agents whose probabilities cannot be read.
        """
        self.games, self.seating, self.record, self.chances = games, seating, record, chances
        self.episodes = {episode.seed: episode for episode in episodes}
        self.stages = {episode.seed: _stages(episode) for episode in episodes}
        said = {(words.seed, words.stage) for words in record}
        places = [
            (words, listener)
            for words in record
            for listener in self._next(words)
            # An agent that answers with words is read later, at the stage of its move.
            if listener != words.speaker and (words.seed, words.stage + 1) not in said
        ]
        self.places = [place for place in places if place[1] not in unread]
        self.deaf = sorted({listener for _, listener in places if listener in unread})
        self._cache: dict[tuple[str, str], dict[str, float]] = {}

    def _next(self, words: HeardMessage) -> list[str]:
        stages = self.stages[words.seed]
        return list(stages[words.stage + 1]) if words.stage + 1 < len(stages) else []

    @property
    def most(self) -> int:
        """Largest number of different moves that words can decide between."""
        moves = [len(chances) for chances in self._cache.values()]
        return min(max(moves, default=1), MOST_WORDS)

    def under_others(self, measure: InfluenceFunction) -> Callable[[np.ndarray], np.ndarray]:
        """Return a statistic: the mean over episodes of an influence function under all words.

        The words of a situation are those of the same speaker at the same stage in all episodes.
        The statistic is a function of [B, N] weights of episodes to [B] values. The weights apply
        both to the situations and to the words.
        """
        numbers = {seed: number for number, seed in enumerate(self.episodes)}
        said: dict[tuple[int, str], list[tuple[int, str]]] = {}
        for words in self.record:
            place = (words.stage, words.speaker)
            said.setdefault(place, []).append((numbers[words.seed], words.text))
        pools: dict[tuple[int, str], dict[str, np.ndarray]] = {}
        for place, all_of in said.items():
            common = Counter(text for _, text in all_of).most_common(MOST_WORDS)
            counts = {text: np.zeros(len(numbers)) for text, _ in common}
            for number, text in all_of:
                if text in counts:
                    counts[text][number] += 1
            pools[place] = counts
        tables = [
            (words, self._table(words, listener, pools[words.stage, words.speaker]))
            for words, listener in self.places
        ]
        per_episode = Counter(numbers[words.seed] for words, _ in self.places)

        def statistic(weights: np.ndarray) -> np.ndarray:
            pooled = {
                place: weights @ np.array([*counts.values()]).T for place, counts in pools.items()
            }
            above, below = np.zeros(len(weights)), np.zeros(len(weights))
            for words, table in tables:
                number = numbers[words.seed]
                share = weights[:, number] / per_episode[number]
                value = measure(table, pooled[words.stage, words.speaker])
                known = np.isfinite(value)
                above += np.where(known, share * value, 0.0)
                below += share * known
            return divide(above, below)

        return statistic

    def again(self) -> np.ndarray:
        """Return [N] CIC per episode: the influence of the words that the speaker would repeat."""
        drawn = self._redrawn()
        found: dict[int, list[float]] = {seed: [] for seed in self.episodes}
        for words, listener in self.places:
            pool = Counter(drawn.get((words.seed, words.stage, words.speaker), []))
            value = math.nan
            if pool:
                table = self._table(words, listener, pool)
                value = redrawn(table, np.array([*pool.values()], dtype=float))
            found[words.seed].append(value)
        return np.array([mean(np.array(each)) if each else np.nan for each in found.values()])

    def _table(self, words: HeardMessage, listener: str, texts: Iterable[str]) -> np.ndarray:
        """Return [M, A] probabilities of the listener's moves after each of these texts."""
        rows = [self._chances(words, listener, text) for text in texts]
        return np.array([[row[action] for action in rows[0]] for row in rows])

    def _chances(self, words: HeardMessage, listener: str, text: str) -> Mapping[str, float]:
        episode = self.episodes[words.seed]
        stages = self.stages[words.seed][: words.stage + 1]
        arena = heard_by(self.games.arena, words, text, task=episode.task, stages=stages)
        view = arena.view(listener)
        key = (listener, repr(view))  # many episodes have the same view
        if key not in self._cache:
            self._cache[key] = dict(self.chances(listener, view))
        return self._cache[key]

    def _redrawn(self) -> dict[tuple[int, int, str], list[str]]:
        """Return (episode, stage, speaker) to the texts of the speaker when asked again."""
        asked = dict.fromkeys((words.seed, words.stage) for words, _ in self.places)
        found: dict[tuple[int, int, str], list[str]] = {}
        for stage in sorted({stage for _, stage in asked}):
            specs, turns = [], 0
            for seed in [seed for seed, at in asked if at == stage]:
                episode = self.episodes[seed]
                prefix = tuple(turn for turn in episode.turns if turn.stage < stage)
                turns = max(turns, len(prefix) + len(self.stages[seed][stage]))
                specs += [
                    EpisodeSpec(
                        task=episode.task,
                        seed=seed,
                        member=derive("again", number),
                        prefix_turns=tuple(replace(turn, reward=0.0) for turn in prefix),
                        policy_map=self.seating,
                    )
                    for number in range(REDRAWS)
                ]
            for episode in self.games.rollout(max_turns=turns).run(specs):
                for turn in episode.turns:
                    if turn.stage == stage and turn.final:
                        key = (episode.seed, stage, turn.agent)
                        found.setdefault(key, []).append(turn.action or "")
        return found


def _stages(episode: Episode) -> list[dict[str, Action | None]]:
    """Return the moves of each stage."""
    found: list[dict[str, Action | None]] = []
    for turn in episode.turns:
        while len(found) <= turn.stage:
            found.append({})
        found[turn.stage][turn.agent] = turn.action
    return found


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    return measure_one(options, study)


MEASURE = Measure(
    name="influence",
    help="effect of words on the moves of others: listening, signalling, causal influence",
    target="player",
    run=from_options,
    options=PLAYING,
)
"""The measure `influence` of the command line."""
