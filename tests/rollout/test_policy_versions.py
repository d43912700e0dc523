"""Tests of the weight versions of tokens in the engine, rollout, record and metrics."""

import copy
import json
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from selfplay.arena import Arena
from selfplay.engines import Engine
from selfplay.engines.transformers import TransformersEngine
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec, EpisodeSpec, Rollout
from selfplay.run import metrics
from selfplay.types import (
    Completion,
    Episode,
    Observation,
    Request,
    StopReason,
    Task,
    Turn,
    from_json,
    to_json,
)
from tests.helpers.builders import llama, sample, turn
from tests.helpers.engine_requests import serving

PROMPT = (5, 6, 7)


def ask(number: int, max_tokens: int) -> Request:
    return Request(id=number, policy="p", prompt_ids=PROMPT, seed=number, max_tokens=max_tokens)


def finish(engine: TransformersEngine, count: int) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    while len(found) < count:
        found |= {done.id: done for done in engine.step()}
    return found


def partial(model: PreTrainedModel, **settings: int) -> TransformersEngine:
    """Return an engine with in-flight updates; only its length ends a completion."""
    made = serving({"p": model}, {"p": []}, **settings)
    made.in_flight_updates = True
    return made


@torch.no_grad()
def continued(
    before: PreTrainedModel, after: PreTrainedModel, ids: Sequence[int], drawn: int
) -> torch.Tensor:
    """Return the log-probabilities [C] of a completion. `before` samples its first `drawn` tokens
    and fills the cache; `after` samples the others from this cache."""
    known = before(input_ids=torch.tensor([[*PROMPT, *ids[: drawn - 1]]]), use_cache=True)
    logits = [known.logits[0, len(PROMPT) - 1 :]]
    rest = after(
        input_ids=torch.tensor([ids[drawn - 1 : -1]]), past_key_values=known.past_key_values
    )
    logits.append(rest.logits[0])
    return torch.cat(logits).log_softmax(-1)[torch.arange(len(ids)), list(ids)]


def test_completions_continue_with_new_weights_and_record_the_versions() -> None:
    before, after = llama(0, vocab_size=50), llama(1, vocab_size=50)
    engine = partial(copy.deepcopy(before), stride=3)
    engine.publish("p", {}, 4)
    for number, length in enumerate((12, 4, 9)):
        engine.add(ask(number, length))
    (early,) = engine.step()  # the prefill samples one token, then three steps one each
    assert (early.id, early.version, early.versions) == (1, 4, ())
    engine.publish("p", after.state_dict(), 5)
    engine.add(ask(3, 5))
    found = finish(engine, 3)
    assert {n: (d.version, d.versions) for n, d in found.items()} == {
        0: (4, ((4, 4), (5, 8))),
        2: (4, ((4, 4), (5, 5))),
        3: (5, ()),
    }
    for done in (found[0], found[2]):
        wanted = continued(before, after, done.completion_ids, 4)
        torch.testing.assert_close(torch.tensor(done.logprobs), wanted, atol=1e-5, rtol=1e-5)


def test_spans_follow_every_update_and_merge_where_nothing_changed() -> None:
    model = llama(0, vocab_size=50)
    engine = partial(model, stride=2)
    engine.add(ask(0, 12))
    for version in (1, 1, 2, 3):
        engine.step()
        engine.publish("p", {}, version)
        engine.publish("p", {}, version)
    done = finish(engine, 1)[0]
    assert done.versions == ((0, 3), (1, 4), (2, 2), (3, 3))
    assert done.version == 0 and sum(tokens for _, tokens in done.versions) == 12


def test_finished_rows_do_not_change_the_versions_of_others() -> None:
    engine = partial(llama(0, vocab_size=50), stride=1)
    for number, length in enumerate((3, 9, 5, 9)):
        engine.add(ask(number, length))
    found: dict[int, Completion] = {}
    for version in range(1, 9):
        found |= {done.id: done for done in engine.step()}
        engine.publish("p", {}, version)
    assert found[0].versions == ((0, 2), (1, 1))
    assert found[2].versions == ((0, 2), (1, 1), (2, 1), (3, 1))
    assert (
        found[1].versions
        == found[3].versions
        == (
            (0, 2),
            *((version, 1) for version in range(1, 8)),
        )
    )


class Once(Arena):
    """A game of one move."""

    name = "once_v0"
    roles = {"a": 1}

    def setup(self, task: Task, rng: Any) -> None:
        pass

    def acting(self) -> list[str]:
        return ["a_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text="?")

    def advance(self, actions: Any) -> None:
        self.finish()


class Mixed(Engine):
    """An engine whose completions have tokens of two versions."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> list[Completion]:
        found = [
            Completion(
                id=request.id,
                completion_ids=(65, 66, 67),
                logprobs=(-1.0, -2.0, -3.0),
                stop_reason=StopReason.STOP,
                version=3,
                versions=((3, 1), (4, 2)),
            )
            for request in self.waiting
        ]
        self.waiting = []
        return found


def test_a_turn_and_its_record_keep_the_versions() -> None:
    agent_spec = AgentSpec(role=Role(), policy="p", renderer=ByteRenderer())
    rollout = Rollout(arena=Once, agent_specs={"a": agent_spec}, engines={"p": Mixed()})
    (played,) = rollout.run([EpisodeSpec(task=Task(id="t"), seed=0)])
    (answer,) = played.turns
    assert (answer.version, answer.versions, answer.logprobs) == (
        3,
        ((3, 1), (4, 2)),
        (-1.0, -2.0, -3.0),
    )
    again = from_json(Episode, json.loads(json.dumps(to_json(played))))
    assert again == played and again.turns[0].spans() == ((3, 1), (4, 2))


def test_an_old_record_without_spans_is_read() -> None:
    old = to_json(turn("solver_0", version=2, completion_ids=(5, 6)))
    del old["versions"]
    assert from_json(Turn, old).spans() == ((2, 2),)


def test_staleness_is_counted_in_tokens_that_the_policy_chose() -> None:
    fresh = sample([1], [5, 6], 1.0, version=7)
    mixed = sample(
        [1],
        [5, 6, 7, 8, 9],
        1.0,
        version=4,
        versions=((4, 2), (6, 3)),
        loss_mask=(1, 0, 1, 1, 0),
    )
    found = metrics.of_staleness([fresh, mixed], version=7)
    # 2 tokens of age 0, 1 of age 3, 2 of age 1
    assert found == {"staleness_mean": (3 + 2) / 5, "staleness_max": 3.0}
    assert metrics.of_staleness([], version=7) == {}
    assert metrics.of_staleness([sample([1], [5], 1.0, loss_mask=(0,))], version=7) == {}
