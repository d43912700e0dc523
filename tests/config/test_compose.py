"""Tests of the composition of a config, from any folder and with users' own groups."""

from pathlib import Path
from typing import Any

import pytest

from selfplay.config import compose, plain_data
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check


def test_numbers_in_scientific_notation_are_numbers(tmp_path: Path) -> None:
    assert compose.load(["learner.lr=1e-4"])["learner"]["lr"] == 1e-4
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/fast.yaml").write_text("# @package _global_\nlearner: {lr: 1e-3}\n")
    lr = compose.load(["+experiment=fast"], search=[str(tmp_path)])["learner"]["lr"]
    assert isinstance(lr, float) and lr == 1e-3


def test_a_folder_of_groups_may_have_any_name(tmp_path: Path) -> None:
    home = tmp_path / "it's a (strange), folder=1"
    (home / "arena").mkdir(parents=True)
    (home / "arena/own.yaml").write_text("_target_: somewhere.Own\n")
    assert compose.load(["arena=own"], search=[str(home)])["arena"] == {"_target_": "somewhere.Own"}
    assert "own" in compose.choices("arena", [str(home)])
    assert "arena" in compose.groups([str(home)])


@pytest.mark.parametrize(
    "values",
    [
        {"a": 1, "b": {"c": [1, 2.5, None, True, "x"]}},
        {"rate": 1e-05, "text": "1e-5", "yes": "yes", "number": "12", "none": "null"},
        {"interpolation": "${not.one}", "escape": "a\\${b}", "braces": "{{ x }}", "list": ["${a}"]},
        {"lines": "def f(a):\n    return a\n", "accents": "é ∑ \u202e", "empty": ""},
    ],
)
def test_a_saved_config_is_read_back(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(compose.to_yaml(values), encoding="utf-8")
    assert compose.load([], name="config", folder=tmp_path) == values


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            ["arena=questions", "arena.solver=8"],
            r"unknown key 'arena\.solver'; did you mean 'arena\.solvers'",
        ),
        (["+experiment=tiny/quickstart", "arena.forbiden=1"], r"did you mean 'arena\.forbidden'"),
        (["lr=1"], r"unknown key 'lr'; did you mean 'learner\.lr'"),
        (["steps=1"], r"unknown key 'steps'; did you mean 'run\.steps'"),
        (["population.overrides.a.learn=false"], r"write \+population\.overrides\.a\.learn="),
        (["learner.lr.warmup=1"], r"learner\.lr is a value \(0\.0001\) and has no keys$"),
        (["sampling.solver.max_tokens=4"], r"to add it, write \+sampling\.solver\.max_tokens="),
        (["+experiment=tiny/kuhn", "roles.playr.memory=none"], r"did you mean 'roles\.player'"),
        (["engine.foo=1"], r"unknown key 'engine\.foo'; choose from: engine\.max_rows, "),
        (["runtime.workers=4"], r"'runtime\.workers'; runtime takes no settings$"),
        (["lerner.lr=1"], r"did you mean 'learner\.lr'"),
        (["engine.rows=1"], r"did you mean 'engine\.max_rows'"),
        (["~engine.rows"], r"^~engine\.rows: unknown key .* did you mean 'engine\.max_rows'"),
        (["~population.overrides.a"], r"no key 'population\.overrides\.a'; drop this"),
        (
            ["+experiment=tiny/kuhn", "evaluations.nope.samples=3"],
            r"unknown key 'evaluations\.nope\.samples'; choose from: evaluations\.hands$",
        ),
        (
            ["+experiment=tiny/kuhn", "evaluations.hands.opponent.first=x"],
            r"unknown key .*; did you mean 'evaluations\.hands\.opponents'",
        ),
        (
            ["+experiment=tiny/kuhn", "evaluations.hands.sample=1"],
            r"did you mean 'evaluations\.hands\.samples'",
        ),
        (["learner._tarjet_=1"], r"choose from: learner\."),
        (["nothing.at.all=1"], r"unknown key 'nothing\.at\.all'; choose from: \+experiment"),
        (["run.minimum={a: 1}"], r"write \+run\.minimum="),
        (["policy=huggingface"], r"policy\.model: missing; set policy\.model=VALUE"),
        (["seed=["], r"cannot read 'seed=\['"),
        (["seed=1,2"], "seed=1,2: several values for one run; add -m"),
        (
            ["run.name=${nowhere}"],
            r"^run\.name: its value \$\{nowhere\} is not set; set run\.name$",
        ),
        (
            ["+experiment=tiny/kuhn", "warmstart=hasty_pipeline"],
            r"^warmstart\.demonstrations\.terms: its value \$\{curriculum\.tasks\.terms\} is not "
            r"set; set warmstart\.demonstrations\.terms$",
        ),
        (
            ["+experiment=tiny/kuhn", "evaluations.hands.arena.illegal=lose"],
            r"^evaluations\.hands\.arena\.illegal: evaluations\.hands\.arena is \$\{arena\}; set "
            r"arena\.illegal, or all of evaluations\.hands\.arena$",
        ),
        (["arena=null"], "arena=null: arena takes the name of a config"),
        (["+experiment=nothing"], "no experiment named 'nothing'; choose from: .*paper/r_zero"),
        (["+experiment=nothing"], "--config-dir FOLDER adds configs of your own"),
        (["+experiment=nothing"], "of your own; selfplay list experiment shows all$"),
        (["runtime=nothing"], "choose from: [^.]+; --config-dir FOLDER adds configs of your own$"),
        (["+nothing=grpo", "seed=["], "cannot read"),
    ],
)
def test_a_failed_composition_is_one_line(overrides: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        compose.load(overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("evaluations.hands.seats=[player_0]", ["player_0"]),
        ("rollout.patience=7", 7),
        ("policy.chat_template=x", "x"),
        ("population.opponents.old.dtype=bfloat16", "bfloat16"),
        ("collapse.rules.entropy.window=3", 3),
        ("warmstart.model.positions=64", 64),
    ],
)
def test_a_parameter_that_a_config_leaves_out_can_be_set(override: str, value: Any) -> None:
    """The node of the key has no `_target_`; an override with a plus gives the same config."""
    given, notes = ["+experiment=tiny/kuhn", "+population.opponents.old={model: x}"], list[str]()
    second = "evaluations.hands.same_draws=false"
    whole = compose.load([*given, "credit=rae", override, second], report=notes.append)
    found: Any = whole
    for key in override.partition("=")[0].split("."):
        found = found[key]
    assert found == value and whole["evaluations"]["hands"]["same_draws"] is False
    assert whole == compose.load([*given, "credit=rae", f"+{override}", f"+{second}"])
    assert len(notes) == 1 and "credit.group_by is dropped" in notes[0]
    twice = compose.load([*given, second, f"{second[:-5]}true"])
    assert twice["evaluations"]["hands"]["same_draws"] is True, "the last override of a key wins"


