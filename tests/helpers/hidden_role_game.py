"""A game of hidden roles, written by the rules of the documentation: talk, vote and leave."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from selfplay import Arena, Observation, Task


class Spy(Arena):
    """One player is a spy, and only the spy knows this. Every day all talk, and then all vote.

    The player with the most votes leaves; on a tie no player leaves. The others win when the spy
    has left. The spy wins if it is one of the last two players or if the days are over.
    """

    name = "spy_v0"

    def __init__(self, *, players: int = 5, days: int = 4, longest: int = 40) -> None:
        super().__init__({"player": players})  # a role's name would reveal the spy
        if players < 3 or days < 1:
            raise ValueError("a game has at least 3 players and 1 day")
        self.days, self.longest = days, longest

    def setup(self, task: Task, rng: Random) -> None:
        self.spy = rng.choice(self.possible_agents)
        self.living = list(self.possible_agents)
        self.day, self.talking = 1, True
        self.said: dict[str, str] = {}
        self.voted: dict[str, str] = {}
        self.illegal = self.votes = 0

    def acting(self) -> Sequence[str]:
        return self.living  # a player that has left does not act again

    def speaking(self) -> Sequence[str]:
        return self.living if self.talking else ()

    def view(self, agent: str) -> Observation:
        who = "You are the spy." if agent == self.spy else "You are not the spy."
        past = self.voted if self.talking else self.said
        verb = "voted for" if self.talking else "said"
        lines = [f"Day {self.day}. {who}", *(f"{a} {verb} {text}" for a, text in past.items())]
        legal = [] if self.talking else [other for other in self.living if other != agent]
        ask = "Say something." if self.talking else f"Vote for one of: {', '.join(legal)}"
        fields = {"legal": legal, "day": self.day, "spy": agent == self.spy}
        return Observation(text="\n".join([*lines, ask]), fields=fields)

    def advance(self, actions: Mapping[str, str | None]) -> None:
        texts = {agent: (action or "").strip() for agent, action in actions.items()}
        if self.talking:
            self.said = {agent: text[: self.longest] for agent, text in texts.items()}
            self.talking = False
            return
        self.voted = {}
        for agent, text in texts.items():
            self.votes += 1
            if text in self.living and text != agent:
                self.voted[agent] = text
            else:
                self.illegal += 1
                self.note(agent, verdict="illegal")
                self.pay(agent, -0.1)
        self.count()

    def count(self) -> None:
        """Remove the player with the most votes; then the next day begins, or the game ends."""
        ranked = Counter(self.voted.values()).most_common(2)
        if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]):
            self.living.remove(ranked[0][0])
        caught = self.spy not in self.living
        if caught or len(self.living) == 2 or self.day == self.days:
            for agent in self.possible_agents:
                self.pay(agent, 1.0 if (agent == self.spy) != caught else -1.0)
            self.measure(caught=caught, illegal_votes=self.illegal / self.votes, days=self.day)
            self.finish()
        self.day, self.talking = self.day + 1, True
