"""Ablation of messages: what the team loses when words no longer reach the others.

**Definition.** The mean of R(intact) - R(ablated) over episodes that are the same but for what is
heard. drop: nothing is heard. shuffle: the words of another episode of the batch are heard, by a
random derangement, so that the words stay in the language and lose their occasion. replace: words
of an episode of another task are heard, a lie in the speaker's own language. A speaker's n-th
words are replaced by its n-th words in the other episode, at whatever stage it said them, because
the order of speaking may differ. If it spoke fewer than n times there, nothing is heard; the
fraction of such words is reported. Speakers keep what they said in view in all three.

**Source.** Causal tests of emergent communication as in Lowe et al. 2019, 1903.05168.

**Estimator.** Paired differences over the same tasks, seeds and samples of the first words, with
the bootstrap of `intervals`, cut at the range of the metric in these games. Unbiased for these
policies.

**Limits.** What is heard under drop is something that no agent was trained on: an effect of drop
without one of shuffle says that the form broke, not that information was used. No effect is no
proof of no communication: what is said may be known anyway. Words are replaced in all rounds.
"""

import numpy as np

from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.study.communication import Alter, HeardMessage, MessageSwap, intact, silent, through
from selfplay.study.matches import StudyMatches
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import IntervalPlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws
from selfplay.study.stats.pairs import differences, span_of
from selfplay.types import Episode

MEANING = {
    "drop": "nothing is heard",
    "shuffle": "words of another episode are heard",
    "replace": "words of an episode of another task are heard",
}

MOST_UNMATCHED = 0.05
"""Fraction of words without a counterpart above which a note says so."""


def study(games: StudyMatches, player: StudyPlayer) -> Result:
    """Play intact, then with each ablation."""
    seating = player.seats(games.agents)
    record: list[HeardMessage] = []
    episodes = games.run(seating, arena=through(games.arena, intact, record))
    check_speaks(games, record, "ablate")
    draws, whole = games.draws(episodes), games.scores(episodes)
    rows: list[list[Cell]] = []
    estimates = []
    notes = [*games.notes]
    unmatched: dict[str, float] = {}
    for name, alter in ablations(episodes, record, seed=games.seed).items():
        ablated = games.run(seating, arena=through(games.arena, alter))
        notes += broken(name, ablated)
        values = games.scores(ablated)
        meaning = MEANING[name]
        if isinstance(alter, MessageSwap):
            meaning += f"; {100 * alter.unmatched:.3g} % of words found none and were silence"
            unmatched[name] = alter.unmatched
        bounds = differences(span_of([whole, values]))
        estimates.append(
            draws.mean(f"{name}: lost", whole - values, null=0.0, bounds=bounds, notes=meaning)
        )
        rows.append(_row(name, draws, values))
    if len(games.metrics) > 1 and not any(np.any([e.value, e.low, e.high]) for e in estimates):
        notes.append(
            f"{games.metrics[0]} is the same in every episode, whatever is heard; if it is settled "
            f"before anybody hears, name another, such as --metric {games.metrics[1]}"
        )
    if "replace" not in (row[0] for row in rows):
        notes.append("replace needs episodes of two tasks, and these are of one: left out")
    notes += [
        f"{name}: {100 * fraction:.3g} % of words found no words of their speaker in the other "
        "episode, so that they were silence: read it with drop"
        for name, fraction in unmatched.items()
        if fraction > MOST_UNMATCHED
    ]
    return Result(
        measure="ablate",
        title=f"What words are worth to {player.label} in {games.arena().name}",
        definition=f"{games.metrics[0]} intact less {games.metrics[0]} when the others hear "
        "nothing (drop), what was said in another episode (shuffle), or what was said of another "
        "task (replace).",
        estimates=estimates,
        tables=[
            Table(
                title=f"{games.metrics[0]} by what is heard",
                columns=["heard", games.metrics[0], "low", "high"],
                rows=[_row("intact", draws, whole), *rows],
            ),
            examples(record),
        ],
        drawings=[
            IntervalPlot(
                title=f"Lost of {games.metrics[0]}, with 95 % intervals",
                estimates=estimates,
                null=0.0,
            )
        ],
        params={**games.record(), "words_that_found_none": unmatched},
        notes=notes,
    )


def ablations(
    episodes: list[Episode], record: list[HeardMessage], *, seed: int
) -> dict[str, Alter]:
    """What is heard in place of the words of each of these episodes."""
    tasks = {episode.seed: episode.task.id for episode in episodes}
    found: dict[str, Alter] = {"drop": silent}
    if len(tasks) > 1:
        found["shuffle"] = MessageSwap(record, derangement(list(tasks), seed=seed))
    if len(set(tasks.values())) > 1:
        found["replace"] = MessageSwap(record, strangers(tasks, seed=seed))
    return found


def derangement(seeds: list[int], *, seed: int) -> dict[int, int]:
    """Each to another one: all of them in a random ring, so that none is its own partner."""
    order = np.random.default_rng(derive(seed, "shuffle")).permutation(len(seeds))
    ring = [seeds[place] for place in order]
    return dict(zip(ring, [*ring[1:], ring[0]], strict=True))


def strangers(tasks: dict[int, str], *, seed: int) -> dict[int, int]:
    """Each to a random one whose task is another."""
    rng = np.random.default_rng(derive(seed, "replace"))
    others = {
        task: [each for each, other in tasks.items() if other != task]
        for task in set(tasks.values())
    }
    return {each: others[task][rng.integers(len(others[task]))] for each, task in tasks.items()}


def check_speaks(games: StudyMatches, record: list[HeardMessage], measure: str) -> None:
    """Raise ConfigError where nobody has said anything to anybody."""
    if not record:
        raise ConfigError(
            f"{measure}: in {games.arena().name}, as this run configures it, no move is words to "
            "others; measure a game that has them, such as arena=signal or arena=debate"
        )


def broken(name: str, episodes: list[Episode]) -> list[str]:
    """A line about the episodes that failed under an ablation."""
    errors = [episode.error for episode in episodes if episode.error]
    if not errors:
        return []
    return [f"{name}: {len(errors)} of {len(episodes)} episodes failed ({errors[0]})"]


def examples(record: list[HeardMessage], most: int = 12) -> Table:
    """The commonest words, with what their speakers saw."""
    counts: dict[tuple[str, str, str], int] = {}
    for words in record:
        key = (words.speaker, words.seen[:80], words.text[:80])
        counts[key] = counts.get(key, 0) + 1
    common = sorted(counts.items(), key=lambda item: -item[1])[:most]
    return Table(
        title="What was said most",
        columns=["speaker", "saw", "said", "times"],
        rows=[[*key, count] for key, count in common],
    )


def _row(name: str, draws: Draws, values: np.ndarray) -> list[Cell]:
    found = draws.mean(name, values)
    return [name, found.value, found.low, found.high]