def test_a_parameter_of_the_class_that_a_node_names_can_be_set(tmp_path: Path) -> None:
    (tmp_path / "arena").mkdir()
    (tmp_path / "arena/bare.yaml").write_text("_target_: arenas.games.kuhn.Kuhn\n")

    def load(override: str) -> dict[str, Any]:
        return compose.load(["arena=bare", "roles=kuhn", override], search=[str(tmp_path)])

    assert load("arena.illegal=lose")["arena"]["illegal"] == "lose"
    for override, hint in {
        "arena.ilegal=lose": "did you mean 'arena.illegal'?",
        "arena.faces=3": "choose from: arena.illegal",
        "~arena.illegal": "drop this, there is nothing to remove",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load(override)
        assert str(caught.value).endswith(hint)


@pytest.mark.parametrize(
    ("key", "above"),
    [
        ("population.phases.steps", "population.phases"),
        ("evaluations.hands.opponents.x", "evaluations.hands.opponents"),
    ],
)
@pytest.mark.parametrize("plus", ["", "+"])
def test_a_key_below_a_list_is_named(key: str, above: str, plus: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose.load(["+experiment=tiny/kuhn", f"{plus}{key}=3"])
    own = key.rpartition(".")[2]
    assert str(raised.value) == (
        f"{key}: {above} is a list, which has no key {own!r}; set the whole list, such as "
        f"'{above}=[...]'"
    )


def test_an_experiment_without_run_experiment_has_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 3\n")
    mine = compose.load(["+experiment=mine"], search=[str(tmp_path)])
    assert mine["run"]["experiment"] == "mine" and mine["seed"] == 3
    assert compose.load([])["run"]["experiment"] == "train"
    assert compose.load(["+experiment=tiny/kuhn"])["run"]["experiment"] == "tiny/kuhn"


def test_a_change_that_nothing_reads_in_the_config_of_a_run_is_refused(tmp_path: Path) -> None:
    run = {"policy": {"model": None}, "population": {"policy": {"model": None}}}
    (tmp_path / "config.yaml").write_text(compose.to_yaml(run), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"write population\.policy\.model=x"):
        compose.load(["policy.model=x"], name="config", folder=tmp_path)
    changed = compose.load(["population.policy.model=x"], name="config", folder=tmp_path)
    assert changed["population"]["policy"]["model"] == "x"


def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1\nb: [1\nc: 2\n")
    with pytest.raises(ConfigError, match=r"config\.yaml, line 3: not valid YAML"):
        compose.load([], name="config", folder=tmp_path)


def test_folders_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no base\.yaml in .*nowhere"):
        compose.load([], folder=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"--config-dir .*nowhere: no such folder"):
        compose.load([], search=[str(tmp_path / "nowhere")])


def composed() -> dict[str, Any]:
    return compose.load(["+experiment=tiny/smoke"])


def test_a_config_has_all_its_parts_and_no_other() -> None:
    whole = composed()
    plain_data.check_config(whole)
    with pytest.raises(ConfigError, match="unknown key 'sede'; did you mean 'seed'"):
        plain_data.check_config({**whole, "sede": 1})
    for key in plain_data.KEYS:
        rest = {name: value for name, value in whole.items() if name != key}
        with pytest.raises(ConfigError, match=f"no {key!r}"):
            plain_data.check_config(rest)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("seed", "abc", "seed: 'abc' does not fit"),
        ("learner", 3, "learner: 3 does not fit"),
        ("learner.lr", -1, "learner.lr: -1 does not fit"),
        ("rollout.max_live", 0, "rollout.max_live: 0 does not fit"),
        ("roles.solver", {"style": "terse"}, "roles.solver._target_: missing"),
        ("services.executor", None, "services.executor: None does not fit"),
        ("services.executor", {}, "services.executor._target_: missing"),
        ("evaluations.proposals", {}, "evaluations.proposals.arena._target_: missing"),
        ("arena._target_", "arenas.absolute_zero.arena.AbsoluteZer", "did you mean 'AbsoluteZero'"),
    ],
)
def test_a_part_that_cannot_be_used_is_one_line(path: str, value: Any, complaint: str) -> None:
    whole = composed()
    *parents, last = path.split(".")
    node = whole
    for name in parents:
        node = node[name]
    node[last] = value
    with pytest.raises(ConfigError, match=complaint):
        check(whole)


def test_a_missing_service_of_an_arena_is_named() -> None:
    whole = composed()
    del whole["services"]["executor"]
    with pytest.raises(ConfigError, match=r"executor: missing; .*AbsoluteZero needs it") as caught:
        plain_data.check_config(whole)
    assert str(caught.value).endswith("; choose services=executor or services=absolute_zero")


def test_a_missing_package_of_the_project_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"there is no package 'selfplay' in .*install selfplay"):
        compose.check_package_names()


