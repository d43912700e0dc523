"""What came of a replay: what was as it was recorded, and what was not."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from selfplay.figures import number
from selfplay.recorded import Advantage

MOST_SHOWN = 5
"""Differences that are shown one by one."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A figure of a turn that came out otherwise than it was recorded."""

    step: int
    """The step that played it."""
    group: str
    """Its group."""
    member: int
    """Its episode's place in the group."""
    turn: int
    """Its place in the episode."""
    agent: str
    """Whose turn it is."""
    what: str
    """"reward" or "advantage"."""
    recorded: Advantage
    """As it is on record."""
    replayed: Advantage
    """As it came out."""


@dataclass(kw_only=True)
class Replay:
    """What came of replaying a run."""

    steps: int = 0
    """Steps replayed."""
    episodes: int = 0
    """Episodes played again."""
    behind: int = 0
    """Recorded steps behind the newest checkpoint, which are left out: what the arena knew in them,
    such as the task buffer, is in no checkpoint yet."""
    unplayed: Counter[str] = field(default_factory=Counter)
    """Episodes that were not, by reason."""
    rewards: int = 0
    """Turns whose rewards were compared."""
    advantages: int = 0
    """Turns whose advantages were compared."""
    sign_changes: int = 0
    """Turns whose advantage, summed over its tokens, has another sign now."""
    differences: list[Difference] = field(default_factory=list)
    """In the order of the record."""
    paid: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Role to its mean pay per turn, as recorded and as replayed."""

    def different(self, what: str) -> int:
        """Turns whose reward or advantage came out otherwise."""
        return sum(each.what == what for each in self.differences)

    def lines(self) -> list[str]:
        """What a person reads."""
        found = [f"{self.steps} steps, {self.episodes} episodes played again"]
        if self.behind:
            found.append(f"{self.behind} steps behind the newest checkpoint are left out")
        found += [f"{count} not: {reason}" for reason, count in self.unplayed.most_common()]
        for what, total in (("reward", self.rewards), ("advantage", self.advantages)):
            same = total - self.different(what)
            found.append(f"{what}s as recorded: {same} of {total}")
        if self.sign_changes:
            found.append(f"advantages of another sign: {self.sign_changes}")
        if self.different("reward"):
            found += [
                f"mean pay of a turn of {role}: {number(before)} -> {number(after)}"
                for role, (before, after) in self.paid.items()
            ]
        found += [
            f"step {each.step}, group {each.group}, member {each.member}, turn {each.turn} "
            f"({each.agent}): {each.what} {_shown(each.recorded)} -> {_shown(each.replayed)}"
            for each in self.differences[:MOST_SHOWN]
        ]
        more = len(self.differences) - MOST_SHOWN
        return [*found, f"and {more} more, all of them with --json"] if more > 0 else found

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "behind": self.behind,
            "unplayed": dict(self.unplayed),
            "rewards": self.rewards,
            "advantages": self.advantages,
            "sign_changes": self.sign_changes,
            "paid": {
                role: {"recorded": before, "replayed": after}
                for role, (before, after) in self.paid.items()
            },
            "differences": [asdict(each) for each in self.differences],
        }


def _shown(value: Advantage) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(number, value[:4]))}{', ...' if len(value) > 4 else ''}]"
    return "none" if value is None else number(value)
