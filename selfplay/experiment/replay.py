"""Replay the recorded episodes of a run from their actions, and compute their advantages again.

No model is used. Under the run's own config every reward and advantage equals the record to the
last digit. Under another config the result is what that config would have paid and credited for the
same actions. Two kinds of credit methods are refused: those with a critic, whose weights at that
time are not recorded, and those with running averages if earlier steps were not recorded. With a
sampler that does not keep all groups, a method that pays in later steps is not exact, because the
record does not say which groups without an advantage were credited.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from selfplay.config.instantiate import TARGET, make
from selfplay.credit import Credit
from selfplay.credit.assigned import assigned, by_turn
from selfplay.credit.shaping import Shaping
from selfplay.errors import ConfigError, RunError, printable
from selfplay.experiment.validation import check_roles, check_sampler_supports_credit
from selfplay.learner import checkpoint
from selfplay.models.population import Phase, learns
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec, notes_of
from selfplay.rollout.setup import Components
from selfplay.run.formatting import number
from selfplay.run.record_reader import (
    Advantage,
    Recorded,
    episodes_of,
    nearest_steps,
    recorded_steps,
)
from selfplay.run.run_folder import CHECKPOINTS
from selfplay.types import Episode, Group, Status, Turn

MOST_SHOWN = 5
"""Maximum number of differences that are shown one by one."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A reward or advantage of a turn that differs from the record."""

    step: int
    """Training step of the episode."""
    group: str
    """Id of the group."""
    member: int
    """Index of the episode in the group."""
    turn: int
    """Index of the turn in the episode."""
    agent: str
    """Agent of the turn."""
    what: str
    """"reward" or "advantage"."""
    recorded: Advantage
    """Value in the record."""
    replayed: Advantage
    """Value of the replay."""


