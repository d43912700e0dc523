"""Tests of random play as a warm start: legal, uniform, with distinct situations."""

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from random import Random
from typing import Any

import pytest
import torch

from arenas.games import random_play
from arenas.games.kuhn import MOVES, Kuhn
from arenas.games.matrix import raw_env
from arenas.games.random_play import RandomPlay
from roles.player import Player
from selfplay.arena import Arena
from selfplay.errors import ConfigError
from selfplay.models.renderer import ChatRenderer
from selfplay.models.warmstart import WarmStart
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec
from selfplay.study.measures.exploitability import exploitability, known_game
from selfplay.study.policy_probs import read
from selfplay.types import Action, Demonstration, Observation, Task


def shown(source: RandomPlay, progress: float, count: int) -> list[Demonstration]:
    return list(islice(source.stream(Random(0), progress), count))


def test_every_situation_of_a_small_game_is_found() -> None:
    found = {seen.text for _, seen in RandomPlay(arena=Kuhn()).situations}
    assert found == {each.observation.text for each in Kuhn().information_sets()}


def test_moves_are_equally_frequent_and_names_are_seldom_at_the_end() -> None:
    source = RandomPlay(arena=Kuhn(), named_last=0.0)
    counts = Counter((d.observation.text, d.completion) for d in shown(source, 1.0, 2400))
    assert set(counts.values()) == {100} and len(counts) == 24
    for progress, fraction in ((0.0, 0.5), (0.59, 0.5), (0.6, 0.06), (1.0, 0.06)):
        said = [d.completion for d in shown(RandomPlay(arena=Kuhn()), progress, 4000)]
        named = sum(word not in MOVES for word in said) / len(said)
        assert named == pytest.approx(fraction, abs=4 * (fraction * (1 - fraction) / 4000) ** 0.5)


def test_each_situation_has_a_name_of_its_own() -> None:
    names: dict[str, set[str]] = {}
    for demonstration in shown(RandomPlay(arena=Kuhn()), 0.0, 2000):
        if demonstration.completion not in MOVES:
            names.setdefault(demonstration.completion, set()).add(demonstration.observation.text)
    assert len(names) == 12 and all(len(texts) == 1 for texts in names.values())


def test_messages_are_shown_in_turns_without_a_move() -> None:
    arena = raw_env(speakers=[0], players=("a", "b"))
    source = RandomPlay(arena=arena, messages=["x", "y"], named_last=0.0)
    assert {d.role for d in shown(source, 1.0, 50)} == {"a", "b"}
    for demonstration in shown(source, 1.0, 100):
        wanted = ("x", "y") if " message" in demonstration.observation.text else arena.moves[0]
        assert demonstration.completion in wanted
    with pytest.raises(ConfigError, match="set messages"):
        RandomPlay(arena=raw_env(speakers=[0])).prepare(print)


def test_a_set_of_moves_is_refused() -> None:
    class Unordered(Kuhn):
        def view(self, agent: str) -> Observation:
            return Observation(text="which?", fields={"legal": set(MOVES)})

    words = (
        "random play of kuhn_v0 failed: ValueError: the field `legal` of an observation is a set"
    )
    with pytest.raises(ConfigError, match=words):
        RandomPlay(arena=Unordered()).prepare(print)


def test_a_large_game_is_shown_as_often_as_random_play_meets_it() -> None:
    arena = raw_env(rounds=5, speakers=[0, 1])
    source = RandomPlay(arena=arena, messages=["x", "y"], most=40, shown=500)
    assert not source.complete and not source.whole and len(source.situations) == 500
    assert 500 <= 2 * source.found.stages < 600, "play ends when enough was seen"
    assert "more than most=40, so 500 observations are shown" in source.summary()
    first = source.situations[0][1].text  # the beginning of every game
    asked = Counter(d.observation.text for d in shown(source, 1.0, 2000))
    met = sum(seen.text == first for _, seen in source.situations) / 500
    assert asked[first] / 2000 == pytest.approx(met, abs=0.03) and met > 0.04
    said = {d.completion for d in shown(source, 0.0, 2000)}
    assert said <= {"x", "y", *arena.moves[0]}, "no situation has a name"
    assert not {seen.text for _, seen in source.situations} & set(source.pieces())


class Phases(Arena):
    """A game of two phases with the same text and different legal moves."""

    name = "phases_v0"
    roles = {"player": 1}
    endless = False

    def setup(self, task: Task, rng: Random) -> None:
        self.voting = False

    def acting(self) -> list[str]:
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        legal = ["yes", "no"] if self.voting else ["left", "right"]
        return Observation(text="Go on.", fields={"legal": legal})

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        if self.voting and not self.endless:
            self.finish()
        self.voting = not self.voting


class Endless(Phases):
    """A game that never ends."""

    name = "endless_v0"
    endless = True


def test_situations_differ_by_text_or_legal_moves() -> None:
    source = RandomPlay(arena=Phases(), named_last=0.0)
    assert [seen.fields["legal"] for _, seen in source.situations] == [
        ["left", "right"],
        ["yes", "no"],
    ]
    for each in shown(source, 1.0, 200):
        assert each.completion in each.observation.fields["legal"]