def test_a_damaged_config_of_a_run_has_a_local_runtime_too() -> None:
    found = compose.with_local_runtime({"engine": 5, "runtime": ["x"]})
    assert {key: found[key] for key in plain_data.LOCAL_DEFAULTS} == {
        key: {"_target_": name} for key, name in plain_data.LOCAL_DEFAULTS.items()
    }


def test_a_chosen_config_with_the_name_of_a_shipped_one_is_refused(tmp_path: Path) -> None:
    for path in ("curriculum/ladder", "credit/rloo"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / f"{path}.yaml").write_text("_target_: somewhere.Own\n")
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm/mine.yaml").write_text(
        "# @package _global_\ndefaults: [override /curriculum: ladder]\n"
    )
    search = [str(tmp_path)]
    refusal = rf"^curriculum=ladder: {tmp_path}/curriculum/ladder\.yaml has the name of a config of"
    for overrides in (["curriculum=ladder"], ["algorithm=mine"]):
        with pytest.raises(ConfigError, match=refusal + " the library, .*; rename it$"):
            compose.load(overrides, search=search)
    assert compose.load(["curriculum=games"], search=search)  # neither of the two is chosen
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(compose.to_yaml(compose.load(["credit=grpo"])))
    with pytest.raises(ConfigError, match=r"^credit=rloo: .*rename it$"):
        compose.load_changed(run, ["credit=rloo"], search=search)
    assert compose.load_changed(run, ["credit=rloo"])["credit"]