@dataclass(kw_only=True)
class Replay:
    """The result of replaying a run."""

    steps: int = 0
    """Number of replayed steps."""
    episodes: int = 0
    """Number of replayed episodes."""
    unsaved: int = 0
    """Number of recorded steps after the newest checkpoint. They are left out, because the state of
    the arena's services in them, such as the task buffer, is in no checkpoint yet."""
    unplayed: Counter[str] = field(default_factory=Counter)
    """Number of episodes that could not be replayed, by reason."""
    rewards: int = 0
    """Number of turns whose rewards were compared."""
    advantages: int = 0
    """Number of turns whose advantages were compared."""
    sign_changes: int = 0
    """Number of turns whose advantage, summed over the tokens, changed its sign."""
    differences: list[Difference] = field(default_factory=list)
    """Differences in the order of the record."""
    paid: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Role to its mean reward per turn, as recorded and as replayed."""

    def different(self, what: str) -> int:
        """Return the number of turns whose `what` (reward or advantage) differs."""
        return sum(each.what == what for each in self.differences)

    def lines(self) -> list[str]:
        """Return the lines for the user."""
        found = [f"{self.steps} steps, {self.episodes} episodes replayed"]
        if self.unsaved:
            found.append(f"{self.unsaved} steps after the newest checkpoint are left out")
        found += [
            f"{count} not replayed: {reason}" for reason, count in self.unplayed.most_common()
        ]
        for what, total in (("reward", self.rewards), ("advantage", self.advantages)):
            same = total - self.different(what)
            found.append(
                f"{what}s as recorded: {same} of {total}"
                if total
                else f"no {what} is recorded, so none was compared"
            )
        if self.sign_changes:
            found.append(f"advantages of another sign: {self.sign_changes}")
        if self.different("reward"):
            found += [
                f"mean reward of a turn of {role}: {number(before)} -> {number(after)}"
                for role, (before, after) in self.paid.items()
            ]
        found += [
            f"step {each.step}, group {each.group}, member {each.member}, turn {each.turn} "
            f"({each.agent}): {each.what} {_shown(each.recorded)} -> {_shown(each.replayed)}"
            for each in self.differences[:MOST_SHOWN]
        ]
        more = len(self.differences) - MOST_SHOWN
        if more > 0:
            found.append(f"and {more} more, all of them with --json")
        return [printable(line) for line in found]  # roles and reasons come from the record

    def to_json(self) -> dict[str, Any]:
        """Return the whole result as plain data."""
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "unsaved": self.unsaved,
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


THREADS = 8
"""Number of arenas that advance at once if they wait for external work."""


class RunReplayer:
    """A replayer, which applies the arena, shaping and credit of a config to a run's record."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        """Build the components without policies; raises ConfigError or RunError."""
        self.run, self.config = run, config
        self.components = Components(config)
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        shaping = self.components.build("shaping")
        self.shaping = Shaping(shaping)
        phases = [
            make(Phase, node, where=f"population.phases.{number}")
            for number, node in enumerate(self.config["population"].get("phases") or ())
        ]
        self.credit: Credit = self.components.build(
            "credit", arena=self.components.arena, learns=partial(learns, phases)
        )
        sampler = self.components.build("sampler", credit=self.credit)
        check_sampler_supports_credit(self.credit, sampler)
        self._keeps_all = bool(getattr(sampler, "keeps_all", False))
        check_roles(self.credit, shaping, self.components.roles)
        if self.credit.modules():
            raise ConfigError(
                f"credit {self.config['credit'][TARGET]} trains a critic, whose values are "
                "not in the record; choose another with credit=NAME"
            )
        self._known_until = restore_tasks(self.run, self.config, self.components)

    def close(self) -> None:
        """Release services that hold processes."""
        self.components.close()

    def replay(self, steps: Sequence[int] = ()) -> Replay:
        """Replay all recorded steps, or only those in `steps`.

        Raises RunError if no such step can be replayed, or if the credit method keeps averages and
        an earlier step is missing. Raises ConfigError for a turn of a role that the config lacks.
        """
        known = recorded_steps(self.run)
        if not known:
            raise RunError(f"{self.run} has no recorded episodes; train with run.episodes_every=1")
        chosen = [step for step in known if not steps or step in steps]
        if not chosen:
            asked = f"--steps {' '.join(map(str, steps))}"
            near = nearest_steps(known, steps[0])
            raise RunError(f"{self.run}: no episodes of {asked}; {near}")
        late = [
            step for step in chosen if self._known_until is not None and step > self._known_until
        ]
        chosen = [step for step in chosen if step not in late]
        if not chosen:
            raise RunError(
                f"steps {late[0]} to {late[-1]} come after the newest checkpoint, so the "
                "state of the arena in them is unknown; resume the run first"
            )
        found, paid = Replay(unsaved=len(late)), list[tuple[str, float, float]]()
        for count, step in enumerate(chosen, 1):
            if count != step and self.credit.state_dict():
                raise RunError(
                    f"step {step}: credit {self.config['credit'][TARGET]} keeps averages over "
                    "steps, and an earlier step is not replayed; replay from step 1 on, of a run "
                    "with run.episodes_every=1, or choose another credit"
                )
            self._step(list(episodes_of(self.run, step)), found, paid)
        for role in sorted({role for role, _, _ in paid}):
            mine = [(before, after) for name, before, after in paid if name == role]
            found.paid[role] = (fmean(b for b, _ in mine), fmean(a for _, a in mine))
        return found

    def _step(
        self, records: Sequence[Recorded], found: Replay, paid: list[tuple[str, float, float]]
    ) -> None:
        """Replay a step, credit its groups, and compare.

        If the sampler does not keep all groups, only those with a recorded advantage are credited.
        """
        again = iter(self._play(records, found))
        siblings = [list(members) for _, members in groupby(records, key=lambda each: each.group)]
        groups = [_group(members, list(islice(again, len(members)))) for members in siblings]
        learned_from = groups
        if not self._keeps_all:
            learned_from = [
                kept
                for members, group in zip(siblings, groups, strict=True)
                if (kept := _learned_from(members, group)) is not None
            ]
        learned_from, played = self.shaping.apply(learned_from, groups)
        samples = assigned(self.credit, learned_from)
        given = by_turn(samples, learned_from)
        found.steps += 1
        for record, episode in zip(records, chain(*(g.episodes for g in played)), strict=True):
            if episode.status is Status.FAILED:
                continue
            credited = [*record.advantages, *[None] * len(record.episode.turns)]
            pairs = zip(record.episode.turns, episode.turns, strict=True)
            for place, (before, after) in enumerate(pairs):
                paid.append((before.role, before.reward, after.reward))
                found.rewards += 1
                self._compare(found, record, place, "reward", before.reward, after.reward)
                if credited[place] is None:
                    continue
                now = given.get(id(after))
                listed = list(now) if isinstance(now, tuple) else now
                found.advantages += 1
                found.sign_changes += _sign(credited[place]) != _sign(listed)
                self._compare(found, record, place, "advantage", credited[place], listed)

    @staticmethod
    def _compare(
        found: Replay, record: Recorded, place: int, what: str, before: Advantage, after: Advantage
    ) -> None:
        if before != after:
            found.differences.append(
                Difference(
                    step=record.step,
                    group=record.group,
                    member=record.member,
                    turn=place,
                    agent=record.episode.turns[place].agent,
                    what=what,
                    recorded=before,
                    replayed=after,
                )
            )

    def _play(self, records: Sequence[Recorded], found: Replay) -> list[Episode]:
        """Return the replayed episodes; one that does not end as recorded counts as failed."""
        games = [self._game(record.episode) for record in records]
        with ThreadPoolExecutor(THREADS) as pool:  # as in `ArenaThreads`
            side_by_side = bool(games) and games[0].arena.blocking
            list((pool.map if side_by_side else map)(EpisodeRunner.advance, games))
        return [
            self._ended(record.episode, game, found)
            for record, game in zip(records, games, strict=True)
        ]

    def _game(self, episode: Episode) -> EpisodeRunner:
        spec = EpisodeSpec(task=episode.task, seed=episode.seed, prefix_turns=episode.turns)
        return EpisodeRunner(
            spec,
            self.components.arena(),
            prefix=[self._plain(turn) for turn in episode.turns],
            copied=episode.shared_turns,
        )

    def _ended(self, episode: Episode, game: EpisodeRunner, found: Replay) -> Episode:
        status = game.status(max_turns=len(episode.turns))
        if episode.status is Status.FAILED:
            found.unplayed["it failed when it was recorded"] += 1
            return episode
        if status is not episode.status:
            now = game.error or f"the arena {'has ended' if game.arena.finished else 'goes on'}"
            found.unplayed[now] += 1
            return replace(episode, status=Status.FAILED, error=now)
        found.episodes += 1
        again = game.episode(status)
        return replace(
            again,
            error=episode.error,
            branch_of=episode.branch_of,
            shared_turns=episode.shared_turns,
            policy_map=episode.policy_map,
        )

    def _plain(self, turn: Turn) -> Turn:
        """Return a turn with only its role's notes; the arena adds rewards and its notes again."""
        if turn.role not in self.components.roles:
            raise ConfigError(f"the record has turns of role {turn.role!r}, the config has none")
        return replace(turn, reward=0.0, info=notes_of(turn, self.components.roles[turn.role]))


