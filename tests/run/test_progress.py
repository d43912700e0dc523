"""Tests of progress output: a panel on a terminal, and plain lines everywhere else."""

import io
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from rich.console import Console

from selfplay.run.activity import ACTIVITY
from selfplay.run.declarations import ArenaMetrics, RunMetrics
from selfplay.run.progress import Progress
from selfplay.types import Metric

ACCURACY = Metric(unit="fraction", better="higher")
DECLARED = RunMetrics(
    evaluations={"held_out": ArenaMetrics(metrics={"accuracy": ACCURACY}, chief=("accuracy",))}
)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def metrics(step: int) -> dict[str, float]:
    return {
        "step": step,
        "seconds/total": 3.0,
        "role/proposer/reward": 0.1 * step,
        "role/solver/reward": 0.5,
        "role/solver/valid": 0.98,
        "role/solver/completion_tokens": 24.0,
        "policy/shared/loss": -0.01,
        "policy/shared/surprisal": 0.7,
        "arena/solve_rate": 0.4,
        "arena/deduction/solve_rate": 0.6,
    }


def terminal(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=60, _environ={})


def pipe(encoding: str = "utf-8") -> tuple[Console, io.BytesIO]:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    return Console(file=stream, width=40, _environ={}), raw


def run(console: Console, steps: int = 40, **settings: Any) -> Progress:
    clock = Clock()
    with Progress(steps, "zero", console, clock=clock, **settings) as progress:
        progress.declared = DECLARED
        progress.phase("warm start")
        progress.evaluation("held_out", "before", {"accuracy": 0.12, "deduction/accuracy": 0.1})
        for step in range(1, steps + 1):
            ACTIVITY.begin("rollout")
            clock.now += 3.0
            progress.step(metrics(step))
        progress.evaluation("held_out", "after", {"accuracy": 0.66})
        progress.note("saved [bold]report.html")
    return progress


def shown(progress: Progress, width: int = 100) -> str:
    """Return the panel as text."""
    console = Console(file=io.StringIO(), width=width, height=60, _environ={})
    console.print(progress)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_pipe_gets_plain_lines_every_n_steps() -> None:
    console, raw = pipe()
    run(console, every=10)
    text = raw.getvalue().decode()
    assert all(character.isprintable() or character == "\n" for character in text)
    lines = text.splitlines()
    steps = [line for line in lines if ": step " in line]
    assert [line.split("|")[0] for line in steps] == [
        f"zero: step {step}/40 " for step in (1, 10, 20, 30, 40)
    ]
    assert "3 s/step, 1 min 30 s left" in steps[1]
    assert "proposer reward 1" in steps[1] and "solver reward 0.500 parsed 98.0%" in steps[1]
    assert "zero: evaluation held_out (before)  accuracy 12.0%" in lines
    assert "zero: saved [bold]report.html" in lines and "zero: warm start" in lines
    assert not any("rollout" in line for line in lines)
    assert lines[-1] == "zero: finished at step 40/40 after 2 min 00 s"


def test_a_plain_line_has_the_illegal_moves_of_its_step() -> None:
    console, raw = pipe()
    with Progress(3, "zero", console, every=1) as progress:
        for step, illegal in enumerate([0.25, 0.0], start=1):
            progress.step({**metrics(step), "role/solver/verdict/illegal": illegal})
        progress.step(metrics(3))
    first, second, third = [line for line in raw.getvalue().decode().splitlines() if "| " in line]
    assert "solver reward 0.500 parsed 98.0% illegal 25.0%" in first
    assert "illegal" not in second + third


def test_ascii_pipe_gets_only_ascii() -> None:
    console, raw = pipe("ascii")
    with Progress(2, "caf\u00e9\x1b[2J\n", console) as progress:
        progress.note("\u2028done")
    assert raw.getvalue().isascii() and b"\x1b" not in raw.getvalue()
    assert b"caf\\xe9" in raw.getvalue() and len(raw.getvalue().splitlines()) == 3


