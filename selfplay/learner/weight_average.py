"""Mean of the weights of several checkpoints of a run, as a run that can be studied and played.

The mean of weights along one training is often better than each of them (stochastic weight
averaging, 1803.05407; mean of the latest weights, 2209.14981). In self-play, the last iterate may
move around an equilibrium, and the mean lies between its positions.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from selfplay.errors import RunError, one_line
from selfplay.learner import checkpoint
from selfplay.learner.checkpoint_content import link_folder
from selfplay.learner.checkpoint_writer import write_manifest
from selfplay.models import lora
from selfplay.run.directory import Run, reporting_disk, sync, write_atomic
from selfplay.run.run_folder import CHECKPOINTS, POLICIES, STATE, step_of

RECORD = "average.json"
"""File of the new run that names the run and the steps whose weights were averaged."""
WEIGHTS = "*.safetensors"
"""Files of a policy that hold weights; its other files are the same at every step."""


def average(
    source: Path, target: Path, *, first: int | None = None, last: int | None = None
) -> list[int]:
    """Write a new run whose only checkpoint has the mean of the weights of several checkpoints.

    All checkpoints count alike. Of adapters, the matrices A and the matrices B are averaged
    separately, so that the rank stays the same. Everything else (config, curriculum, league) is
    that of the newest averaged checkpoint. The new run has no state of optimizers, so that it
    cannot be continued.

    Args:
        source: Folder of the run, which is only read. No code that its config names is imported.
        target: Folder of the new run.
        first: Lowest step; None: 1, because step 0 is the policy before training.
        last: Highest step; None: the newest.
    Returns:
        Steps of the averaged checkpoints.
    Raises:
        RunError: If fewer than two checkpoints lie between the steps, if one of them is damaged or
            has weights of other names or shapes, or if `target` exists.
    """
    config = Run.open(source).config()
    if target.exists():
        raise RunError(f"{target} exists and is not overwritten; choose another folder with --out")
    if not isinstance(config.get("run"), dict):
        raise RunError(f"{source / 'config.yaml'}: has no 'run'; it is not the config of a run")
    places = _places(source, 1 if first is None else first, last)
    steps = [step_of(place) for place in places]
    named = {"folder": str(target.parent), "name": target.name}
    run = Run.create(target, {**config, "run": {**config["run"], **named}})
    try:
        record = {"run": str(source.resolve()), "steps": steps}
        write_atomic(target / RECORD, json.dumps(record, indent=2) + "\n")
        _write(target / CHECKPOINTS / places[-1].name, places)
    except BaseException:
        run.discard()
        raise
    return steps


def _places(source: Path, first: int, last: int | None) -> list[Path]:
    """Return the checkpoints between two steps, oldest first."""
    kept = checkpoint.kept(source / CHECKPOINTS)[::-1]
    steps = {step_of(place): place for place in kept}
    found = [
        place for step, place in steps.items() if first <= step and (last is None or step <= last)
    ]
    if len(found) < 2:
        raise RunError(
            f"run {source}: a mean needs at least two checkpoints, and {len(found)} of those that "
            f"the run kept (steps {', '.join(map(str, steps)) or 'none'}) lie between the limits; "
            "run.keep_checkpoints sets their number"
        )
    for place in found:
        fault = checkpoint.broken(place)
        if fault is not None:
            raise RunError(f"checkpoint {place}: {fault}; choose steps without it")
    return found


def _write(place: Path, places: Sequence[Path]) -> None:
    """Write the checkpoint `place`: the newest of `places`, with the means and no learners."""
    newest, partial = places[-1], place.with_name(f".{place.name}.partial")
    with reporting_disk(place):
        partial.mkdir()
        shutil.copy2(newest / STATE, partial)
        for unchanged in (lora.BASES, checkpoint.FROZEN):
            if (newest / unchanged).is_dir():
                link_folder(newest / unchanged, partial / unchanged)
        for policy in sorted((newest / POLICIES).iterdir()):
            copied = partial / POLICIES / policy.name
            shutil.copytree(policy, copied, ignore=shutil.ignore_patterns(WEIGHTS))
            for file in sorted(policy.glob(WEIGHTS)):
                name = file.relative_to(newest)
                _write_mean([each / name for each in places], partial / name)
            if lora.is_adapter(copied):
                lora.name_copied_base(copied, place, where=f"policy {policy.name!r}")
        write_manifest(partial, {})
        for path in (*partial.rglob("*"), partial):
            sync(path)
        partial.rename(place)


def _write_mean(files: Sequence[Path], path: Path) -> None:
    """Write the mean of the tensors of several files with the same names and shapes.

    The sums are in float64, so that tensors that are equal in all files stay bit for bit. The mean
    has the type of the tensors.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(_opened(file)) for file in files]
        shapes = [_shapes(each) for each in opened]
        for file, found in zip(files, shapes, strict=True):
            if found != shapes[-1]:
                raise RunError(f"{file}: its tensors are not those of {files[-1]}")
        means = {}
        for name in shapes[-1]:
            total = sum(each.get_tensor(name).double() for each in opened)
            means[name] = (total / len(files)).to(opened[-1].get_tensor(name).dtype)
        save_file(means, path, opened[-1].metadata())


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise RunError(f"{file} cannot be read: {one_line(error)}") from error


def _shapes(opened: Any) -> dict[str, list[int]]:
    names = list(opened.keys())
    return {name: opened.get_slice(name).get_shape() for name in names}
