"""Tests of damaged and untrusted run folders: each fault is one clear line, never a traceback."""

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from selfplay.errors import RunError
from selfplay.run.record_reader import episodes_of, read_metrics
from selfplay.run.report.run_report import write_report
from selfplay.types import to_json
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.episode_filter import EpisodeFilter, SortOrder
from selfplay.viewer.index import EpisodeIndex
from selfplay.viewer.server import application
from tests.helpers.damaged_run import (
    DAMAGES,
    DIGITS,
    FILES,
    PAGES,
    RAW,
    faults,
    places,
    replaced,
    whole_run,
)
from tests.helpers.recorded_run import episodes as recorded
from tests.helpers.repository import ROOT
from tests.helpers.viewer_run import served

SAMPLED = 40
"""Number of values that the test replaces, of about 6,000 possible ones."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("whole") / "made")


@pytest.fixture
def runs(whole: Path, tmp_path: Path) -> Path:
    for name in ("made", "twin"):
        shutil.copytree(whole, tmp_path / "runs" / name)
    return tmp_path / "runs"


def client(runs: Path, cache: Path) -> TestClient:
    app = application(RunCatalogue([runs]), cache=cache)
    return TestClient(app, base_url="http://127.0.0.1")


def test_a_whole_run_has_every_page(runs: Path, tmp_path: Path) -> None:
    assert faults(runs, tmp_path / "cache") == []
    with client(runs, tmp_path / "cache") as asked:
        codes = {page: asked.get(page).status_code for page in PAGES if DIGITS not in page}
    assert set(codes.values()) == {200}, codes


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_one_line(runs: Path, tmp_path: Path, file: str, damage: str) -> None:
    DAMAGES[damage](runs / "made" / file)
    assert faults(runs, tmp_path / "cache", drawn=file == "metrics.jsonl") == []


def values(run: Path) -> Iterator[tuple[str, list[str], int, tuple[Any, ...], str]]:
    """Yield (file, its lines, index of a line, path of a value in it, its new JSON text)."""
    for file in FILES:
        if file.endswith(".yaml"):
            continue
        lines = (run / file).read_text().splitlines()
        if file.endswith(".json"):
            lines = ["".join(lines)]
        line = min(1, len(lines) - 1)
        for where in places(json.loads(lines[line])):
            for raw in RAW:
                yield file, lines, line, where, raw


def test_a_wrong_value_is_a_one_line_error(runs: Path, tmp_path: Path) -> None:
    found = []
    for file, lines, line, where, raw in random.Random(0).sample([*values(runs / "made")], SAMPLED):
        changed = [*lines]
        changed[line] = replaced(json.loads(lines[line]), where, raw)
        (runs / "made" / file).write_text("".join(f"{each}\n" for each in changed))
        wrong = faults(runs, tmp_path / "cache", drawn=False)
        found += [f"{file} {where} {raw[:30]}: {each}" for each in wrong]
        (runs / "made" / file).write_text("".join(f"{each}\n" for each in lines))
    assert not found, "\n".join(found)


# Metrics -----------------------------------------------------------------------------------------


def test_huge_numbers_are_infinite_and_the_report_is_written(runs: Path) -> None:
    row = f'{{"step": 1, "a": 1e400, "b": {"9" * 400}, "c": -{"9" * 400}, "d": NaN, "e": [1]}}\n'
    (runs / "made" / "metrics.jsonl").write_text(row)
    read = read_metrics(runs / "made" / "metrics.jsonl")[1]
    assert read["a"] == read["b"] == -read["c"] == float("inf") and "e" not in read
    assert write_report(runs / "made").is_file()


@pytest.mark.parametrize("step", ["1.5", "true", "null", '"3"', DIGITS, "9" * 13, "-" + "9" * 13])
def test_an_invalid_step_names_its_line(runs: Path, step: str) -> None:
    path = runs / "made" / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "a": 1}}\n{{"step": {step}, "a": 1}}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2: ") as raised:
        read_metrics(path)
    assert len(str(raised.value)) < 500


def test_a_section_of_3000_metrics_is_shown_in_pages(runs: Path, tmp_path: Path) -> None:
    names = {f"arena/made_{number}": 0.5 for number in range(3000)}
    lines = [json.dumps({"step": step, **names}) for step in range(1, 21)]
    (runs / "made" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with client(runs, tmp_path / "cache") as asked:
        begun = time.process_time()
        first = asked.get("/run/made").text
        took = time.process_time() - begun
        assert first.count("<figure>") == 40 and "section=Arena&amp;page=74" in first
        last = asked.get("/run/made?section=Arena&page=74").text
        assert last.count("<figure>") == 40 and "Made 999" in last
        assert asked.get("/run/made?section=Arena&page=75").text.count("<figure>") == 0
        compared = asked.get("/compare?run=made&run=twin&section=arena").text
        assert compared.count("<figure>") == 40
    assert took < 20, f"{took:.0f} s of processor time"


# Episodes ----------------------------------------------------------------------------------------


def line(**changes: Any) -> dict[str, Any]:
    """Return a record of two turns, with changes to its second `turn` and to the `episode`."""
    made = to_json(recorded()[1])
    made["turns"] = made["turns"][:2]
    made["turns"][1] |= changes.pop("turn", {})
    made |= changes.pop("episode", {})
    return {"group": "g", "member": 1, "advantages": [0.5, 0.5], "episode": made, **changes}


BROKEN: dict[str, Any] = {
    "infinite member": line(member=float("inf")),
    "negative member": line(member=-1),
    "member of 30 digits": line(member=10**30),
    "negative id": line(turn={"completion_ids": [-1], "logprobs": [0.0], "loss_mask": [1]}),
    "huge id": line(turn={"prompt_ids": [2**40]}),
    "more ids than logprobs": line(turn={"logprobs": [0.0] * 99}),
    "more ids than trainable": line(turn={"loss_mask": [1] * 99}),
    "more advantages than turns": line(advantages=[0.5] * 3),
    "more advantages than tokens": line(advantages=[0.5, [0.5] * 99]),
    "itself as parent": line(episode={"branch_of": 1}),
    "a later parent": line(episode={"branch_of": 7}),
    "a negative parent": line(episode={"branch_of": -1}),
    "more shared turns than turns": line(episode={"branch_of": 0, "shared_turns": 3}),
    "a message that is text": line(turn={"messages": ["hello"]}),
    "a message with a number": line(turn={"messages": [{"role": "user", "content": 3}]}),
    "a message with a list of text": line(turn={"messages": [{"role": "user", "content": ["a"]}]}),
    "turns that are numbers": line(episode={"turns": [3]}),
    "no episode": {"group": "g"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_episode_is_named_by_the_reader_and_counted_by_the_viewer(
    runs: Path, tmp_path: Path, name: str
) -> None:
    file = runs / "made" / "episodes" / "000001.jsonl"
    lines = [line(member=0), BROKEN[name], line(member=2)]
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with pytest.raises(RunError, match=r"000001\.jsonl, line 2: not a recorded ") as raised:
        list(episodes_of(runs / "made", 1))
    assert "\n" not in str(raised.value)
    assert "000001.jsonl, line 2: not a recorded " in write_report(runs / "made").read_text()
    with client(runs, tmp_path / "cache") as asked:
        assert "3 episodes" in asked.get("/run/made/episodes?step=1").text
        assert "1 episode<" in asked.get("/run/made/episodes?step=1&status=unreadable").text
        assert asked.get("/run/made/episodes/1/2").status_code == 404
        assert asked.get("/run/made/episodes/1/3").status_code == 200


def test_a_parent_that_is_missing_is_named(runs: Path) -> None:
    file = runs / "made" / "episodes" / "000001.jsonl"
    file.write_text(json.dumps(line(episode={"branch_of": 0, "shared_turns": 1})) + "\n")
    with pytest.raises(RunError, match=r"its parent, member 0 of group 'g', does not come before"):
        list(episodes_of(runs / "made", 1))
    both = [line(member=0), line(episode={"branch_of": 0, "shared_turns": 1})]
    file.write_text("".join(json.dumps(each) + "\n" for each in both))
    assert len(list(episodes_of(runs / "made", 1))) == 2


# Untrusted folders -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["report.html", "report.html.part", ".report.html.partial"])
def test_the_report_writes_through_no_link(runs: Path, name: str) -> None:
    mine = runs.parent / "mine"
    mine.write_text("mine")
    (runs / "made" / name).symlink_to(mine)
    if name == "report.html":
        with pytest.raises(RunError, match="is a symbolic link"):
            write_report(runs / "made")
    else:
        assert write_report(runs / "made").is_file()
    assert mine.read_text() == "mine"


def test_a_pipe_does_not_hang_the_server(runs: Path) -> None:
    for name in ("metrics.jsonl", "summary.json", ".lock", "measures.json"):
        (runs / "made" / name).unlink(missing_ok=True)
        os.mkfifo(runs / "made" / name)
    script = "import httpx, sys; print(httpx.get(sys.argv[1], timeout=60).status_code)"
    with served(runs) as address:  # ends the server, even if a request hangs
        for page in ("", "run/made", "run/twin"):
            asked = subprocess.run(
                [sys.executable, "-c", script, address + page], capture_output=True, text=True
            )
            assert asked.stdout.strip() in ("200", "404"), asked.stderr[-300:]


EVIL = """import pathlib
pathlib.Path({mark!r}).write_text("executed")
class Evil:
    def __init__(self, *a, **k): pass
    def __reduce__(self): return (print, ())
