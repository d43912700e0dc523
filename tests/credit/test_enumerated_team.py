"""Tests by enumeration of credit with absent agents, pay without a turn, and early ends."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement
from math import comb
from typing import Any

import numpy as np
import pytest

from selfplay.credit import Credit
from selfplay.credit.arpo import ARPO
from selfplay.credit.at_grpo import ATGRPO
from selfplay.credit.counterfactual import Counterfactual
from selfplay.credit.critic import State
from selfplay.credit.dr_grpo import DrGRPO
from selfplay.credit.gae import GAE
from selfplay.credit.gigpo import GiGPO
from selfplay.credit.grpo import GRPO
from selfplay.credit.magrpo import MAGRPO
from selfplay.credit.mt_grpo import MTGRPO
from selfplay.credit.pass_at_k import PassAtK
from selfplay.credit.rae import RAE, By
from selfplay.credit.reinforce_pp import ReinforcePlusPlus
from selfplay.credit.rloo import RLOO
from selfplay.credit.trr import TRR
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec
from selfplay.types import Episode, Group, Status
from tests.helpers.builders import group
from tests.helpers.enumerated_game import cosine
from tests.helpers.enumerated_team import TEAM, History, Team

LOGITS = TEAM.table(seed=1)
OWN, MEAN = TEAM.own(LOGITS), TEAM.team(LOGITS)
exactly = partial(pytest.approx, abs=1e-12)


class Critic:
    """A critic that gives each prompt an arbitrary value."""

    def values(self, states: Sequence[State]) -> list[float]:
        return [float(np.sin(sum(state) + len(state))) for state in states]

    def fit(self, states: Sequence[State], returns: Sequence[float]) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def test_the_game_has_absent_agents_pay_without_a_turn_and_early_ends() -> None:
    parts = TEAM.taking_part(LOGITS)
    assert parts[:2] == exactly(np.ones(2)) and 0.3 < parts[2] < 0.7
    assert sum(TEAM.chances(LOGITS)) == exactly(1.0)
    assert sorted({len(history) for history, _, _ in TEAM.plays}) == [1, 2, 3]
    without = next(e for _, e, _ in TEAM.plays if "third_0" not in e.agents())
    assert without.other_pay["third_0"], "it is paid without a turn"
    for _, episode, paid in TEAM.plays:
        for agent in TEAM.agents:
            mine = [turn.reward for turn in episode.turns if turn.agent == agent]
            early = sum(r for stage, r in episode.other_pay[agent] if stage == -1)
            total = sum(mine) if mine else sum(r for _, r in episode.other_pay[agent])
            assert total == exactly(sum(stage[agent] for stage in paid) + early)


def test_a_replayed_record_has_the_same_pay_at_the_same_times() -> None:
    for _, episode, _ in TEAM.plays:
        for stem in (2, len(episode.turns)):
            game = EpisodeRunner(
                EpisodeSpec(task=episode.task, seed=0, prefix_turns=episode.turns[:stem]),
                Team(),
                prefix=[replace(turn, reward=0.0) for turn in episode.turns[:stem]],
            )
            game.advance()
            again = game.episode(Status.FINISHED).other_pay
            last = max(turn.stage for turn in episode.turns[:stem])
            wanted = {
                agent: tuple(pay for pay in every if pay[0] <= last)
                for agent, every in episode.other_pay.items()
            }
            assert again == wanted


def test_the_gradient_by_differentiation_is_the_expected_score() -> None:
    def own(agent: int, paid: Sequence[Mapping[str, float]], stage: int) -> float:
        return sum(each[TEAM.agents[agent]] for each in paid)

    assert TEAM.exact(LOGITS, own) == exactly(OWN)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("within", ["agent", "role"])
def test_rloo_expects_the_policy_gradient(within: Any, size: int) -> None:
    assert TEAM.expected(RLOO(group_by=within), LOGITS, size=size) == exactly(OWN)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "credit",
    [
        DrGRPO(group_by="agent"),
        DrGRPO(group_by="role"),
        MTGRPO(group_by="agent", std=False),
        GiGPO(group_by="agent", weight=0.0),
    ],
    ids=lambda credit: f"{type(credit).__name__}-{credit.group_by}",
)
def test_centred_returns_keep_their_factor(credit: Credit, size: int) -> None:
    found = TEAM.expected(credit, LOGITS, size=size)
    assert found == exactly(OWN * (size - 1) / size)


@pytest.mark.parametrize("size", [2, 3])
def test_magrpo_keeps_its_factor_of_the_teams_gradient(size: int) -> None:
    found = TEAM.expected(MAGRPO(), LOGITS, size=size)
    assert found == exactly(MEAN * (size - 1) / size)


def test_magrpo_discounts_pay_by_the_rounds_until_it_is_paid() -> None:
    """Check the discount; a round ends before a stage in which one of its agents moves again."""

    def rounds(history: History) -> list[int]:
        number, acted, found = 0, set[str](), list[int]()
        for moves in history:
            agents = {agent for agent, _ in moves}
            if acted & agents:
                number, acted = number + 1, set()
            acted |= agents
            found.append(number)
        return found

    rounds_of_play = {id(paid): rounds(history) for history, _, paid in TEAM.plays}

    def worth(agent: int, paid: Sequence[Mapping[str, float]], stage: int) -> float:
        begun = rounds_of_play[id(paid)]
        later = range(stage, len(paid))
        return sum(0.5 ** (begun[n] - begun[stage]) * sum(paid[n].values()) / 3 for n in later)

    found = TEAM.expected(MAGRPO(discount=0.5), LOGITS, size=2)
    assert found == exactly(TEAM.exact(LOGITS, worth) / 2)
    assert np.abs(found - MEAN / 2).max() > 0.01


def kept(chance: np.ndarray, size: int) -> np.ndarray:
    """Return E[(n - 1) / n]: one of n siblings is present, each other one with this probability."""
    others = size - 1
    terms = (
        comb(others, k) * chance**k * (1 - chance) ** (others - k) * k / (k + 1)
        for k in range(size)
    )
    return np.sum(list(terms), axis=0)


@pytest.mark.parametrize("size", [2, 3])
def test_the_factor_of_gigpo_at_a_state_depends_on_its_visits(size: int) -> None:
    found = TEAM.expected(GiGPO(group_by="agent", discount=1.0, weight=2.0), LOGITS, size=size)
    factors = (size - 1) / size + 2 * kept(TEAM.visits(LOGITS), size)
    assert found == exactly(OWN * factors[None, :, None])


@pytest.mark.parametrize("size", [2, 3])
def test_the_factor_of_at_grpo_depends_on_the_siblings_at_a_prompt(size: int) -> None:
    factors = kept(TEAM.visits(LOGITS), size)[None, :, None]
    assert TEAM.expected(ATGRPO(std=False), LOGITS, size=size) == exactly(OWN * factors)
    found = TEAM.expected(ATGRPO(std=False, returns="team"), LOGITS, size=size)
    assert found == exactly(MEAN * factors)


@pytest.mark.parametrize("size", [2, 3])
def test_the_factor_of_pass_at_k_depends_on_the_siblings_that_answer(size: int) -> None:
    """Check that for k = 1 pass@1 has the factor E[(n - 1) / n]; the agent moves in n siblings."""
    credit = PassAtK(k=1, threshold=2.0, group_by="agent", std=False)
    right = TEAM.exact(
        LOGITS,
        lambda agent, paid, _: float(
            sum(each[TEAM.agents[agent]] for each in paid) + 0.3 * (agent == 2) > 2.0
        ),
    )
    factors = kept(TEAM.taking_part(LOGITS), size)
    found = TEAM.expected(credit, LOGITS, size=size)
    assert found == exactly(right * factors[:, None, None])
    assert factors[2] < factors[0] - 0.1 and np.abs(right[2]).max() > 0.01


@pytest.mark.parametrize("size", [1, 2])
def test_running_averages_are_exact(size: int) -> None:
    choices: tuple[By, ...] = ("agent", "role")
    for by in choices:
        found = TEAM.expected(RAE(by=by, decay=0.5), LOGITS, size=size)
        assert found == exactly(OWN)
    late = RAE(order="update_first", decay=0.75)
    assert TEAM.expected(late, LOGITS, size=size) == exactly(0.75 * OWN)


@pytest.mark.parametrize("sees", ["own", "all"])
def test_gae_with_lambda_1_is_exact_for_any_critic(sees: Any) -> None:
    credit = GAE(critic=Critic(), sees=sees, gae_lambda=1.0, whiten=False)
    assert TEAM.expected(credit, LOGITS, size=1) == exactly(OWN)


@pytest.mark.parametrize("returns", ["own", "team"])
def test_counterfactual_is_exact_in_the_last_stage_and_biased_before(returns: Any) -> None:
    found = TEAM.expected(Counterfactual(arena=Team, returns=returns), LOGITS, size=1)
    wanted = OWN if returns == "own" else MEAN
    last = np.array([len(state) == 2 for state in TEAM.states])
    assert found[:, last] == exactly(wanted[:, last])
    assert np.abs(wanted[:, last]).max() > 0.001
    assert np.abs(found - wanted)[:, ~last].max() > 0.1


@pytest.mark.parametrize(
    "credit",
    [
        GRPO(group_by="agent"),
        TRR(),
        ReinforcePlusPlus(),
        ReinforcePlusPlus(baseline="group", group_by="agent"),
        MTGRPO(group_by="agent"),
        GiGPO(group_by="agent", mode="mean_std_norm"),
        PassAtK(k=1, threshold=2.0, group_by="agent"),
        MAGRPO(std=True),
        ATGRPO(),
        ARPO(group_by="agent"),
        GAE(critic=Critic(), gae_lambda=0.5, whiten=False),
    ],
    ids=lambda credit: type(credit).__name__,
)
def test_inexact_methods_point_away_from_the_policy_gradient(credit: Credit) -> None:
    wanted = MEAN if isinstance(credit, MAGRPO) else OWN
    assert cosine(TEAM.expected(credit, LOGITS, size=3), wanted) < 0.998


def trees() -> Iterator[tuple[float, Group]]:
    """Yield (probability, tree) for all trees with two candidates at the first and second stage."""
    chances = TEAM.chances(LOGITS)
    rows: dict[Any, list[tuple[float, Episode]]] = {}
    for chance, (history, episode, _) in zip(chances, TEAM.plays, strict=True):
        rows.setdefault(history[0], []).append((float(chance), episode))
    totals = {first: sum(chance for chance, _ in row) for first, row in rows.items()}
    for firsts in combinations_with_replacement(rows, 2):
        leaves = [_leaves(rows[first], totals[first]) for first in firsts]
        for weight, one in leaves[0]:
            for other, two in leaves[1]:
                chance = (1 + (firsts[0] != firsts[1])) * weight * other
                chance *= totals[firsts[0]] * totals[firsts[1]]
                branches = [
                    replace(branch, branch_of=parent, shared_turns=2)
                    for parent, pair in enumerate((one, two))
                    for branch in pair[1:]
                ]
                yield chance, group(one[0], two[0], *branches)


def _leaves(row: Sequence[tuple[float, Episode]], total: float) -> list[tuple[float, list]]:
    """Return (probability, episodes) of a candidate: two episodes, or one if it ended the game."""
    if len({turn.stage for turn in row[0][1].turns}) == 1:
        return [(1.0, [row[0][1]])]
    return [
        ((1 + (one is not two)) * one[0] * two[0] / total**2, [one[1], two[1]])
        for one, two in combinations_with_replacement(row, 2)
    ]


def in_trees(credit: Credit) -> np.ndarray:
    """Return the expected gradient; all candidates of a stage have equal weight."""
    chosen = LOGITS.softmax(-1).numpy()
    places = {tuple(map(ord, str(state))): n for n, state in enumerate(TEAM.states)}
    found, total = np.zeros_like(chosen), 0.0
    for chance, tree in trees():
        total += chance
        for sample in credit.assign([tree]):
            agent = TEAM.agents.index(sample.turn.agent)
            state, action = places[tuple(sample.turn.prompt_ids)], sample.turn.completion_ids[0]
            score = -chosen[agent, state]
            score[action] += 1
            assert isinstance(sample.advantage, float)
            candidates = (2, 4, 4)[sample.turn.stage]
            found[agent, state] += chance * sample.advantage / candidates * score
    assert total == exactly(1.0)
    return found


def test_in_trees_a_branching_stage_keeps_its_factor() -> None:
    early = np.array([len(state) < 2 for state in TEAM.states])
    assert in_trees(MAGRPO())[:, early] == exactly(MEAN[:, early] / 2)
    # For ATGRPO the other root candidate leads to the same prompt with probability p.
    p = TEAM.visits(LOGITS)
    factors = np.where([len(state) == 0 for state in TEAM.states], 0.5, (1 - p) / 2 + p * 3 / 4)
    wanted = (MEAN * factors[None, :, None])[:, early]
    assert in_trees(ATGRPO(std=False, returns="team"))[:, early] == exactly(wanted)
    wanted = (OWN * factors[None, :, None])[:, early]
    assert in_trees(ATGRPO(std=False))[:, early] == exactly(wanted)
