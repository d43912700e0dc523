"""The worth of actions and the preferences that were learned, worked out by hand."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from selfplay.arena import Arena
from selfplay.engines.scripted import Script, ScriptedEngine, choice, constant
from selfplay.errors import ConfigError
from selfplay.models.renderer import ByteRenderer
from selfplay.role import Role
from selfplay.rollout.rollout import AgentSpec
from selfplay.study.matches import StudyMatches
from selfplay.study.measures.counterfactual import (
    MEASURE,
    Pay,
    from_options,
    replayed,
    scored,
    slips,
    study,
)
from selfplay.study.plots import IntervalPlot
from selfplay.types import Action, InvalidAction, Observation, Task
from tests.helpers.scripted_games import player


class Errands(Arena):
    """Three moves: "good" pays 4, "harm" costs 2, and "none" pays 0. The second move counts twice.

    A watcher is paid nothing, so the mean over the team is half of the worker's pay.
    """

    name = "errands_v0"
    roles = {"worker": 1, "watcher": 1}

    def setup(self, task: Task, rng: Random) -> None:
        self.done, self.before = 0, "nothing"

    def acting(self) -> Sequence[str]:
        return ["worker_0"]

    def view(self, agent: str) -> Observation:
        return Observation(text=str(self.done), fields={"before": self.before})

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        paid = {"good": 4.0, "harm": -2.0}.get(actions["worker_0"] or "", 0.0)
        self.pay("worker_0", paid * (2.0 if self.done == 1 else 1.0))
        self.note("worker_0", verdict=actions["worker_0"])
        self.before = str(actions["worker_0"])
        self.done += 1
        if self.done == 3:
            self.finish()


class Bytes(ByteRenderer):
    """A byte renderer with a token that ends a turn."""

    end_ids: tuple[int, ...] = (0,)

    @staticmethod
    def completion_ids(text: str) -> tuple[int, ...]:
        return tuple(text.encode())


class Unigram:
    """A model whose byte probabilities are proportional to weights, which are 1 by default."""

    device = torch.device("cpu")
    config = LlamaConfig()

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.logits = torch.zeros(256)
        for letter, weight in weights.items():
            self.logits[ord(letter)] = log(weight)

    def eval(self) -> "Unigram":
        return self

    def __call__(self, *, input_ids: torch.Tensor, use_cache: bool) -> Any:
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, 256))


def in_turn(*words: str) -> Script:
    return lambda agent, seen, rng: words[int(seen.text)]


def errands(
    script: Script, trained: Mapping[str, float], *, then: Script | None = None, **settings: Any
) -> StudyMatches:
    """Return games of two players whose models differ, and whose moves differ only with `then`."""
    engine, renderer = ScriptedEngine({"now": script, "then": then or script}), Bytes()
    seats = {
        role: AgentSpec(role=Role(), policy="now", renderer=renderer) for role in Errands.roles
    }
    return StudyMatches(
        arena=lambda: Errands(Errands.roles),
        agent_specs=seats,
        engines={"now": engine, "then": engine},
        renderers={"now": renderer, "then": renderer},
        models={"now": Unigram(trained), "then": Unigram({})},  # type: ignore[dict-item]
        episodes=12,
        **settings,
    )


def players(games: StudyMatches) -> list[Any]:
    return [player(name, games.arena) for name in ("now", "then")]


def test_the_worth_of_an_action_is_the_loss_of_the_team_without_it() -> None:
    games = errands(in_turn("good", "harm", "none"), {})
    episodes = games.run({"worker_0": "now"})
    found = replayed(games, episodes, ["worker"], "none")
    assert [(each.turn.action, each.worth) for each in found] == [("good", 2), ("harm", -2)] * 12
    found = replayed(games, episodes, ["worker"], "good")
    assert [each.worth for each in found] == [-6, -2] * 12
    assert replayed(games, episodes, ["watcher"], "none") == []


def test_one_untrained_move_at_every_turn_of_a_trained_game() -> None:
    games = errands(in_turn("good", "good", "none"), {}, then=constant("harm"))
    first, second = players(games)
    whole = games.run({"worker_0": "now"})[:1]
    found, judged = slips(games, whole, first, second, ["worker"], "none", text="none")
    assert [[turn.action for turn in each.turns] for each in found] == [
        ["harm", "good", "none"],
        ["good", "harm", "none"],
        ["good", "good", "harm"],
    ]
    assert [(each.turn.policy, each.turn.stage) for each in judged] == [
        ("then", stage) for stage in range(3)
    ]
    assert [each.worth for each in judged] == [-1, -2, -1]
    assert slips(games, whole, first, second, ["worker"], "harm", text="harm")[1] == []


def test_the_host_plays_on_after_a_single_replaced_move() -> None:
    """The host does harm after a move "none", but a replay keeps the recorded moves."""

    def host(agent: str, seen: Observation, rng: Random) -> str:
        return "harm" if seen.fields["before"] == "none" else "none"

    games = errands(host, {}, then=constant("good"))
    first, second = players(games)
    whole = games.run({"worker_0": "now"})[:1]
    found, judged = slips(games, whole, first, second, ["worker"], "none", text="none")
    assert [turn.action for turn in found[0].turns] == ["good", "none", "harm"]
    # The moves pay 4 - 2, and "none", "harm", "none" pay -4. The mean halves the difference.
    assert judged[0].worth == 3
    again = replayed(games, found[:1], ["worker"], "none")
    assert [each.worth for each in again] == [2, -1]


def test_a_random_host_plays_the_same_after_the_move_and_the_default() -> None:
    """The worth of a move is then its own pay, without noise from the moves after it."""
    games = errands(choice(["good", "harm", "none"]), {}, then=constant("good"))
    first, second = players(games)
    whole = games.run({"worker_0": "now"})
    found, judged = slips(games, whole, first, second, ["worker"], "none", text="none")
    assert len(found) == len(judged) == 36
    assert len({each.turns[2].action for each in found if each.turns[0].policy == "then"}) == 3
    assert {(each.turn.stage, each.worth) for each in judged} == {(0, 2), (1, 4), (2, 2)}


def test_a_preference_is_the_change_of_the_log_odds_against_the_default() -> None:
    # The answers are the bytes g, o, o, d, and n, o, n, e with the token that ends a turn.
    games = errands(in_turn("good", "good", "none"), {"g": 8.0, "n": 0.5, "e": 2.0})
    episodes = games.run({"worker_0": "now"})
    found = replayed(games, episodes, ["worker"], "none")[:2]
    found = scored(games, players(games), found, "none")
    # The probability of each byte is divided by the sum of all weights, 8 + 0.5 + 2 and 253 ones.
    # "none" with its end has one byte more than "good".
    total = log((8 + 0.5 + 2 + 253) / 256)
    wanted = log(8) - 4 * total - (2 * log(0.5) + log(2) - 5 * total)
    assert [each.preference for each in found] == pytest.approx([wanted, wanted], rel=1e-5)
    assert all(each.agrees for each in found)


def test_agreement_is_a_fraction_of_the_actions_that_mattered() -> None:
    # g and h both became likelier, which is right for "good" and wrong for "harm".
    games = errands(in_turn("good", "harm", "good"), {"g": 8.0, "h": 8.0})
    result = study(games, players(games), default="none")
    (plot,) = [each for each in result.drawings if isinstance(each, IntervalPlot)]
    assert plot.label == "fraction of actions (team pay)"
    assert result.params["pay"] == "team" and "the mean return over agents" in result.definition
    values = {each.name: each.value for each in result.estimates}
    one = "then, one in a game of now"
    assert values["agreement, actions of now that mattered"] == pytest.approx(2 / 3)
    notes = {each.name: each.notes for each in result.estimates}
    assert notes["agreement, actions of now that did harm"] == "12 of 36 judged actions"
    assert values[f"agreement, actions of {one} that mattered"] == pytest.approx(2 / 3)
    assert values["agreement, actions of then that did harm"] == 0.0
    assert [list(row) for row in result.tables[0].rows] == [
        [name, *row]
        for name in ("now", one, "then")
        for row in (["good", 24, 1.0, 0, None], ["harm", 0, None, 12, 0.0])
    ]
    games = errands(in_turn("good", "harm", "good"), {"g": 8.0, "h": 0.1})
    result = study(games, players(games), default="none", role="worker")
    assert [each.value for each in result.estimates] == [1.0] * 6


def test_actions_that_never_mattered_have_no_agreement() -> None:
    games = errands(constant("none"), {})
    result = study(games, players(games), default="none")
    assert [each.to_json()["value"] for each in result.estimates] == [None] * 6
    assert result.notes == ["no action was judged: these games have none other than none"]
    result = study(games, players(games), default="nothing", pay="own")
    assert result.notes == [
        "no action mattered: none of 108 judged actions changed the return of the agent that acted"
    ]


class ZeroSum(Errands):
    """The watcher loses the 0.3 that the worker gets. The sum of the pay has a rounding error."""

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        sign = {"good": 1.0, "harm": -1.0}.get(actions["worker_0"] or "", 0.0)
        for agent, part in (("worker_0", 0.1), ("worker_0", 0.2), ("watcher_0", -0.3)):
            self.pay(agent, sign * part)
        self.done += 1
        if self.done == 3:
            self.finish()


def zero_sum(trained: Mapping[str, float]) -> StudyMatches:
    games = errands(in_turn("good", "harm", "none"), trained, then=constant("harm"))
    games.arena = lambda: ZeroSum(Errands.roles)
    return games


def test_own_pay_judges_actions_that_the_mean_over_agents_does_not_show() -> None:
    games = zero_sum({"g": 8.0, "h": 8.0})
    first, second = players(games)
    whole = games.run({"worker_0": "now"})
    rounded = replayed(games, whole, ["worker"], "none", "team")
    assert any(each.worth for each in rounded), "the sum of the pay has no rounding error"
    own = replayed(games, whole, ["worker"], "none", "own")
    assert [each.worth for each in own] == pytest.approx([0.3, -0.3] * 12)
    worths: dict[Pay, float] = {"team": 0.0, "own": -0.3}
    for pay, wanted in worths.items():
        _, found = slips(games, whole, first, second, ["worker"], "none", pay, text="none")
        assert [each.worth for each in found] == pytest.approx([wanted] * 36)
    team = study(games, [first, second], default="none")
    assert [each.to_json()["value"] for each in team.estimates] == [None] * 6
    assert team.notes == [
        "no action mattered: none of 96 judged actions changed the mean return over agents, but 96 "
        "changed the return of the agent that acted: use --pay own"
    ]
    result = study(games, [first, second], default="none", pay="own")
    # g and h both became likelier, which is right for "good" and wrong for "harm".
    assert [each.value for each in result.estimates] == [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert result.params["pay"] == "own" and not result.notes
    assert "changes the return of the agent that acted" in result.definition
    (plot,) = [each for each in result.drawings if isinstance(each, IntervalPlot)]
    assert plot.label == "fraction of actions (own pay)"


def test_the_metric_is_not_an_option_and_an_unknown_pay_is_refused() -> None:
    assert MEASURE.option("metric") is None
    games = errands(constant("good"), {}, params={"metric": "wins"})
    assert "metric" not in study(games, players(games), default="none").params
    with pytest.raises(ConfigError, match=r"--pay teams: did you mean 'team'\?"):
        from_options(Namespace(default="none", pay="teams", run=["nowhere"]))


def test_the_default_is_replayed_as_an_action_and_scored_as_a_text() -> None:
    class Loud(Role):
        def parse(self, text: str) -> Action:
            return text.removesuffix("!")

    def agreement(default: str) -> list[float | None]:
        games = errands(constant("good"), {"g": 2.0, "!": 1000.0})
        games.agent_specs = {
            role: replace(seat, role=Loud()) for role, seat in games.agent_specs.items()
        }
        result = study(games, players(games), default=default, role="worker")
        assert [row[2:4] for row in result.tables[0].rows] == [[36, found] for found in wanted]
        return [each.value for each in result.estimates if "mattered" in each.name]

    # "good" became likelier than "none", and "none!" likelier than both.
    wanted = [1.0] * 3
    assert agreement("none") == wanted
    wanted = [0.0] * 3
    assert agreement("none!") == wanted


def test_a_default_that_roles_read_differently_needs_a_role() -> None:
    class Upper(Role):
        def parse(self, text: str) -> Action:
            return text.upper()

    games = errands(constant("good"), {})
    games.agent_specs = {
        name: replace(seat, role=Upper() if name == "watcher" else seat.role)
        for name, seat in games.agent_specs.items()
    }
    with pytest.raises(ConfigError, match="judge one role with --role"):
        study(games, players(games), default="none")
    assert study(games, players(games), default="none", role="worker").estimates


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"role": "walker"}, "--role walker: no such role; did you mean 'worker'?"),
        ({"default": ""}, r"--default : Strict reads no action in it: empty"),
    ],
)
def test_unknown_roles_and_unreadable_defaults_are_refused(
    settings: dict[str, Any], words: str
) -> None:
    class Strict(Role):
        def parse(self, text: str) -> Action:
            if not text:
                raise InvalidAction("empty")
            return text.strip()

    games = errands(constant("good"), {})
    games.agent_specs = {
        role: AgentSpec(role=Strict(), policy="now", renderer=Bytes()) for role in Errands.roles
    }
    with pytest.raises(ConfigError) as error:
        study(games, players(games), **{"default": "none", **settings})
    assert words in str(error.value)


def test_a_default_that_is_never_legal_is_refused() -> None:
    class Listed(Errands):
        def view(self, agent: str) -> Observation:
            seen = super().view(agent)
            return replace(seen, fields={**seen.fields, "legal": ["good", "harm", "none"]})

    games = errands(constant("good"), {})
    games.arena = Listed
    with pytest.raises(ConfigError, match="--default nome: never legal here; did you mean 'none'"):
        study(games, players(games), default="nome")
    assert not study(games, players(games), default="none").notes


def test_a_default_that_is_legal_in_some_views_is_used_in_all_views() -> None:
    class Early(Errands):
        def view(self, agent: str) -> Observation:
            seen = super().view(agent)
            legal = ["good", "none"] if self.done == 0 else ["good"]
            return replace(seen, fields={**seen.fields, "legal": legal})

    games = errands(constant("good"), {})
    games.arena = lambda: Early(Errands.roles)
    result = study(games, players(games), default="none")
    assert [row[2] for row in result.tables[0].rows] == [36] * 3
    assert result.notes == [
        "for 72 of 108 judged actions none is not a legal move of the view: there their worth is "
        "relative to an illegal move"
    ]


def test_players_must_be_two_models_with_one_tokenizer() -> None:
    games = errands(constant("good"), {})
    with pytest.raises(ConfigError, match="name two players"):
        study(games, players(games)[:1], default="none")
    games.renderers["then"] = ByteRenderer()
    with pytest.raises(ConfigError, match="share a tokenizer"):
        study(games, players(games), default="none")
    del games.models["now"]
    with pytest.raises(ConfigError, match="now is not a model"):
        study(games, players(games), default="none")
