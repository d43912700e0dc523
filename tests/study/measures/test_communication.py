"""Ablation and influence in signalling games, compared with enumerated values."""

from collections.abc import Callable, Mapping, Sequence
from math import comb, log
from random import Random
from typing import Any

import numpy as np
import pytest

from arenas.games.matrix import Matrix, raw_env
from selfplay.arena import Arena
from selfplay.engines.scripted import Script, constant
from selfplay.errors import ConfigError
from selfplay.study.communication import HeardMessage, intact, through
from selfplay.study.matches import StudyMatches
from selfplay.study.measures import influence, message_ablation
from selfplay.study.result import Result
from selfplay.study.stats.bootstrap import Estimate
from selfplay.types import Action, Observation, Task
from tests.helpers.scripted_games import STATES, code, games, lewis, lewis_tasks, player

ENTROPY = -0.1 * log(0.1) - 0.9 * log(0.9)
CODE = dict(zip(STATES, "wxyz", strict=True))


def team(script: Script, **settings: Any) -> StudyMatches:
    return games(lewis(), {"team": script}, tasks=lewis_tasks(), **{"episodes": 160, **settings})


def by_name(result: Result) -> dict[str, Estimate]:
    return {each.name: each for each in result.estimates}


def covers(estimate: Estimate, truth: float) -> bool:
    return estimate.low - 1e-9 <= truth <= estimate.high + 1e-9


def ablated(made: StudyMatches) -> dict[str, Estimate]:
    return by_name(message_ablation.study(made, player("team", made.arena)))


# Ablation ----------------------------------------------------------------------------------------


def test_a_message_that_carries_the_state() -> None:
    """The score is 1 with intact words, 1/4 with none and 0 with words of another task.

    With words of another episode it is 1 if that episode has the same state, else 0.
    """
    found = ablated(team(code(CODE, otherwise="a"), episodes=640))
    assert found["drop: lost"].value == 0.75
    assert found["replace: lost"].value == 1.0
    shuffle, same = found["shuffle: lost"], 159 / 639  # partners of the same state among the others
    assert covers(shuffle, 1 - same) and shuffle.high - shuffle.low < 0.15


def noise(observation: Observation, rng: Any) -> str:
    return str(rng.choice(list("wxyz")))


def test_a_message_that_is_noise() -> None:
    """Words are independent of the state, but the listener acts on them."""
    found = ablated(team(code(CODE, otherwise="a", say=noise)))
    assert all(covers(each, 0.0) for each in found.values())
    assert found["shuffle: lost"].low < 0 < found["shuffle: lost"].high


def test_a_listener_that_ignores_what_it_hears_loses_nothing() -> None:
    def deaf(agent: str, observation: Observation, rng: Any) -> str:
        if observation.fields["phase"] == "message":
            return CODE[observation.fields["state"]]
        return "wait" if agent.startswith("speaker") else "a"

    made = team(deaf, metrics=["return", "team_return"])
    result = message_ablation.study(made, player("team", made.arena))
    for each in result.estimates:
        assert (each.value, each.low, each.high) == (0, 0, 0)
    assert any(note.endswith("such as --metric team_return") for note in result.notes)


def test_a_speaker_keeps_its_own_words() -> None:
    """Both speak, and each repeats its own word as its move, so no ablation has an effect."""

    def arena() -> Any:
        return raw_env(actions=["p", "q"], payoffs=[[1, 0], [0, 1]], speakers=[0, 1])

    def own(agent: str, observation: Observation, rng: Any) -> str:
        return (
            rng.choice("pq")
            if observation.fields["phase"] == "message"
            else (observation.fields["said"])
        )

    made = games(arena, {"team": own}, episodes=60)
    found = ablated(made)
    assert found["drop: lost"].value == found["shuffle: lost"].value == 0
    assert "replace: lost" not in found  # there is only one task


class Order(Arena):
    """Two agents speak once each, in random order. Then both repeat the words of the other."""

    name = "order_v0"
    roles = {"player": 2}
    silent = 0.0
    """Probability that one of the two agents does not speak."""

    def setup(self, task: Task, rng: Random) -> None:
        self.order = rng.sample(self.possible_agents, 2)
        if rng.random() < self.silent:
            self.order.pop()
        self.heard: dict[str, str] = {}
        self.done = 0

    def acting(self) -> Sequence[str]:
        return [self.order[self.done]] if self.done < len(self.order) else self.possible_agents

    def messengers(self) -> Sequence[str]:
        return self.acting() if self.done < len(self.order) else []

    def view(self, agent: str) -> Observation:
        other = next(each for each in self.possible_agents if each != agent)
        fields = {"heard": self.heard.get(other, "nothing"), "speaks": bool(self.messengers())}
        return Observation(text="", fields=fields)

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        if self.done < len(self.order):
            self.heard |= {agent: action or "nothing" for agent, action in actions.items()}
            self.done += 1
            return
        self.measure(hears=sum(action != "nothing" for action in actions.values()) / 2)
        self.finish()


