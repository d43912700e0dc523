"""The training loop."""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from selfplay.credit import missing_signals
from selfplay.errors import CollapsedError, LearnersLost, nearest
from selfplay.experiment.experiment import Experiment
from selfplay.learner import checkpoint
from selfplay.run import metrics, signals
from selfplay.run.declarations import write_declared
from selfplay.run.directory import Run, reporting_disk
from selfplay.run.metrics import StepTimer
from selfplay.run.progress import Progress
from selfplay.types import Group, Sample, Status


def train(experiment: Experiment, run: Run, progress: Progress) -> None:
    """Train to the configured step, from where `experiment` stands; the run folder has the rest."""
    with reporting_disk(run.folder):
        write_declared(run.folder, experiment.declared)
    progress.declared = experiment.declared
    for note in experiment.runtime.notes:
        progress.note(note)
    for name, learner in experiment.learners.items():
        for note in learner.notes:
            progress.note(f"policy {name}: {note}")
    lost: LearnersLost | None = None
    steps = experiment.settings.steps
    while lost or experiment.evaluations_before is None or experiment.step < steps:
        try:
            if lost:
                recover(experiment, run, progress, lost)
                lost = None
            elif experiment.evaluations_before is None:
                initialize(experiment, run, progress)
            else:
                step(experiment, run, progress)
        except LearnersLost as error:
            lost = error


def step(experiment: Experiment, run: Run, progress: Progress) -> None:
    """One step: play, credit, learn, publish, measure, record."""
    signals.check()
    step, clock, settings = experiment.step + 1, StepTimer(), experiment.settings
    experiment.begin_step(step)
    with clock("rollout"):
        batch = experiment.batches.take(step)
    with clock("credit"):
        # What was played includes groups that were dropped for want of signal.
        groups, played = experiment.shaping.apply(batch.groups, batch.played)
        samples = experiment.credit.assign(groups)
    figures = metrics.of_episodes(episode for group in played for episode in group.episodes)
    figures |= prefixed("credit", experiment.credit.metrics())
    figures["credit/zero_advantages"] = missing_signals.zero_fraction(samples)
    warn(experiment, progress, step, played=played, groups=groups, samples=samples)
    with clock("learn"):
        experiment.rest_engine()
        learning = experiment.learning(step)
        for name, learner in learning.items():
            mine = [sample for sample in samples if sample.turn.policy == name]
            age = metrics.of_age(mine, version=experiment.policies[name].version)
            learned = learner.update(mine, step=step)
            figures |= prefixed(f"policy/{name}", {**learned, **age})
            experiment.publish(name)
        experiment.batches.learned(step)
        for name in experiment.learners:
            figures[f"policy/{name}/learned"] = float(name in learning)
    figures |= batch.metrics
    figures |= prefixed("league", experiment.league.end_step())
    figures |= experiment.service_metrics()
    figures = experiment.outcomes.complete(figures)
    experiment.step = step
    with clock("evaluation"):
        due, evaluated = evaluate_due(experiment, progress, step)
        figures |= due
    figures |= experiment.watch.observe(step, figures)
    with clock("record"):
        whole = settings.keeps_episodes(step)
        row = {**figures, **clock.metrics()}
        run.record(step, row, played, samples, whole=whole, evaluated=evaluated)
    progress.step({"step": step, **figures, **clock.metrics()})
    said = metrics.commonest_error(episode for group in played for episode in group.episodes)
    check_health(experiment, figures, step, progress, error=said)
    went_back = respond_to_collapse(experiment, run, progress, figures)
    if settings.keeps_checkpoint(step) and not went_back:
        save(experiment, run)


def warn(
    experiment: Experiment,
    progress: Progress,
    step: int,
    *,
    played: Sequence[Group],
    groups: Sequence[Group],
    samples: Sequence[Sample],
) -> None:
    """Print a line if nothing can be learned from the step, or if a setting names no metric."""
    if line := experiment.silence.line(step, groups, samples):
        progress.note(line)
    if step == 1:
        parts = {"credit": experiment.credit, "sampler": experiment.sampler}
        for line in missing_signals.unmeasured(parts, played):
            progress.note(line)


def initialize(experiment: Experiment, run: Run, progress: Progress) -> None:
    """Step 0: gather the first tasks, evaluate, and keep both as the first checkpoint."""
    clock = StepTimer()
    with clock("gather"):
        fill_curriculum(experiment, progress)
    gathered = experiment.outcomes.complete(experiment.service_metrics())
    with clock("evaluation"):
        found, evaluated = evaluate(experiment, progress, "before")
    experiment.service_metrics()  # what evaluating cost is not the first step's
    experiment.evaluations_before = found
    if not experiment.settings.steps:
        experiment.evaluations_after = found
    experiment.watch.observe(0, named(found))
    figures = {**gathered, **named(found), **clock.metrics()}
    run.record(0, figures, [], [], evaluated=evaluated)
    save(experiment, run)


def fill_curriculum(experiment: Experiment, progress: Progress) -> None:
    """Let the curriculum gather what it needs, with no update (steps -1, -2, ...)."""
    for attempt in count(1):
        if experiment.curriculum.ready():
            return
        progress.phase(f"gathering first tasks, round {attempt}")
        experiment.sampler.sample(
            experiment.curriculum, experiment.rollout_fn, step=-attempt, seed=experiment.seed
        )


