"""Warnings about missing or wrong learning signals: steps in which all advantages are 0, games that
are cut off, metrics that a setting names but no episode has, branches where nothing can branch,
samplers that look for successes in a zero-sum game, and team credit for opposed sides."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from selfplay.credit import Credit
from selfplay.credit.base import own_pay
from selfplay.credit.nested_methods import method_of, methods_of
from selfplay.credit.team_return import team_return
from selfplay.errors import nearest
from selfplay.types import Episode, Group, Sample, Status, StopReason


class ZeroAdvantages:
    """Detects steps in which every advantage is 0. The training loop prints its line."""

    def __init__(self, credit: Credit) -> None:
        """Args:
        credit: The run's method; one with `team` judges by the mean pay of all agents.
        """
        methods = methods_of(credit, "credit").values()
        self.team = any(getattr(method, "team", False) for method in methods)
        self.group_by = {getattr(method, "group_by", "") for method in methods} - {""}
        needs = (getattr(method, "signal_needs", "") for method in methods)
        self.needs = list(dict.fromkeys(filter(None, needs)))
        self._idle: set[str] = set()
        """Policies whose latest step had advantages of 0 alone; "" if it had no samples at all."""

    def line(self, step: int, groups: Sequence[Group], samples: Sequence[Sample]) -> str | None:
        """Return one line if no policy can learn from this step, and one of those with samples
        could from its step before."""
        learning = {sample.turn.policy for sample in samples} or {""}
        if zero_fraction(samples) < 1.0:
            self._idle -= learning | {""}
            return None
        known, self._idle = learning <= self._idle, self._idle | learning
        if known:
            return None
        episodes = [episode for group in groups for episode in group.episodes]
        if episodes and all(episode.status is Status.FAILED for episode in episodes):
            return f"step {step}: all {len(episodes)} episodes failed, so no policy learns"
        if not samples:
            return (
                f"step {step}: credit made no samples of a policy that learns in this step, so "
                "none does"
            )
        return (
            f"step {step}: all {len(samples)} advantages are 0, so no policy learns from its "
            f"rewards in this step; {self._reason(groups)}{_cut_off(groups)}"
        )

    def _reason(self, groups: Sequence[Group]) -> str:
        episodes = [e for g in groups for e in g.episodes if e.status is not Status.FAILED]
        if episodes and not any(map(_paid, episodes)):
            cut = all(e.status is Status.TRUNCATED for e in episodes)
            return "the return of every agent is 0 in every episode" + (
                ", and every episode was cut off at a limit (rollout.max_turns or the model's "
                "context) before the arena ended it"
                if cut
                else ""
            )
        single = all(len(group.episodes) == 1 for group in groups)
        compared = any(_compared(each, by) for each in episodes for by in self.group_by)
        if self.group_by and single and not compared:
            return (
                "each group has one episode, and its agents are compared with no other; set "
                "sampler.group_size to 2 or more"
            )
        if self.team and episodes and all(map(_opposed, episodes)):
            return (
                "the rewards of the agents add up to 0 in every episode (a zero-sum game), and "
                "this credit judges by the team's return; choose one that judges by each agent's "
                "own return, such as credit=rloo"
            )
        return "; ".join(self.needs) or "the returns that credit compares are equal"


def _cut_off(groups: Sequence[Group]) -> str:
    """Return the end of a line if most completions reached their token limit."""
    turns = [turn for group in groups for each in group.episodes for turn in each.turns]
    cut = sum(turn.stop_reason is StopReason.LENGTH for turn in turns)
    if 2 * cut <= len(turns):
        return ""
    return (
        f"; {cut} of {len(turns)} completions were cut off at their token limit, see "
        "sampling.default.max_tokens"
    )


class UnpaidPolicies:
    """Detects policies whose agents are paid 0 in a whole step in which others have a signal.
    `Trainer` has one."""

    def __init__(self, credit: Credit) -> None:
        """`credit`: the run's method."""
        self._credit = credit
        self._said: set[str] = set()

    def lines(self, step: int, groups: Sequence[Group], samples: Sequence[Sample]) -> Iterator[str]:
        """Return a line for each policy that has only advantages of 0, because all its agents were
        paid 0 in every episode. A policy gets one line in a run, and none if a method that reads
        metrics credits one of its roles: pay is then not the only reason.
        """
        counts = Counter(sample.turn.policy for sample in samples)
        signal = {each.turn.policy for each in samples if not _is_zero(each.advantage)}
        idle = counts.keys() - signal - self._said
        # `ZeroAdvantages` has a line for a step without a signal.
        if not idle or not signal:
            return
        idle -= {s.turn.policy for s in samples if self._reads_metrics(s.turn.role)}
        turns = [(e, turn) for group in groups for e in group.episodes for turn in e.turns]
        paid = {turn.policy for e, turn in turns if turn.policy in idle and own_pay(e, turn.agent)}
        for name in sorted(idle - paid):
            self._said.add(name)
            yield (
                f"step {step}: all {counts[name]} advantages of policy {name!r} are 0, because its "
                "agents were paid 0 in every episode, so it learns nothing from rewards in this "
                "step; if this is not meant, see if the arena pays them (Arena.pay)"
            )

    def _reads_metrics(self, role: str) -> bool:
        return bool(getattr(method_of(self._credit, role), "metrics_read", {}))


