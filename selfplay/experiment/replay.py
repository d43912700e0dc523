"""Replay: a run's recorded episodes played again from their actions, and credited anew.

No model is asked. Under the run's own config every reward and advantage comes out as it was
recorded, to the last digit; under another it is what that config would have paid and credited for
the same play. What the record cannot give is refused: a critic's values, which need the weights of
the time, and the averages of a credit method where the steps before were not recorded.

What came of a replay: what was as it was recorded, and what was not.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, groupby, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from selfplay.config.instantiate import TARGET
from selfplay.credit import Credit
from selfplay.credit.shaping import Shaping
from selfplay.errors import ConfigError, RunError
from selfplay.learner import checkpoint
from selfplay.rollout.episode_runner import EpisodeRunner, EpisodeSpec
from selfplay.rollout.setup import Components
from selfplay.run.formatting import number
from selfplay.run.records import Advantage, Recorded, episodes_of, recorded_steps
from selfplay.types import Episode, Group, Status, Turn

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


THREADS = 8
"""Arenas that advance at once where they wait for programs and the like."""


class RunReplayer:
    """The arena, shaping and credit of a config, over the record of a run."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        """Builds what a replay needs and no policy; raises ConfigError or RunError."""
        self.run, self.config = run, config
        self.world = Components(config)
        self.shaping = Shaping([*self.world.build("shaping").values()])
        self.credit: Credit = self.world.build("credit", arena=self.world.arena)
        if self.credit.modules():
            raise ConfigError(
                f"credit {config['credit'][TARGET]} trains a critic, whose values of the time "
                "are not on record; choose another with credit=NAME"
            )
        self._known_until = self._restore_tasks()

    def close(self) -> None:
        """Release services that hold processes."""
        self.world.close()

    def replay(self, steps: Sequence[int] = ()) -> Replay:
        """Replay all recorded steps, or those of `steps` among them."""
        known = recorded_steps(self.run)
        if not known:
            raise RunError(f"{self.run} has no recorded episodes; train with run.episodes_every=1")
        chosen = [step for step in known if not steps or step in steps]
        if not chosen:
            raise RunError(f"no episodes of these steps; recorded are {known[0]} to {known[-1]}")
        late = [
            step for step in chosen if self._known_until is not None and step > self._known_until
        ]
        chosen = [step for step in chosen if step not in late]
        if not chosen:
            raise RunError(
                f"steps {late[0]} to {late[-1]} lie behind the newest checkpoint, which does not "
                "have what the arena knew in them; go on with the run first"
            )
        found, paid = Replay(behind=len(late)), list[tuple[str, float, float]]()
        for count, step in enumerate(chosen, 1):
            if count != step and self.credit.state_dict():
                raise RunError(
                    f"step {step}: credit {self.config['credit'][TARGET]} keeps averages over "
                    "steps, and one before this is not replayed; replay from step 1 on, of a run "
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
        """Replay a step, credit what was learned from, and compare."""
        again = iter(self._play(records, found))
        siblings = [list(members) for _, members in groupby(records, key=lambda each: each.group)]
        groups = [_group(members, list(islice(again, len(members)))) for members in siblings]
        learned_from = [
            kept
            for members, group in zip(siblings, groups, strict=True)
            if (kept := _learned_from(members, group)) is not None
        ]
        learned_from, played = self.shaping.apply(learned_from, groups)
        given = {id(sample.turn): sample.advantage for sample in self.credit.assign(learned_from)}
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
        """The episodes again; a failed one where it cannot be played to its recorded end."""
        games = [self._game(record.episode) for record in records]
        with ThreadPoolExecutor(THREADS) as pool:  # as in a rollout
            side_by_side = bool(games) and games[0].arena.blocking
            list((pool.map if side_by_side else map)(EpisodeRunner.advance, games))
        return [
            self._ended(record.episode, game, found)
            for record, game in zip(records, games, strict=True)
        ]

    def _game(self, episode: Episode) -> EpisodeRunner:
        job = EpisodeSpec(task=episode.task, seed=episode.seed, prefix_turns=episode.turns)
        return EpisodeRunner(
            job, self.world.arena(), prefix=[self._plain(turn) for turn in episode.turns]
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
            branch_of=episode.branch_of,
            shared_turns=episode.shared_turns,
            policy_map=episode.policy_map,
        )

    def _plain(self, turn: Turn) -> Turn:
        """A turn with what its role notes of the text; the arena pays and notes again."""
        if turn.role not in self.world.roles:
            raise ConfigError(f"the record has turns of role {turn.role!r}, the config has none")
        return replace(
            turn, reward=0.0, info=self.world.roles[turn.role].parse_completion(turn.text)[1]
        )

    def _restore_tasks(self) -> int | None:
        """Let the curriculum give back to the services what the run's arena asked of them.

        Returns the step up to which that is known; None where nothing has to be.
        """
        curriculum = self.world.build("curriculum")
        place, _ = checkpoint.latest(self.run / "checkpoints")
        if place is None or len(self.world.services) == 1:  # the seed alone: nothing that knows
            return None
        try:
            curriculum.load_state_dict(checkpoint.read_state(place)["curriculum"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"curriculum {self.config['curriculum'][TARGET]} cannot read the state that the "
                "run's own left; replay keeps the run's curriculum"
            ) from error
        return int(place.name)


def _group(members: Sequence[Recorded], episodes: Sequence[Episode]) -> Group:
    """A group whose siblings share the turns that they shared when they were played."""
    found: list[Episode] = []
    for episode in episodes:
        turns = list(episode.turns)
        if episode.branch_of is not None:
            for place, turn in enumerate(found[episode.branch_of].turns[: episode.shared_turns]):
                turns[place] = turn if turn == turns[place] else turns[place]
        found.append(replace(episode, turns=tuple(turns)))
    return Group(id=members[0].group, episodes=tuple(found))


def _learned_from(members: Sequence[Recorded], group: Group) -> Group | None:
    """What of a group was credited when it was recorded; None if nothing was."""
    credited = [any(each is not None for each in record.advantages) for record in members]
    failed = [record.episode.status is Status.FAILED for record in members]
    if not any(credited):
        return None
    if all(a or b for a, b in zip(credited, failed, strict=True)):
        return group  # whole, because branches name their parents by their places in it
    kept = [e for e, each in zip(group.episodes, credited, strict=True) if each]
    return replace(group, episodes=tuple(kept))


def _sign(advantage: Advantage) -> int:
    value = sum(advantage) if isinstance(advantage, list) else advantage or 0.0
    return (value > 0) - (value < 0)