def evaluate(
    experiment: Experiment, progress: Progress, when: str, names: Mapping[str, object] | None = None
) -> tuple[dict[str, dict[str, float]], list[Group]]:
    """Play the evaluations, or those of `names`: metrics by name, and a group of episodes each."""
    found, groups = {}, []
    for name in experiment.evaluations if names is None else names:
        evaluation, play = experiment.evaluations[name]
        progress.phase(f"evaluating {name}")
        with experiment.batches.paused():  # it plays with the same services
            found[name], episodes = evaluation.run(name, play, seed=experiment.seed)
        groups.append(Group(id=f"evaluation/{name}", episodes=tuple(episodes)))
        if when == "before":
            for line in evaluation.unmeasured(name, episodes):
                progress.note(line)
        progress.evaluation(name, when, found[name])
    experiment.players.counts()  # what evaluating cost here is not the next step's
    return found, groups


def evaluate_due(
    experiment: Experiment, progress: Progress, step: int
) -> tuple[dict[str, float], list[Group]]:
    """Play the evaluations that are due at this step (all on the last): metrics, and episodes."""
    if step == experiment.settings.steps:
        found, groups = evaluate(experiment, progress, "after")
        experiment.evaluations_after = found
        return named(found), groups
    due = {
        name: evaluation
        for name, (evaluation, _) in experiment.evaluations.items()
        if evaluation.every and step % evaluation.every == 0
    }
    found, groups = evaluate(experiment, progress, "now", due)
    return named(found), groups


def save(experiment: Experiment, run: Run) -> None:
    """Write a checkpoint."""
    place = checkpoint.save(
        run.folder / "checkpoints",
        step=experiment.step,
        policies=experiment.policies,
        learners=experiment.trained(),
        state=experiment.state_dict(),
        keep=experiment.settings.keep_checkpoints,
        spare=experiment.watch.spare(),
        frozen=experiment.league.frozen(),
    )
    experiment.league.written(place)


def respond_to_collapse(
    experiment: Experiment, run: Run, progress: Progress, figures: Mapping[str, float]
) -> bool:
    """Tell of the watch's alarms and follow them up; True where that goes back in time."""
    watch, step = experiment.watch, experiment.step
    known = {**named(experiment.evaluations_before or {}), **figures}
    for line in watch.unseen(known) if step == 1 else ():
        progress.note(line)
    alarms = watch.alarms()
    for alarm in alarms:
        if alarm.new:
            progress.note(f"step {step}: signs of collapse: {alarm.text}")
    place = watch.respond(step, checkpoints=run.folder / "checkpoints", league=experiment.league)
    if place is None:
        return False
    progress.note(f"step {step}: going back to checkpoint {place.name}, with other seeds")
    roll_back(experiment, run, place, [alarm.text for alarm in alarms])
    return True


def recover(experiment: Experiment, run: Run, progress: Progress, lost: LearnersLost) -> None:
    """Go on with new learners from the newest checkpoint; what came after it is done again."""
    place, faults = checkpoint.latest(run.folder / "checkpoints")
    for fault in faults:
        progress.note(f"checkpoint {fault}; it is not used")
    where = f"checkpoint {place.name}" if place else "the beginning"
    progress.note(f"step {experiment.step + 1}: {lost}; going on from {where}")
    experiment.runtime.restart(lost, place)
    if place is None:  # nothing was learned yet
        save(experiment, run)
        return
    seconds = experiment.seconds_before
    experiment.restore(place)
    experiment.seconds_before = seconds
    run.rewind(experiment.step)


def roll_back(experiment: Experiment, run: Run, place: Path, alarms: Sequence[str]) -> None:
    """Go on from an older checkpoint with other seeds; what was recorded after it is set aside.

    Killed anywhere in here, a run resumes at a later checkpoint and comes here again, or at this
    one.
    """
    number, seconds = experiment.watch.returned + 1, experiment.seconds_before
    why = {"from": experiment.step, "to": int(place.name), "alarms": list(alarms)}
    run.set_aside(int(place.name), number, why)
    experiment.restore(place)
    experiment.watch.returned, experiment.seconds_before = number, seconds
    save(experiment, run)
    checkpoint.drop_after(run.folder / "checkpoints", experiment.step)
    run.rewind(experiment.step)


def check_health(
    experiment: Experiment,
    figures: Mapping[str, float],
    step: int,
    progress: Progress,
    *,
    error: str = "",
) -> None:
    """Stop, with the diagnosis, when metrics fall below the minimum of the config.

    `error` is the most common error of the step's failed episodes; the diagnosis quotes it.
    """
    settings = experiment.settings
    failed = figures[f"episodes/{Status.FAILED}"] / max(figures["episodes/count"], 1)
    if failed > settings.max_failed_fraction:
        raise CollapsedError(
            f"step {step}: {failed:.0%} of the episodes failed (max_failed_fraction is "
            f"{settings.max_failed_fraction:.0%}), {error or 'with no error on record'}; "
            "the newest file in failed/ has all errors"
        )
    for name, least in settings.minimum.items():
        if name not in figures and step == 1:
            progress.note(f"run.minimum: step 1 has no figure {name!r}; {nearest(name, figures)}")
        if name in figures and figures[name] < least:
            raise CollapsedError(
                f"step {step}: {name} fell to {figures[name]:.3f}, below the threshold {least} of "
                f"run.minimum; the policy has collapsed: begin again with a lower learning rate or "
                "a KL term (policy.model=RUN/checkpoints/STEP/policies/NAME goes on from there)"
            )


def named(evaluations: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The figures of evaluations as `evaluation/<name>/<metric>`."""
    return {
        f"evaluation/{name}/{metric}": value
        for name, found in evaluations.items()
        for metric, value in found.items()
    }


def prefixed(prefix: str, figures: Mapping[str, float]) -> dict[str, float]:
    """The figures under a path."""
    return {f"{prefix}/{name}": value for name, value in figures.items()}
