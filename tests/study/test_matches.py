"""Games of a study: scores of episodes."""

import pytest

from arenas.games.kuhn import Kuhn
from selfplay.engines.scripted import constant
from selfplay.errors import ConfigError
from tests.helpers.scripted_games import games


def test_the_return_counts_the_pay_of_an_agent_without_a_turn() -> None:
    """An illegal first move ends the game: the other player is paid without a turn."""
    made = games(Kuhn, {"team": constant("nonsense")}, episodes=4)
    played = made.run({})
    assert {episode.agents() for episode in played} == {("player_0",)}
    assert made.scores(played, "return").tolist() == [0.0] * 4
    assert made.scores(played, "return/player_1").tolist() == [2.0] * 4


def test_a_wrong_metric_is_refused_after_one_trial_game() -> None:
    asked: list[str] = []

    def script(messages: object, *rest: object) -> str:
        asked.append("move")
        return "nonsense"

    def made(metric: str):  # type: ignore[no-untyped-def]
        return games(Kuhn, {"team": script}, episodes=100, metrics=[metric])

    for known in ("return", "return/player_1", "illegal"):
        made(known).check_metric()
    assert not asked
    with pytest.raises(ConfigError, match="no such agent"):
        made("return/player_7").check_metric()
    wrong = made("ilegal")
    with pytest.raises(ConfigError, match="a trial game lacks it; did you mean 'illegal'"):
        wrong.check_metric()
    assert len(asked) == 1 and wrong.cells == 0
