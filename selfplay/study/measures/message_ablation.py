"""Ablation of messages: the loss of the team when the original words do not reach the others.

**Definition.** The mean of R(intact) - R(ablated) over episodes that differ only in the messages
that are heard. drop: nothing is heard. shuffle: the messages of another episode of the batch are
heard, by a random derangement, so the language is intact but the messages do not fit the situation.
replace: messages of an episode of another task are heard, a lie in the speaker's own language. A
speaker's n-th message is replaced by its n-th message in the other episode, regardless of the
stage, because the order of speaking may differ. If the speaker has fewer than n messages there,
nothing is heard; the fraction of such messages is reported. In all three ablations, speakers still
see their own original words.

**Source.** Causal tests of emergent communication as in Lowe et al. 2019, 1903.05168.

**Estimator.** Paired differences over the same tasks, seeds and samples of the first words, with
the bootstrap of `selfplay.study.stats.bootstrap`, cut at the range of the metric in these games.
Unbiased for these policies.

**Limits.** No agent was trained with the silence of drop. An effect of drop without an effect of
shuffle therefore shows that the form of the prompt broke, not that information was used. The
absence of an effect does not prove the absence of communication: the listeners may already know
the content. Messages are replaced in all rounds.
"""

import argparse

import numpy as np

from selfplay.errors import ConfigError
from selfplay.rng import derive
from selfplay.study.communication import Alter, HeardMessage, MessageSwap, intact, silent, through
from selfplay.study.matches import StudyMatches
from selfplay.study.measure import PLAYING, Measure, measure_one
from selfplay.study.players import StudyPlayer
from selfplay.study.plots import IntervalPlot
from selfplay.study.result import Cell, Result, Table
from selfplay.study.stats.bootstrap import Draws
from selfplay.study.stats.pairs import differences, span_of
from selfplay.types import Episode, Status

MEANING = {
    "drop": "nothing is heard",
    "shuffle": "words of another episode are heard",
    "replace": "words of an episode of another task are heard",
}
"""Ablation to what the other agents hear."""

MOST_UNMATCHED = 0.05
"""Fraction of messages without a counterpart above which a note reports it."""


def study(games: StudyMatches, player: StudyPlayer) -> Result:
    """Play with the original messages, then with each ablation, and return the losses.

    Raises ConfigError if the games have no messages.
    """
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
            meaning += f"; {100 * alter.unmatched:.3g} % of words had no counterpart: silence"
            unmatched[name] = alter.unmatched
        bounds = differences(span_of([whole, values]))
        estimates.append(
            draws.mean(f"{name}: lost", whole - values, null=0.0, bounds=bounds, notes=meaning)
        )
        rows.append(_row(name, draws, values))
    if len(games.metrics) > 1 and not any(np.any([e.value, e.low, e.high]) for e in estimates):
        notes.append(
            f"{games.metrics[0]} is the same in every episode, whatever is heard; if it is decided "
            f"before any message, name another metric, such as --metric {games.metrics[1]}"
        )
    if "replace" not in (row[0] for row in rows):
        notes.append("replace is left out: it needs episodes of two tasks, and there is one task")
    notes += [
        f"{name}: {100 * fraction:.3g} % of words had no counterpart in the other episode and were "
        "replaced by silence: compare with drop"
        for name, fraction in unmatched.items()
        if fraction > MOST_UNMATCHED
    ]
    return Result(
        measure="ablate",
        title=f"Value of words to {player.label} in {games.arena().name}",
        definition=f"{games.metrics[0]} intact minus {games.metrics[0]} when the others hear "
        "nothing (drop), the words of another episode (shuffle), or the words of an episode of "
        "another task (replace).",
        estimates=estimates,
        tables=[
            Table(
                title=f"{games.metrics[0]} by ablation",
                columns=["heard", games.metrics[0], "low", "high"],
                rows=[_row("intact", draws, whole), *rows],
            ),
            examples(record),
        ],
        drawings=[
            IntervalPlot(
                title=f"Loss of {games.metrics[0]}, with 95 % intervals",
                estimates=estimates,
                label=f"loss of {games.metrics[0]}",
                null=0.0,
            )
        ],
        params={**games.record(), "words_that_found_none": unmatched},
        notes=notes,
    )


def ablations(
    episodes: list[Episode], record: list[HeardMessage], *, seed: int
) -> dict[str, Alter]:
    """Return the ablations that are possible for these episodes, by name.

    `record` has the original messages of the episodes; `seed` draws the other episodes.
    """
    tasks = {episode.seed: episode.task.id for episode in episodes}
    found: dict[str, Alter] = {"drop": silent}
    if len(tasks) > 1:
        found["shuffle"] = MessageSwap(record, derangement(list(tasks), seed=seed))
    if len(set(tasks.values())) > 1:
        found["replace"] = MessageSwap(record, strangers(tasks, seed=seed))
    return found


def derangement(seeds: list[int], *, seed: int) -> dict[int, int]:
    """Return a partner for each seed: a random ring, so that no seed is its own partner."""
    order = np.random.default_rng(derive(seed, "shuffle")).permutation(len(seeds))
    ring = [seeds[place] for place in order]
    return dict(zip(ring, [*ring[1:], ring[0]], strict=True))


def strangers(tasks: dict[int, str], *, seed: int) -> dict[int, int]:
    """Return for each seed a random seed of another task."""
    rng = np.random.default_rng(derive(seed, "replace"))
    others = {
        task: [each for each, other in tasks.items() if other != task]
        for task in set(tasks.values())
    }
    return {each: others[task][rng.integers(len(others[task]))] for each, task in tasks.items()}


def check_speaks(games: StudyMatches, record: list[HeardMessage], measure: str) -> None:
    """Raise ConfigError if there was no message."""
    if not record:
        raise ConfigError(
            f"{measure}: in {games.arena().name}, as this run configures it, no move is a message "
            "to others; measure a game with messages, such as arena=signal or arena=debate"
        )


def broken(name: str, episodes: list[Episode]) -> list[str]:
    """Return a line about the episodes that failed under an ablation; [] if none failed."""
    errors = [each.error for each in episodes if each.status is Status.FAILED]
    if not errors:
        return []
    return [f"{name}: {len(errors)} of {len(episodes)} episodes failed ({errors[0]})"]


def examples(record: list[HeardMessage], most: int = 12) -> Table:
    """Return a table of the `most` commonest messages with their speakers' observations."""
    counts: dict[tuple[str, str, str], int] = {}
    for words in record:
        key = (words.speaker, words.seen[:80], words.text[:80])
        counts[key] = counts.get(key, 0) + 1
    common = sorted(counts.items(), key=lambda item: -item[1])[:most]
    return Table(
        title="Most frequent messages",
        columns=["speaker", "saw", "said", "times"],
        rows=[[*key, count] for key, count in common],
    )


def _row(name: str, draws: Draws, values: np.ndarray) -> list[Cell]:
    found = draws.mean(name, values)
    return [name, found.value, found.low, found.high]


def from_options(options: argparse.Namespace) -> Result:
    """Compute the measure from the options of the command line."""
    return measure_one(options, study)


MEASURE = Measure(
    name="ablate",
    help="loss when messages are dropped, shuffled or replaced",
    target="player",
    run=from_options,
    options=PLAYING,
)
"""The measure `ablate` of the command line."""
