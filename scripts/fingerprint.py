"""Fingerprint short training runs, to prove that a change of the code changes no result.

A fingerprint is the SHA-256 of a run's final weights and that of its metrics.jsonl without the
metrics that depend on time (TIMED). A run uses one thread and makes its own warm start. Run this in
the root of the checkout to measure. Compare only fingerprints of one machine and one environment.

    python scripts/fingerprint.py CASES.json --json before.json
    python scripts/fingerprint.py CASES.json --against before.json --renames RENAMES.json

CASES.json maps the name of each case to the overrides of its run:

    {"kuhn": ["+experiment=tiny/kuhn", "run.steps=10"],
     "vllm": ["+experiment=tiny/kuhn", "run.steps=10", "engine=vllm"]}

A case that needs another environment gets its interpreter by `--python vllm=.venv-vllm/bin/python`.
RENAMES.json lets one list of cases serve before and after a change of names. Its regular
expressions replace old parts of overrides by new ones, and new parts of names of metrics by the old
ones; null leaves the override or the metric out:

    {"overrides": {"=old_name$": "=new_name"}, "metrics": {"^role/(.*)/parsed$": "role/\\1/valid"}}
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

TIMED = re.compile(  # metrics that depend on time, by the beginnings of their names
    r"seconds/"  # the wall-clock time of each phase of a step
    r"|runtime/publish_seconds$"  # the wall-clock time of sending weights to Ray workers
    r"|service/executor/cached$"  # cached program runs; of equal runs at the same time, none
    r"|engine/[^/]+/cached_tokens$"  # prompt tokens that vLLM's scheduler found in its cache
)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("cases", type=Path, help="JSON file: name of each case to its overrides")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these cases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the fingerprints")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with earlier ones")
    parser.add_argument("--renames", type=Path, metavar="FILE", help="names that have changed")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=INTERPRETER")
    parser.add_argument("--folder", type=Path, help="keep the runs here (default: delete them)")
    options = parser.parse_args()
    cases, renames = read(options.cases), read(options.renames)
    if unknown := {*(options.only or [])} - {*cases}:
        parser.error(f"--only: {options.cases} has no case {', '.join(sorted(unknown))}")
    others = dict(pair.split("=", 1) for pair in options.python)
    report: dict[str, Any] = {"machine": machine(), "cases": {}}
    with tempfile.TemporaryDirectory(prefix="selfplay-fingerprint-") as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        for name in options.only or cases:
            python = others.get(name, sys.executable)
            found = report["cases"][name] = fingerprint(python, name, cases[name], folder, renames)
            print(name, found.get("error") or f"{found['weights']} {found['metrics']}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    lines = differences(read(options.against), report) if options.against else []
    print(*lines, sep="\n", end="\n" * bool(lines))
    return int(bool(lines) or any("error" in found for found in report["cases"].values()))


def machine() -> dict[str, str]:
    """Return the parts of a machine and an environment that the last bits may depend on."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    packages = {name: version(name) for name in ("torch", "transformers", "numpy")}
    return {"processor": str(model and model[1]), "python": sys.version.split()[0], **packages}


def renamed(text: str, rules: dict[str, str | None]) -> str:
    """Return the text after all rules; "" if one of them leaves it out."""
    for pattern, new in rules.items():
        if re.search(pattern, text):
            text = "" if new is None else re.sub(pattern, new, text)
    return text


def fingerprint(
    python: str, name: str, overrides: list[str], folder: Path, renames: dict[str, Any]
) -> dict[str, Any]:
    """Train one case in a process of its own; return its hashes, or its error."""
    words = [new for old in overrides if (new := renamed(old, renames.get("overrides", {})))]
    words += [f"run.folder={folder}", f"run.name={name}", "run.threads=1"]
    own = {"SELFPLAY_CACHE": str(folder / "cache" / name), "OMP_NUM_THREADS": "1"}
    env = {**os.environ, **own, "PYTHONPATH": os.getcwd()}
    command = [python, "-m", "selfplay", "train", *words]
    process = subprocess.run(command, env=env, capture_output=True, text=True)
    if process.returncode:
        return {"error": "failed: " + " ".join(process.stderr.splitlines()[-5:])}
    last = max(folder.glob(f"{name}/checkpoints/[0-9]*"), key=lambda path: int(path.name))
    policies = {path.name: weights(path) for path in (last / "policies").iterdir()}
    series = metrics(folder / name / "metrics.jsonl", renames.get("metrics", {}))
    found = {"weights": digest(policies), "metrics": digest(series), "weights of policy": policies}
    return {**found, "metric": {name: digest(series[name])[:16] for name in sorted(series)}}


def weights(policy: Path) -> str:
    """Return the SHA-256 of a policy's tensors, sorted by name: dtype, shape and bytes."""
    tensors = {}
    for file in policy.glob("*.safetensors"):
        content = file.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:start]).items():
            if name != "__metadata__":
                values = content[start:][slice(*entry["data_offsets"])]
                tensors[name] = f"{name} {entry['dtype']} {entry['shape']}\n".encode() + values
    assert tensors, f"{policy} has no weights"
    return sha256(b"".join(tensors[name] for name in sorted(tensors))).hexdigest()


def metrics(path: Path, rules: dict[str, str | None]) -> dict[str, list[Any]]:
    """Return the values of each metric with their steps, by its old name."""
    series: dict[str, list[Any]] = {}
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        for name in row:
            if not TIMED.match(name) and (old := renamed(name, rules)):
                series.setdefault(old, []).append([row["step"], row[name]])
    return series


def read(path: Path | None) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path else {}


def digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each policy and each metric that differs or that only one of both has."""
    lines = [] if earlier["machine"] == now["machine"] else [f"made on {earlier['machine']}"]
    for name, kind in product(now["cases"], ("weights of policy", "metric")):
        old, new = (part["cases"].get(name, {}).get(kind, {}) for part in (earlier, now))
        for key in sorted({*old, *new}) if old and new else ["*"]:
            if old.get(key, "") != new.get(key):
                how = "differs" if key in old and key in new else "is in only one of the two"
                lines.append(f"{name}: {kind} {key} {how}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
