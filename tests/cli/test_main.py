"""Tests of the command line: a mistake gives one line on stderr and exit code 2."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import selfplay
from selfplay.cli.main import _parser, main
from selfplay.config.compose import choices, groups
from selfplay.errors import RunError
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.rollout.evaluation import Evaluation
from selfplay.run.directory import Run
from selfplay.types import Episode
from tests.helpers.command_process import finished, shared_cache


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Undo the changes that a command makes to this process."""
    handler, path, environment = signal.getsignal(signal.SIGTERM), sys.path[:], dict(os.environ)
    yield
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)


SMOKE = "+experiment=tiny/smoke"
PLAYER = "{_target_: roles.player.Player, game: kuhn}"

BAD = [
    (["train", "+experiment=quickstrat"], "did you mean 'tiny/quickstart'?"),
    (["train", "+experiment=kuhn"], "did you mean 'tiny/kuhn'?"),
    (["train", "+experiment=tiny_memory"], "did you mean 'tiny/memory'?"),
    (["train"], "no arena is chosen; add an experiment, such as +experiment=tiny/quickstart"),
    (["train", "arena=kuhn"], "no roles are chosen; choose roles=NAME"),
    (["train", "algorithm=dappo"], "did you mean 'dapo'?"),
    (["train", "algoritm=dapo"], "did you mean 'algorithm'?"),
    (["train", SMOKE, "+algorithm=dapo"], "without the plus"),
    (["train", "credit=grop"], "did you mean 'grpo'?"),
    (["train", "objective=dappo"], "did you mean 'dapo'?"),
    (["train", "arena=absolute_zeroo"], "did you mean 'absolute_zero'?"),
    (["train", "sed=1"], "did you mean 'seed'?"),
    (["train", "learner.lrr=1"], "did you mean"),
    (["train", SMOKE, "+learner.lrr=1"], "did you mean 'lr'?"),
    (["train", SMOKE, "+arena.solver=8"], "did you mean 'solvers'?"),
    (["train", SMOKE, "arena.solvers=many"], "arena.solvers"),
    (["train", SMOKE, "learner.lr=abc"], "learner.lr"),
    (["train", SMOKE, "run.steps=-1"], "steps is at least 0, not -1"),
    (["train", SMOKE, "credit=grpo", "credit.group_by=rol"], "credit.group_by"),
    (["train", SMOKE, "arena._target_=arenas.nothing.Nothing"], "no module 'arenas.nothing'"),
    (["train", SMOKE, "policy=huggingface", "policy.model=/does/not/exist"], "/does/not/exist"),
    (["train", "quickstart"], "key=value"),
    (["train", "--steps", "3"], "--steps"),
    (["train", "resume=/nowhere"], "not a run folder"),
    (["train", "resume=/nowhere", "seed=1"], "not a run folder"),
    (["train", "run.name={"], ""),
    (["evaluate", "/nowhere"], "not a run folder"),
    (["report", "/nowhere"], "/nowhere"),
    (["list", "aren"], "did you mean 'arena'?"),
    ([], "required: COMMAND"),
    (["trian"], "did you mean 'train'?"),
    (["view"], "show, study, tag, train, warmstart, watch (see selfplay --help)"),
    (["evaluate", "/nowhere", "--episodes", "3"], "'--episodes' (see selfplay evaluate --help)"),
    (["evaluate"], "required: RUN"),
    (["evaluate", "/nowhere", "--jsn"], "--jsn"),
    (["warmstart", "warmstart=none"], "no warmstart"),
    (["train", "--config-path"], "expected one argument"),
    (["train", "--config-path", "/nowhere"], "/nowhere"),
    (["train", "--config-dir", "/nowhere"], "/nowhere"),
    (["train", "resume=/a", "resume=/b"], "drop the other resume="),
    (["train", SMOKE, "--jobs", "4"], "--jobs: only -m has several runs"),
    (["list", "--config-dir", "/nowhere"], "--config-dir /nowhere: no such folder"),
    (["play", "none"], "no run folder and no arena 'none'"),
    (["train", "resume=/a", "--cfg"], "drop --cfg"),
    (["train", "resume="], "not a run folder"),
    (["train", "~arena"], "arena"),
    (["train", "+sed=1"], "did you mean 'seed'?"),
    (["train", SMOKE, "seed=abc"], "seed: 'abc' does not fit"),
    (["train", SMOKE, "learner.lr=-1"], "learner.lr: -1 does not fit"),
    (["train", SMOKE, "learner.lr=true"], "learner.lr: true does not fit"),
    (["train", SMOKE, "+learner.seed=1"], "learner.seed: unknown key"),
    (["train", SMOKE, "engine.stride=0"], "engine.stride"),
    (["train", SMOKE, "+engine.max_row=1"], "did you mean 'max_rows'?"),
    (["train", SMOKE, "+rollout.max_turn=1"], "did you mean 'max_turns'?"),
    (["train", SMOKE, f"+roles.solvers={PLAYER}"], "did you mean 'solver'?"),
    (["check", SMOKE, f"+roles.critic={PLAYER}"], "roles.critic: no agent of absolute_zero_v0"),
    (["check", SMOKE, "+warmstart.final_lr=3"], "warmstart: final_lr: 3 does not fit"),
    (["train", SMOKE, "+sampling.solvr.max_tokens=1"], "did you mean 'solver'?"),
    (["train", SMOKE, "+sampling.solver.max_token=1"], "did you mean 'max_tokens'?"),
    (["train", SMOKE, "+policy.lern=false"], "did you mean 'learn'?"),
    (["train", SMOKE, "population.sharing=shred"], "did you mean 'shared'?"),
    (["train", SMOKE, "+population.overrides.base.lern=false"], "did you mean 'learn'?"),
    (["train", SMOKE, "+evaluations.proposals.metric=1"], "did you mean 'metrics'?"),
    (["train", SMOKE, "evaluations.proposals.every=often"], "evaluations.proposals.every: 'often'"),
    (["train", SMOKE, "+run.minimum={a: low}"], "run.minimum.a: 'low' does not fit"),
    (["train", SMOKE, "roles.solver.style=nonsense"], "nonsense"),
    (["train", "experiment=tiny/kuhn"], "+experiment=tiny/kuhn"),
    (["train", "+experiments=tiny/kuhn"], "did you mean '+experiment'?"),
    (["train", "experiments=tiny/kuhn"], "did you mean '+experiment'?"),
    (["train", "tiny/kuhn"], "+experiment=tiny/kuhn"),
    (["train", SMOKE, "+experiment=tiny/kuhn"], "+experiment: given more than once; keep one"),
    (["train", SMOKE, "+credit=rloo"], "write credit=NAME without the plus"),
    (["train", SMOKE, "lerner.lr=1"], "did you mean 'learner.lr'?"),
    (["train", "--resume", "runs/a"], "write resume=RUN, without dashes"),
    (["train", "seed=0,1"], "add -m"),
    (["train", "--cfg", SMOKE, "learner.lr=-1"], "learner.lr: -1 does not fit"),
    (["train", "--cfg", SMOKE, "roles.solver.style=nonsense"], "nonsense"),
    (["train", "--cfg", SMOKE, "run.name=../x"], "run.name: '../x' does not fit"),
    (["check", "--config-path", "/nowhere"], "/nowhere"),
    (["check", "kuhn"], "key=value"),
    (["replay", "/nowhere", "--steps", "20", "credit=rloo"], "/nowhere is not a run folder"),
    (["replay", "/nowhere", "--steps", "x"], "argument --steps: 'x' is not a step"),
    (["replay", "/nowhere", "--steps", "credit=rloo"], "expected at least one step"),
    (["completion"], "required: SHELL"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("selfplay: ") and len(error.splitlines()) == 1
    assert words in error
    assert not (tmp_path / "runs").exists()


def test_an_error_prints_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "\x1b[2Jruns"]) == 2
    error = capsys.readouterr().err
    assert "?[2Jruns" in error and "\x1b" not in error


