"""The workload of a step: requests by stage and role, and samples by policy that learns.

This module derives the workload from a config, with assumptions for what a config does not have.
Completion lengths are log-normal with a cap, or recorded.
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
from selfplay.plan.checkpoint_size import KeptCheckpoints
from selfplay.plan.cluster import check_positive
from selfplay.rollout.sampling_settings import SamplingSettings
from selfplay.rollout.schedule import make_scheduled
from selfplay.run.formatting import counted


@dataclass(frozen=True, kw_only=True)
class LengthDistribution:
    """Distribution of completion lengths, in tokens."""

    average: float
    """Mean of the distribution before the cap."""
    cv: float = 1.0
    """Standard deviation divided by the mean; 0: equal lengths."""
    cap: int
    """Token limit of a completion."""
    recorded: Sequence[int] = ()
    """Recorded lengths, ascending; if there are any, they are the distribution."""

    def __post_init__(self) -> None:
        if self.average <= 0 or self.cv < 0 or self.cap < 1:
            raise ValueError("lengths: average and cap must be above 0, and cv not negative")

    @classmethod
    def of(cls, recorded: Sequence[int], cap: int) -> "LengthDistribution":
        """Return the distribution of recorded lengths."""
        return cls(average=max(fmean(recorded), 1e-9), cap=cap, recorded=tuple(sorted(recorded)))

    def quantile(self, share: float) -> float:
        """Return the length that a fraction `share` of the completions does not exceed."""
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
        """Return `count` lengths that represent the distribution: even quantiles, ascending."""
        return [self.quantile((index + 0.5) / count) for index in range(count)]

    def draw(self, rng: Random, count: int) -> list[float]:
        """Draw `count` random lengths."""
        return [self.quantile(min(max(rng.random(), 1e-12), 1 - 1e-12)) for _ in range(count)]

    @cached_property
    def mean(self) -> float:
        """Mean after the cap."""
        return fmean(self.recorded) if self.recorded else fmean(self.spread(2000))

    def longest(self, count: int) -> float:
        """Return the likely length of the longest of `count` completions."""
        return self.quantile(1 - 0.5 / max(count, 1))


MOST_TURNS = 10_000
"""Largest number of turns of an agent per episode; each turn is a stage of the plan."""


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Properties of a workload that a config does not have. Set them with `workload.KEY=value`."""

    prompt: float = 512.0
    """Mean tokens of a prompt."""
    completion: float | None = None
    """Mean tokens of a completion; None: half of the role's limit."""
    cv: float = 1.0
    """Standard deviation of completion lengths divided by their mean."""
    turns: float = 1.0
    """Number of turns of every agent per episode."""
    tasks: float | None = None
    """Number of tasks per step; None: derived from the curriculum's keys."""
    calls: float = 0.0
    """Number of service calls per turn, such as program runs."""

    def __post_init__(self) -> None:
        check_positive(self, "", above=("prompt", "completion", "turns", "tasks"))
        if self.turns > MOST_TURNS:
            raise ValueError(f"turns must be at most {MOST_TURNS}, not {self.turns}")


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The requests of one role in one stage of a step."""

    role: str
    """Role that takes the turns."""
    policy: str
    """Policy that samples the completions."""
    requests: float
    """Number of requests per step."""
    prompts: float
    """Number of distinct prompts per step."""
    prompt: float
    """Mean tokens of a prompt."""
    context: float = 0.0
    """Mean tokens of the prompt that the prefix cache has from the agent's earlier turns."""
    completion: LengthDistribution
    """Distribution of the tokens per completion."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """Samples that one policy learns from per step."""

    samples: float
    """Number of samples, which are turns."""
    tokens: float
    """Tokens of all turns, including prompts."""
    distinct: float
    """Tokens of all turns, with shared prefixes counted once."""
    completions: float
    """Tokens that contribute to the loss."""
    squares: float
    """Sum of the squares of the turns' lengths."""
    updates: int = 1
    """Number of optimizer steps."""
    epochs: int = 1
    """Number of passes over the samples in training."""
    reference: bool = False
    """True if a forward pass computes the log-probabilities of the reference."""
    correction: bool = False
    """True if a forward pass computes those of a rollout correction."""

    @property
    def passes(self) -> int:
        """Number of forward passes besides those of training."""
        return self.reference + self.correction

    @property
    def sharing(self) -> float:
        """Ratio of all tokens to distinct tokens, which is the token ratio of 2511.00413."""
        return self.tokens / max(self.distinct, 1.0)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests and samples of a step. `of_config` or `recorded_workload.of_run` makes it."""

    stages: Sequence[Sequence[Flow]]
    """Flows of a stage run together; the next stage waits for them."""
    lessons: Mapping[str, Lesson]
    """Samples by policy that learns."""
    frozen: Sequence[str] = ()
    """Policies that do not learn."""
    episodes: float = 0.0
    """Number of episodes per step."""
    calls: float = 0.0
    """Number of service calls per step."""
    basis: Literal["assumed", "recorded"] = "assumed"
    """Source of the lengths and counts."""
    notes: Sequence[str] = field(default_factory=tuple)
    """Sentences about the assumptions."""
    checkpoints: KeptCheckpoints | None = None
    """Checkpoints of the run; None: none are planned."""

    @property
    def flows(self) -> list[Flow]:
        """Flows of all stages."""
        return [flow for stage in self.stages for flow in stage]

    @property
    def turns(self) -> float:
        """Number of requests per step."""
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
        """Return the workload of `policies` alone; all other policies cost nothing here."""
        stages = [[flow for flow in stage if flow.policy in policies] for stage in self.stages]
        lessons = {name: each for name, each in self.lessons.items() if name in policies}
        return replace(self, stages=[stage for stage in stages if stage], lessons=lessons)


def of_config(config: Mapping[str, Any], assumed: Assumptions, *, on_gpu: bool = False) -> Workload:
    """Derive the workload of a config: the roles take turns, `assumed.turns` each.

    In a self-proposed curriculum, proposers come before solvers. With a tree sampler, a stage is
    played once per branch. Raises ConfigError if the config does not determine the number of tasks.
    """
    population = Population.of(config)
    counts, notes = _agents(config["arena"], config["services"]), []
    played = _tasks(config["curriculum"], counts, assumed)
    sampler = config["sampler"]
    playing = [role for role in counts if played.get(role, played["*"])]
    stages = []
    for place, role in enumerate(playing * max(1, round(assumed.turns))):
        limit = limit_of(config, role)
        mean = assumed.completion or limit / 2
        tasks = played.get(role, played["*"])
        # In a tree, every move of the earlier stage leads to a distinct prompt.
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
    turns = counted(max(1, round(assumed.turns)), "turn")
    notes.append(
        f"assumed: prompts of {assumed.prompt:.0f} tokens, a mean completion {given}, "
        f"{turns} per agent; for recorded values use --run RUN"
    )
    flows = [flow for stage in stages for flow in stage]
    return Workload(
        stages=stages,
        lessons=_lessons(config, population, flows, on_gpu=on_gpu),
        frozen=frozen_in(population),
        episodes=max(played.values()) * _moves(sampler, len(stages) - 1),
        calls=assumed.calls * sum(flow.requests for flow in flows),
        notes=notes,
        checkpoints=KeptCheckpoints.of(config),
    )


def _is_tree(sampler: Mapping[str, Any]) -> bool:
    return "candidates" in sampler


def _moves(sampler: Mapping[str, Any], place: int) -> float:
    """Return how often stage `place`, from 0, of a task is played (see `sampler.tree.Tree`)."""
    if not _is_tree(sampler):
        return float(sampler.get("group_size", 1))
    candidates, branched = sampler["candidates"], min(place + 1, sampler["depth"])
    if sampler["go_on"] == "all":
        return float(candidates**branched)
    return float(candidates + (branched - 1) * (candidates - 1))


def _agents(node: Mapping[str, Any], services: Mapping[str, Any]) -> dict[str, int]:
    """Return the arena's number of agents by role, without starting its services."""
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
    """Return the number of tasks of a step by role; "*" stands for all other roles."""
    if assumed.tasks:
        return {"*": assumed.tasks}
    if "curriculum" in curriculum:  # around another one, such as ScheduledTasks
        return _tasks(curriculum["curriculum"], roles, assumed)
    if "parts" in curriculum:
        return _shared_out(curriculum, roles, assumed)
    if "proposals" in curriculum:
        kinds = len(curriculum.get("types", ())) or 1
        asked = kinds * float(curriculum["proposals"])
        # A ladder adds its variants to its batch; other curricula put the proposals into theirs.
        if "batch" in curriculum:
            solved = asked + float(curriculum["batch"])
        elif curriculum.get("replay", True):
            solved = max(asked, kinds * float(curriculum["solver_batch"]))
        else:
            solved = asked
        first = next(iter(roles))
        return {first: asked, "*": solved}
    if "batch" in curriculum:
        return {"*": float(curriculum["batch"])}
    raise ConfigError(
        "the curriculum does not define the number of tasks per step; set workload.tasks=N"
    )


