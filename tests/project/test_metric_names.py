"""Tests that docs/metrics.md has all metrics of a run and of the shipped arenas."""

import importlib
import json
import pkgutil
import re
from pathlib import Path

import arenas
from selfplay.arena import Arena
from tests.helpers.command_process import finished
from tests.helpers.repository import ROOT

TABLE = ROOT / "docs/metrics.md"


def documented(page: str) -> list[re.Pattern[str]]:
    """Return patterns of the names in the table; a short name completes the one before it."""
    lines = page.partition("## Metric names")[2].partition("\n#")[0].splitlines()
    found: list[str] = []
    for cell in [line.split("|")[1] for line in lines if line.startswith("| ")]:
        whole = ""
        for name in re.findall("`([^`]+)`", cell):
            if whole and ("/" not in name or name.startswith("\u2026")):
                short = name.removeprefix("\u2026/")
                above = [str(path) for path in Path(whole).parents][:-1]
                found += [whole.rpartition("_")[0] + short] if short.startswith("_") else []
                found += [f"{path}/{short}" for path in above]
            else:
                found.append(whole := name)
    return [re.compile(re.sub("<[^>]+>", ".+", re.sub("\u2026", ".+", each))) for each in found]


def unknown(names: set[str]) -> list[str]:
    known = documented(TABLE.read_text(encoding="utf-8"))
    return sorted(name for name in names if not any(each.fullmatch(name) for each in known))


def test_every_name_that_a_run_writes_is_in_the_table() -> None:
    lines = (finished() / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    names = {name for line in lines for name in json.loads(line)} - {"step"}
    assert len(names) > 30 and unknown(names) == []
    assert unknown({"policy/base/los", "engine/a/b", "nothing"}) == [
        "engine/a/b",
        "nothing",
        "policy/base/los",
    ]
    assert unknown({"policy/base/staleness_max", "role/solver/verdict/wrong"}) == []


def test_every_metric_that_a_shipped_arena_declares_is_on_the_page() -> None:
    """Verdicts are left out, because they are among the metrics of roles."""
    for module in pkgutil.walk_packages(arenas.__path__, "arenas."):
        importlib.import_module(module.name)
    rows = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    names = [name for row in rows for name in re.findall("`([^`]+)`", row)]
    known = [re.compile(re.sub("<[^>]+>", ".+", re.escape(each))) for each in names]
    shipped = [each for each in arenas_below(Arena) if each.__module__.startswith("arenas.")]
    assert len(shipped) >= 30
    missing = [
        (each.__name__, name)
        for each in shipped
        for name in each.measures
        if not name.startswith("verdict/")
        if not any(pattern.fullmatch(name.replace("*", "x")) for pattern in known)
    ]
    assert missing == []


def arenas_below(made: type[Arena]) -> list[type[Arena]]:
    return [each for below in made.__subclasses__() for each in (below, *arenas_below(below))]