class Sparse(Order):
    """The same game, but in a third of the episodes only one agent speaks."""

    silent = 1 / 3


@pytest.mark.parametrize(("arena", "least", "most"), [(Order, 0.0, 0.0), (Sparse, 0.1, 0.3)])
def test_words_are_matched_by_their_number_and_not_by_their_stage(
    arena: type[Order], least: float, most: float
) -> None:
    """The first speaker is drawn at random, so matching by stage would miss half of the words."""

    def speak_or_name(agent: str, observation: Observation, rng: Any) -> str:
        return "x" if observation.fields["speaks"] else str(observation.fields["heard"])

    made = games(arena, {"team": speak_or_name}, episodes=120, metrics=["hears"])
    result = message_ablation.study(made, player("team", arena))
    found = by_name(result)["shuffle: lost"]
    unmatched = result.params["words_that_found_none"]["shuffle"]
    assert least <= unmatched <= most and (found.value > 0) == (unmatched > 0)
    assert f"{100 * unmatched:.3g} % of words had no counterpart" in found.notes
    assert bool(unmatched) == any(note.startswith("shuffle: ") for note in result.notes)


def test_stages_are_counted_from_0_in_every_episode() -> None:
    record: list[HeardMessage] = []
    channel = through(Order, intact, record)()
    for seed in (0, 1):
        channel.begin(Task(id="t"), seed=seed)
        while not channel.finished:
            channel.play_stage(dict.fromkeys(channel.stage, "x"))
    assert [words.stage for words in record] == [0, 1, 0, 1]


def test_a_derangement_has_no_fixed_point() -> None:
    partners = message_ablation.derangement(list(range(50)), seed=3)
    assert sorted(partners) == sorted(partners.values()) == list(range(50))
    assert all(one != other for one, other in partners.items())


def test_a_game_without_words_is_refused_with_advice() -> None:
    made = games(raw_env, {"team": constant("defect")})
    for study in (message_ablation.study, influence.study):
        with pytest.raises(ConfigError, match=r"no move is a message to others; .* arena=signal"):
            study(made, player("team", raw_env))


def test_words_that_no_move_answers_are_noted_or_refused() -> None:
    """Words that repeat are measured with a note; words that never repeat are refused."""

    class Chat(Matrix):
        def messengers(self) -> Sequence[str]:
            return self.acting()

    def arena() -> Any:
        table = [[1, 0], [0, 1]]
        return Chat(actions=["p", "q"], payoffs={"sun": table, "rain": table}, speakers=[0])

    def script(say: Callable[[Any], str]) -> Script:
        return lambda agent, seen, rng: "p" if seen.fields["phase"] == "move" else say(rng)

    made = games(arena, {"team": script(lambda rng: str(rng.choice("xy")))}, episodes=40)
    notes = influence.study(made, player("team", arena), chances=flipping(0.0)).notes
    assert notes == ["agents that hear words answer with words, so no move could be read"]
    made = games(arena, {"team": script(lambda rng: str(rng.random()))}, episodes=40)
    with pytest.raises(ConfigError, match=r"too many different words .* measure arena=signal"):
        influence.study(made, player("team", arena), chances=flipping(0.0))


# Influence ---------------------------------------------------------------------------------------


def flipping(flip: float) -> influence.Chances:
    """Return move probabilities by the meaning of the word, flipped with probability `flip`."""

    def chances(agent: str, observation: Observation) -> Mapping[str, float]:
        heard = observation.fields["heard"]
        wanted = {"x": "a", "y": "b"}[heard]
        return {act: 1 - flip if act == wanted else flip for act in ("a", "b")}

    return chances


def influenced(script: Script, chances: influence.Chances, **settings: Any) -> dict[str, Estimate]:
    two = ("a", "b")
    made = games(
        lewis(two), {"team": script}, tasks=lewis_tasks(two), **{"episodes": 40, **settings}
    )
    return by_name(influence.study(made, player("team", made.arena), chances=chances))


TWO = {"a": "x", "b": "y"}


@pytest.mark.parametrize(("flip", "truth"), [(0.0, log(2)), (0.1, log(2) - ENTROPY)])
def test_a_code_that_is_followed(flip: float, truth: float) -> None:
    """A speaker that always says the same in a state has a CIC of 0, but its words are heard."""
    found = influenced(code(TWO, otherwise="a"), flipping(flip))
    assert found["positive listening"].value == pytest.approx(truth, abs=1e-6)
    assert covers(found["positive listening"], truth)
    assert found["change of the move"].value == pytest.approx((1 - 2 * flip) / 2)
    assert found["causal influence (CIC)"].value == pytest.approx(0, abs=1e-12)
    signal = found["positive signalling of speaker_0"]
    assert covers(signal, log(2)) and signal.p is not None and signal.p < 0.01


def at_random(chance: float) -> Script:
    """Return a script that says x with this probability, else y, and acts on the words it hears."""

    def say(observation: Observation, rng: Any) -> str:
        return "x" if rng.random() < chance else "y"

    return code(TWO, otherwise="a", say=say)