"""


def test_report_and_watch_execute_nothing_of_a_run(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    run = runs / "made"
    for place in (run, runs):
        for module in ("arenas", "evil", "sitecustomize", "conftest", "numpy"):
            (place / f"{module}.py").write_text(EVIL.format(mark=str(mark)))
    shell: dict[str, Any] = {"_target_": "subprocess.getoutput", "_args_": [f"touch {mark}"]}
    keys = ("arena", "credit", "engine", "run", "sampler", "runtime")
    nodes: dict[str, Any] = dict.fromkeys(keys, shell)
    nodes |= {"evaluations": {"e": {"arena": {"_target_": "evil.Evil"}}}, "resolved": "${oc.env:X}"}
    (run / "config.yaml").write_text(
        json.dumps(nodes) + f"\n# !!python/object/apply:os.system ['touch {mark}']\n"
    )
    pickled = b"cposix\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    for name in (
        "learners/base/.metadata",
        "learners/base/optimizer.pt",
        "policies/base/model.bin",
    ):
        path = run / "checkpoints" / "000003" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickled)
    configs = {
        "config.json": {"auto_map": {"AutoModel": "evil.Evil"}, "trust_remote_code": True},
        "tokenizer.json": {"version": "1.0"},
    }
    for name, data in configs.items():
        (run / "checkpoints/000003/policies/base" / name).write_text(json.dumps(data))
    monkeypatch.chdir(run)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    home = ROOT
    environment |= {"PYTHONPATH": str(home), "SELFPLAY_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-m", "selfplay"]
    done = subprocess.run(
        [*command, "report", "."], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert not mark.exists()
    with client(runs, tmp_path / "cache") as asked:
        for page in PAGES:
            assert asked.get(page).status_code in (200, 404)
    assert not mark.exists()


def test_an_index_of_agent_texts_is_readable_by_its_user_only(runs: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "viewer"
    old = os.umask(0)
    try:
        index = EpisodeIndex(runs / "made", cache)
        index.update(60)
        index.list.find(EpisodeFilter(), SortOrder(), 0)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()}
    finally:
        os.umask(old)
    index.close()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert len(modes) == 3 and set(modes.values()) == {0o600}, modes


def test_an_index_that_others_may_read_is_made_private(runs: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    EpisodeIndex(runs / "made", cache).close()
    (file,) = cache.glob("*.sqlite")
    for path in (cache, file):
        path.chmod(0o755)
    EpisodeIndex(runs / "made", cache).close()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