class Unfinished:
    """Detects the first step in which most games were cut off at `rollout.max_turns`."""

    def __init__(self) -> None:
        self._said = False

    def line(self, step: int, groups: Sequence[Group]) -> str | None:
        """Return one line if most episodes of this step were cut off; None after the first line."""
        episodes = [episode for group in groups for episode in group.episodes]
        # A prompt that is too long also cuts an episode off; the episode then has an `error`.
        cut = sum(e.status is Status.TRUNCATED and not e.error for e in episodes)
        if self._said or cut <= len(episodes) / 2:
            return None
        self._said = True
        return (
            f"step {step}: {cut} of {len(episodes)} episodes were cut off at rollout.max_turns "
            "before the arena ended them, so what it pays and measures at the end is missing; set "
            "a higher rollout.max_turns, or let the arena finish() earlier"
        )


class TooLongPrompts:
    """Detects the first step in which a prompt that was too long for the model cut off an
    episode. `Trainer` has one."""

    def __init__(self) -> None:
        self._said = False

    def line(self, step: int, groups: Sequence[Group]) -> str | None:
        """Return one line if such a prompt cut off an episode; None after the first line."""
        episodes = [episode for group in groups for episode in group.episodes]
        # Only a truncated episode with such a prompt has an error.
        errors = [e.error for e in episodes if e.status is Status.TRUNCATED and e.error]
        if self._said or not errors:
            return None
        self._said = True
        return (
            f"step {step}: {len(errors)} of {len(episodes)} episodes were cut off before the arena "
            f"ended them, {errors[0]}; episodes/truncated/PromptTooLong of metrics.jsonl counts "
            "these episodes in every step"
        )


def zero_fraction(samples: Sequence[Sample]) -> float:
    """Return the fraction of samples whose advantages are all 0; 1 if there are no samples."""
    zero = sum(_is_zero(sample.advantage) for sample in samples)
    return zero / len(samples) if samples else 1.0


def _is_zero(advantage: float | Sequence[float]) -> bool:
    # numpy needs microseconds for a single number.
    return advantage == 0 if isinstance(advantage, float | int) else not np.any(advantage)


def unbranched(sampler: object, groups: Sequence[Group]) -> Iterator[str]:
    """Return a line if a sampler branches between stages and no episode has a second stage."""
    episodes = [episode for group in groups for episode in group.episodes if episode.turns]
    alone = all(len({turn.stage for turn in episode.turns}) == 1 for episode in episodes)
    if getattr(sampler, "tree", False) and episodes and alone:
        yield (
            f"sampler {type(sampler).__name__}: it branches between the stages of an episode, and "
            "every episode has one stage (a tool call and its answer are one), so that all "
            "episodes are independent; sampler=independent does the same"
        )


