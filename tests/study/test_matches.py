"""Games of a study: scores of episodes."""

from arenas.games.kuhn import Kuhn
from selfplay.engines.scripted import constant
from tests.helpers.scripted_games import games


def test_the_return_counts_the_pay_of_an_agent_without_a_turn() -> None:
    """An illegal first move ends the game: the other player is paid without a turn."""
    made = games(Kuhn, {"team": constant("nonsense")}, episodes=4)
    played = made.run({})
    assert {episode.agents() for episode in played} == {("player_0",)}
    assert made.scores(played, "return").tolist() == [0.0] * 4
    assert made.scores(played, "return/player_1").tolist() == [2.0] * 4
