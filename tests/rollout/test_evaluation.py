"""Tests of evaluations: the same draws every time, and failures that improve no metric."""

from collections.abc import Sequence
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.credit.grpo import GRPO
from selfplay.rng import derive
from selfplay.rollout.evaluation import Evaluation
from selfplay.rollout.rollout import EpisodeSpec
from selfplay.train import Trainer
from selfplay.types import Episode, Metric, Observation, Status, Task, ToolCall
from tests.helpers.builders import episode, turn

TASKS = [Task(id="h", type="hard"), Task(id="e", type="easy")]


class Rated(Arena):
    measures = {"rate": Metric(unit="fraction", better="higher")}


def made(**changes: Any) -> Evaluation:
    settings: dict[str, Any] = {"arena": Rated, "tasks": TASKS, "metrics": {"accuracy": "rate"}}
    return Evaluation(**{**settings, **changes})


def measured(value: float | None, number: int = 0, **fields: Any) -> Episode:
    metrics = {} if value is None else {"rate": value}
    return episode(turn("solver_0"), task=TASKS[number], metrics=metrics, **fields)


def lottery(specs: Sequence[EpisodeSpec]) -> list[Episode]:
    """Return episodes whose metric depends only on the seed and the member."""
    return [
        episode(task=spec.task, metrics={"rate": Random(derive(spec.seed, spec.member)).random()})
        for spec in specs
    ]


def test_an_evaluation_without_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="tasks: there is none"):
        made(tasks=[])


def test_means_over_all_and_by_type() -> None:
    metrics = made().summarize([measured(1.0), measured(0.0), measured(0.5, 1)])
    assert metrics == {
        "accuracy": 0.5,
        "hard/accuracy": 0.5,
        "easy/accuracy": 0.5,
        "failed_episodes": 0,
        "truncated_episodes": 0,
    }


def test_tool_calls_are_counted_per_move_and_by_type() -> None:
    call = ToolCall(name="calculator", result="3")
    calling = [
        turn("solver_0", tool_calls=(call, call), final=False),
        turn("solver_0"),
        turn("solver_1"),
    ]
    called = episode(*calling, task=TASKS[0], metrics={"rate": 1.0})
    metrics = made().summarize([called, measured(1.0, 1)])
    assert metrics["tool_calls"] == pytest.approx(2 / 3)
    assert (metrics["hard/tool_calls"], metrics["easy/tool_calls"]) == (1.0, 0.0)


def test_failures_do_not_improve_a_metric() -> None:
    failed = measured(None, status=Status.FAILED)
    cut = measured(None, status=Status.TRUNCATED)
    metrics = made().summarize([measured(1.0), failed, cut, measured(1.0, status=Status.TRUNCATED)])
    assert metrics["accuracy"] == 0.5
    assert (metrics["failed_episodes"], metrics["truncated_episodes"]) == (1, 2)


def test_an_evaluation_whose_episodes_all_failed_has_no_values() -> None:
    failed = measured(None, status=Status.FAILED)
    assert made().summarize([failed, failed]) == {"failed_episodes": 2, "truncated_episodes": 0}
    metrics = made().summarize([failed, measured(1.0, 1)])
    assert (metrics["accuracy"], metrics["easy/accuracy"]) == (0.5, 1.0)
    assert "hard/accuracy" not in metrics, "all episodes of the type failed"


@pytest.mark.parametrize(
    "declared",
    [
        {"rate": Metric(unit="fraction", better="lower")},
        {"rate": Metric(unit="count")},
        {"another": Metric(unit="count", better="higher")},
    ],
    ids=["lower is better", "no direction", "not declared"],
)
def test_failures_count_as_0_only_if_higher_is_better(
    declared: dict[str, Metric],
) -> None:
    class Counting(Arena):
        measures = declared

    failed = measured(0.0, status=Status.FAILED)
    cut = measured(None, status=Status.TRUNCATED)
    evaluation = made(arena=Counting)
    metrics = evaluation.summarize([measured(0.5), failed, cut, measured(1.0)])
    assert metrics["accuracy"] == metrics["hard/accuracy"] == 0.75
    assert (metrics["failed_episodes"], metrics["truncated_episodes"]) == (1, 1)
    assert "accuracy" not in evaluation.summarize([failed, cut])
    measured_cut = measured(1.0, status=Status.TRUNCATED)
    assert evaluation.summarize([measured(0.5), measured_cut])["accuracy"] == 0.75


def test_an_episode_without_the_metric_is_not_judged_by_it() -> None:
    """A refused proposal has no solve rate."""
    assert made().summarize([measured(1.0), measured(None)])["accuracy"] == 1
    assert "accuracy" not in made().summarize([measured(None)])


def test_truncated_episodes_add_no_metric_that_finished_ones_lack() -> None:
    cut, failed = (measured(None, status=each) for each in (Status.TRUNCATED, Status.FAILED))
    metrics = made().summarize([measured(None), cut, failed])
    assert metrics == {"failed_episodes": 1, "truncated_episodes": 1}
    # The finished task of the type `hard` has none; that of the type `easy` does.
    metrics = made().summarize([measured(None), cut, measured(1.0, 1)])
    assert "hard/accuracy" not in metrics
    assert (metrics["accuracy"], metrics["easy/accuracy"]) == (0.5, 1.0)
    assert made().summarize([cut])["accuracy"] == 0, (
        "no finished episode shows that the metric is missing"
    )


