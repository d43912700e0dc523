"""Command `selfplay plan`: predicted needs of a config on a cluster, before any model loads."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfplay.config import compose, plain_data
from selfplay.config.instantiate import TARGET, build, call, make
from selfplay.engines.shards import shards_of
from selfplay.errors import ConfigError, one_line
from selfplay.models.population import Population
from selfplay.plan import recorded_workload as records
from selfplay.plan import workload as workloads
from selfplay.plan.cluster import ClusterSpec, EngineGroup, load_cluster, this_machine
from selfplay.plan.layout import DERIVED, PLACEMENT, Processes, derive
from selfplay.plan.memory import Member
from selfplay.plan.model_shape import ModelShape, of_config, read_outline
from selfplay.plan.prediction import Prediction
from selfplay.plan.report import as_json, as_text

FITS, DOES_NOT_FIT = 0, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `selfplay plan`."""
    parser.add_argument(
        "--run",
        type=Path,
        metavar="RUN",
        help="use the config and the recorded lengths of a run, and compare predicted with "
        "measured seconds",
    )
    parser.add_argument(
        "--measure",
        type=Path,
        metavar="FILE",
        help="measure the speed of this machine in a minute or two, and write it to FILE, which "
        "cluster=FILE reads; takes no key=value",
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="also simulate steps event by event, with completions of random lengths",
    )
    parser.add_argument(
        "--steps", type=int, default=12, metavar="N", help="steps of --simulate (default 12)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the numbers as JSON, in bytes and seconds"
    )


