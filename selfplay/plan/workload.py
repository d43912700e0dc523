"""What a step asks for: requests by stage and role, and what the learner gets of them.

Read off a config here, with assumptions where a config does not say it.

How long completions are: a capped log-normal, or what was recorded.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from statistics import NormalDist, fmean
from typing import Any, Literal

from selfplay.config.instantiate import (
    TARGET,
    build,
    call,
    check_arguments,
    import_target,
    join,
    signature,
)
from selfplay.errors import ConfigError
from selfplay.models.population import Population
from selfplay.plan.cluster import check_positive


@dataclass(frozen=True, kw_only=True)
class LengthDistribution:
    """Completion lengths in tokens."""

    average: float
    """Mean of the distribution before the cap."""
    cv: float = 1.0
    """Standard deviation by mean; 0: all alike."""
    cap: int
    """The limit that cuts completions off."""
    recorded: Sequence[int] = ()
    """Lengths that were seen: where there are any, they are the distribution."""

    def __post_init__(self) -> None:
        if self.average <= 0 or self.cv < 0 or self.cap < 1:
            raise ValueError("lengths: average and cap are above 0, and cv is not negative")

    @classmethod
    def of(cls, recorded: Sequence[int], cap: int) -> "LengthDistribution":
        """The distribution of recorded lengths."""
        return cls(average=max(fmean(recorded), 1e-9), cap=cap, recorded=tuple(sorted(recorded)))

    def quantile(self, share: float) -> float:
        """The length that `share` of the completions do not exceed."""
        if self.recorded:
            return float(
                self.recorded[min(int(share * len(self.recorded)), len(self.recorded) - 1)]
            )
        deviation = math.sqrt(math.log1p(self.cv**2))
        if not deviation:
            return min(self.average, float(self.cap))
        middle = math.log(self.average) - deviation**2 / 2
        drawn = math.exp(middle + deviation * NormalDist().inv_cdf(share))
        return min(max(drawn, 1.0), float(self.cap))

    def spread(self, count: int) -> list[float]:
        """`count` lengths that stand for the distribution, ascending: its quantiles, no chance."""
        return [self.quantile((place + 0.5) / count) for place in range(count)]

    def draw(self, rng: Random, count: int) -> list[float]:
        """`count` random lengths."""
        return [self.quantile(min(max(rng.random(), 1e-12), 1 - 1e-12)) for _ in range(count)]

    @cached_property
    def mean(self) -> float:
        """Mean under the cap."""
        return fmean(self.recorded) if self.recorded else fmean(self.spread(2000))

    def longest(self, count: int) -> float:
        """What the longest of `count` completions is likely to be."""
        return self.quantile(1 - 0.5 / max(count, 1))


MOST_TURNS = 10_000
"""Of an agent per episode: each of them is a stage of the plan."""


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a config does not say. Set with `workload.KEY=value`."""

    prompt: float = 512.0
    """Tokens of a prompt."""
    completion: float | None = None
    """Mean tokens of a completion; None: half of the role's limit."""
    cv: float = 1.0
    """Standard deviation of completion lengths by their mean."""
    turns: float = 1.0
    """Turns of every agent per episode."""
    tasks: float | None = None
    """Tasks per step; None: as the curriculum's own keys say."""
    calls: float = 0.0
    """Calls of services per turn, such as program runs."""

    def __post_init__(self) -> None:
        check_positive(self, "", above=("prompt", "completion", "turns", "tasks"))
        if self.turns > MOST_TURNS:
            raise ValueError(f"turns is at most {MOST_TURNS}, not {self.turns}")


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The requests of one role in one stage of a step."""

    role: str
    """Who asks."""
    policy: str
    """Who answers."""
    requests: float
    """How many per step."""
    prompts: float
    """How many different prompts they are."""
    prompt: float
    """Mean tokens of a prompt."""
    context: float = 0.0
    """Mean tokens of it that stood in the agent's earlier turns: a prefix cache holds them."""
    completion: LengthDistribution
    """Tokens of the answers."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What one policy learns from per step."""

    samples: float
    """Turns."""
    tokens: float
    """Tokens of all turns, prompts included."""
    distinct: float
    """Tokens of them when shared prefixes count once."""
    completions: float
    """Tokens that carry loss."""
    squares: float
    """Sum of the squares of the turns' lengths."""
    updates: int = 1
    """Optimizer steps."""
    passes: int = 0
    """Forward passes beside those of training: a reference, a rollout correction."""

    @property
    def sharing(self) -> float:
        """How many times smaller shared prefixes make the batch: 2511.00413's token ratio."""
        return self.tokens / max(self.distinct, 1.0)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A step."""

    stages: Sequence[Sequence[Flow]]
    """Flows of a stage run together; the next stage waits for them."""
    lessons: Mapping[str, Lesson]
    """By policy that learns."""
    frozen: Sequence[str] = ()
    """Policies that only play."""
    episodes: float = 0.0
    """Games played."""
    calls: float = 0.0
    """Service calls."""
    basis: Literal["assumed", "recorded"] = "assumed"
    """Where lengths and counts come from."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What was assumed, in words."""

    @property
    def flows(self) -> list[Flow]:
        """Of all stages."""
        return [flow for stage in self.stages for flow in stage]

    @property
    def turns(self) -> float:
        """Requests per step."""
        return sum(flow.requests for flow in self.flows)

    @property
    def generated(self) -> float:
        """Completion tokens per step."""
        return sum(flow.requests * flow.completion.mean for flow in self.flows)

    @property
    def tokens(self) -> float:
        """Prompt and completion tokens per step."""
        return self.generated + sum(flow.requests * flow.prompt for flow in self.flows)

    def of(self, policies: Collection[str]) -> "Workload":
        """Without the requests of others: an opponent that is a script or elsewhere is free."""
        mine = [[flow for flow in stage if flow.policy in policies] for stage in self.stages]
        lessons = {name: each for name, each in self.lessons.items() if name in policies}
        return replace(self, stages=[stage for stage in mine if stage], lessons=lessons)


