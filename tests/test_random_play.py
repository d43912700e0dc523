"""Random play as a warm start: legal, uniform, and able to tell situations apart."""

from collections import Counter
from itertools import islice
from random import Random

import pytest
import torch

from arenas.kuhn import MOVES, Kuhn
from arenas.matrix import raw_env
from arenas.random_play import RandomPlay
from roles.player import Player
from selfplay.rollout import Seat
from selfplay.study.exploitability import exploitability, known_game
from selfplay.study.strategy import read
from selfplay.tokens import ChatRenderer
from selfplay.types import Demonstration
from selfplay.warmstart import WarmStart


def shown(source: RandomPlay, progress: float, count: int) -> list[Demonstration]:
    return list(islice(source.stream(Random(0), progress), count))


def test_it_finds_every_situation_of_a_small_game() -> None:
    found = {seen.text for _, seen in RandomPlay(arena=Kuhn()).situations}
    assert found == {each.observation.text for each in Kuhn().information_sets()}


def test_moves_are_equally_frequent_and_names_are_seldom_at_the_end() -> None:
    source = RandomPlay(arena=Kuhn(), named_last=0.0)
    counts = Counter((d.observation.text, d.completion) for d in shown(source, 1.0, 2400))
    assert set(counts.values()) == {100} and len(counts) == 24
    for progress, share in ((0.0, 0.5), (0.59, 0.5), (0.6, 0.06), (1.0, 0.06)):
        said = [d.completion for d in shown(RandomPlay(arena=Kuhn()), progress, 4000)]
        named = sum(word not in MOVES for word in said) / len(said)
        assert named == pytest.approx(share, abs=4 * (share * (1 - share) / 4000) ** 0.5)


def test_each_situation_has_a_name_of_its_own() -> None:
    names: dict[str, set[str]] = {}
    for demonstration in shown(RandomPlay(arena=Kuhn()), 0.0, 2000):
        if demonstration.completion not in MOVES:
            names.setdefault(demonstration.completion, set()).add(demonstration.observation.text)
    assert len(names) == 12 and all(len(texts) == 1 for texts in names.values())


def test_messages_are_said_where_no_move_is_asked_for() -> None:
    arena = raw_env(speakers=[0], players=("a", "b"))
    source = RandomPlay(arena=arena, messages=["x", "y"], named_last=0.0)
    assert {d.role for d in shown(source, 1.0, 50)} == {"a", "b"}
    for demonstration in shown(source, 1.0, 100):
        wanted = ("x", "y") if " message" in demonstration.observation.text else arena.moves[0]
        assert demonstration.completion in wanted
    with pytest.raises(ValueError, match="set messages"):
        RandomPlay(arena=raw_env(speakers=[0]))


def test_a_large_game_is_shown_in_part() -> None:
    arena = raw_env(rounds=5, speakers=[0, 1])
    source = RandomPlay(arena=arena, messages=["x", "y"], hands=50, most=40)
    assert len(source.situations) == 40


def test_the_warm_start_is_nearly_uniform_and_tells_hands_apart() -> None:
    """0.4583 is 11/24, the exploitability of uniform play."""
    source = RandomPlay(arena=Kuhn())
    role = Player(game="kuhn", style="terse")
    start = WarmStart(
        demonstrations=source,
        roles={"player": role},
        steps=100,
        batch=48,
        warmup=10,
        lr=0.01,
        model={"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "positions": 64},
    )
    model, tokenizer = start.train()
    renderer = ChatRenderer(tokenizer)
    seat = Seat(role=role, policy="base", renderer=renderer, max_tokens=2)
    game, sets = known_game(Kuhn())
    choices = read(sets, seats={"player": seat}, models={"base": model})
    assert exploitability(game, choices).exploitability == pytest.approx(11 / 24, abs=0.02)
    assert all(abs(chance - 0.5) < 0.1 for each in choices for chance in each.chances().values())
    assert all(each.elsewhere < 0.2 for each in choices)
    # How alike two situations are to a gradient step: the tangent kernel of log p(bet)/p(pass).
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
