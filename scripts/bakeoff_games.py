"""Games in which `game_bakeoff.py` compares credit methods, and the overrides of the methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

AGENT = "credit.group_by=agent"
BRANCH = ("sampler=branch", "sampler.group_size=42", "sampler.initial=22")
NOOP = '{"event":"NOOP"}'
NINE = ("sampler=independent", "sampler.group_size=9")


@dataclass(frozen=True, kw_only=True)
class Game:
    """An experiment, and the methods that are compared in it."""

    experiment: Sequence[str]
    """Overrides of all runs: the experiment and changes of it."""
    steps: int
    """Steps of a run."""
    rates: Sequence[float] = (3e-4, 1e-3, 3e-3)
    """Learning rates of the tuning."""
    curve: str
    """Metric of training whose mean over the steps is the area."""
    final: str
    """Metric of the evaluation after the last step."""
    methods: Mapping[str, Sequence[str]]
    """Overrides by credit method. The first one is the method that the others are compared with."""
    same: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Methods whose advantages in this game are those of another one times a constant, which Adam
    removes in steps whose gradient is not clipped."""
    refused: Mapping[str, str] = field(default_factory=lambda: {"pass_at_k": "graded"})
    """Methods that are not defined in this game, and the reason."""


def _methods(names: Sequence[str], *changes: str) -> dict[str, tuple[str, ...]]:
    return {name: (f"credit={name}", *changes) for name in names}


ONE_STAGE = ("rloo", "grpo", "trr", "reinforce_pp", "rae", "gae", "magrpo")
"""Methods that can differ in a game of one stage with one reward."""
COLLABORATION = Game(
    experiment=("+experiment=tiny/collaboration",),
    steps=40,
    rates=(1.3e-4, 4e-4, 1.2e-3),
    curve="arena/team_return",
    final="evaluation/held_out/team_return",
    methods=_methods((*ONE_STAGE, "counterfactual")),
    # One turn, and one reward that both get: the step of a turn is its whole episode.
    same={"rloo": ("dr_grpo", "gigpo"), "grpo": ("turn", "team")},
    refused={
        "pass_at_k": "graded",
        "arpo": "one stage: nothing to branch from",
        "agent_turn": "one stage: nothing to branch from",
    },
)
"""Two policies, one stage, a reward that both share."""
GAMES: Mapping[str, Game] = {
    "long_road": Game(
        experiment=("+experiment=tiny/long_road",),
        steps=60,
        curve="arena/passed",
        final="evaluation/road/passed",
        methods={
            "rloo": ("credit=rloo", AGENT),
            "grpo": ("credit=grpo", AGENT),
            "rae": ("credit=rae",),
            "gae": ("credit=gae",),
            "gigpo": ("credit=gigpo", AGENT),
            "gigpo, no discount": ("credit=gigpo", AGENT, "credit.discount=1"),
            "dr_grpo, branch": ("credit=dr_grpo", AGENT, *BRANCH),
            "arpo, branch": ("credit=arpo", AGENT, *BRANCH),
            "agent_turn, branch": ("credit=agent_turn", *BRANCH),
            "counterfactual": ("credit=counterfactual", "credit.default=left"),
        },
        # Both agents get the same reward at the end, and a step has one group.
        same={
            "rloo": ("dr_grpo", "magrpo"),
            "grpo": ("turn", "team", "trr", "reinforce_pp"),
        },
    ),
    # Two agents, each with its own role, policy and rewards.
    "signal": Game(
        experiment=("+experiment=tiny/signal",),
        steps=200,
        curve="arena/team_return",
        final="evaluation/game/team_return",
        methods={
            **_methods(("rloo", "grpo", "trr", "reinforce_pp", "rae", "gae", "turn", "gigpo")),
            **_methods(("magrpo", "team")),
            "counterfactual": ("credit=counterfactual", "credit.default=home"),
        },
    ),
    "collaboration": COLLABORATION,
    # The same game with a second turn, after the results of the tests.
    "repair": replace(
        COLLABORATION,
        experiment=(
            *COLLABORATION.experiment,
            "arena.turns=2",
            "warmstart.demonstrations.again=0.3",
        ),
        methods=_methods((*ONE_STAGE, "turn", "gigpo", "team", "counterfactual")),
        same={},
        refused={"pass_at_k": "graded"},
    ),
    # Two policies: a manager with many turns, and an answer agent with one for each question.
    "memory": Game(
        experiment=("+experiment=tiny/memory",),
        steps=60,
        curve="arena/exact_match",
        final="evaluation/held_out/exact_match",
        methods={
            **_methods(("rloo", "grpo", "reinforce_pp", "turn", "gigpo"), AGENT),
            **_methods(("trr", "rae", "gae", "magrpo", "team", "counterfactual")),
            # The default operation of the manager leaves the bank unchanged.
            "counterfactual, NOOP": ("credit=counterfactual", f"credit.default='{NOOP}'"),
        },
    ),
    # One policy, three agents, two rounds, and a reward in each round.
    "debate": Game(
        experiment=("+experiment=tiny/debate",),
        steps=60,
        curve="arena/last_accuracy",
        final="evaluation/held_out/last_accuracy",
        methods={
            **_methods(("rloo", "grpo", "trr", "reinforce_pp", "rae", "gae", "turn"), *NINE),
            **_methods(("gigpo", "magrpo", "team", "counterfactual"), *NINE),
            "agent_turn, tree": (),
        },
    ),
}
"""All games. Methods have the settings of `configs/credit/`, unless an override changes them."""
