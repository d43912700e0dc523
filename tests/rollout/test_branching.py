"""Tests of branches: shared and replayed turns, metrics after them, records that do not fit."""

import json
import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from selfplay.arena import Arena
from selfplay.curriculum.self_proposed import ProposalCurriculum
from selfplay.curriculum.task_buffer import TaskBuffer
from selfplay.engines.scripted import ScriptedEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.episode_runner import EpisodeRunner, notes_of, with_shared_turns
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.rollout.rollout_settings import RolloutSettings
from selfplay.run.metrics import of_episodes
from selfplay.types import (
    Action,
    Episode,
    Group,
    InvalidAction,
    Observation,
    Status,
    Task,
    Turn,
    from_json,
    to_json,
)


class Duel(Arena):
    """A game of three rounds: the host moves, then both guests move at the same time.

    A guest is paid its number, and the host the sum of both numbers. `dice` is random in every
    stage, and the first stage creates a task.
    """

    name = "duel_v0"
    roles = {"host": 1, "guest": 2}

    def setup(self, task: Task, rng: random.Random) -> None:
        self.turn, self.dice = 0, rng.random()
        self.pay("guest_1", 0.5)

    def acting(self) -> Sequence[str]:
        return ["guest_0", "guest_1"] if self.turn % 2 else ["host_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text=f"{agent} {self.turn} {self.dice:.6f}")

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        self.dice = self.rng.random()
        if self.turn == 0:
            self.create(Task(id=f"made-{actions['host_0']}"))
            self.measure(opened=1)
        for agent, action in actions.items():
            self.note(agent, at=self.turn)
            if agent != "host_0":
                self.pay(agent, float(action or 0))
                self.pay("host_0", float(action or 0))
                self.note("host_0", heard=self.turn)
        self.turn += 1
        if self.turn == 6:
            self.measure(closed=self.metrics["opened"])
            self.finish()


class Number(Role):
    """A role that answers with one digit; other text is invalid."""

    def parse(self, text: str) -> Action:
        if text not in "0123456789":
            raise InvalidAction("no digit")
        return text

    def metrics(self, text: str) -> Mapping[str, float]:
        return {"letters": float(len(text))}


class RecordingEngine(ScriptedEngine):
    """An engine that says a digit or `x`, and records its requests."""

    def __init__(self) -> None:
        super().__init__({"p": lambda agent, seen, rng: rng.choice([*"0123456789", "x"])})
        self.requests: list[Any] = []

    def add(self, request: Any) -> None:
        self.requests.append(request)
        super().add(request)


def rollout(
    arena: Any = Duel, memory: Any = "none", **settings: Any
) -> tuple[Rollout, RecordingEngine]:
    engine = RecordingEngine()
    agent_spec = AgentSpec(role=Number(memory=memory), policy="p", renderer=ByteRenderer())
    seats = {"host": agent_spec, "guest": agent_spec}
    return Rollout(
        arena=arena, agent_specs=seats, engines={"p": engine}, settings=RolloutSettings(**settings)
    ), engine


TASK = Task(id="t")


class Doubtful(Duel):
    """A game that leaves the second move of guest_0 out of learning."""

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        super().advance(actions)
        if self.turn == 4:
            self.leave_out("guest_0")


def record(member: int = 0, memory: Any = "none") -> Episode:
    (episode,) = rollout(memory=memory)[0].run([EpisodeSpec(task=TASK, seed=7, member=member)])
    assert episode.status is Status.FINISHED and len(episode.turns) == 9
    return episode


def fork(parent: Episode, start: int, *, member: int = 5, **fields: Any) -> EpisodeSpec:
    given = {
        "task": TASK,
        "seed": 7,
        "branch_of": 2,
        "prefix_turns": parent.turns[:start],
        **fields,
    }
    return EpisodeSpec(member=member, **given)


def test_a_move_that_is_left_out_is_recorded_and_not_learned() -> None:
    play, _ = rollout(Doubtful)
    (parent,) = play.run([EpisodeSpec(task=TASK, seed=7)])
    assert [turn.stage for turn in parent.turns if not turn.trainable] == [3]
    (left,) = [turn for turn in parent.turns if not turn.trainable]
    assert left.agent == "guest_0" and left.reward == record().turns[4].reward
    # A branch after the move, and one before it, leave it out too; the shared turns stay shared.
    later, earlier = play.run([fork(parent, 6), fork(parent, 3, member=6)])
    assert later.turns[:6] == parent.turns[:6]
    for branch in (later, earlier):
        assert [turn.stage for turn in branch.turns if not turn.trainable] == [3]


def test_turns_know_their_stage() -> None:
    assert [turn.stage for turn in record().turns] == [0, 1, 1, 2, 3, 3, 4, 5, 5]


@pytest.mark.parametrize("start", [1, 3, 4, 6, 7])
@pytest.mark.parametrize("memory", ["none", "conversation"])
def test_a_branch_shares_the_prefix_and_continues_as_if_it_had_played_it(
    start: int, memory: str
) -> None:
    parent = record(memory=memory)
    play, engine = rollout(memory=memory)
    (branch,) = play.run([fork(parent, start, member=5)])
    assert (branch.branch_of, branch.shared_turns, branch.status) == (2, start, Status.FINISHED)
    assert [t.completion_ids for t in branch.turns[:start]] == [
        t.completion_ids for t in parent.turns[:start]
    ]
    assert len(engine.requests) == 9 - start
    # `dice` is the same, so the first prompts of a branch are those of its parent.
    first = [t for t in branch.turns if t.stage == parent.turns[start].stage]
    assert [t.prompt_ids for t in first] == [
        t.prompt_ids for t in parent.turns if t.stage == parent.turns[start].stage
    ]
    assert branch.turns[start:] != parent.turns[start:]
    # A replay of the whole branch gives the same turns, with the same rewards and notes.
    whole = replace(EpisodeSpec(task=TASK, seed=7), prefix_turns=branch.turns)
    (again,) = rollout(memory=memory)[0].run([whole])
    assert again.turns == branch.turns
    assert all(a is b for a, b in zip(again.turns, branch.turns, strict=True))


def test_a_replayed_turn_is_the_same_object_unless_its_reward_changes() -> None:
    parent = record()
    (branch,) = rollout()[0].run([fork(parent, 6)])
    same = [a is b for a, b in zip(branch.turns[:6], parent.turns, strict=False)]
    host, guests = 3, (4, 5)
    assert same[:3] == [True] * 3 and all(same[place] for place in guests)
    # The host's second turn ends when it acts again; its reward is from the guests' moves.
    assert same[host]
    (earlier,) = rollout()[0].run([fork(parent, 4)])
    paid = sum(float(turn.action or 0) for turn in earlier.turns[4:6])
    assert earlier.turns[host].reward == paid
    assert earlier.turns[host].info == {"letters": 1.0, "at": 2, "heard": 3}
    assert earlier.turns[0] is parent.turns[0]


def test_a_branch_has_only_the_metrics_and_tasks_after_its_prefix() -> None:
    parent = record()
    branches = rollout()[0].run([fork(parent, 1), fork(parent, 4)])
    assert parent.created and parent.metrics == {"opened": 1, "closed": 1}
    assert [b.created for b in branches] == [(), ()]
    assert [b.metrics for b in branches] == [{"closed": 1}, {"closed": 1}]
    metrics = of_episodes([parent, *branches])
    assert metrics["arena/opened"] == 1
    # Turns: 9 of the parent, 8 and 5 of the branches; the shared ones are the parent's.
    own = [*parent.turns, *branches[0].turns[1:], *branches[1].turns[4:]]
    hosts = [turn for turn in own if turn.role == "host"]
    valid = sum(turn.action is not None for turn in hosts)
    assert len(hosts) == 6 and metrics["role/host/valid"] == valid / 6
    assert metrics["role/guest/letters"] == 1.0


@pytest.mark.parametrize("copied", [0, 1, None])
def test_a_replay_has_the_metrics_and_tasks_of_the_stages_that_were_not_copied(
    copied: int | None,
) -> None:
    played = record()
    spec = EpisodeSpec(task=TASK, seed=7, prefix_turns=played.turns)
    plain = [replace(turn, reward=0.0, info=notes_of(turn, Number())) for turn in played.turns]
    runner = EpisodeRunner(spec, Duel(), prefix=plain, copied=copied)
    runner.advance()
    replayed = runner.episode(Status.FINISHED)
    assert replayed.turns == played.turns
    assert replayed.created == (played.created if copied == 0 else ())
    expected = {0: played.metrics, 1: {"closed": 1}, None: {}}
    assert replayed.metrics == expected[copied]


def test_a_curriculum_counts_a_shared_proposal_once() -> None:
    parent = record()
    siblings = (parent, *rollout()[0].run([fork(parent, 1), fork(parent, 4)]))
    seeds = [Task(id="seed")]
    curriculum = ProposalCurriculum(
        buffer=TaskBuffer(), seeds=seeds, types=["default"], proposals=1, solver_batch=1
    )
    curriculum.observe([Group(id="1.0.0", episodes=siblings)], 1)
    assert curriculum.metrics() == {"buffer/default": 2, "added": 1, "same_step_duplicates": 0}


def test_a_branch_has_seeds_of_its_own() -> None:
    parent = record()
    play, engine = rollout()
    play.run([fork(parent, 3, member=member) for member in (3, 4)])
    seeds = [request.seed for request in engine.requests]
    assert len(set(seeds)) == len(seeds) == 12


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (lambda turns: turns[1:3], "stage 0 of the record has moves of guest_0, guest_1, but"),
        (lambda turns: turns[:2], "moves of guest_0, but there the arena asks guest_0, guest_1"),
        (lambda turns: (*turns, replace(turns[0], stage=6)), "of host_0, but there the arena has"),
    ],
)
def test_a_record_that_does_not_fit_is_a_failed_episode(prefix: Any, words: str) -> None:
    parent = record()
    misfit, whole = rollout()[0].run(
        [fork(parent, 0, prefix_turns=prefix(parent.turns)), fork(parent, 3)]
    )
    assert misfit.status is Status.FAILED and misfit.error.startswith("ReplayError: ")
    assert words in misfit.error
    assert misfit.shared_turns <= len(misfit.turns)
    assert misfit.metrics == {} and misfit.created == ()
    assert whole.status is Status.FINISHED