@pytest.mark.parametrize(
    "command", ["train", "check", "evaluate", "warmstart", "plan", "replay", "play"]
)
def test_help_of_commands_that_take_overrides_says_so(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    usage, description, *_ = capsys.readouterr().out.split("\n\n")
    assert usage.endswith("[key=value ...]") and not description.startswith("options:")


def test_help_of_report_names_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert "a sweep" in capsys.readouterr().out.split("\n\n")[1]


def test_a_list_of_all_groups_ends_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "selfplay list GROUP" in capsys.readouterr().err.splitlines()[-1]
    assert main(["list", "arena"]) == 0
    assert not capsys.readouterr().err


def test_list_names_the_choices_of_all_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in ("absolute_zero", "magrpo", "dapo", "quickstart", "naive", "dynamic", "separate"):
        assert name in printed


def test_list_describes_each_name_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shipped = [(group, name) for group in groups() for name in choices(group)]
    assert [tuple(line.split()[:2]) for line in lines] == shipped
    assert not [line for line in lines if len(line.split()) < 4], "a name without a description"
    column = {line.index(line.split(maxsplit=2)[2]) for line in lines}
    assert len(column) == 1, "descriptions begin in one column"

    assert main(["list", "objective"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == choices("objective")

    (tmp_path / "my/credit").mkdir(parents=True)
    (tmp_path / "my/credit/median.yaml").write_text("_target_: my_credits.Median\n")
    (tmp_path / "my/credit/torn.yaml").write_text("a: [1\n")
    (tmp_path / "my_credits.py").write_text(
        'print("imported")\n\nclass Median:\n    """Reward minus\n    the median. More."""\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("selfplay.cli.inspect.get_terminal_size", lambda: os.terminal_size((40, 9)))
    assert main(["list", "credit", "--config-dir", "my"]) == 0
    printed = capsys.readouterr().out
    assert "imported" not in printed
    found = {line.split()[0]: line for line in printed.splitlines()}
    assert found["median"].endswith("  Reward minus the median. More.")
    assert "(cannot be read: ParserError" in found["torn"]
    assert max(map(len, found.values())) > 40, "nothing is cut where the output is no terminal"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["list"]) == 0
    cut = capsys.readouterr().out.splitlines()
    assert {len(line) for line in cut if line.endswith("...")} == {40}
    assert all(len(line) <= 40 for line in cut)
    assert main(["list", "credit", "--config-dir", "my"]) == 0
    wrapped = capsys.readouterr().out
    assert all(len(line) <= 40 for line in wrapped.splitlines())
    assert " ".join(wrapped.split()) == " ".join(printed.split()), (
        "the list of one group is not cut"
    )


def test_an_experiment_without_its_first_line_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("defaults:\n  - override /arena: kuhn\n")
    assert main(["train", "--config-dir", str(tmp_path), "+experiment=mine"]) == 2
    assert capsys.readouterr().err == (
        "selfplay: +experiment=mine: its file must begin with the line '# @package _global_'\n"
    )


def test_help_names_commands_and_flags_and_version_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments, words in (
        (["--help"], ("train", "evaluate", "warmstart", "report", "list")),
        (["train", "--help"], ("resume=RUN", "--config-path", "--config-dir")),
        (["--version"], (selfplay.__version__,)),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        captured = capsys.readouterr()
        assert all(word in captured.out for word in words) and captured.err == ""


def test_a_composed_config_is_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "+experiment=tiny/smoke", "--cfg"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["experiment"] == "tiny/smoke"


def test_steps_of_a_replay_may_precede_its_overrides() -> None:
    for line in ("r --steps 20 3 credit=rloo", "r credit=rloo --steps 20 3"):
        options, rest = _parser().parse_known_args(["replay", *line.split()])
        assert [*options.later_overrides, *rest] == ["credit=rloo"]
        assert options.steps == [20, 3] and str(options.run) == "r"
    options, _ = _parser().parse_known_args(["replay", "r", "--steps", "1", "~a.b", "--steps", "2"])
    assert options.steps == [1, 2] and options.later_overrides == ["~a.b"]


def test_a_warmup_longer_than_the_run_is_noted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--cfg", SMOKE, "learner.warmup_steps=1e9", "run.steps=1"]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("note: learner.warmup_steps: 1000000000 is more than the 1 optimizer")
    assert main(["train", "--cfg", SMOKE, "learner.warmup_steps=60", "run.steps=60"]) == 0
    assert capsys.readouterr().err == ""


def test_learning_from_truncated_sampling_is_noted_once_for_each_policy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut = ["train", "--cfg", SMOKE, "sampling.default.top_p=0.9"]
    assert main(cut) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("note: sampling: policy 'base' learns from truncated sampling")
    assert note.endswith("never tried or unlearned"), "objective.correction=auto needs no advice"
    assert main([*cut, "objective.correction=none"]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert "objective.correction=truncated" in note
    assert main([*cut[:-1], "sampling.default.top_p=1.0", "sampling.default.stop=['.']"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("top_p=0", "sampling.default.top_p: 0.0 does not fit: above 0 and at most 1"),
        ("top_p=1.5", "sampling.default.top_p: 1.5 does not fit"),
        ("top_k=-1", "sampling.default.top_k: -1 does not fit: at least 0"),
        ("min_p=2", "sampling.default.min_p: 2.0 does not fit"),
        ("stop=['']", "sampling.default.stop: an empty string does not fit"),
        ("stop=word", "sampling.default.stop: 'word' does not fit"),
        ("topp=0.9", "unknown key 'sampling.default.topp'; did you mean 'sampling.default.top_p'?"),
    ],
)
def test_invalid_sampling_settings_are_one_line(
    setting: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--cfg", SMOKE, f"sampling.default.{setting}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_tokenizer_that_cannot_chat_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = build_tokenizer(["yes"])
    tokenizer.chat_template = None
    sizes = {"hidden": 16, "layers": 1, "heads": 1, "intermediate": 16}
    build_model(len(tokenizer), seed=0, **sizes).save_pretrained(tmp_path / "mute")
    tokenizer.save_pretrained(tmp_path / "mute")
    capsys.readouterr()
    assert main(["train", "+experiment=tiny/smoke", "policy.model=./mute"]) == 2
    error = capsys.readouterr().err.strip()
    assert "no chat template" in error and len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_an_error_of_the_system_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/some/file")

    monkeypatch.setattr("selfplay.config.compose.groups", refused)
    assert main(["list"]) == 2
    assert capsys.readouterr().err == "selfplay: /some/file: Permission denied\n"


def test_help_loads_no_torch() -> None:
    code = "import sys, selfplay.cli.main; assert 'torch' not in sys.modules, 'torch was loaded'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_run_that_exists_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/notes.txt").write_text("precious")
    assert main(["train", "+experiment=tiny/smoke", "run.name=mine"]) == 2
    assert "exists" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "runs/mine").iterdir()] == ["notes.txt"]


@pytest.mark.usefixtures("without_charts")
def test_a_new_run_has_the_threads_that_other_processes_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selfplay.cli.train.count_on_busy_machine", lambda since: 1)
    finished()  # it makes the warm start that the new run uses
    monkeypatch.setenv("SELFPLAY_CACHE", str(shared_cache()))
    given: list[int] = []  # two real threads would slow the other tests
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    where = [f"run.folder={tmp_path}", "run.steps=1"]
    main(["train", SMOKE, *where, "evaluations=none", "run.name=busy", "run.threads=0"])
    assert "note: run.threads=1, because other processes" in capsys.readouterr().err
    assert Run.open(tmp_path / "busy").config()["run"]["threads"] == 1
    assert main(["train", SMOKE, *where, "run.name=wrong", "run.threads=0", "+sed=1"]) == 2
    assert capsys.readouterr().err.startswith("selfplay: ")
    main(["train", SMOKE, *where, "evaluations=none", "run.name=chosen", "run.threads=2"])
    assert "run.threads=1" not in capsys.readouterr().err
    assert Run.open(tmp_path / "chosen").config()["run"]["threads"] == 2
    assert given == [1, 2]


def test_evaluate_takes_changes_of_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    more = "+evaluations.held_out_greedy.metrics.solved=solve_rate"
    assert main(["evaluate", str(finished()), more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["evaluations"]["held_out_greedy"]
    assert found["solved"] == found["accuracy"]
    assert main(["evaluate", str(finished()), "learner.lr=1"]) == 2
    assert (
        "learner.lr=1: evaluate changes evaluations, services, engine and runtime only"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_evaluate_uses_the_engine_of_an_override_with_a_plus(
    plus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an override of the engine, a finished run is evaluated with the local engine."""
    given: list[str] = []

    def build(config: dict[str, dict[str, str]], **_: object) -> None:
        given.append(config["engine"]["_target_"])
        raise RunError("enough")

    run = tmp_path / "run"
    shutil.copytree(finished(), run)
    text = (run / "config.yaml").read_text()
    assert "TransformersEngine" in text
    engine = "selfplay.engines.vllm.engine.VLLMEngine"
    text = text.replace("selfplay.engines.transformers.TransformersEngine", engine)
    (run / "config.yaml").write_text(text)
    monkeypatch.setattr("selfplay.experiment.experiment.Experiment", build)
    key = "more" if plus == "+" else "max_rows"
    assert main(["evaluate", str(run), f"{plus}engine.{key}=8"]) == 2
    assert given == [engine]


def test_evaluate_prints_that_an_evaluation_measures_one_deal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def repeated_draws(self: Evaluation, name: str, episodes: Sequence[Episode]) -> list[str]:
        return [f"evaluations.{name}: {len(episodes)} samples, one deal"]

    monkeypatch.setattr(Evaluation, "repeated_draws", repeated_draws)
    assert main(["evaluate", str(finished()), "--json"]) == 0
    captured = capsys.readouterr()
    assert "note: evaluations.held_out_greedy: 6 samples, one deal" in captured.err
    assert set(json.loads(captured.out)) == {"step", "evaluations"}