def restore_tasks(run: Path, config: Mapping[str, Any], components: Components) -> int | None:
    """Restore the curriculum, which restores the services that the arena asks.

    Returns the step of the restored checkpoint; None if there is nothing to restore. Raises
    ConfigError if the config's curriculum cannot read the state.
    """
    curriculum = components.build("curriculum")
    place, _ = checkpoint.latest(run / CHECKPOINTS)
    if place is None or len(components.services) == 1:  # only the seed: no state
        return None
    try:
        curriculum.load_state_dict(checkpoint.read_state(place)["curriculum"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"curriculum {config['curriculum'][TARGET]} cannot read the state of the "
            "run's curriculum; replay with the run's own curriculum"
        ) from error
    return int(place.name)


def _group(members: Sequence[Recorded], episodes: Sequence[Episode]) -> Group:
    """Return a group in which siblings share the same turn objects as when they were played.

    Raises RunError if an episode branches off one that is not before it.
    """
    shared: list[Episode] = []
    for episode in episodes:
        turns = list(episode.turns)
        if episode.branch_of is not None:
            if not 0 <= episode.branch_of < len(shared):
                raise RunError(
                    f"step {members[0].step}, group {members[0].group}: episode {len(shared)} "
                    f"branches off episode {episode.branch_of}, which is not before it; the record "
                    "is damaged"
                )
            for place, turn in enumerate(shared[episode.branch_of].turns[: episode.shared_turns]):
                turns[place] = turn if turn == turns[place] else turns[place]
        shared.append(replace(episode, turns=tuple(turns)))
    return Group(id=members[0].group, episodes=tuple(shared))


def _learned_from(members: Sequence[Recorded], group: Group) -> Group | None:
    """Return the part of a group that was credited in the run, or None."""
    credited = [any(each is not None for each in record.advantages) for record in members]
    failed = [record.episode.status is Status.FAILED for record in members]
    if not any(credited):
        return None
    if all(a or b for a, b in zip(credited, failed, strict=True)):
        return group  # whole, because branches name their parents by index
    kept = [e for e, each in zip(group.episodes, credited, strict=True) if each]
    return replace(group, episodes=tuple(kept))


def _sign(advantage: Advantage) -> int:
    value = sum(advantage) if isinstance(advantage, list) else advantage or 0.0
    return (value > 0) - (value < 0)