def of_config(config: Mapping[str, Any], assumed: Assumptions) -> Workload:
    """The workload that a config implies, every agent in turn taking `assumed.turns` turns.

    A self-proposed curriculum's proposers ask first, all solvers after them. A tree plays a stage
    as often as it has branches there.
    """
    population: Population = build(config["population"], where="population")
    counts, notes = _agents(config["arena"], config["services"]), []
    played = _tasks(config["curriculum"], counts, assumed)
    sampler = config["sampler"]
    playing = [role for role in counts if played.get(role, played["*"])]
    stages = []
    for place, role in enumerate(playing * max(1, round(assumed.turns))):
        limit = limit_of(config, role)
        mean = assumed.completion or limit / 2
        tasks = played.get(role, played["*"])
        # In a tree every move of the stage before leads to a prompt of its own.
        prompts = _moves(sampler, place - 1) if place and _is_tree(sampler) else 1.0
        flow = Flow(
            role=role,
            policy=population.policy_of(role),
            requests=tasks * _moves(sampler, place) * counts[role],
            prompts=tasks * prompts,
            prompt=assumed.prompt,
            completion=LengthDistribution(average=min(mean, limit), cv=assumed.cv, cap=limit),
        )
        stages.append([flow])
    given = "given" if assumed.completion else "half of its limit"
    notes.append(
        f"assumed: prompts of {assumed.prompt:.0f} tokens, a mean completion {given}, "
        f"{assumed.turns:.0f} turn(s) per agent; a run says it better: --run RUN"
    )
    flows = [flow for stage in stages for flow in stage]
    return Workload(
        stages=stages,
        lessons=_lessons(config, population, flows),
        frozen=frozen_in(config, population),
        episodes=max(played.values()) * _moves(sampler, len(stages) - 1),
        calls=assumed.calls * sum(flow.requests for flow in flows),
        notes=notes,
    )


def _is_tree(sampler: Mapping[str, Any]) -> bool:
    return "candidates" in sampler


def _moves(sampler: Mapping[str, Any], place: int) -> float:
    """How often a task's stage of this place, from 0, is played (see `sampler.tree.Tree`)."""
    if not _is_tree(sampler):
        return float(sampler.get("group_size", 1))
    candidates, branched = sampler["candidates"], min(place + 1, sampler["depth"])
    if sampler["go_on"] == "all":
        return float(candidates**branched)
    return float(candidates + (branched - 1) * (candidates - 1))


