"""Joint actions: every combination of what the siblings of a group did at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, get_args

from selfplay.credit.replay import MoveReplayer, ReplayedArena
from selfplay.credit.tree import Candidate
from selfplay.errors import ConfigError
from selfplay.types import Action, Episode, Group, Status

Over = Literal["mean", "sum"]


class CrossedReturns:
    """Judges each action by the team's returns of all joint actions that it is part of.

    G siblings of N agents make G^N of them. They are replayed, combinations of equal actions once,
    and the team's return is the mean of what the arena pays its agents. Where it breaks in a replay
    that joint action is left out, and counted.
    """

    def __init__(self, arena: Callable[[], ReplayedArena] | None, *, over: Over, most: int) -> None:
        """`over`: their mean, or their sum as in the released trainer; `most` bounds G^N."""
        if arena is None:
            raise ValueError("joint=cross needs an arena to play other joint actions in")
        if over not in get_args(Over):
            raise ValueError(f"no {over!r} over joint actions; {get_args(Over)} are known")
        self.over, self.most = over, most
        self.replayer = MoveReplayer(arena, limit=1)

    def judge(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates with these returns as their values; raises ConfigError.

        For episodes of several stages, whose later prompts answer to one joint action only, and for
        more joint actions than allowed.
        """
        self.replayer.counts.clear()
        found: dict[tuple[str, int, str], list[float]] = {}
        for group in {play.group.id: play.group for play in candidates}.values():
            found |= self._of_group(group)
        return [
            replace(play, value=self._total(found[play.trajectory], play.value))
            for play in candidates
        ]

    def metrics(self) -> Mapping[str, float]:
        """Replays of the last call, and those in which the arena broke."""
        figures = self.replayer.metrics()
        return {name: figures[name] for name in ("replays", "replays_failed")}

    def _total(self, returns: Sequence[float], recorded: float) -> float:
        if not returns:  # all of its replays broke, the record did not
            return recorded
        return sum(returns) / (len(returns) if self.over == "mean" else 1)

    def _of_group(self, group: Group) -> dict[tuple[str, int, str], list[float]]:
        siblings = {i: e for i, e in enumerate(group.episodes) if e.status is not Status.FAILED}
        some = next(iter(siblings.values()))
        agents = some.agents()
        for episode in siblings.values():
            whole = tuple(turn.agent for turn in episode.turns) == agents
            if not whole or any(turn.stage for turn in episode.turns):
                raise self._several_stages(some)
        if len(siblings) ** len(agents) > self.most:
            raise ConfigError(
                f"credit.joint: cross would play {len(siblings)}^{len(agents)} joint actions of "
                f"each group, and credit.most_joint_actions is {self.most}; lower "
                "sampler.group_size, raise that limit or set credit.joint=aligned"
            )
        moves = {i: {t.agent: t.action for t in e.turns} for i, e in siblings.items()}
        known: dict[tuple[Action | None, ...], float | None] = {}
        found: dict[tuple[str, int, str], list[float]] = {
            (group.id, index, agent): [] for index in siblings for agent in agents
        }
        for members in product(siblings, repeat=len(agents)):
            joint = {a: moves[i][a] for a, i in zip(agents, members, strict=True)}
            actions = tuple(joint.values())
            if actions not in known:
                known[actions] = self._return(some, joint)
            value = known[actions]
            if value is not None:
                for agent, index in zip(agents, members, strict=True):
                    found[group.id, index, agent].append(value)
        return found

    def _return(self, episode: Episode, joint: dict[str, Action | None]) -> float | None:
        paid = self.replayer.paid(episode, {agent: [action] for agent, action in joint.items()})
        if self.replayer.counts["replays_cut"]:
            raise self._several_stages(episode)
        return None if paid is None else sum(paid.values()) / len(paid)

    @staticmethod
    def _several_stages(episode: Episode) -> ConfigError:
        return ConfigError(
            "credit.joint: cross needs episodes of one stage in which all agents move at once, and "
            f"{episode.arena} plays others; set credit.joint=aligned"
        )