def zero_sum(sampler: object, groups: Sequence[Group]) -> Iterator[str]:
    """Return a line if a sampler selects successes by the mean return of all agents, which is 0 in
    every episode.

    A sampler states this as `judges_success`.
    """
    finished = [e for g in groups for e in g.episodes if e.status is Status.FINISHED]
    judges = getattr(sampler, "judges_success", False)
    if judges and any(map(_paid, finished)) and all(map(_opposed, finished)):
        yield (
            f"sampler {type(sampler).__name__}: the rewards of the agents add up to 0 in every "
            "episode (a zero-sum game), so the mean return that decides about success is always 0, "
            "and this sampler cannot tell a success from a failure; choose sampler=independent or "
            "dynamic"
        )


OPPOSED = -0.5
"""Correlation of a role's pay with the team's return below which `opposed_roles` has a line."""
LEAST_EPISODES = 8
"""Number of finished episodes from which `opposed_roles` computes a correlation."""


def opposed_roles(credit: Credit, groups: Sequence[Group]) -> Iterator[str]:
    """Return a line for each learning role that a credit by the team's return rewards for losing:
    its agents are paid less in the episodes in which the mean return of all agents is higher.
    """
    finished = [e for g in groups for e in g.episodes if e.status is Status.FINISHED]
    learning = {turn.role: None for e in finished for turn in e.turns if turn.trainable}
    for role in learning:
        method = method_of(credit, role)
        if not getattr(method, "team", False):
            continue
        agents = [dict.fromkeys(t.agent for t in e.turns if t.role == role) for e in finished]
        pairs = np.array(
            [
                (np.mean([own_pay(episode, agent) for agent in its]), team_return(episode))
                for episode, its in zip(finished, agents, strict=True)
                if its
            ]
        )
        if len(pairs) < LEAST_EPISODES or np.ptp(pairs, axis=0).min() <= 1e-12:
            continue
        correlation = float(np.corrcoef(pairs.T)[0, 1])
        if correlation < OPPOSED:
            yield (
                f"credit: {type(method).__name__} judges turns by the mean return of all agents, "
                f"and agents of the role {role!r} are paid less where this mean is higher "
                f"(correlation {correlation:.2f} in {len(pairs)} episodes), so that they learn to "
                "lower their own reward; in a game of opposed sides choose a credit that judges by "
                "each agent's own return, such as credit=rloo"
            )


def _compared(episode: Episode, group_by: str) -> bool:
    """Return True if a credit method compares agents within an episode, see `base.group_key`."""
    if group_by == "agent":
        return False
    first = {turn.agent: turn for turn in reversed(episode.turns)}.values()
    by_prompt = group_by == "prompt"
    keys = {(turn.role, tuple(turn.prompt_ids) if by_prompt else ()) for turn in first}
    return len(keys) < len(first)


def _paid(episode: Episode) -> bool:
    """Return True if an agent's pay is not 0."""
    return any(own_pay(episode, agent) for agent in episode.other_pay or episode.agents())


def _opposed(episode: Episode) -> bool:
    """Return True if the pay of all agents adds up to 0 except for rounding (zero-sum)."""
    paid = [abs(own_pay(episode, agent)) for agent in episode.other_pay or episode.agents()]
    return bool(paid) and abs(team_return(episode)) <= 1e-12 * max(1.0, *paid)


def unmeasured(parts: Mapping[str, object], groups: Sequence[Group]) -> Iterator[str]:
    """Return a line for each metric that a component's settings name and that no finished episode
    has.

    A component (a credit method or a sampler) names these metrics in `metrics_read`, by setting.
    """
    every = [episode for group in groups for episode in group.episodes]
    finished = [episode for episode in every if episode.status is Status.FINISHED]
    known = {metric for episode in finished for metric in episode.metrics}
    for name, part in parts.items():
        for where, method in methods_of(part, name).items():
            for setting, metric in getattr(method, "metrics_read", {}).items():
                if finished and metric not in known:
                    effect = getattr(method, "without_metric", "so it counts as 0")
                    yield (
                        f"{where}.{setting}: none of {len(finished)} finished episodes has a "
                        f"metric {metric!r}, {effect}; {nearest(metric, known)}"
                    )