def test_blocking_arenas_replay_with_the_same_results() -> None:
    class Blocking(Duel):
        blocking = True

    parent = record()
    specs = [fork(parent, start, member=start) for start in (1, 3, 4, 6, 7)]
    assert rollout(arena=Blocking)[0].run(specs) == rollout()[0].run(specs)


def test_a_truncated_record_can_be_branched_from() -> None:
    (parent,) = rollout(max_turns=5)[0].run([EpisodeSpec(task=TASK, seed=7)])
    assert parent.status is Status.TRUNCATED and len(parent.turns) == 6
    (branch,) = rollout(max_turns=5)[0].run([fork(parent, 3)])
    assert branch.status is Status.TRUNCATED and len(branch.turns) == 6


def test_a_branch_survives_json_and_records_without_branches_load() -> None:
    (branch,) = rollout()[0].run([fork(record(), 4)])
    data = json.loads(json.dumps(to_json(branch)))
    assert from_json(Episode, data) == branch
    for key in ("branch_of", "shared_turns"):
        del data[key]
    for turn in data["turns"]:
        del turn["stage"]
    old = from_json(Episode, data)
    assert (old.branch_of, old.shared_turns) == (None, 0)
    assert {turn.stage for turn in old.turns} == {-1}
    assert isinstance(old.turns[0], Turn)


def test_an_episode_from_another_process_shares_the_turns_of_its_prefix() -> None:
    play, _ = rollout()
    (parent,) = play.run([EpisodeSpec(task=TASK, seed=1)])
    spec = EpisodeSpec(task=TASK, seed=1, member=1, prefix_turns=parent.turns[:4], branch_of=0)
    (branch,) = play.run([spec])

    def shared(episode: Episode) -> list[bool]:
        return [episode.turns[place] is turn for place, turn in enumerate(spec.prefix_turns)]

    # Moves after the prefix change the reward of its last turn, so the branch has its own copy.
    assert shared(branch) == [True, True, True, False]
    (copied,) = pickle.loads(pickle.dumps([branch]))
    assert not any(shared(copied))
    found = with_shared_turns(spec, copied)
    assert found == branch and shared(found) == shared(branch)
