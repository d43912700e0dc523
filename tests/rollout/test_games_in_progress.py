"""Tests of an engine with a full batch: it finishes games before it begins others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.engines import Engine, request_queue
from selfplay.engines.request_queue import RequestQueue
from selfplay.engines.transformers import TransformersEngine
from selfplay.models.renderer import ByteRenderer, ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.types import Action, Completion, Episode, Observation, Request, StopReason, Task

ROWS, GAMES, MOVES = 3, 12, 4


class Walk(Arena):
    """A conversation of four moves, or of the number that the task sets."""

    name = "walk"
    roles = {"player": 1}

    def setup(self, task: Task, rng: Random) -> None:
        self.made = 0

    def acting(self) -> Sequence[str]:
        return ["player_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text=f"{self.seed}, {self.made}")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.made += 1
        if self.made == self.task.payload.get("moves", MOVES):
            self.finish()


class Waiting(Walk):
    blocking = True


class Narrow(Engine):
    """An engine that samples a few requests at once; each takes 1 to 4 steps, by its seed."""

    def __init__(self, rows: int = ROWS, *, known: bool = True) -> None:
        """`known`: True if the rollout may know which requests wait."""
        self.rows, self.known = rows, known
        self.queue = RequestQueue()
        self.left: dict[int, int] = {}
        self.began: list[tuple[int, int]] = []
        """(group, turns taken) of the requests in the order in which they got a row."""

    def add(self, request: Request) -> None:
        self.queue.add(request)

    def waiting_ids(self) -> list[int]:
        return self.queue.ids() if self.known else []

    def step(self) -> list[Completion]:
        while self.queue and len(self.left) < self.rows:
            request = self.queue.pop()
            self.began.append((request.group_seed, request.turns_taken))
            self.left[request.id] = 1 + request.seed % 4
        self.left = {number: left - 1 for number, left in self.left.items()}
        done = [number for number, left in self.left.items() if not left]
        for number in done:
            del self.left[number]
        return [
            Completion(
                id=number,
                completion_ids=(1,),
                logprobs=(0.0,),
                stop_reason=StopReason.STOP,
                text="go",
            )
            for number in done
        ]

    def open_games(self) -> int:
        """Return the largest number of games that had begun and not begun their last turn."""
        taken: dict[int, int] = {}
        most = 0
        for game, turns in self.began:
            taken[game] = turns
            most = max(most, sum(turns < MOVES - 1 for turns in taken.values()))
        return most


def arrival(request: Request) -> tuple[int, int]:
    return 0, request.id


def asked_specs(count: int = GAMES) -> list[EpisodeSpec]:
    return [EpisodeSpec(task=Task(id="t"), seed=seed) for seed in range(count)]


def play(
    engine: Engine, arena: type[Arena] = Walk, specs: Sequence[EpisodeSpec] = (), **settings: Any
) -> list[Episode]:
    agent_spec = AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
    rollout = Rollout(
        arena=arena,
        agent_specs={"player": agent_spec},
        engines={"p": engine},
        settings=RolloutSettings(**settings),
    )
    return rollout.run(specs or asked_specs())


def test_games_in_progress_come_first_and_all_games_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide, narrow, fifo = Narrow(GAMES), Narrow(), Narrow()
    wanted = play(wide)
    assert play(narrow) == wanted
    assert narrow.open_games() == ROWS
    # A new game never gets a row before a game in progress.
    for place, (_, turns) in enumerate(narrow.began[ROWS:], ROWS):
        if turns == 0:
            running = {game for game, taken in narrow.began[:place] if taken == MOVES - 1}
            begun = {game for game, _ in narrow.began[:place]}
            assert len(begun - running) < ROWS
    monkeypatch.setattr(request_queue, "order", arrival)
    assert play(fifo) == wanted
    assert fifo.open_games() == GAMES
    assert {turns for _, turns in fifo.began[:GAMES]} == {0}


def test_a_game_with_only_replayed_turns_is_not_in_progress() -> None:
    (whole,) = play(Narrow(), specs=asked_specs(1))
    branch = replace(asked_specs(1)[0], member=1, prefix_turns=whole.turns[:2], branch_of=0)
    engine = Narrow()
    found = play(engine, specs=[branch])
    assert found[0].shared_turns == 2
    assert engine.began == [(0, 0), (0, 1)]


@pytest.mark.parametrize(("known", "most"), [(True, ROWS + 2), (False, None)])
def test_arenas_that_wait_do_not_let_other_games_begin_meanwhile(
    known: bool, most: int | None
) -> None:
    """A quarter of 40 live games would be 10; two threads advance games."""
    engine, wide = Narrow(known=known), Narrow(40)
    assert play(engine, Waiting, asked_specs(40), threads=2) == play(wide, Walk, asked_specs(40))
    assert engine.open_games() <= most if most else engine.open_games() > ROWS + 6


def test_the_embedded_engine_computes_few_tokens_twice_and_samples_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renderer = ChatRenderer(build_tokenizer([]), where="test")
    model = build_model(len(renderer.tokenizer), seed=0, hidden=32, layers=1, heads=2).eval()
    agent_spec = AgentSpec(
        role=Role(memory="conversation"), policy="p", renderer=renderer, max_tokens=4
    )

    def played(**settings: int) -> tuple[list[Episode], float]:
        engine = TransformersEngine(**settings)
        engine.serve("p", model, renderer.end_ids)
        rollout = Rollout(arena=Walk, agent_specs={"player": agent_spec}, engines={"p": engine})
        return rollout.run(asked_specs()), engine.drain_metrics()["computed_tokens"]

    wide, least = played()
    narrow, computed = played(max_rows=ROWS, prefix_tokens=300)
    monkeypatch.setattr(request_queue, "order", arrival)
    fifo, more = played(max_rows=ROWS, prefix_tokens=300)
    assert computed < 1.2 * least and more > 1.5 * computed, (least, computed, more)
    for one, other, third in zip(wide, narrow, fifo, strict=True):
        assert len(one.turns) == len(other.turns) == MOVES
        for turn, again, late in zip(one.turns, other.turns, third.turns, strict=True):
            assert turn.completion_ids == again.completion_ids == late.completion_ids
            assert list(turn.logprobs) == pytest.approx(list(again.logprobs), abs=1e-5)
            assert replace(again, logprobs=()) == replace(turn, logprobs=())
