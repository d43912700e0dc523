"""A made-up run folder in the format of training, for the tests of code that reads runs."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfplay.run.declarations import ArenaMetrics, RunMetrics, write_declared
from selfplay.types import Episode, Metric, Status, StopReason, Task, Turn, role_of, to_json

TYPES = ("deduction", "abduction", "induction")
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "</pre></details></style><svg onload=document.title='owned'> {{ 7 * 7 }} "
    "\u202egnp.exe\u202c \x1b[31m \x00 \ud800"
)


def turn(agent: str, text: str, reward: float, *, action: str | None = "", **fields: Any) -> Turn:
    ids = tuple(range(len(text.split())))
    return Turn(
        agent=agent,
        role=role_of(agent),
        policy="shared",
        version=3,
        prompt_ids=tuple(range(31)),
        completion_ids=ids,
        logprobs=(-0.5,) * len(ids),
        loss_mask=(1,) * len(ids),
        messages=fields.pop(
            "messages",
            (
                {"role": "system", "content": "You solve puzzles."},
                {"role": "user", "content": "Program:\ndef f(x):\n    return x * 3 + 1\nInput: 4"},
            ),
        ),
        text=text,
        action=text.partition("<answer>")[2].partition("</answer>")[0] if action == "" else action,
        reward=reward,
        **fields,
    )


def proposal(reward: float, **fields: Any) -> Turn:
    code = "```python\ndef f(x):\n    return x * 3 + 1\n```\n```input\n4\n```"
    text = f"<think>A line with two operators.</think>\n<answer>\n{code}\n</answer>"
    return turn("proposer_0", text, reward, **{"info": {"solve_rate": 1 - reward}, **fields})


def episode(number: int, turns: list[Turn], **fields: Any) -> Episode:
    task = Task(id=f"task-{number}", type=TYPES[number % 3])
    settings = {"status": Status.FINISHED, **fields}
    return Episode(arena="absolute_zero_v0", task=task, seed=number, turns=tuple(turns), **settings)


def episodes(hostile: str = "") -> list[Episode]:
    right = "<think>4 * 3 = 12, 12 + 1 = 13.</think>\n<answer>13</answer>"
    wrong = f"<think></think><answer>12</answer>{hostile}"
    good = [
        proposal(0.625),
        *(
            turn(
                f"solver_{i}",
                right if i % 3 == 0 else wrong,
                float(i % 3 == 0),
                info={"verdict": "wrong" if i % 3 else "correct"},
            )
            for i in range(8)
        ),
    ]
    bad = proposal(-1.0, action=None, info={"invalid": "bad_form"})
    endless = replace(
        bad,
        text="<think>So the input could be " + "very " * 60,
        stop_reason=StopReason.LENGTH,
        info={"invalid": "no_answer"},
    )
    return [
        episode(0, [endless]),
        episode(1, good),
        episode(2, [bad]),
        episode(3, [], status=Status.FAILED, error="ExecutorError: the worker died"),
    ]


ACCURACY = Metric(unit="fraction", better="higher")
REPORTED = ArenaMetrics(metrics={"accuracy": ACCURACY}, chief=("accuracy",))
DECLARED = RunMetrics(
    arena=ArenaMetrics(
        metrics={
            **dict.fromkeys(("solve_rate", "valid_proposal", "worked"), ACCURACY),
            "verdict/timeout": Metric(unit="fraction", better="lower"),
        },
        chief=("solve_rate",),
    ),
    evaluations=dict.fromkeys(("held_out_sampled", "held_out_greedy"), REPORTED),
)


def write_episodes(run: Path, step: int, hostile: str = "") -> None:
    folder = run / "episodes"
    folder.mkdir(exist_ok=True)
    lines = []
    for member, each in enumerate(episodes(hostile)):
        advantages = [round(turn.reward - 0.4, 3) for turn in each.turns]
        line = {"group": "g0", "member": member, "advantages": advantages}
        lines.append(json.dumps({**line, "episode": to_json(each)}) + "\n")
    (folder / f"{step:06d}.jsonl").write_text("".join(lines))


def row(step: int, steps: int, rng: random.Random) -> dict[str, float]:
    gone = step / steps

    def noisy(value: float, spread: float = 0.05) -> float:
        return round(value + rng.gauss(0, spread), 4)

    values = {
        "step": step,
        "seconds/rollout": noisy(2.0),
        "seconds/credit": 0.02,
        "seconds/learn": noisy(1.1),
        "seconds/total": noisy(3.2),
        "role/proposer/reward": noisy(0.2 + 0.2 * gone),
        "role/solver/reward": noisy(0.3 + 0.4 * gone),
        **{f"role/solver/reward/{t}": noisy(0.3 + 0.3 * gone) for t in TYPES},
        **{f"role/solver/verdict/{v}": noisy(0.3) for v in ("correct", "wrong", "timeout")},
        "role/proposer/valid": min(1.0, noisy(0.9 + 0.1 * gone, 0.02)),
        "role/solver/valid": min(1.0, noisy(0.95 + 0.05 * gone, 0.01)),
        "role/proposer/completion_tokens": noisy(40, 3),
        "role/solver/completion_tokens": noisy(12 + 30 * gone, 2),
        "policy/shared/loss": noisy(0.0, 0.02),
        "policy/shared/gradient_norm": abs(noisy(0.4, 0.1)),
        "policy/shared/surprisal": noisy(0.9 - 0.4 * gone, 0.03),
        "policy/shared/policy_kl": abs(noisy(0.004, 0.002)),
        "arena/valid_proposal": noisy(0.8, 0.04),
        "arena/solve_rate": noisy(0.4 + 0.3 * gone),
        "arena/worked": min(1.0, max(0.0, noisy(0.1 + 0.9 * gone))),
        **{f"arena/{t}/solve_rate": noisy(0.3 + 0.4 * gone - 0.1 * i) for i, t in enumerate(TYPES)},
        "curriculum/buffer": 64 + 30 * step,
        "curriculum/age": noisy(5, 1),
        **{f"service/executor/{r}": rng.randrange(9) for r in ("ok", "timeout", "error", "banned")},
    }
    if step % 10 == 0:
        for name, base in (("held_out_sampled", 0.15), ("held_out_greedy", 0.2)):
            values[f"evaluation/{name}/accuracy"] = noisy(base + 0.5 * gone, 0.02)
            if name == "held_out_sampled":
                for i, kind in enumerate(TYPES):
                    values[f"evaluation/{name}/{kind}/accuracy"] = noisy(base + 0.5 * gone - i / 20)
    return values


def make_run(run: Path, *, steps: int = 60, hostile: str = "", summary: bool = True) -> Path:
    """Write a run folder in the format of training, and return it."""
    run.mkdir()
    rng = random.Random(0)
    rows = [row(step, steps, rng) for step in range(1, steps + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (run / "config.yaml").write_text(
        f"name: {run.name}\nseed: 0\narena:\n  _target_: arenas.absolute_zero.arena.AbsoluteZero\n"
        f"  solvers: 8\nnote: {json.dumps(hostile)}\n"
    )
    write_declared(run, DECLARED)
    for step in (1, 2, steps // 2, steps - 1, steps):
        write_episodes(run, step, hostile)
    (run / "episodes" / f"{steps + 1:06d}.jsonl").write_text("\n")  # a step without episodes
    if summary:
        evaluations = {
            "held_out_sampled": ({"accuracy": 0.124}, {"accuracy": 0.661}),
            "held_out_greedy": (
                {"accuracy": 0.2, "reward": -0.1},
                {"accuracy": 0.7, "reward": 0.5},
            ),
        }
        for i, kind in enumerate(TYPES):
            evaluations["held_out_sampled"][0][f"{kind}/accuracy"] = 0.15 - i / 30
            evaluations["held_out_sampled"][1][f"{kind}/accuracy"] = 0.71 - i / 12
        (run / "summary.json").write_text(
            json.dumps(
                {
                    "name": run.name,
                    "experiment": "absolute_zero",
                    "steps": steps,
                    "seconds": 754.2,
                    "evaluations": {
                        n: {"before": b, "after": a} for n, (b, a) in evaluations.items()
                    },
                    "totals": {"episodes": 15360, "completion_tokens": 1234567},
                    "command": f"selfplay train +experiment=absolute_zero name={run.name} seed=0",
                    "versions": {"selfplay": "0.1.0", "torch": "2.13.0", hostile: hostile},
                }
            )
        )
    return run