def test_pipe_gets_no_cursor_movement_even_if_colour_is_forced() -> None:
    code = (
        "from selfplay.run.progress import Progress\n"
        "with Progress(1, 'x') as p: p.step({'step': 1})"
    )
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0 and b"\x1b" not in done.stdout and b"step 1/1" in done.stdout


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, selfplay.run.progress; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_terminal_gets_a_panel_with_metrics_per_role_and_policy() -> None:
    console = terminal()
    progress = run(console)
    assert progress.live
    text = shown(progress)
    for words in (
        "zero",
        "step 40/40",
        "finished",
        "proposer",
        "solver",
        "98.0%",
        "deduction",
        "shared",
        "-0.010",
        "\u2581\u2582",
        "held out",
        "12.0%",
        "66.0%",
        "+54.0",
        "2 min 00 s",
    ):
        assert words in text, words
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[" in drawn and "saved [bold]report.html" in drawn


@pytest.mark.parametrize("width", [24, 40, 60, 80, 200])
def test_panel_fits_any_width(width: int) -> None:
    text = shown(run(terminal(width)), width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_live_false_is_plain_on_a_terminal_too() -> None:
    console = terminal()
    assert not run(console, live=False).live
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_failure_is_named_and_not_swallowed() -> None:
    console, raw = pipe()
    with pytest.raises(KeyError), Progress(9, "zero", console):
        raise KeyError("x")
    assert b"stopped with an error at step 0/9" in raw.getvalue()
    with pytest.raises(KeyboardInterrupt), Progress(9, "zero", console):
        raise KeyboardInterrupt
    assert b"zero: interrupted at step 0/9" in raw.getvalue()
    with pytest.raises(KeyError), Progress(9, "zero", terminal()) as progress:
        raise KeyError("x")
    assert "stopped with an error" in shown(progress)


def test_resumed_run_counts_from_its_step_and_measures_a_new_speed() -> None:
    console, raw = pipe()
    clock = Clock()
    with Progress(100, "zero", console, every=1, clock=clock) as progress:
        clock.now += 2.0
        progress.step({"step": 91})
    assert b"step 91/100 | 2 s/step, 18 s left" in raw.getvalue()
    with pytest.raises(KeyboardInterrupt), Progress(100, "zero", console, done=90):
        raise KeyboardInterrupt  # while the models are loaded
    assert b"zero: interrupted at step 90/100" in raw.getvalue()
    unnumbered = Progress(3, "x", console)
    unnumbered.step({})
    assert unnumbered.done == 1


def test_a_run_without_metrics_is_still_shown() -> None:
    progress = Progress(0, "empty", terminal())
    assert "step 0/0" in shown(progress)
    progress.step(
        {"step": 1, "role/a/reward": float("nan"), "role/a/odd": float("inf"), "alone": 1}
    )
    progress.evaluation("e", "before", {})
    assert " -" in shown(progress)


def test_threads_may_report_while_the_panel_is_drawn() -> None:
    progress = Progress(4000, "zero", terminal())

    def report() -> None:
        for step in range(1, 1000):
            progress.step({f"role/r{step % 7}/m{step % 5}": 1.0})

    threads = [threading.Thread(target=report) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        shown(progress)
    assert progress.done == 1998


def test_a_value_of_an_older_step_names_its_step() -> None:
    console, raw = pipe()
    with Progress(2, "zero", console, every=1) as progress:
        progress.step({"step": 1, "role/solver/reward": 0.5, "role/solver/valid": 0.25})
        progress.step({"step": 2, "role/solver/reward": 0.75})
    last = next(line for line in raw.getvalue().decode().splitlines() if ": step 2" in line)
    assert "solver reward 0.750 parsed 25.0% (step 1)" in last
    panel = shown(progress)
    assert "25.0% (step 1)" in panel and "parsed" in panel and "valid" not in panel


def test_the_panel_begins_with_the_chief_metric_and_colours_by_direction() -> None:
    fault = Metric(unit="fraction", better="lower")
    chief = ("versus/minimax/return",)
    declared = RunMetrics(evaluations={"e": ArenaMetrics(metrics={"illegal": fault}, chief=chief)})
    console = terminal()
    with Progress(1, "zero", console) as progress:
        progress.declared = declared
        for when, value in (("before", 0.25), ("after", 0.5)):
            values = {"illegal": value, "moves": 7.0, "versus/minimax/return": value}
            progress.evaluation("e", when, values)
    lines = [line for line in shown(progress).splitlines() if " e " in line]
    assert "versus, minimax, return" in lines[0] and "+0.250" in lines[0]
    assert "illegal" in lines[1] and "+25.0 pts" in lines[1] and len(lines) == 2
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m+25.0 pts" in drawn  # more illegal moves are worse


def test_a_long_name_is_cut_after_the_first_line() -> None:
    console, raw = pipe()
    name = "tiny-kuhn-seed0-" + "x" * 134
    with Progress(1, name, console) as progress:
        progress.step({"step": 1})
        progress.note("saved")
    first, *others = raw.getvalue().decode().splitlines()
    assert first == f"{name}: 1 step" and len(others) == 3
    assert all(line.startswith(f"{name[:37]}...: ") for line in others)


def test_a_type_of_task_that_repeats_all_tasks_has_no_row() -> None:
    progress = Progress(9, "zero", terminal())
    for step in (1, 2):
        progress.step({"step": step, "arena/pay": step, "arena/default/pay": step})
    assert "default" not in shown(progress) and "all" in shown(progress)
    progress.step({"step": 3, "arena/pay": 3.0, "arena/default/pay": 2.0})
    assert "default" in shown(progress), "the values are different now"


def test_names_of_metrics_wrap_where_there_is_little_room() -> None:
    progress = Progress(9, "zero", terminal(60))
    names = ("bets", "illegal", "illegal_fraction", "player_0_payoff")
    progress.step({"step": 1, **{f"arena/hard/{name}": 1.5 for name in names}})
    text = shown(progress, 60)
    assert "\u2026" not in text and "fraction" in text and "payoff" in text
    assert text.count("1.50") == 4
