"""The page of a group: its episodes side by side, and word by word how each differs from one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from selfplay.credit.base import pay_by_agent
from selfplay.errors import RunError
from selfplay.run.declarations import read_declared
from selfplay.run.formatting import number
from selfplay.run.record_reader import Recorded
from selfplay.run.report.html import render
from selfplay.run.report.transcripts import advantages_of, show
from selfplay.viewer.episode_pages import PATIENCE, EpisodePages
from selfplay.viewer.word_diff import MOST_COMPARED, Pieces, size_of, turn_diffs


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """The content of the page of a group. `GroupPages` makes it."""

    siblings: tuple[Recorded, ...]
    """The episodes, by member."""
    base: int
    """Index among the siblings of the episode that the others are compared with."""
    diffs: tuple[tuple[Pieces | None, ...], ...]
    """Difference of each turn of each sibling; None for a turn that was not compared."""
    agents: tuple[tuple[str, tuple[str, ...], str], ...]
    """(agent, reward and advantage in each sibling, mean reward)."""
    previous: str
    """Address of the previous group in the list; empty for the first."""
    next: str
    """Address of the next group in the list; empty for the last."""

    def to_json(self) -> dict[str, Any]:
        """Return the content as plain data."""
        return {
            "base": self.siblings[self.base].member,
            "previous": self.previous,
            "next": self.next,
            "agents": [
                {"agent": agent, "rewards": cells, "mean": mean}
                for agent, cells, mean in self.agents
            ],
            "siblings": [
                {
                    "member": record.member,
                    "step": record.step,
                    "line": record.line,
                    "status": record.episode.status.value,
                    "turns": [
                        {
                            "agent": turn.agent,
                            "text": turn.text,
                            "action": turn.action,
                            "reward": turn.reward,
                            "diff": None
                            if diff is None
                            else [{"text": text, "change": change} for text, change in diff],
                        }
                        for turn, diff in zip(record.episode.turns, diffs, strict=True)
                    ],
                }
                for record, diffs in zip(self.siblings, self.diffs, strict=True)
            ],
        }


class GroupPages:
    """Makes the pages of groups."""

    def __init__(self, episodes: EpisodePages) -> None:
        """`episodes`: has the indexes of the runs."""
        self._pages = episodes

    def view(self, name: str, step: int, group: str, base: int | None) -> GroupView:
        """Return the content of a group's page.

        Args:
            name: The run.
            step: Step of the group.
            group: Id of the group.
            base: Member that the others are compared with; None: the first one.

        Raises RunError if there is no such group, or no such member of it.
        """
        run = self._pages.catalogue.run(name)
        index = self._pages.index_of(run)
        index.update(PATIENCE, first=step)
        with index.lock:
            rows = [r for r in index.list.group(step, group) if r.status != "unreadable"]
            around = index.groups.around(step, group)
        if not rows:
            raise RunError(f"no group {group!r} in step {step} of {name}")
        members = [row.member for row in rows]
        if base is not None and base not in members:
            raise RunError(f"group {group!r} has no member {base}; it has {members[:20]}")
        place = 0 if base is None else members.index(base)
        siblings = [index.read(row.step, row.line) for row in rows]
        agents = dict.fromkeys(a for each in siblings for a in pay_by_agent(each.episode))
        home = f"/run/{quote(name, safe='')}/groups"
        before, after = (
            f"{home}/{each[0]}/{quote(each[1], safe='')}" if each else "" for each in around
        )
        return GroupView(
            siblings=tuple(siblings),
            base=place,
            diffs=_diffs(siblings, place),
            agents=tuple((agent, *_returns(agent, siblings)) for agent in agents),
            previous=before,
            next=after,
        )

    def page(self, name: str, step: int, group: str, base: int | None) -> str:
        """Render the episodes of a group side by side, with rewards and advantages per agent."""
        run = self._pages.catalogue.run(name)
        view = self.view(name, step, group, base)
        declared = read_declared(run.folder)
        return render(
            "viewer_group.html.jinja",
            title=f"Group {group} of step {step}",
            run=run,
            step=step,
            view=view,
            siblings=[
                {
                    "record": record,
                    "turns": [
                        (show(turn, advantage, False, declared), diff)
                        for turn, advantage, diff in zip(
                            record.episode.turns, advantages_of(record), diffs, strict=True
                        )
                    ],
                }
                for record, diffs in zip(view.siblings, view.diffs, strict=True)
            ],
        )


def _diffs(siblings: Sequence[Recorded], base: int) -> tuple[tuple[Pieces | None, ...], ...]:
    """Return the differences of all siblings from the sibling `base`, which itself has None."""
    compared = siblings[base].episode.turns
    found, left = [], MOST_COMPARED
    for place, record in enumerate(siblings):
        turns = record.episode.turns
        if place == base:
            found.append(tuple[Pieces | None, ...](None for _ in turns))
            continue
        found.append(tuple(turn_diffs(compared, turns, left)))
        left -= sum(map(size_of, turns)) + sum(map(size_of, compared[: len(turns)]))
    return tuple(found)


def _returns(agent: str, siblings: Sequence[Recorded]) -> tuple[tuple[str, ...], str]:
    """Return an agent's reward and first advantage in each episode, and its mean reward.

    An agent without a turn has no advantage. It has a reward only if the arena paid it.
    """
    cells, paid = [], []
    for record in siblings:
        reward = pay_by_agent(record.episode).get(agent)
        if reward is None:
            cells.append("-")
            continue
        paid.append(reward)
        indices = [i for i, turn in enumerate(record.episode.turns) if turn.agent == agent]
        if not indices:
            cells.append(number(reward))
            continue
        first = advantages_of(record)[indices[0]]
        shown = (
            number(sum(first) / max(len(first), 1)) if isinstance(first, list) else number(first)
        )
        cells.append(f"{number(paid[-1])} ({shown})")
    return tuple(cells), number(sum(paid) / len(paid)) if paid else "-"
