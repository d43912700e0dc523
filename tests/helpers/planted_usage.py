"""Run folders with planted codes and strategies, for the tests of language and behaviour."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay.types import Episode, Status, Task, Turn, role_of, to_json


def turn(agent: str, saw: str, action: str | None, stage: int, **fields: Any) -> Turn:
    """Return a turn with one completion token and this view and action."""
    return Turn(
        agent=agent,
        role=role_of(agent),
        policy="base",
        version=0,
        prompt_ids=(1,),
        completion_ids=(2,),
        logprobs=(-0.5,),
        loss_mask=(1,),
        messages=({"role": "system", "content": "rules"}, {"role": "user", "content": saw}),
        text=action or "",
        action=action,
        stage=stage,
        **fields,
    )


def episode(turns: Sequence[Turn], number: int, **fields: Any) -> Episode:
    settings = {"status": Status.FINISHED, **fields}
    return Episode(arena="made", task=Task(id="t"), seed=number, turns=tuple(turns), **settings)


def write_step(run: Path, step: int, episodes: Sequence[Episode]) -> None:
    """Record a step, all episodes in one group."""
    (run / "episodes").mkdir(parents=True, exist_ok=True)
    if not (run / "config.yaml").exists():
        (run / "config.yaml").write_text("seed: 0\n")
    lines = [
        {"group": f"{step}.0.0", "member": n, "episode": to_json(each), "advantages": []}
        for n, each in enumerate(episodes)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "episodes" / f"{step:06d}.jsonl").write_text(text)


def code(
    run: Path,
    step: int,
    chances: Mapping[str, Mapping[str, float]],
    *,
    count: int = 400,
    kind: str = "message",
) -> None:
    """Record a step in which scout_0 draws a word with the probabilities of its view."""
    rng, episodes = random.Random(f"{step}-{kind}"), []
    views = list(chances)
    fields: dict[str, Any] = {"spoken": True} if kind == "message" else {"legal": ("x", "y")}
    for number in range(count):
        saw = views[number % len(views)]
        words = chances[saw]
        (said,) = rng.choices(list(words), list(words.values()))
        episodes.append(episode([turn("scout_0", saw, said, 0, **fields)], number))
    write_step(run, step, episodes)


def repeated(
    run: Path, step: int, vectors: Mapping[str, Mapping[str, float]], *, games: int, rounds: int
) -> None:
    """Record games in which each player cooperates with a probability set by the last moves.

    `vectors` has the probabilities by agent and by state: "" in the first round, and "CC", "CD",
    "DC" or "DD" (own move, other's move) in later rounds.
    """
    rng, episodes = random.Random(step), []
    names = {"C": "cooperate", "D": "defect"}
    first, second = vectors
    for number in range(games):
        turns: list[Turn] = []
        last = {first: "", second: ""}
        for stage in range(rounds):
            made = {}
            for agent, other in ((first, second), (second, first)):
                state = last[agent] + last[other]
                move = "C" if rng.random() < vectors[agent][state] else "D"
                legal = tuple(names.values())
                turns.append(turn(agent, f"round {stage}", names[move], stage, legal=legal))
                made[agent] = move
            last = made
        episodes.append(episode(turns, number))
    write_step(run, step, episodes)