def test_a_game_that_never_ends_is_cut_off_and_the_work_has_a_limit() -> None:
    source = RandomPlay(arena=Endless(), hands=10, longest=30)
    assert source.found.cut == 10 and source.found.stages == 300 and source.turns == 30
    assert "10 games of random play (10 cut off after 30 stages)" in source.summary()
    assert RandomPlay(arena=Endless(), work=500).found.stages == 500


def test_long_random_play_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_play, "SECONDS", -1.0)
    lines: list[str] = []
    RandomPlay(arena=Endless(), hands=2, longest=3).prepare(lines.append)
    assert lines[0] == ("warm start: random play, game 1 of at most 2, 3 stages, 2 situations, 0 s")


def test_an_arena_that_raises_is_a_one_line_error() -> None:
    class Breaks(Phases):
        name = "breaks_v0"

        def advance(self, actions: Mapping[str, Action | None]) -> None:
            raise KeyError("no\nsquare")

    with pytest.raises(ConfigError, match=r"random play of breaks_v0 failed: KeyError") as caught:
        RandomPlay(arena=Breaks()).prepare(print)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="at least 1"):
        RandomPlay(arena=Phases(), work=0)


def started(source: RandomPlay, role: Role, **settings: Any) -> tuple[Any, list[str]]:
    """Return the model of a short warm start, and the lines of its report."""
    lines: list[str] = []
    small = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}
    short: dict[str, Any] = {"steps": 100, "batch": 32, "warmup_steps": 5, "lr": 0.01}
    short["model"] = small
    warm = WarmStart(demonstrations=source, roles={"player": role}, **{**short, **settings})
    return warm.train(lines.append)[0], lines


def test_the_warm_start_reports_situations_and_legal_answers() -> None:
    role = Role(template="{{ text }} {{ legal | join(' ') }}")
    _, lines = started(RandomPlay(arena=Phases(), named_last=0.0, first=0.4), role)
    assert lines[0] == (
        "warm start: 1000 games of random play found 2 situations; all are shown, equally often"
    )
    assert lines[-1] == "warm start: 100% of 200 sampled answers are legal moves"
    _, lines = started(RandomPlay(arena=Phases()), role, steps=1)
    assert lines[-1] == "warm start: 0% of 200 sampled answers are legal moves"


def test_the_model_reads_as_many_tokens_as_the_situations_have() -> None:
    long = Role(template="{{ 'word ' * 500 }}{{ text }}")
    model, _ = started(RandomPlay(arena=Phases()), long, steps=1, batch=2)
    assert model.config.max_position_embeddings > 1.5 * 2500 + 256
    remembers = Role(template="{{ 'word ' * 50 }}{{ text }}", memory="conversation")
    source = RandomPlay(arena=Endless(), hands=2, longest=10)
    model, _ = started(source, remembers, steps=1, batch=2)
    assert model.config.max_position_embeddings > 10 * 250
    model, _ = started(RandomPlay(arena=Phases()), Role(), steps=1, batch=2)
    assert model.config.max_position_embeddings == 1024


def test_the_warm_start_is_nearly_uniform_and_distinguishes_hands() -> None:
    """The exploitability of uniform play is 11/24."""
    source = RandomPlay(arena=Kuhn())
    role = Player(game="kuhn", style="terse")
    start = WarmStart(
        demonstrations=source,
        roles={"player": role},
        steps=100,
        batch=48,
        warmup_steps=10,
        lr=0.01,
        model={"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "positions": 64},
    )
    model, tokenizer = start.train()
    renderer = ChatRenderer(tokenizer)
    agent_spec = AgentSpec(role=role, policy="base", renderer=renderer, max_tokens=2)
    game, sets = known_game(Kuhn())
    choices = read(sets, agent_specs={"player": agent_spec}, models={"base": model})
    assert exploitability(game, choices).exploitability == pytest.approx(11 / 24, abs=0.02)
    assert all(abs(chance - 0.5) < 0.1 for each in choices for chance in each.chances().values())
    assert all(each.elsewhere < 0.2 for each in choices)
    # The tangent kernel of log p(bet)/p(pass): the similarity of situations to a gradient step.
    bet, fold = (tokenizer(move, add_special_tokens=False)["input_ids"] for move in ("bet", "pass"))
    rows = []
    for each in sets:
        ids = torch.tensor([renderer.start(role.prompt(each.observation))])
        logits = model(input_ids=ids).logits[0, -1]
        difference = logits[bet[0]] - logits[fold[0]]
        gradient = torch.autograd.grad(difference, list(model.parameters()), allow_unused=True)
        rows.append(torch.cat([part.flatten() for part in gradient if part is not None]))
    kernel = torch.stack(rows) @ torch.stack(rows).T
    values = torch.linalg.eigvalsh(kernel.double())
    assert values[-2] > 0.01 * values[-1] and values[0] > 1e-4 * values[-1]
