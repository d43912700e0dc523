"""Hostile configs and overrides: each ends quickly with one line and exit code 2."""

import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.config.plain_data import MOST_NODES, check_expansion, check_plain
from selfplay.config.run_config import MOST_THREADS, RunSettings, run_folder
from selfplay.errors import ConfigError

SOON = 30
"""Time limit in seconds, for a busy machine; an alias bomb used to take minutes."""


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Undo the changes that a command makes to this process."""
    handler, path = signal.getsignal(signal.SIGTERM), sys.path[:]
    yield
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = path


HOSTILE = [
    # numbers that are not valid
    "sampling.default.temperature=nan",
    "sampling.default.temperature=inf",
    "sampling.default.temperature=-1",
    "sampling.default.temperature=1e-30",
    "sampling.default.temperature=null",
    "sampling.default.max_tokens=0",
    "sampling.default.max_tokens=-5",
    "evaluations.held_out_greedy.temperature=nan",
    "evaluations.held_out_greedy.temperature=inf",
    "+run.minimum={valid: nan}",
    "+run.minimum={valid: inf}",
    "run.max_failed_fraction=nan",
    "run.steps=1e400",
    "run.steps=1e30",
    "rollout.max_turns=nan",
    "learner.mini_batches=1e30",
    # seeds
    "seed=18446744073709551616",
    "seed=-99999999999999999999",
    f"seed={'9' * 400}",
    f"seed={'9' * 5000}",
    "seed=nan",
    "seed=1e400",
    # sizes
    "+warmstart.model={hidden: 0}",
    "+warmstart.model={hidden: -1}",
    "+warmstart.model={hidden: 127}",
    "+warmstart.model={hidden: 100000000}",
    "+warmstart.model={heads: 0}",
    "+warmstart.model={heads: -1}",
    "+warmstart.model={heads: 3}",
    "+warmstart.model={layers: 0}",
    "+warmstart.model={intermediate: -3}",
    "+warmstart.model={positions: 0}",
    "+warmstart.lr=nan",
    "run.threads=99999",
    "run.threads=-1",
    "rollout.threads=99999",
    "rollout.tool_threads=99999",
    # values of another kind
    "arena=[1]",
    "arena=[a, b]",
    "arena=null",
    "arena=3",
    "credit=[]",
    "evaluations=null",
    "evaluations.proposals=null",
    "~evaluations",
    "roles.solver=3",
    "sampling.default=null",
    "sampling={default: 3}",
    "~sampling.default",
    "policy.model=[1]",
    "policy.keep_thinking=perhaps",
    "policy.chat_template_kwargs=[1]",
    "policy.chat_template_kwargs={tools: []}",
    "policy.chat_template_kwargs={messages: []}",
    "policy.chat_template_kwargs={tokenize: true}",
    "policy.chat_template_kwargs={eos_token: x}",
    "policy.chat_template_kwargs={1: x}",
    "policy.chat_template_kwargs={a: inf}",
    "run=null",
    "credit._target_=builtins.dict",
    "run._target_=builtins.dict",
    "arena._target_=[1]",
    "curriculum={_target_: null}",
    # {} where it would change nothing
    "arena={}",
    "learner={}",
    "evaluations={}",
    # names
    "run.name=../escape",
    "run.name='a/b'",
    "run.name=/tmp/x",
    "run.name=.",
    "run.name=..",
    "run.name=.hidden",
    "run.name=*",
    "run.name=-dash",
    "run.name=~",
    "run.name='~'",
    "run.name='$(id)'",
    "run.name='a b'",
    "run.name='a;b'",
    "run.name='a@3'",
    "run.name=''",
    f"run.name={'a' * 5000}",
    "run.experiment=../x",
    "run.folder=''",
    "run.folder='~/runs'",
    "run.folder=../runs",
    "run.folder=runs/../../x",
    # text that is not valid
    "run.name=\ud800",
    "run.name='\ud800'",
    "run.name='a\x00b'",
    "run.name=a\x00b",
    "run.folder='\x00'",
    "run.\ud800=1",
    "\ud800=1",
    "\x00=1",
    "policy.model='\x00'",
    # text that cannot be read
    "=1",
    "+=1",
    "~=1",
    "a==b",
    "seed=[",
    "run.name=${run.name}",
    "seed=${seed}",
    "run.name=${oc.env:NOWHERE}",
    "run.name=${oc.select:",
    f"run.name={'[' * 3000}{']' * 3000}",
    f"run.name={'{a:' * 300}1{'}' * 300}",
    f"+{'.'.join('a' * 500)}=1",
    f"arena={'a' * 5000}",
    f"run.folder={'a' * 200_000}",
]


@pytest.mark.parametrize("override", HOSTILE, ids=lambda text: ascii(text)[:40])
def test_a_hostile_override_is_one_line(
    override: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = time.monotonic()
    for flag in ("--cfg", "-m"):  # a sweep that is refused never starts a process
        assert main(["train", flag, "+experiment=tiny/smoke", override]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("selfplay: ")
        assert len(captured.err.strip().splitlines()) == 1 and len(captured.err) < 1000
    assert time.monotonic() - begun < SOON
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../y", "*", "~x"])
def test_a_sweep_is_kept_to_its_folder(
    name: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["train", "--multirun", "+experiment=tiny/smoke", "seed=0,1", f"run.name='{name}'"])
        == 2
    )
    assert "run.name" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_a_sweep_of_too_many_runs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for values in (["seed=range(0, 1000000000)"], [f"{key}=range(0,9999)" for key in "ab"]):
        assert main(["train", "-m", *values]) == 2
        assert "10,000" in capsys.readouterr().err


def test_names_and_folders_that_fit() -> None:
    for name in ("mine", "7", "_a", "a.b-c_d+e,f=1", "\u00e9t\u00e9", "a" * 200):
        assert run_folder({"name": name}) == Path("runs") / name
    assert run_folder({"folder": "/data/../runs", "name": "a"}) == Path("/data/../runs/a")
    assert run_folder({"folder": "here"}) == Path("here")
    with pytest.raises(ConfigError, match=r"run\.experiment: '\.\./x' does not fit"):
        run_folder({"experiment": "../x"})


def test_the_number_of_threads_is_bounded() -> None:
    assert RunSettings(steps=1, threads=MOST_THREADS).threads == MOST_THREADS
    with pytest.raises(ValueError, match=f"threads is between 0 and {MOST_THREADS}"):
        RunSettings(steps=1, threads=MOST_THREADS + 1)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "m0: &m0 {a: 1, b: 2}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)
YAML = {
    "alias bomb": (BOMB, "more than 30,000 values"),
    "merge bomb": (BOMB + "b:\n  <<: *a11\n", "more than 30,000 values"),
    "bomb of merged mappings": (MERGES, "more than 30,000 values"),
    "number of base 60": (f"a: 1{':1' * 600_000}\n", "a number of more than 100 characters"),
    "itself": ("a: &a\n  b: *a\n", r"line 2: \*a refers to the value that contains it"),
    "itself in a list": ("a: &a [1, *a]\n", "refers to the value that contains it"),
    "deep lists": (f"a: {'[' * 10_000}{']' * 10_000}\n", "nested more than 100 deep"),
    "deep mappings": (
        "".join(f"{' ' * n}a:\n" for n in range(1500)),
        "nested more than 100 deep",
    ),
    "a list": ("[1, 2]\n", ""),
    "a number": ("7\n", ""),
    "nothing": ("", ""),
    "no YAML": ("a: [1\n", "not valid YAML"),
    "other keys": ("a: 1\n", "unknown key"),
    "interpolations of each other": ("a: ${b}\nb: ${a}\n", "refers to another value"),
    "interpolation bomb": (
        "".join(f"a{n}: ${{a{n + 1}}}${{a{n + 1}}}\n" for n in range(40)) + "a40: x\n",
        "refers to another value",
    ),
    "the environment": ("a: '${oc.env:HOME}'\n", "refers to another value"),
    "two documents": ("a: 1\n---\nb: 2\n", ""),
    "a tag": ("a: !!python/object/apply:os.system [id]\n", ""),
    "surrogate": ('seed: "\\ud800"\n', ""),
}


@pytest.mark.parametrize("name", YAML)
def test_a_hostile_config_of_a_run_is_one_line_in_every_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    text, words = YAML[name]
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(text)
    refused(run, words, capsys)


def refused(run: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    for arguments in (
        ["train", "--config-path", str(run), "run.name=again"],
        ["train", "--cfg", "--config-path", str(run)],
        ["check", "--config-path", str(run)],
        ["replay", str(run)],
        ["train", f"resume={run}"],
    ):
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err.strip()
        assert error.startswith("selfplay: ") or "beginning again" in error
        assert len(error.splitlines()) <= 2 and len(error) < 2000
        if words and words not in error:
            assert re.search(words, error), (arguments, error)
    assert time.monotonic() - begun < SOON


CHANGES: Mapping[str, Any] = {
    "evaluations": None,
    "roles": {"solver": None},
    "sampling": {},
    "seed": 2**64,
    "credit": [],
    "shared": float("nan"),
    "services": {"executor": "a\0b"},
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_changed_config_of_a_run_is_one_line(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    composed = {**compose.load(["+experiment=tiny/smoke"]), key: CHANGES[key]}
    (run / "config.yaml").write_text(compose.to_yaml(composed))
    refused(run, key, capsys)


def test_a_large_config_that_is_honest_is_read(tmp_path: Path) -> None:
    lines = [f"k{n}: [{', '.join(['1'] * 20)}]" for n in range(1000)]
    path = tmp_path / "config.yaml"
    path.write_text("\n".join(["a: &a [1, 2]", "b: [*a, *a]", *lines]))
    check_expansion(path)
    assert compose.load([], name="config", folder=tmp_path)["b"] == [[1, 2], [1, 2]]
    path.write_text(f"a: [{', '.join(['1'] * MOST_NODES)}]")
    with pytest.raises(ConfigError, match="more than 30,000 values"):
        check_expansion(path)


def test_a_bomb_in_a_group_of_a_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "arena").mkdir()
    (tmp_path / "arena/mine.yaml").write_text(BOMB)
    with pytest.raises(ConfigError, match=r"arena/mine\.yaml.*more than 30,000 values"):
        compose.load(["arena=mine"], search=[str(tmp_path)])


def test_values_that_no_setting_has_are_named_with_their_key() -> None:
    check_plain({"a": [1, None, True, 2.5, "x", float("inf")], 1: {"b": "\u00e9"}})
    for value, where in (
        ({"a": {"b": [1, float("nan")]}}, r"^a\.b\.1: nan does not fit"),
        ({"a": {"b": "\ud800"}}, r"^a\.b: '\\ud800' does not fit: it is not valid UTF-8"),
        ({"a": {"x\0": 1}}, r"^a: .*NUL"),
    ):
        with pytest.raises(ConfigError, match=where):
            check_plain(value)
