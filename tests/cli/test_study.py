"""Tests of `selfplay study`: its results, and its errors of one line."""

import argparse
import json
import re
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from selfplay.cli.main import main
from selfplay.config.compose import with_local_runtime
from selfplay.errors import RunError
from selfplay.run.activity import study_file
from selfplay.study.registry import measures
from selfplay.study.result import Result, Table
from tests.helpers.command_process import finished, one_line, run
from tests.helpers.repository import ROOT

RANDOM = (
    "+population.opponents.random="
    "{_target_: selfplay.engines.scripted.Scripted, script: arenas.games.opponents.random_legal}"
)
SHORT = ("+experiment=tiny/kuhn", "run.steps=2", "run.checkpoint_every=1", "warmstart.steps=40")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Kuhn run of two steps."""
    place = tmp_path_factory.mktemp("study")
    small = ("sampler.group_size=8", "evaluations.hands.samples=1", "run.threads=1")
    outcome = run("train", *SHORT, *small, "run.name=hand", cwd=place)
    assert outcome.code == 0, outcome.err
    return place


def test_every_kept_checkpoint_is_measured(folder: Path) -> None:
    outcome = run("study", "exploitability", "runs/hand", "--all", "--json", cwd=folder)
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert result["measure"] == "exploitability" and result["direction"] == "exact"
    assert [each["step"] for each in result["results"]] == [0, 1, 2]
    for each in result["results"]:
        assert each["exploitability"] == pytest.approx(each["nash_conv"] / 2)
        assert 0 < each["exploitability"] <= 1 and 0 <= each["elsewhere"] <= 1
        assert len(each["strategy"]) == 12
        assert all(sum(mix.values()) == pytest.approx(1) for mix in each["strategy"].values())
    assert len({each["nash_conv"] for each in result["results"]}) == 3, (
        "two checkpoints have the same NashConv"
    )
    one = run("study", "exploitability", "runs/hand@1", "--json", cwd=folder)
    assert json.loads(one.out)["results"] == result["results"][1:2]
    newest = run("study", "exploitability", "runs/hand", "--policy=base", "--json", cwd=folder)
    assert json.loads(newest.out)["results"] == result["results"][2:]


def test_mixtures_of_a_leagues_snapshots(folder: Path) -> None:
    pytest.importorskip("scipy")
    small = ("sampler.group_size=4", "run.threads=1", "run.steps=3", "warmstart.steps=20")
    fast = ("run.checkpoint_every=3", "league.players.default.add.updates=1", "run.name=past")
    outcome = run("train", "+experiment=tiny/kuhn", "league=uniform", *small, *fast, cwd=folder)
    assert outcome.code == 0, outcome.err
    found = {}
    for mixture in ("uniform", "nash"):
        result = json_of(folder, "exploitability", "runs/past", f"--league={mixture}")
        assert result["title"] == f"Exploitability of past, {mixture} mixture of snapshots"
        (found[mixture],) = result["results"]
    last = json_of(folder, "exploitability", "runs/past")["results"][0]
    assert len({each["nash_conv"] for each in (*found.values(), last)}) > 1
    assert set(found["uniform"]["strategy"]) == set(last["strategy"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--league=uniform",), "--league: the run has no league"),
        (("--league=unifrm",), "did you mean 'uniform'?"),
        (("--league=nash", "--all"), "drop --all and --policy"),
    ],
)
def test_a_mixture_that_cannot_be_measured_is_one_line(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = run("study", "exploitability", "runs/hand", *arguments, cwd=folder)
    assert outcome.code == 2 and message in one_line(outcome.err)


def test_a_damaged_checkpoint_is_skipped_and_reported(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder / "runs/hand", tmp_path / "hand")
    (copy / "checkpoints/000002/state.json").write_text("{}")
    outcome = run("study", "exploitability", "hand", "--json", cwd=tmp_path)
    assert [each["step"] for each in json.loads(outcome.out)["results"]] == [1]
    assert "checkpoint 000002: state.json is damaged; using hand/checkpoints/000001" in outcome.err


def json_of(folder: Path, *arguments: str) -> dict[str, Any]:
    outcome = run("study", *arguments, "--json", cwd=folder)
    assert outcome.code == 0, outcome.err
    result: dict[str, Any] = json.loads(outcome.out)
    return result


def test_trained_and_untrained_in_every_seat(folder: Path) -> None:
    result = json_of(folder, "roleswap", "runs/hand", "--episodes", "12")
    rows = result["tables"][0]["rows"]
    assert {(row["player_0"], row["player_1"]) for row in rows} == {
        (a, b) for a in ("hand@2", "hand@start") for b in ("hand@2", "hand@start")
    }
    assert (
        result["params"]["arena"] == "kuhn_v0" and result["params"]["metric"] == "player_0_payoff"
    )
    again = json_of(folder, "roleswap", "runs/hand@2", "runs/hand@start", "--episodes", "12")
    assert again["estimates"] == result["estimates"]
    # Step 0 is the start: the values are equal although the player has another name.
    other = json_of(folder, "roleswap", "runs/hand@2", "runs/hand@0", "--episodes", "12")
    assert [e["value"] for e in other["estimates"]] == [e["value"] for e in result["estimates"]]


def test_a_study_leaves_a_page_pictures_and_the_command(folder: Path) -> None:
    outcome = run(
        *("study", "crossplay", "runs/hand@0", "runs/hand@2", "--episodes=6", "--out", "found"),
        cwd=folder,
    )
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1] == "page  found/crossplay.html"
    assert "players of one run are not independent" in outcome.out
    page = (folder / "found/crossplay.html").read_text()
    command = "selfplay study crossplay runs/hand@0 runs/hand@2 --episodes 6 --out found"
    assert f"<pre>{command}</pre>" in page and page.count("<svg") == 2
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "<script" not in page and "http://" not in page.replace("http://www.w3.org", "")
    assert (folder / "found/crossplay-1.png").read_bytes().startswith(b"\x89PNG")
    assert "#2a5db0" in (folder / "found/crossplay-1.svg").read_text()
    assert json.loads((folder / "found/crossplay.json").read_text())["command"] == command


def test_the_command_names_step_0(folder: Path) -> None:
    outcome = run("study", "exploitability", "runs/hand", "--step=0", "--out=begun", cwd=folder)
    assert outcome.code == 0, outcome.err
    result = json.loads((folder / "begun/exploitability.json").read_text())
    assert result["command"] == "selfplay study exploitability runs/hand --step 0 --out begun"


def test_payoffs_between_checkpoints_and_an_opponent(folder: Path) -> None:
    pytest.importorskip("scipy")
    arguments = ("payoffs", "runs/hand@0", "runs/hand@2", "--opponent=random", "--episodes=12")
    result = json_of(folder, *arguments, "--set", RANDOM, "--out=beats")
    matrix, standing = result["tables"][:2]
    players = ["hand@0", "hand@2", "random"]
    assert [row[""] for row in matrix["rows"]] == players
    for one in matrix["rows"]:
        for other in matrix["rows"]:
            assert one[other[""]] == pytest.approx(-other[one[""]])
    assert sum(row["Nash"] for row in standing["rows"]) == pytest.approx(1)
    assert sum(row["alpha-rank"] for row in standing["rows"]) == pytest.approx(1)
    assert sorted(row[""] for row in standing["rows"]) == players
    assert {each["name"]: each for each in result["estimates"]}["effective diversity"]
    assert (folder / "beats/payoffs.html").read_text().count("<svg") == 4
    command = json.loads((folder / "beats/payoffs.json").read_text())["command"]
    assert "runs/hand@0 runs/hand@2 --opponent random --episodes 12 --set" in command


def test_exploit_and_transfer_of_a_run(folder: Path) -> None:
    result = json_of(folder, "exploit", "runs/hand", "--episodes=6", "--budget=24")
    assert result["estimates"][-1]["direction"] == "lower_bound"
    result = json_of(folder, "transfer", "runs/hand@0", "runs/hand@2", "--episodes=6")
    start, trained = result["tables"][0]["rows"]
    assert [value for name, value in start.items() if name] == [
        0,
        0,
    ]  # hand@0 is the policy before training
    assert len(trained) == 3


def test_a_policy_for_each_role_does_not_transfer_to_other_roles(folder: Path) -> None:
    small = ("sampler.group_size=4", "evaluations.game.samples=1", "run.threads=1", "run.steps=1")
    few = ("warmstart.steps=20", "run.checkpoint_every=1", "run.name=words")
    outcome = run("train", "+experiment=tiny/signal", *small, *few, cwd=folder)
    assert outcome.code == 0, outcome.err
    result = json_of(folder, "transfer", "runs/words", "runs/hand", "--episodes=4")
    apart, shared = result["tables"][0]["rows"]
    cells = {row[""]: [value for name, value in row.items() if name] for row in (apart, shared)}
    assert set(cells) == {"words@1", "hand@2"}
    assert cells["words@1"][1] is None and cells["words@1"][0] is not None
    assert None not in cells["hand@2"]
    assert len(result["estimates"]) == 3
    assert (
        "words has no policy for player, so it does not play the games of hand" in result["notes"]
    )


def test_sets_of_runs_are_compared(folder: Path) -> None:
    sets = ("now=runs/hand", "then=runs/han*@0")
    result = json_of(folder, "compare", "roleswap", *sets, "--episodes=6", "--out=sets")
    found = {each["name"]: each for each in result["estimates"]}
    change = [name for name in found if name.endswith(": then less now")]
    assert change and found[change[0]]["unit_of_resampling"] == "training run"
    name = change[0].removesuffix(": then less now")
    assert found[change[0]]["value"] == pytest.approx(
        found[f"{name}: then"]["value"] - found[f"{name}: now"]["value"]
    )
    again = json.loads((folder / "sets/compare-roleswap.json").read_text())["command"]
    assert again == (
        "selfplay study compare roleswap now=runs/hand 'then=runs/han*@0' --episodes 6 --out sets"
    )


def test_the_games_are_played_under_another_config(folder: Path) -> None:
    changed = ("--set", "evaluations.hands.temperature=0", "--set=rollout.max_turns=1")
    result = json_of(folder, "roleswap", "runs/hand", "--episodes=6", "--metric=return", *changed)
    assert result["params"]["truncated_episodes"] == 1
    assert result["params"]["changed"] == "evaluations.hands.temperature=0 rollout.max_turns=1"


def test_progress_is_no_part_of_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(options: argparse.Namespace) -> Result:
        print("warm start: step 1/2")
        return Result(measure="ablate", title="said", definition="", tables=[])

    monkeypatch.setitem(measures(), "ablate", replace(measures()["ablate"], run=measured))
    assert main(["study", "ablate", "RUN", "--json", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["title"] == "said" and "warm start" in printed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["exploitability", "runs/hand", "--step", "7"],
        ["roleswap", "runs/hand", "--evaluation", "hand"],
        ["roleswap", "runs/nowhere", "--out", "runs/hand/studies"],
        ["crossplay", "runs/hand@2", "runs/hand"],
    ],
)
def test_a_refused_command_touches_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(folder)
    place = Path("runs/hand/studies")
    place.mkdir(exist_ok=True)
    earlier = place / study_file(arguments[0])
    earlier.write_text("of a command that runs at the same time")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in place.iterdir()}
    assert main(["study", *arguments]) == 2
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in place.iterdir()}
    earlier.unlink()
    assert after == before


def test_a_result_prints_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result(
        measure="ablate",
        title="said",
        definition="",
        tables=[Table(title="said", columns=["said"], rows=[["\x1b[2J"]])],
    )
    ablate = replace(measures()["ablate"], run=lambda options: result)
    monkeypatch.setitem(measures(), "ablate", ablate)
    assert main(["study", "ablate", "RUN", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\u27e8U+001B\u27e9[2J" in printed


def test_exploitability_is_printed_as_a_table(folder: Path) -> None:
    outcome = run("study", "exploitability", "runs/hand", "--all", cwd=folder)
    lines = outcome.out.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("step  "))
    assert lines[head].split() == ["step", "exploitability", "NashConv", "elsewhere"]
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["0", "1", "2"]
    assert sum(line.startswith("player_") for line in lines) == 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["exploitability", "/nowhere"], "not a run folder"),
        (["exploitability", "runs/hand", "--step", "7"], "no checkpoint of step 7; it has 0, 1, 2"),
        (["exploitability", "runs/hand", "--step", "1", "--all"], "give one of the two"),
        (["exploitability", "runs/hand", "--policy", "bas"], "did you mean 'base'?"),
        (["exploitabilty", "runs/hand"], "did you mean 'exploitability'?"),
        (["exploitability"], "required: RUN"),
        (["passk", "runs/hand@start"], "passk compares with the policy before training, and this"),
        (["roleswap", "runs/hand@last"], "'last' is not a step; write RUN, RUN@STEP or RUN@start"),
        (["roleswap", "runs/hand", "--metric", "pay"], "a trial game lacks it; choose from"),
        (["roleswap", "runs/hand", "--episodes", "0"], "--episodes 0: at least 1 is needed"),
        (
            ["payoffs", "runs/hand@0", "runs/hand", "--seed", "-1"],
            "--seed -1: at least 0 is needed",
        ),
        (["exploitability", "runs/hand@1", "--step", "2"], "give one of them"),
        (["exploitability", "runs/hand@7"], "no checkpoint of step 7; it has 0, 1, 2"),
        (["exploitability", "runs/hand@start"], "exploitability takes a step; name runs/hand@0"),
        (["compare", "exploitability", "a=runs/hand@start"], "takes a step; name runs/hand@0"),
        (["dynamics", "runs/hand@start"], "dynamics measures a whole run; drop the @"),
        (["exploitability", "runs/hand@last"], "'last' is not a step; write RUN, RUN@STEP"),
        (["compare", "exploitability", "a=runs/hand@7"], "no checkpoint of step 7"),
        (["dynamics", "runs/hand@1"], "dynamics measures a whole run; drop the @"),
        (["roleswap", "runs/hand@1", "./runs/hand@1"], "runs/hand@1: named twice"),
        (["crossplay", "runs/hand@2", "runs/hand"], "runs/hand: the same player as runs/hand@2"),
        (["crossplay", "runs/hand@start", "runs/hand@start"], "runs/hand@start: named twice"),
        (["roleswap", "runs/hand@start"], "roleswap compares with the policy before training, and"),
        (
            ["counterfactual", "runs/hand@start", "--default=pass"],
            "counterfactual compares with the policy before training, and this is it",
        ),
        (["crossplay", "runs/hand"], "a single player has no partner; name runs"),
        (["payoffs", "runs/hand"], "one player has no opponent; name several"),
        (["payoffs", "runs/hand", "--opponent=ran"], "--opponent: no policy or opponent 'ran'"),
        (["compare", "payoffs", "a=runs/hand"], "does not take the measure 'payoffs'; choose"),
        (["roleswap", "runs/hand", "--evaluation", "hand"], "did you mean 'hands'?"),
        (["ablate", "runs/hand"], "no move is a message to others; measure a game with messages"),
        (["dynamics", "runs/hand", "--metric=role/player/valid"], "recorded no episodes; train"),
        (["dynamics", "runs/foot"], "not a run folder"),
        (["hacking", "runs/hand"], "an arena needs the metric valid_proposal for proposed tasks"),
        (["compare", "a=runs/hand"], "name a measure before 'a=runs/hand'; choose from: ablate"),
        (["runs/hand"], "name a measure before 'runs/hand'"),
        (
            ["exploitability", "runs/hand", "runs/b"],
            "selfplay study compare exploitability A=runs/hand B=runs/b",
        ),
        (["behaviour", "runs/hand", "runs/b"], "measure runs/b with a second command"),
        (
            ["exploitability", "runs/hand", "--more"],
            "'--more' (see selfplay study exploitability --help)",
        ),
        (["roleswap", "runs/hand", "--set", "arena.pots=1"], "unknown key 'arena.pots'"),
        (["roleswap", "runs/hand", "--set", "pots"], "--set pots: write KEY=VALUE"),
        (["roleswap", "runs/hand", "--set", "engine=vllm"], "leave engine out"),
        (["roleswap", "runs/hand", "--set=runtime=ray"], "leave runtime out"),
        (["roleswap", "runs/hand", "--set=trackers=tensorboard"], "leave trackers out"),
        (["compare", "crossplay", "a=runs/hand"], "choose from"),
        (["compare", "roleswap", "a=runs/hand", "--cooperate=x"], "roleswap has no such option"),
        (["compare", "dynamics", "a=runs/hand@0"], "dynamics measures a whole run; drop the @"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    folder: Path, arguments: list[str], words: str
) -> None:
    outcome = run("study", *arguments, cwd=folder)
    assert outcome.code == 2 and words in one_line(outcome.err)


def test_a_config_without_a_group_gets_the_local_runtime() -> None:
    here = with_local_runtime({"seed": 1})
    assert (
        here["seed"] == 1
        and here == with_local_runtime(here)
        and {"engine", "runtime"} <= set(here)
    )
    base = {"learner": {"attention": "sdpa", "lr": 0.1}}
    on_gpus = {"learner": {"attention": "flex_attention"}, "population": {"special": {"a": base}}}
    here = with_local_runtime(on_gpus)
    assert here["learner"] == {"attention": None}
    assert here["population"]["special"]["a"]["learner"] == {"attention": None, "lr": 0.1}


def test_the_error_about_another_game_names_a_fitting_arena(tmp_path: Path) -> None:
    outcome = run("study", "exploitability", str(finished()), cwd=tmp_path)
    assert outcome.code == 2
    error = one_line(outcome.err)
    assert "absolute_zero_v0 has no methods openspiel" in error and "arena=kuhn" in error


def test_results_are_printed_although_the_page_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*given: Any, **named: Any) -> Path:
        raise RunError("cannot write to runs/hand/studies: Read-only file system")

    monkeypatch.setattr("selfplay.study.page.write", refused)
    monkeypatch.chdir(folder)
    for flags in ([], ["--json"]):
        assert main(["study", "metrics", "runs/hand", *flags]) != 0
        printed = capsys.readouterr()
        assert "role/player/reward" in printed.out and "Read-only" in printed.err


def test_the_measure_of_the_documentation_is_computed(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The measure is a module with the code of `docs/new_measure.md`."""
    text = (ROOT / "docs/new_measure.md").read_text(encoding="utf-8")
    code, test, declaration = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert "test_words" in test
    module = code.partition("if __name__ ==")[0] + declaration
    (tmp_path / "printed_words.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    made = import_module("printed_words").MEASURE
    monkeypatch.setattr("selfplay.cli.study.measures", lambda: {**measures(), "words": made})
    monkeypatch.chdir(folder)
    runs = ["runs/hand", "runs/hand@start"]
    assert main(["study", "words", *runs, "--episodes=4", "--json", f"--out={tmp_path}"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [each["name"] for each in found["estimates"]]
    assert names == ["words per turn, hand@2", "words per turn, hand@start"]


def test_an_error_of_an_authors_measure_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(options: argparse.Namespace) -> Result:
        raise KeyError("words")

    made = replace(measures()["crossplay"], name="words", run=fails)
    monkeypatch.setattr("selfplay.cli.study.measures", lambda: {**measures(), "words": made})
    assert main(["study", "words", "runs/a", f"--out={tmp_path}"]) == 2
    error = one_line(capsys.readouterr().err)
    assert error.startswith("selfplay: study words raised KeyError: 'words' (")
    assert "test_study.py, line" in error