def run(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print a prediction or measure this machine; return exit code 3 if the run does not fit."""
    if options.measure is not None:
        _measure(options, overrides)
        return FITS
    own = [o for o in overrides if o.startswith(("cluster=", "cluster.", "workload."))]
    rest = [o for o in overrides if o not in own]
    prediction = plan(own, rest, folder=options.run, search=options.config_dir)
    simulated = None
    if options.simulate:
        from selfplay.plan.simulate import simulate

        if options.steps < 3:
            raise ConfigError("--steps: at least 3 are needed, because the first third is ignored")
        if prediction.cluster.groups:
            raise ConfigError("--simulate: it knows no engines with only some policies; drop it")
        simulated = simulate(prediction, steps=options.steps)
    measured = None if options.run is None else records.seconds(options.run)
    if options.json:
        print(json.dumps(as_json(prediction, simulated, measured), indent=2))
    else:
        print(as_text(prediction, simulated, measured))
        if simulated and prediction.own_layout and prediction.cluster.lag:
            print("  simulated with steps that overlap; the planned times have no overlap")
    return FITS if prediction.memory.fits else DOES_NOT_FIT


def plan(
    own: Sequence[str],
    overrides: Sequence[str],
    *,
    folder: Path | None = None,
    search: Sequence[str] = (),
) -> Prediction:
    """Return the prediction for a config.

    Args:
        own: `cluster=NAME`, `cluster.KEY=value` and `workload.KEY=value`; without a cluster, the
            plan is for this machine.
        overrides: Overrides of the training config, as for `selfplay train`.
        folder: Folder of a run whose config and recorded lengths are used.
        search: More folders of config groups.
    Raises:
        ConfigError: For a config, a cluster or a layout that a plan does not cover.
        RunError: For a run folder without recorded episodes.
    """
    hardware = _hardware(own)
    on_gpu = hardware[0].device.kind == "cuda"
    asked_of = [o.removeprefix("workload.") for o in own if o.startswith("workload.")]
    if folder is None:
        # The primary config has no choice for these groups, so Hydra needs a plus.
        groups = tuple(f"{group}=" for group in plain_data.GROUPS_WITH_PLUS)
        with_plus = [f"+{o}" if o.startswith(groups) else o for o in overrides]
        config = compose.load(with_plus, search=search)
        assumed = workloads.assumptions(asked_of)
        plain_data.refuse_unchosen(config)
        asked = workloads.of_config(config, assumed, on_gpu=on_gpu)
    else:
        if asked_of:
            raise ConfigError(f"workload.{asked_of[0]}: --run takes it from the run; drop one")
        from selfplay.run.directory import Run

        Run.open(folder)
        config = compose.load(list(overrides), name="config", folder=folder, search=search)
        asked = records.of_run(config, folder, on_gpu=on_gpu)
    return _predicted(config, asked, *hardware)


def _predicted(
    config: Mapping[str, Any],
    asked: Any,
    cluster: ClusterSpec,
    given: Mapping[str, Any],
    notes: list[str],
) -> Prediction:
    """Return the prediction for a config, its workload, and the cluster that `_hardware` found."""
    from selfplay.learner.learner_settings import LearnerSettings  # loads torch

    learner = make(LearnerSettings, config["learner"], where="learner")
    models = members(config)
    own_layout = not any(key in given for key in PLACEMENT)
    if own_layout:
        processes = _processes(config, cluster, models)
        cluster, more = derive(cluster, config, models, processes, given=given)
        notes += more
    else:
        named = ", ".join(f"cluster.{key}" for key in (*PLACEMENT, *DERIVED) if key in given)
        notes.append(f"an ideal layout, which the config would not use: you set {named}")
    found = asked.of(models)
    return Prediction(
        workload=replace(found, notes=[*notes, *found.notes]),
        members=models,
        cluster=cluster,
        micro_batch=float(learner.max_tokens),
        own_layout=own_layout,
    )


def memory_note(config: Mapping[str, Any]) -> str | None:
    """Return a line if a run of a config would not fit into the GPUs of this machine by its plan.

    `selfplay train` prints it before it loads the models. None without a GPU, and for a config that
    a plan does not cover.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        asked = workloads.of_config(config, workloads.assumptions([]), on_gpu=True)
        memory = _predicted(config, asked, *_hardware([])).memory
    except ConfigError:
        return None
    except Exception as error:  # a fault of the plan must not stop a run that may fit
        return f"selfplay plan cannot tell if this run fits: {one_line(error)}"
    if memory.fits:
        return None
    return (
        f"this run may end for lack of memory: by `selfplay plan` {memory.complaints[0]}; "
        "`selfplay plan` with the same overrides says what would help"
    )


def _hardware(own: Sequence[str]) -> tuple[ClusterSpec, dict[str, Any], list[str]]:
    """Return the cluster, its keys that are set by hand, and notes; by default this machine."""
    names = [o.partition("=")[2] for o in own if o.startswith("cluster=")]
    keys = [o.removeprefix("cluster.") for o in own if o.startswith("cluster.")]
    if not names and not keys:
        found, note = this_machine()
        return found, {}, [note]
    if len(names) != 1:
        raise ConfigError("plan needs one cluster=NAME, such as cluster=gpus_8 or cluster=local")
    cluster, plain = load_cluster(names[0], keys)
    return cluster, {key: plain[key] for key in (*PLACEMENT, *DERIVED) if key in plain}, []


def _processes(
    config: Mapping[str, Any], cluster: ClusterSpec, models: Mapping[str, Member]
) -> Processes:
    """Return the processes that a config's runtime starts on a cluster."""
    from selfplay.runtime.local import Local
    from selfplay.runtime.policy_groups import check_groups
    from selfplay.runtime.ray import RayRuntime

    runtime = build(config["runtime"], where="runtime")
    if isinstance(runtime, Local):
        return Processes()
    if not isinstance(runtime, RayRuntime):
        kind = type(runtime).__name__
        raise ConfigError(f"runtime: a plan covers runtime=local and runtime=ray, not {kind}")
    available = cluster.devices if cluster.device.kind == "cuda" else 0
    placement = runtime.placement(available, shards_of(config))
    if placement.groups:
        check_groups(placement.groups, models)
    return Processes(
        workers=placement.workers,
        learners=placement.learners,
        worker_gpus=placement.worker_gpus,
        learner_gpus=placement.learner_gpus,
        replicas=runtime.replicas,
        max_staleness=runtime.max_staleness,
        colocated=placement.colocated,
        short_weights=runtime.worker_dtype(placement) is not None,
        groups=[
            EngineGroup(policies=group.policies, engines=group.workers)
            for group in placement.groups
        ],
    )


def members(config: Mapping[str, Any]) -> dict[str, Member]:
    """Return the policies of a config, with the saved models that play against them, by name."""
    population = Population.of(config)
    from selfplay.experiment.validation import check_teachers  # loads torch

    check_teachers(population, build(config["objective"], where="objective"))
    found, outlines = {}, dict[str, ModelShape]()
    reference, average = workloads.reads_reference(config), workloads.moves_reference(config)
    for name, settings in {**population.policies, **population.saved_models}.items():
        model, lora = settings.model, settings.lora
        key = str(model)
        if key not in outlines:
            outlines[key] = read_outline(model) if model else _made(config["warmstart"])
        read = reference and settings.learn
        teachers = dict.fromkeys(settings.teachers.values()) if read else {}
        for teacher in teachers:
            if teacher not in outlines:
                outlines[teacher] = read_outline(teacher, where="policy.teacher")
        found[name] = Member(
            outline=outlines[key],
            learns=settings.learn,
            rank=0 if lora is None else lora.rank,
            reference=reference,
            average=average,
            teachers=tuple(outlines[teacher] for teacher in teachers),
            frozen_bytes=2 if settings.dtype in ("bfloat16", "float16") else 4,
        )
    return found


def _made(node: Mapping[str, Any]) -> ModelShape:
    """Return the shape of a warm start's model; its tokenizer determines the vocabulary."""
    if TARGET not in node:
        raise ConfigError(
            "policy.model: missing, and there is no warm start to make one; set policy.model=NAME"
        )
    import torch

    from selfplay.models.tiny import build_model, build_tokenizer
    from selfplay.models.warmstart import WarmStart

    made = build(node, where="warmstart")
    if not isinstance(made, WarmStart):
        raise ConfigError(
            f"policy.model: missing, and the warm start {node[TARGET]} makes none; set "
            "policy.model=NAME"
        )
    vocabulary = len(build_tokenizer(made.demonstrations.pieces()))
    sizes = {"vocabulary": vocabulary, "seed": 0, **dict(node.get("model") or {})}
    with torch.device("meta"):
        model = call(build_model, sizes, where="warmstart.model")
    return of_config(model.config, where="warmstart.model")


def _measure(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    if overrides or options.run or options.simulate:
        raise ConfigError("--measure FILE takes no config and no --run: it measures this machine")
    from selfplay.plan.calibrate import measure, to_yaml

    if options.measure.suffix != ".yaml":
        raise ConfigError(f"--measure {options.measure}: name a file that ends in .yaml")
    if options.measure.exists():
        raise ConfigError(f"--measure {options.measure}: exists and is not overwritten")
    cluster: ClusterSpec = measure()
    options.measure.write_text(to_yaml(cluster), encoding="utf-8")
    print(f"{cluster.device.name}: {options.measure}")
    print(f"now: selfplay plan +experiment=tiny/quickstart cluster={options.measure}")
