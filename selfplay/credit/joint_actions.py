"""Returns of joint actions: every combination of the actions that the siblings of a group took."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, get_args

from selfplay.credit.replay import MoveReplayer, ReplayedArena
from selfplay.credit.tree import Candidate
from selfplay.errors import ConfigError, check_choice
from selfplay.types import Action, Episode, Group, Status

Over = Literal["mean", "sum"]


class CrossedReturns:
    """Judges each action by the team's returns of all joint actions that contain it.

    G siblings of N agents make G^N joint actions. They are replayed, equal ones once, and the
    team's return is the mean return of all agents. If the arena breaks in a replay, that joint
    action is left out and counted.
    """

    def __init__(self, arena: Callable[[], ReplayedArena] | None, *, over: Over, most: int) -> None:
        """Args:
        arena: Makes the arena that replays.
        over: mean, or sum as in MAGRPO's released trainer.
        most: Upper limit on G^N.
        """
        if arena is None:
            raise ValueError("joint=cross needs an arena to play other joint actions in")
        check_choice("over", over, get_args(Over))
        self.over, self.most = over, most
        self.replayer = MoveReplayer(arena, limit=1)

    def judge(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates with these returns as their values.

        Raises ConfigError for episodes of several stages, whose later prompts belong to one joint
        action only, and for more joint actions than allowed.
        """
        self.replayer.counts.clear()
        returns: dict[tuple[str, int, str], list[float]] = {}
        for group in {credited.group.id: credited.group for credited in candidates}.values():
            returns |= self._of_group(group)
        return [
            replace(credited, value=self._total(returns[credited.trajectory], credited.value))
            for credited in candidates
        ]

    def metrics(self) -> Mapping[str, float]:
        """Return the numbers of replays of the last call, and of those in which the arena broke."""
        metrics = self.replayer.metrics()
        return {name: metrics[name] for name in ("replays", "replays_failed")}

    def _total(self, returns: Sequence[float], recorded: float) -> float:
        if not returns:  # every replay broke, but the recorded episode did not
            return recorded
        return sum(returns) / (len(returns) if self.over == "mean" else 1)

    def _of_group(self, group: Group) -> dict[tuple[str, int, str], list[float]]:
        siblings = {i: e for i, e in enumerate(group.episodes) if e.status is not Status.FAILED}
        some = next(iter(siblings.values()))
        agents = some.agents()
        for episode in siblings.values():
            whole = tuple(turn.agent for turn in episode.moves()) == agents
            if not whole or any(turn.stage for turn in episode.turns):
                raise self._several_stages(some)
        if len(siblings) ** len(agents) > self.most:
            raise ConfigError(
                f"credit.joint: cross would play {len(siblings)}^{len(agents)} joint actions of "
                f"each group, and credit.most_joint_actions is {self.most}; lower "
                "sampler.group_size, raise that limit or set credit.joint=aligned"
            )
        moves = {i: {t.agent: t.action for t in e.moves()} for i, e in siblings.items()}
        known: dict[tuple[Action | None, ...], float | None] = {}
        returns: dict[tuple[str, int, str], list[float]] = {
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
                    returns[group.id, index, agent].append(value)
        return returns

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
