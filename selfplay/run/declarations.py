"""Declarations of a run's metrics: unit and direction of each metric, and the chief metrics.

Arenas declare what they measure (`Arena.measures`, `Arena.chief`); `OWN` has what the library
itself writes. A run folder keeps the declarations of its arenas in `measures.json`, so that pages
need no code of the arena. A metric without a declaration is a plain number.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from selfplay.author_code import DeclaresMetrics, check_declared
from selfplay.errors import RunError
from selfplay.run.untrusted import read_limited, write_text_confined
from selfplay.types import Metric, to_json

FILE = "measures.json"
"""File of the run folder with the declarations of its arenas."""
LONGEST = 1_000_000
"""Largest number of bytes of this file."""
TROUBLES = frozenset({"failed_episodes", "truncated_episodes"})
"""Numbers of episodes of an evaluation that did not end by the rules; summaries leave them out."""
COUNTED = TROUBLES | {"distinct_created"}
"""Metrics that every evaluation counts by itself."""

PLAIN = Metric()
FRACTION = Metric(unit="fraction")
GOOD = Metric(unit="fraction", better="higher")
BAD = Metric(unit="fraction", better="lower")
COUNT = Metric(unit="count")
FAULTS = Metric(unit="count", better="lower")
REWARD = Metric(unit="reward", better="higher")
TOKENS = Metric(unit="tokens")
NATS = Metric(unit="nats")
SECONDS = Metric(unit="seconds")
RATING = Metric(unit="rating", better="higher")

OWN: Mapping[str, Metric] = {
    "role/*/verdict/correct": GOOD,
    "role/*/verdict/valid": GOOD,
    "role/*/verdict/wrong": BAD,
    "role/*/verdict/illegal": BAD,
    "role/*/verdict/malformed": BAD,
    "role/*/reward": REWARD,
    "role/*/reward/*": REWARD,
    "role/*/unshaped_reward": REWARD,
    "role/*/valid": GOOD,
    "role/*/cut_off": BAD,
    "role/*/worked": GOOD,
    "role/*/completion_tokens": TOKENS,
    "role/*/prompt_tokens": TOKENS,
    "role/*/surprisal": NATS,
    "role/*/invalid/*": BAD,
    "limit/max_turns": COUNT,
    "limit/*/max_tokens": TOKENS,
    "episodes/count": COUNT,
    "episodes/*": FAULTS,
    "evaluation/*/versus/*/won": GOOD,
    "evaluation/*/versus/*/drawn": FRACTION,
    "evaluation/*/versus/*/lost": BAD,
    "evaluation/*/versus/*/return": REWARD,
    "evaluation/*/distinct_created": GOOD,
    "evaluation/*/failed_episodes": FAULTS,
    "evaluation/*/truncated_episodes": FAULTS,
    "versus/*/reward": Metric(unit="reward"),
    "versus/*/episodes": COUNT,
    "league/share/*": FRACTION,
    "league/win_rate/*": GOOD,
    "league/return/*": REWARD,
    "league/rating/*": RATING,
    "league/*": COUNT,
    "collapse/returned": COUNT,
    "collapse/*": Metric(unit="alarm", better="lower"),
    "policy/*/clipped": FRACTION,
    "policy/*/corrected_share": FRACTION,
    "policy/*/learned": COUNT,
    "policy/*/skipped": FAULTS,
    "policy/*/preference_loss": NATS,
    "policy/*/preference_margin": NATS,
    "policy/*/preference_accuracy": GOOD,
    "policy/*_kl": NATS,
    "policy/*/surprisal": NATS,
    "policy/*samples*": COUNT,
    "policy/*tokens": TOKENS,
    "credit/critic/explained_variance": Metric(unit="fraction", better="higher"),
    "credit/*_share": FRACTION,
    "credit/baseline/*": Metric(unit="reward"),
    "credit/kept": COUNT,
    "credit/added": COUNT,
    "credit/tasks": COUNT,
    "credit/replays*": COUNT,
    "credit/zero_advantages": FRACTION,
    "curriculum/*roots_solved": GOOD,
    "curriculum/*drawn": FRACTION,
    "curriculum/*": COUNT,
    "service/executor/*": COUNT,
    "engine/*/dollars": PLAIN,
    "engine/*/proof_difference": NATS,
    "engine/*tokens": TOKENS,
    "engine/*": COUNT,
    "sampler/shared_turns": FRACTION,
    "sampler/success_*": GOOD,
    "sampler/unfinished": BAD,
    "sampler/penalty_*": PLAIN,
    "sampler/*": COUNT,
    "runtime/publish_seconds": SECONDS,
    "runtime/offload_seconds": SECONDS,
    "runtime/*": COUNT,
    "seconds/*": SECONDS,
}
"""Unit and direction by pattern of the name; the first that fits counts. `*` also spans "/"."""


@dataclass(frozen=True, kw_only=True)
class ArenaMetrics:
    """Declarations of the metrics of one arena or of one evaluation."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Unit and direction of a metric, by its name or by a pattern of names."""
    chief: tuple[str, ...] = ()
    """The names that come first, the most important first."""

    def of(self, path: str) -> Metric | None:
        """Return unit and direction of the metric `path`; None if it is not declared.

        `path` is the key without its section ("arena/solved": "solved"). Tried in this order: the
        path itself; in a mixture, part and name; the name without the task's type.
        """
        first, _, _ = path.partition("/")
        _, _, last = path.rpartition("/")
        for name in dict.fromkeys((path, f"{first}/{last}", last)):
            if name in self.metrics:
                return self.metrics[name]
            for pattern, metric in self.metrics.items():
                if "*" in pattern and fnmatchcase(name, pattern):
                    return metric
        return None

    def more_is_better(self, path: str) -> bool:
        """Return True if the metric `path` is declared with `better="higher"`."""
        found = self.of(path)
        return found is not None and found.better == "higher"


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """Declarations of all metrics of a run. The default has only those of the library itself."""

    arena: ArenaMetrics = field(default_factory=ArenaMetrics)
    """Declarations of the arena of training."""
    evaluations: Mapping[str, ArenaMetrics] = field(default_factory=dict)
    """Declarations of each evaluation, with metrics by the names that it reports."""

    def of(self, key: str) -> Metric:
        """Return unit and direction of the metric that has the name `key` in metrics.jsonl."""
        if (own := _own(key)) is not None and not key.startswith("role/"):
            return own
        section, _, rest = key.partition("/")
        if section == "role":
            return self._of_role(key, own)
        if section == "arena":
            return self.arena.of(rest) or PLAIN
        if section == "evaluation":
            name, _, path = rest.partition("/")
            return (self.evaluations.get(name) or ArenaMetrics()).of(path) or PLAIN
        return PLAIN

    def _of_role(self, key: str, own: Metric | None) -> Metric:
        _, _, rest = key.partition("/")
        role, _, name = rest.partition("/")
        verdict = name.startswith("verdict/")
        # A note never replaces the library's own metric of this name; a verdict's declaration may.
        if own is not None and not verdict:
            return own
        # In a mixture, the part comes before the name of the role, and before that of the metric.
        parts = {known.partition("/")[0] for known in self.arena.metrics if "/" in known}
        paths = [f"{part}/{name}" for part in sorted(parts) if role.startswith(f"{part}_")]
        for path in (*paths, name):
            if path in self.arena.metrics:
                return self.arena.metrics[path]
        found = own or next((m for path in (*paths, name) if (m := self.arena.of(path))), None)
        return found or (FRACTION if verdict else PLAIN)

    def verdict(self, role: str, name: str) -> str:
        """Return "good" or "bad" for a verdict of a role's turn; "" if no direction is declared."""
        better = self.of(f"role/{role}/verdict/{name}").better
        return {"higher": "good", "lower": "bad"}.get(better, "")

    def rank(self, evaluation: str, path: str) -> int:
        """Return the index of a metric among the evaluation's chief metrics; their number if it is
        not one of them."""
        chief = self.evaluations.get(evaluation, ArenaMetrics()).chief
        return chief.index(path) if path in chief else len(chief)

    def order(self, key: str) -> int:
        """Return the place of a metric where few are shown, from 1; 0 if it is not shown.

        The order: chief metrics of evaluations, rewards of roles, other metrics of whole
        evaluations.
        """
        section, *rest = key.split("/")
        if section == "role":
            return 2 if len(rest) == 2 and rest[1] == "reward" else 0
        if section != "evaluation" or len(rest) < 2:
            return 0
        if self.is_chief(rest[0], "/".join(rest[1:])):
            return 1
        return 3 if len(rest) == 2 and rest[1] not in COUNTED else 0

    def is_chief(self, evaluation: str, path: str) -> bool:
        """Return True if the metric is one of the chief metrics of an evaluation."""
        return path in self.evaluations.get(evaluation, ArenaMetrics()).chief