def test_random_words_that_are_followed() -> None:
    """Random words that are followed have influence without any information."""
    found = influenced(at_random(0.5), flipping(0.0), episodes=100)
    for name, truth in (("positive listening", log(2)), ("change of the move", 0.5)):
        assert truth - 0.02 < found[name].value <= truth and covers(found[name], truth)
        assert found[name].high - found[name].low > 0.005
        assert "only words that occurred are tried" in found[name].notes
        assert found[name].direction == "biased_down"
    again = found["causal influence (CIC)"]
    # Without the jackknife, 16 draws would show 0.661 nats.
    assert covers(again, log(2)) and again.value == pytest.approx(log(2), abs=0.01)
    assert again.direction == "unbiased" and "jackknife over M = 16 draws" in again.notes
    signal = found["positive signalling of speaker_0"]
    assert covers(signal, 0.0) and signal.p is not None and signal.p > 0.05


def test_intervals_of_listening_include_the_choice_of_words() -> None:
    """The words vary between seeds, and the intervals contain the true value."""
    truth = -0.8 * log(0.8) - 0.2 * log(0.2)
    found = [
        influenced(at_random(0.8), flipping(0.0), seed=seed)["positive listening"]
        for seed in range(16)
    ]
    assert all(each.low < each.high for each in found)
    assert sum(covers(each, truth) for each in found) >= 14
    assert np.mean([each.value for each in found]) == pytest.approx(truth, abs=0.03)


def test_the_jackknife_corrects_the_bias_of_few_draws() -> None:
    """Take the mean over the binomial distribution of 16 draws of two words that set the move."""
    copy, binomial = np.eye(2), [comb(16, n) / 2**16 for n in range(17)]
    counts = [np.array([n, 16 - n], dtype=float) for n in range(17)]
    plain = sum(
        p * float(influence.influence(copy, c)) for p, c in zip(binomial, counts, strict=True)
    )
    better = sum(p * influence.redrawn(copy, c) for p, c in zip(binomial, counts, strict=True))
    assert plain == pytest.approx(0.660820, abs=1e-6)
    assert better == pytest.approx(log(2), abs=2e-3)
    assert influence.redrawn(np.eye(1), np.array([16.0])) == pytest.approx(0)
    assert np.isnan(influence.redrawn(copy, np.array([1.0, 0.0])))


def test_words_have_no_influence_on_a_listener_that_ignores_them() -> None:
    found = influenced(code(TWO, otherwise="a"), lambda agent, observation: {"a": 0.3, "b": 0.7})
    for name in ("positive listening", "change of the move", "causal influence (CIC)"):
        assert found[name].value == pytest.approx(0, abs=1e-12) and covers(found[name], 0.0)


def failing(*states: str) -> Callable[[], Matrix]:
    """Return a signalling game of two states that fails after the words in these states."""

    def arena() -> Matrix:
        made = lewis(("a", "b"))()
        advance = made.advance

        def checked(actions: Mapping[str, Action | None]) -> None:
            if not made.talking and made.task.payload["state"] in states:
                raise RuntimeError("broken hinge")
            advance(actions)

        made.advance = checked  # type: ignore[method-assign]
        return made

    return arena


def test_words_of_failed_games_have_no_influence() -> None:
    """One of the two words is said only in games that fail."""
    tasks, script = lewis_tasks(("a", "b")), {"team": code(TWO, otherwise="a")}
    made = games(failing("b"), script, tasks=tasks, episodes=40)
    result = influence.study(made, player("team", made.arena), chances=flipping(0.0))
    assert by_name(result)["positive listening"].value == 0
    assert {row[2] for row in result.tables[0].rows} == {"x"}
    assert result.params["failed_episodes"] == 0.5
    made = games(failing("a", "b"), script, tasks=tasks, episodes=40)
    with pytest.raises(ConfigError, match=r"^all 40 games of \w+ with team failed; .*broken hinge"):
        influence.study(made, player("team", made.arena), chances=flipping(0.0))


def test_influence_of_given_chances() -> None:
    copy, flip = np.eye(2), np.array([[0.9, 0.1], [0.1, 0.9]])
    assert influence.influence(copy, np.ones(2)) == pytest.approx(log(2))
    assert influence.influence(flip, np.array([8.0, 2.0])) == pytest.approx(0.247974, abs=1e-6)
    assert influence.influence(np.array([[0.5, 0.5]] * 4), np.ones(4)) == 0
    assert influence.change(copy, np.ones(2)) == pytest.approx(0.5)


def test_moves_that_are_not_listed_cannot_be_read() -> None:
    made = team(code(CODE, otherwise="a"))
    chances = influence.exactly(made, {"listener_0": "team"})
    with pytest.raises(ConfigError, match="are not listed"):
        chances("listener_0", Observation(text="?"))
    with pytest.raises(ConfigError, match="has no model, so its probabilities"):
        chances("listener_0", Observation(fields={"legal": ["a"]}))