def _agents(node: Mapping[str, Any], services: Mapping[str, Any]) -> dict[str, int]:
    """Agents by role, as the arena says; built without services, which may be processes."""
    target = import_target(node[TARGET], "arena")
    known = signature(target, "arena").known
    absent = dict.fromkeys(services, object())  # a None would be checked against its type
    inner = {
        key: build(value, where=join("arena", key), provided=absent)
        for key, value in node.items()
        if key != TARGET
    }
    inner |= {name: None for name in services if name in known and name not in inner}
    roles = call(target, inner, where="arena").roles
    return {str(role): int(count) for role, count in roles.items()}


def _tasks(
    curriculum: Mapping[str, Any], roles: Mapping[str, int], assumed: Assumptions
) -> dict[str, float]:
    """Tasks of a step by role; "*" is for the others."""
    if assumed.tasks:
        return {"*": assumed.tasks}
    if "parts" in curriculum:
        return _shared_out(curriculum, roles, assumed)
    if "proposals" in curriculum:
        kinds = len(curriculum.get("types", ())) or 1
        asked = kinds * float(curriculum["proposals"])
        # A ladder's variants come on top of its batch; others fill theirs with what was asked.
        if "batch" in curriculum:
            solved = asked + float(curriculum["batch"])
        else:
            solved = max(asked, kinds * float(curriculum["solver_batch"]))
        first = next(iter(roles))
        return {first: asked, "*": solved}
    if "batch" in curriculum:
        return {"*": float(curriculum["batch"])}
    raise ConfigError(
        "the curriculum does not say how many tasks a step has; say it: workload.tasks=N"
    )


def _shared_out(
    mixture: Mapping[str, Any], roles: Mapping[str, int], assumed: Assumptions
) -> dict[str, float]:
    """A mixture's tasks by role: each part has its share, divided as its own curriculum does."""
    found = {"*": float(mixture["batch"])}
    shares = mixture["shares"]
    for part, curriculum in mixture["parts"].items():
        own = {r.removeprefix(f"{part}_"): n for r, n in roles.items() if r.startswith(f"{part}_")}
        alone = _tasks(curriculum, own, assumed)
        scale = found["*"] * shares[part] / sum(shares.values()) / max(alone.values())
        found |= {f"{part}_{role}": alone.get(role, alone["*"]) * scale for role in own}
    return found


def limit_of(config: Mapping[str, Any], role: str) -> int:
    """Most tokens of a role's completion."""
    limits = {**config["sampling"]["default"], **config["sampling"].get(role, {})}
    return int(limits.get("max_tokens", 256))


def frozen_in(config: Mapping[str, Any], population: Population) -> list[str]:
    """Policies that only play."""
    settings = population.policies(config["roles"])
    return [name for name, node in settings.items() if not node.get("learn", True)]


def _lessons(
    config: Mapping[str, Any], population: Population, flows: Sequence[Flow]
) -> dict[str, Lesson]:
    """What the learners get of assumed flows: every turn is a sample, siblings share prompts."""
    frozen, lessons = frozen_in(config, population), {}
    for policy in dict.fromkeys(flow.policy for flow in flows):
        if policy in frozen:
            continue
        mine = [flow for flow in flows if flow.policy == policy]
        completions = sum(flow.requests * flow.completion.mean for flow in mine)
        lessons[policy] = Lesson(
            samples=sum(flow.requests for flow in mine),
            tokens=completions + sum(flow.requests * flow.prompt for flow in mine),
            distinct=completions + sum(flow.prompts * flow.prompt for flow in mine),
            completions=completions,
            squares=sum(flow.requests * _square(flow) for flow in mine),
            **passes_of(config, population, policy),
        )
    return lessons


def _square(flow: Flow) -> float:
    """Mean of (prompt + completion)^2."""
    return fmean((flow.prompt + length) ** 2 for length in flow.completion.spread(500))


def passes_of(config: Mapping[str, Any], population: Population, policy: str) -> dict[str, int]:
    """Optimizer steps and forward passes of a policy's update, as arguments of a `Lesson`."""
    learner = {**config["learner"], **population.learner_of(policy)}
    objective = config["objective"]
    corrected = objective.get("correction", "none") != "none"
    passes = int(bool(objective.get("kl"))) + int(corrected)
    return {"updates": int(learner.get("mini_batches", 1)), "passes": passes}


def assumptions(overrides: Sequence[str]) -> Assumptions:
    """`KEY=value` pairs as assumptions; ConfigError for one that is not known."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)))
    given: Mapping[str, Any] = plain
    return call(
        Assumptions, check_arguments(Assumptions, given, where="workload"), where="workload"
    )