def test_a_metric_that_no_finished_episode_has_is_named() -> None:
    evaluation = made(metrics={"accuracy": "raet", "rate": "rate"})
    (line,) = evaluation.unmeasured("held_out", [measured(1.0), measured(None)])
    assert line.startswith("evaluations.held_out.metrics.accuracy: none of 2 finished episodes")
    assert line.endswith("did you mean 'rate'?")
    assert made().unmeasured("held_out", [measured(1.0), measured(None)]) == []
    failed = measured(None, status=Status.FAILED)
    assert evaluation.unmeasured("held_out", [failed]) == [], (
        "no finished episode shows that the metric is missing"
    )


def test_only_the_first_evaluation_reports_a_missing_metric() -> None:
    notes: list[str] = []
    progress: Any = SimpleNamespace(
        phase=lambda text: None, note=notes.append, evaluation=lambda *rest: None
    )
    experiment: Any = SimpleNamespace(
        evaluations={"held_out": (made(metrics={"accuracy": "raet"}), lottery)},
        players=SimpleNamespace(drain_counts=dict),
        batches=SimpleNamespace(paused=nullcontext),
        credit=GRPO(),
        seed=0,
    )
    run: Any = None  # evaluating writes nothing
    for when in ("before", "now", "after"):
        Trainer(experiment, run, progress).evaluate(when)
    (line,) = notes
    assert "evaluations.held_out.metrics.accuracy" in line


def test_the_fraction_of_distinct_created_tasks() -> None:
    def created(*names: str) -> Episode:
        return measured(1.0, created=tuple(Task(id=name) for name in names))

    metrics = made().summarize([created("x"), created("x", "y"), created(), created("x")])
    assert metrics["distinct_created"] == 0.5
    assert "distinct_created" not in made().summarize([created()])


def test_the_same_seed_gives_the_same_metrics() -> None:
    evaluation = made(samples=3)
    first, episodes = evaluation.run("held_out", lottery, seed=1)
    assert len(episodes) == 6 and len({e.metrics["rate"] for e in episodes}) == 6
    assert evaluation.run("held_out", lottery, seed=1)[0] == first
    assert evaluation.run("held_out", lottery, seed=2)[0] != first
    assert evaluation.run("other", lottery, seed=1)[0] != first


def test_a_task_that_is_listed_twice_is_sampled_afresh() -> None:
    _, episodes = made(tasks=[TASKS[0]] * 3, samples=2).run("x", lottery, seed=0)
    assert len({e.metrics["rate"] for e in episodes}) == 6


def test_settings_that_make_no_sense_are_refused() -> None:
    wrong = (
        ({"samples": 0}, "at least 1"),
        ({"temperature": -1.0}, "0 is"),
        ({"every": -1}, "every"),
    )
    for changes, message in wrong:
        with pytest.raises(ValueError, match=message):
            made(**changes)


def test_a_match_without_a_second_seat_is_refused() -> None:
    class One(Arena):
        roles = {"solver": 1}

    with pytest.raises(ValueError, match=r"a match needs two seats, and there is \['solver_0'\]"):
        made(arena=One, opponents=["random"])
    with pytest.raises(ValueError, match="two seats"):
        made(arena=lambda: Arena({"solver": 2}), opponents=["x"], seats=["solver_0", "solver_0"])
    made(arena=One, seats=["solver_0"])


class Dice(Arena):
    """A die game. With `late`, the die is thrown and paid after the move; else it is shown."""

    name = "dice_v0"
    roles = {"solver": 1}

    def __init__(self, *, sides: int = 6, late: bool = True) -> None:
        super().__init__()
        self.sides, self.late = sides, late

    def setup(self, task: Task, rng: Random) -> None:
        self.shown = 0 if self.late else rng.randint(1, self.sides)

    def acting(self) -> Sequence[str]:
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        return Observation(fields={"shown": self.shown})

    def advance(self, actions: Any) -> None:
        if self.late:
            self.pay("solver_0", self.rng.randint(1, self.sides))
        self.finish()


def seeds(evaluation: Evaluation) -> list[int]:
    asked: list[int] = []

    def play(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        asked.extend(spec.seed for spec in specs)
        return lottery(specs)

    evaluation.run("held_out", play, seed=1)
    return asked


def test_samples_share_their_draws_unless_each_has_its_own() -> None:
    shared, own = seeds(made(samples=3)), seeds(made(samples=3, same_draws=False))
    assert len(shared) == 6 and len(set(shared)) == 2
    assert len(set(own)) == 6 and own == seeds(made(samples=3, same_draws=False))
    assert shared[0] == derive(1, "evaluation", "held_out", "h"), "seeds of earlier runs stay valid"
    assert len(set(seeds(made(tasks=[TASKS[0]] * 3, samples=2, same_draws=False)))) == 6


@pytest.mark.parametrize("late", [True, False])
def test_samples_with_the_same_draws_are_reported(late: bool) -> None:
    played = [episode(turn("solver_0"), task=TASKS[0])]

    def lines(sides: int = 6, tasks: Sequence[Task] = TASKS[:1], **changes: Any) -> list[str]:
        settings = {"arena": lambda: Dice(sides=sides, late=late), "tasks": tasks, "samples": 50}
        return made(**{**settings, **changes}).repeated_draws("dice", played)

    (line,) = lines()
    assert line.startswith("evaluations.dice: all 50 samples of its only task 'h' have the same")
    assert line.endswith("evaluations.dice.same_draws=false gives each sample its own")
    for fine in (
        lines(sides=1),
        lines(samples=1),
        lines(tasks=TASKS),
        lines(same_draws=False),
    ):
        assert fine == []
