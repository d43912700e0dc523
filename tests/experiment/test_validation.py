"""Tests of the check of a run's parts against each other: errors of one line, and notes."""

import pytest

from selfplay.config import compose
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check

QUICK = "+experiment=tiny/quickstart"
FALLING = "sampling.default.temperature={steps: [0, 3], values: [1, 0]}"


@pytest.mark.parametrize(
    ("override", "step"), [("sampling.default.temperature=0", 1), (FALLING, 3)]
)
def test_a_policy_that_learns_at_temperature_0_is_refused(override: str, step: int) -> None:
    with pytest.raises(ConfigError, match=rf"samples at temperature 0 in step {step}, and its"):
        check(compose.load([QUICK, override]))


@pytest.mark.parametrize(
    "overrides",
    [
        (FALLING, "run.steps=2"),
        ("sampling.default.temperature=0", "run.steps=0"),
        (
            "population=separate",
            "+population.overrides.proposer.learn=false",
            "+sampling.proposer.temperature=0",
        ),
    ],
)
def test_temperature_0_is_accepted_if_a_policy_does_not_learn(overrides: tuple[str, ...]) -> None:
    check(compose.load([QUICK, *overrides]))


def test_the_default_is_no_role_if_every_role_has_its_own_sampling() -> None:
    game = ["+experiment=tiny/kuhn", "sampling.default.temperature=0"]
    check(compose.load([*game, "+sampling.player={temperature: 1.0}"]))
    with pytest.raises(ConfigError, match="role 'player' samples at temperature 0 in step 1"):
        check(compose.load(game))
    limits = ["shaping=overlong", "shaping.overlong.limit=64", "+sampling.player={max_tokens: 64}"]
    config = compose.load([game[0], *limits])
    assert config["sampling"]["default"]["max_tokens"] != 64
    assert not [note for note in check(config) if note.startswith("shaping.overlong.limit")]


def test_a_policy_with_the_name_of_a_missing_opponent_is_named() -> None:
    game, mine = "+experiment=tiny/kuhn", "+population.roles.player=random"
    (note,) = [each for each in check(compose.load([game, mine])) if "opponent" in each]
    assert note.startswith("population.roles.player: the config has no opponent 'random'")
    assert "which learns; +opponents=random adds it" in note
    named = check(compose.load([game, "+population.roles.player=team"]))
    assert not [each for each in named if "opponent" in each]


@pytest.mark.parametrize(
    ("experiment", "used"),
    [
        ("tiny/signal", "+population.roles.scout=random"),
        ("tiny/kuhn", "league=anchors"),
        ("tiny/leduc", "evaluations.anchors.opponents=[random]"),
    ],
)
def test_an_opponent_that_plays_nowhere_is_named(experiment: str, used: str) -> None:
    game = [f"+experiment={experiment}", "+opponents=random"]
    game += ["evaluations=leduc"] * (experiment == "tiny/leduc")
    (note,) = [each for each in check(compose.load(game)) if "it plays in no" in each]
    assert note.startswith("population.opponents.random: it plays in no role, league")
    assert not [each for each in check(compose.load([*game, used])) if "it plays in no" in each]


def test_a_policy_with_nearly_the_name_of_an_opponent_is_named() -> None:
    game = ["+experiment=tiny/kuhn", "+opponents=random"]
    (note,) = [
        each
        for each in check(compose.load([*game, "+population.roles.player=randm"]))
        if each.startswith("population.roles")
    ]
    assert note.endswith("which learns; did you mean 'random'?")
    named = check(compose.load([*game, "+population.roles.player=team"]))
    assert not [each for each in named if each.startswith("population.roles")]


def test_pairs_without_an_objective_that_compares_them_are_named() -> None:
    run = ["+experiment=tiny/malt"]
    assert not [each for each in check(compose.load(run)) if "pairs" in each]
    (note,) = [
        each for each in check(compose.load([*run, "objective=reinforce"])) if "pairs" in each
    ]
    assert note.startswith("credit: PreferencePairs makes pairs") and "objective=dpo" in note


def test_a_note_says_that_shaping_has_no_effect_on_credit_by_replays() -> None:
    run = ["+experiment=tiny/signal", "shaping=overlong", "shaping.overlong.limit=20"]
    for credit in (["credit=counterfactual"], ["credit=magrpo", "credit.joint=cross"]):
        (note,) = [each for each in check(compose.load([*run, *credit])) if "replays" in each]
        assert note.startswith("shaping: ") and "overlong changes no advantage" in note
    assert not [each for each in check(compose.load([*run, "credit=rloo"])) if "replays" in each]


def test_a_penalty_of_long_answers_names_roles_with_other_limits() -> None:
    longer = "+sampling.proposer={temperature: 1.0, max_tokens: 90}"
    tokens = compose.load([QUICK])["sampling"]["default"]["max_tokens"]
    (note,) = [
        each
        for each in check(compose.load([QUICK, "shaping=overlong", longer]))
        if each.startswith("shaping.overlong.limit")
    ]
    assert note.startswith(f"shaping.overlong.limit: {tokens} tokens for all roles")
    assert "proposer 90;" in note and "solver" not in note
    notes = check(compose.load([QUICK, "shaping=overlong"]))
    assert not [each for each in notes if each.startswith("shaping.overlong.limit")]


@pytest.mark.parametrize("slow", [True, False])
def test_passes_in_bfloat16_on_a_cpu_without_instructions_for_them_are_named(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selfplay.experiment.validation.slow_bfloat16", lambda: slow)

    def named(*options: str) -> list[str]:
        notes = check(compose.load([QUICK, "policy.device=cpu", *options]))
        return [note for note in notes if "no instructions" in note]

    assert not named()
    notes = named("learner.precision=bfloat16")
    assert [note.rpartition("; ")[2] for note in notes] == ["set learner.precision=float32"] * slow
    adapter = ["policy.model=acme/model", "+policy.lora={rank: 4}", "policy.dtype=bfloat16"]
    (note,) = named(*adapter, "learner.precision=bfloat16") or [""]
    assert note.endswith("set policy.dtype=float32 learner.precision=float32") == slow
    own = "+population.overrides.base={dtype: bfloat16, learner: {precision: bfloat16}}"
    (note,) = named(*adapter[:2], own) or [""]
    where = "population.overrides.base"
    assert note.endswith(f"{where}.dtype=float32 {where}.learner.precision=float32") == slow


class Bare:
    """A class with one method of each part, and no other members."""

    def sample(self) -> None: ...

    assign = tasks = loss = sample


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("credit", "metrics, modules, state_dict, load_state_dict; derive it from selfplay.credit"),
        ("sampler", "played, metrics; `selfplay new sampler NAME` writes a class"),
        ("curriculum", "observe, ready, metrics, state_dict, load_state_dict; `selfplay new"),
        ("objective", "prepare, at, kl, divergence, reference, ema_rate, reads_reference, entropy"),
    ],
)
def test_a_class_that_lacks_members_is_refused_before_a_model_is_loaded(
    key: str, words: str
) -> None:
    config = compose.load(["+experiment=tiny/kuhn"])
    config[key] = {"_target_": f"{__name__}.Bare"}
    with pytest.raises(ConfigError) as caught:
        check(config)
    start = f"{key}._target_: Bare is not a valid {key}, because it lacks "
    assert str(caught.value).startswith(start + words)