def _shared_out(
    mixture: Mapping[str, Any], roles: Mapping[str, int], assumed: Assumptions
) -> dict[str, float]:
    """Return a mixture's number of tasks by role: each part has its fraction of the batch, divided
    between its roles by its own curriculum. If there are phases, the longest one counts."""
    found = {"*": float(mixture["batch"])}
    phases = mixture.get("phases") or [{"steps": 0, "shares": mixture["shares"]}]
    shares = max(phases, key=lambda phase: phase["steps"])["shares"]
    for part, curriculum in mixture["parts"].items():
        own = {r.removeprefix(f"{part}_"): n for r, n in roles.items() if r.startswith(f"{part}_")}
        alone = _tasks(curriculum, own, assumed)
        scale = found["*"] * shares.get(part, 0) / sum(shares.values()) / max(alone.values())
        found |= {f"{part}_{role}": alone.get(role, alone["*"]) * scale for role in own}
    return found


def limit_of(config: Mapping[str, Any], role: str) -> int:
    """Return the token limit of a role's completions, the largest one of a schedule."""
    limits = {**config["sampling"]["default"], **config["sampling"].get(role, {})}
    settings = make_scheduled(SamplingSettings, limits, where=f"sampling.{role}")
    return settings.longest()


def frozen_in(population: Population) -> list[str]:
    """Return the policies that do not learn."""
    return [name for name in population.policies if name not in population.learning]


