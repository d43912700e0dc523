"""Tests that run the code and the commands that the documentation prints."""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
import yaml

from selfplay.arena import Arena
from selfplay.cli.main import main
from selfplay.config.compose import load
from selfplay.config.instantiate import build
from selfplay.config.plain_data import check_config
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.role import Role
from selfplay.run.sweep import plan
from selfplay.types import Observation
from tests.helpers.repository import ROOT
from tests.helpers.sandbox_attacks import isolated

DOCS = ROOT / "docs"
PAGES = {
    "new_arena.md": [".yaml", ".yaml", ".py", ".py"],
    "new_role.md": [".yaml", ".py", ".py"],
    "new_credit.md": [".yaml", ".py", ".py"],
    "new_measure.md": [".py", ".py"],
}
"""The walk-throughs, each with the kinds of files that it prints."""
FILE = re.compile(r"^\*\*`([^`\n]+)`\*\*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files(page: str) -> dict[str, str]:
    """Return the files that a page prints, by name."""
    return dict(FILE.findall((DOCS / page).read_text(encoding="utf-8")))


def commands(page: str) -> list[list[str]]:
    """Return the commands that a page prints, as lists of arguments."""
    blocks = COMMANDS.findall((DOCS / page).read_text(encoding="utf-8"))
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def write_printed(text: str, folder: Path) -> int:
    """Write the files that a text prints into a folder, and return their number."""
    printed_files = FILE.findall(text)
    for name, content in printed_files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return len(printed_files)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder outside of the repository with the files that these pages print."""
    made = tmp_path_factory.mktemp("reader")
    for page in PAGES:
        write_printed((DOCS / page).read_text(encoding="utf-8"), made)
    return made


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_one_module_its_test_and_its_config(page: str) -> None:
    names = sorted(files(page))
    assert [Path(name).suffix for name in names] == PAGES[page]
    (module,) = [name for name in names if name.endswith(".py") and "test_" not in name]
    assert len(files(page)[module].splitlines()) < 60
    listed = (DOCS / page).read_text(encoding="utf-8").split("```\n")[1].split()
    assert sorted(listed) == names


def test_the_printed_tests_pass(folder: Path) -> None:
    ran = [line for page in PAGES for line in commands(page) if "pytest" in line]
    assert ran == [["python", "-m", "pytest", "my_games"]] * len(PAGES)
    command = [sys.executable, *ran[0][1:], "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    plain = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=folder, env=plain, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^22 passed", done.stdout, re.MULTILINE), done.stdout


def test_the_printed_reward_term_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = (DOCS / "new_credit.md").read_text(encoding="utf-8").partition("## A reward term")[2]
    (made, tested), (node,) = PYTHON.findall(section), YAML.findall(section)
    (tmp_path / "my_terms").mkdir()
    (tmp_path / "my_terms/brief.py").write_text(made + tested, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("my_terms.brief")
    module.test_two_tokens_cost_two_prices()
    named = yaml.safe_load(node.replace("my_games.", "my_terms."))
    term = build(named["brief"], where="shaping.brief")
    assert term == module.Brief(price=0.01)


def test_the_printed_task_with_a_verifier_is_trained(tmp_path: Path) -> None:
    from tests.helpers.command_process import metrics, run

    text = (DOCS / "curricula.md").read_text(encoding="utf-8")
    section = text.partition("## A task and a verifier of your own")[2].partition("\n## ")[0]
    assert write_printed(section, tmp_path) == 4
    words = ("--config-dir", "my_configs", "+experiment=letters")
    checked = run("check", *words, cwd=tmp_path)
    assert checked.code == 0 and "no faults" in checked.out, checked.out
    short = ("run.name=short", "run.steps=1", "warmstart.steps=150", "run.threads=1")
    trained = run("train", *words, *short, cwd=tmp_path)
    assert trained.code == 0, trained.err
    assert metrics(tmp_path / "runs/short")[-1]["role/proposer/valid"] > 0


def test_the_printed_warm_start_makes_examples(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "curricula.md").read_text(encoding="utf-8")
    section = text.partition("## A warm start for your arena")[2].partition("\n## ")[0]
    assert write_printed(section, folder) == 2
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    played = next(line for line in commands("new_arena.md") if "arena=rock_paper_scissors" in line)
    left_out = ("--config-dir", "my_configs", "warmstart")  # settings of the other warm start too
    chosen = [each for each in played[2:] if not each.startswith(left_out)]
    config = load([*chosen, "warmstart=favourites"], search=["my_configs"])
    check(config)
    roles = {name: build(node, where=name) for name, node in config["roles"].items()}
    made = build(config["warmstart"]["demonstrations"], where="warmstart.demonstrations")
    shown = [each for each, _ in zip(made.stream(Random(0), 0.5), range(40), strict=False)]
    assert {each.completion for each in shown} == {"rock", "paper", "hello"}
    for each in shown:
        assert roles[each.role].prompt(each.observation)[0]["content"]
        legal = each.observation.fields["legal"]
        assert each.completion in legal or not legal


def test_the_printed_script_of_an_opponent_answers(tmp_path: Path) -> None:
    text = (DOCS / "league.md").read_text(encoding="utf-8")
    (script,) = [block for block in PYTHON.findall(text) if "def first_legal" in block]
    (node,) = [block for block in YAML.findall(text) if "my_games.opponents.first_legal" in block]
    assert node.startswith("# @package population.opponents\n")
    read: dict[str, Any] = {}
    exec(script, read)
    seen = Observation(fields={"legal": ["rock", "paper"]})
    assert read["first_legal"]("player_0", seen, Random(0)) == "rock"
    (tmp_path / "opponents").mkdir()
    (tmp_path / "opponents/fixed.yaml").write_text(node)
    words = ["+experiment=tiny/kuhn", "+opponents=fixed", "league=anchors"]
    opponents = load(words, search=[str(tmp_path)])["population"]["opponents"]
    assert opponents["always_first"]["script"] == "my_games.opponents.first_legal"


def test_the_printed_arena_that_runs_programs_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with isolated():  # skips the test if programs cannot run here
        text = (DOCS / "sandbox.md").read_text(encoding="utf-8").replace("my_games", "my_programs")
    assert write_printed(text, tmp_path) == 2
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    _, tested = PYTHON.findall(text)
    read: dict[str, Any] = {}
    exec(tested, read)
    (line,) = printed("check", "docs/sandbox.md")
    assert main(["check", *line]) == 0
    assert "no faults" in capsys.readouterr().out
    assert main(["check", *line, "services=none"]) == 2
    assert "arena.executor: missing; " in capsys.readouterr().err
    services = {"executor": read["executor"], "seed": 0}
    for node in ({}, {"executor": "services.executor"}):
        arena = build({"_target_": "my_programs.squares.Squares", **node}, provided=services)
        assert arena.executor is services["executor"] and arena.fork().executor is arena.executor


def test_the_examples_of_the_reference_hold() -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    blocks = PYTHON.findall(text)
    assert len(blocks) > 8
    # Classes that are pickled are looked up in their module.
    sys.modules["reference"] = module = ModuleType("reference")
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"reference.md, example {number}", "exec"), module.__dict__)
    finally:
        del sys.modules["reference"]


@pytest.mark.parametrize("kind", [Arena, Role])
def test_the_reference_names_all_that_an_author_writes_or_calls(kind: type) -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    public = [name for name in vars(kind) if not name.startswith("_")]
    assert len(public) > 5
    lacking = [name for name in public if not re.search(rf"`(self\.)?{name}\b", text)]
    lacking = [name for name in lacking if not re.search(rf"\*\*`{name}\(", text)]
    assert not lacking, f"reference.md does not name {lacking}"


TRAINED = [page for page in PAGES if page != "new_measure.md"]


@pytest.mark.parametrize("page", TRAINED)
def test_the_printed_commands_compose(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    trained = [line for line in commands(page) if line[:2] == ["selfplay", "train"]]
    assert trained
    for _, *arguments in trained:
        assert main([*arguments, "--cfg"]) == 0
        config = yaml.safe_load(capsys.readouterr().out)
        mine = "--config-dir" in arguments
        target = "my_games.rock_paper_scissors.RockPaperScissors"
        credit = "my_games.median.Median"
        assert (config["credit"]["_target_"] == credit) == (page == "new_credit.md")
        assert (config["arena"]["_target_"] == target) == mine
        overrides = [each for each in arguments[1:] if each not in ("--config-dir", "my_configs")]
        loaded = load(overrides, search=["my_configs"] if mine else [])
        check(loaded)
        arena = build(loaded["arena"], where="arena")
        arena.begin(arena.default_task(Random(0)), seed=0)
        role = build(loaded["roles"]["player"], where="roles.player")
        assert role.prompt(arena.view(arena.stage[0]))[0]["content"]


def test_the_printed_experiment_is_that_of_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    page = (DOCS / "new_arena.md").read_text(encoding="utf-8")
    (text,) = re.findall(
        r"^```yaml\n(# @package _global_\n.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    (folder / "my_configs/experiment").mkdir(exist_ok=True)
    (folder / "my_configs/experiment/chat.yaml").write_text(text, encoding="utf-8")
    lines = commands("new_arena.md")
    (command,) = [line for line in lines if line[1] == "train" and "--config-dir" in line]
    typed = load(command[4:], search=["my_configs"])
    chosen = load(["+experiment=chat"], search=["my_configs"])
    assert chosen["run"].pop("experiment") == "chat" and typed["run"].pop("experiment") == "train"
    assert chosen == typed


@pytest.mark.slow
def test_the_printed_arena_is_trained(folder: Path) -> None:
    from tests.helpers.command_process import metrics, run

    lines = commands("new_arena.md")
    (command,) = [line for line in lines if line[1] == "train" and "--config-dir" in line]
    outcome = run(*command[1:], "run.name=mine", "run.steps=2", "run.threads=1", cwd=folder)
    assert outcome.code == 0, outcome.err
    line = metrics(folder / "runs/mine")[-1]
    assert line["episodes/count"] == 64 and line["episodes/failed"] == 0
    assert line["policy/base/gradient_norm"] > 0
    first, *others = PYTHON.findall((DOCS / "quickstart.md").read_text(encoding="utf-8"))
    (plain,) = [block for block in others if "json.loads" in block]
    read: dict[str, Any] = {}
    exec(plain.replace("runs/kuhn/episodes/000020", f"{folder}/runs/mine/episodes/000002"), read)
    assert len(read["first"]["advantages"]) == len(read["first"]["episode"]["turns"]) > 0
    assert read["advantage"] == read["first"]["advantages"][-1] is not None
    exec(first.replace("runs/kuhn", str(folder / "runs/mine")), read)
    assert list(read["rewards"])[-2:] == [1, 2] and read["rewards"][2] is not None
    assert read["turn"].agent == "player_1" and read["model"].num_parameters() > 0
    (curves,) = PYTHON.findall((DOCS / "metrics.md").read_text(encoding="utf-8"))
    exec(curves.replace("runs/kuhn", str(folder / "runs/mine")), read)
    assert list(read["speed"]) == [1, 2] and (folder / "runs/mine/speed.png").is_file()
    (command,) = [line for line in commands("new_measure.md") if "my_games.words" in line]
    done = subprocess.run(
        [sys.executable, *command[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{DOCS.parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "words per turn, " in done.stdout and "95 % interval" in done.stdout


@pytest.mark.slow
def test_the_printed_credit_method_is_trained_with(folder: Path) -> None:
    from tests.helpers.command_process import metrics, run

    (command,) = [line for line in commands("new_credit.md") if "--config-dir" in line]
    outcome = run(*command[1:], "run.name=median", "run.steps=1", "run.threads=1", cwd=folder)
    assert outcome.code == 0, outcome.err
    assert metrics(folder / "runs/median")[-1]["policy/base/gradient_norm"] > 0


PRINTING = ["README.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))]
"""Pages that may print commands."""


def printed(command: str, page: str) -> list[list[str]]:
    """Return the arguments of every `selfplay COMMAND` that a page prints."""
    found = []
    for block in COMMANDS.findall((ROOT / page).read_text(encoding="utf-8")):
        for line in expanded(block.replace("\\\n", " ")).splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["selfplay", command]:
                found.append(words[2:])
    return found


def expanded(block: str) -> str:
    """Return a block with the values of its shell variables, in loops the first value."""
    known = dict(re.findall(r"for (\w+) in (\S+)", block))
    known |= re.findall(r'^\s*(\w+)="([^"]*)"$', block, re.MULTILINE)
    for name, value in reversed(known.items()):
        block = block.replace(f"${name}", value)
    return block


def test_pages_print_training_commands() -> None:
    assert sum(len(printed("train", page)) for page in PRINTING) > 100


@pytest.mark.parametrize("page", [page for page in PRINTING if printed("train", page)])
def test_every_training_command_that_is_printed_is_accepted(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.jsonl", "test.jsonl"):
        Path(name).write_text('{"question": "7 + 5?", "answer": "12"}\n')
    for arguments in printed("train", page):
        if any("runs/" in each or "my_" in each or "/path" in each for each in arguments):
            continue  # it needs a run or a file of the reader
        if "runtime.address=auto" in arguments:
            continue  # it needs a cluster
        if any(each.startswith("+recipe=") for each in arguments):
            continue  # it needs GPUs; tests/config/test_recipes.py checks them
        if "engine=vllm" in arguments and find_spec("vllm") is None:
            continue  # it needs another environment
        overrides = [each for each in arguments if not each.startswith("-")]
        points = [p.overrides for p in plan(overrides).points] if "-m" in arguments else [overrides]
        # Of runs that differ only in their seed, one is checked.
        alike = {tuple(o for o in point if not o.startswith("seed=")): point for point in points}
        for point in alike.values():
            if {"services=taskset", "+experiment=smollm2/taskset"} & {*point}:
                check_config(load(point))  # its tasks need a library in another environment
                continue
            try:
                check(load(point))
            except ConfigError as error:
                if "needs the package" not in str(error):
                    raise
                check_config(load(point))  # it needs an extra that this environment lacks