@lru_cache(maxsize=20_000)
def _own(key: str) -> Metric | None:
    return next((metric for pattern, metric in OWN.items() if fnmatchcase(key, pattern)), None)


def measured_by(arena: DeclaresMetrics) -> ArenaMetrics:
    """Return the declarations of an arena. Raises ConfigError as `check_declared` does."""
    check_declared(arena)
    return ArenaMetrics(metrics=dict(arena.measures), chief=tuple(arena.chief))


def reported(
    arena: ArenaMetrics,
    metrics: Mapping[str, str],
    *,
    type: str = "",
    opponents: Sequence[str] = (),
) -> ArenaMetrics:
    """Derive the declarations of an evaluation from those of its arena.

    Args:
        arena: Declarations of the evaluation's arena.
        metrics: Reported name to the arena's metric.
        type: The type of the tasks; in a mixture it begins with the name of the part.
        opponents: Names of policies. The returns against them come first, since the arena's own
            metrics do not say who won.
    Returns:
        The declarations by reported names. Without a chief metric and opponents, the first reported
        metric is the chief one.
    """
    part, _, _ = type.partition("/")
    found = {shown: arena.of(f"{type}/{name}") for shown, name in metrics.items()}
    chief = [
        shown
        for chief in arena.chief
        for shown, name in metrics.items()
        if chief in (name, f"{part}/{name}")
    ]
    against = [f"versus/{opponent}/return" for opponent in opponents]
    return ArenaMetrics(
        metrics={shown: metric for shown, metric in found.items() if metric is not None},
        chief=(*against, *(chief if chief or against else list(metrics)[:1])),
    )


def write_declared(run: Path, declared: RunMetrics) -> None:
    """Write `measures.json` into a run folder."""
    text = json.dumps(to_json(declared), indent=1) + "\n"
    write_text_confined(run, run / FILE, text)


def read_declared(run: Path) -> RunMetrics:
    """Read the declarations of a run's arenas; the library's own if the run folder has none.

    Raises RunError, in one line, if the file cannot be read.
    """
    path = run / FILE
    try:
        return _DECLARED.validate_json(read_limited(path, root=run, most=LONGEST))
    except FileNotFoundError:
        return RunMetrics()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RunError(f"{path}: {where}: {first['msg']}") from error


_DECLARED: TypeAdapter[RunMetrics] = TypeAdapter(RunMetrics)