def _lessons(
    config: Mapping[str, Any], population: Population, flows: Sequence[Flow], *, on_gpu: bool
) -> dict[str, Lesson]:
    """Return the samples of assumed flows by policy: each turn is a sample, and the episodes of a
    group share prompts."""
    frozen, lessons = frozen_in(population), {}
    for policy in dict.fromkeys(flow.policy for flow in flows):
        if policy in frozen:
            continue
        own = [flow for flow in flows if flow.policy == policy]
        completions = sum(flow.requests * flow.completion.mean for flow in own)
        lessons[policy] = Lesson(
            samples=sum(flow.requests for flow in own),
            tokens=completions + sum(flow.requests * flow.prompt for flow in own),
            distinct=completions + sum(flow.prompts * flow.prompt for flow in own),
            completions=completions,
            squares=sum(flow.requests * _square(flow) for flow in own),
            **passes_of(config, population, policy, on_gpu=on_gpu),
        )
    return lessons


def _square(flow: Flow) -> float:
    """Return the mean of (prompt + completion)^2."""
    return fmean((flow.prompt + length) ** 2 for length in flow.completion.spread(500))


def learns_in_16_bits(learner: Mapping[str, Any], *, on_gpu: bool) -> bool:
    """Return True if the passes of a learner with these settings compute in bfloat16."""
    precision = learner.get("precision", "auto")
    return bool(precision == "bfloat16" or (precision == "auto" and on_gpu))


def reads_reference(config: Mapping[str, Any]) -> bool:
    """Return True if the objective reads a reference policy at some step."""
    return bool(build(config["objective"], where="objective").reads_reference)


def moves_reference(config: Mapping[str, Any]) -> bool:
    """Return True if the reference policy is an average of the weights."""
    return bool(build(config["objective"], where="objective").reference == "ema")


def passes_of(
    config: Mapping[str, Any], population: Population, policy: str, *, on_gpu: bool
) -> dict[str, Any]:
    """Return `updates`, `epochs`, `reference` and `correction` of a policy's `Lesson`."""
    learner = {**config["learner"], **population.learner_of(policy)}
    objective = config["objective"]
    corrected = objective.get("correction", "none")
    if corrected == "auto":  # as a run chooses it, except for truncated sampling
        exact = getattr(import_target(config["engine"][TARGET], "engine"), "exact", False)
        rounded = learns_in_16_bits(learner, on_gpu=on_gpu)
        corrected = "none" if exact and not rounded else "truncated"
    epochs = int(learner.get("epochs", 1))
    updates = epochs * int(learner.get("mini_batches", 1))
    return {
        "updates": updates,
        "epochs": epochs,
        "reference": reads_reference(config),
        "correction": corrected != "none",
    }


def assumptions(overrides: Sequence[str]) -> Assumptions:
    """Parse `KEY=value` pairs as assumptions; raise ConfigError for an unknown key."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)))
    given: Mapping[str, Any] = plain
    return call(
        Assumptions, check_arguments(Assumptions, given, where="workload"), where="workload"
    )
