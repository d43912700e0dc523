"""The training loop."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from pathlib import Path

from selfplay.config.garbage import present_objects_kept
from selfplay.credit import missing_signals
from selfplay.credit.assigned import assigned, measured, saved
from selfplay.curriculum.checked_calls import is_ready
from selfplay.curriculum.gathering import check_gathering, gathering_phase
from selfplay.errors import CollapsedError, LearnersLost, NothingToLearn, nearest, one_line
from selfplay.experiment.experiment import Experiment
from selfplay.learner import checkpoint
from selfplay.learner.checkpoint_writer import CheckpointWriter
from selfplay.rollout.schedule import sampled_at
from selfplay.run import metrics, signals
from selfplay.run.activity import ACTIVITY
from selfplay.run.declarations import write_declared
from selfplay.run.directory import Run, reporting_disk
from selfplay.run.metrics import StepTimer
from selfplay.run.progress import Progress
from selfplay.run.run_folder import CHECKPOINTS
from selfplay.sampler.checked_calls import groups_of, played_of
from selfplay.types import Group, Sample, Status


class Trainer:
    """Trains an experiment and writes its run folder.

    The command `train` makes one and calls `run`. The objects of the run (policies, learners,
    sampler, credit, league) belong to the experiment; this class only determines the order in which
    they work.
    """

    def __init__(self, experiment: Experiment, run: Run, progress: Progress) -> None:
        """Args:
        experiment: The objects of the run, new or restored from a checkpoint.
        run: The run folder.
        progress: Shows steps, evaluations and notes to the user.
        """
        self.experiment, self.run_folder, self.progress = experiment, run, progress
        self.zero_advantages = missing_signals.ZeroAdvantages(experiment.credit)
        self.unpaid_policies = missing_signals.UnpaidPolicies(experiment.credit)
        self.unfinished = missing_signals.Unfinished()
        self.too_long_prompts = missing_signals.TooLongPrompts()

    @cached_property
    def writer(self) -> CheckpointWriter:
        """Writer of the run's checkpoints."""
        background = self.experiment.settings.async_checkpoints
        return CheckpointWriter(self.checkpoints, background=background)

    def run(self) -> None:
        """Train from the experiment's current step to the configured number of steps.

        When the method returns, or raises an error, no write of a checkpoint is in progress.
        Raises RunEnded if the run ends because its policies collapsed or have nothing to learn.
        """
        try:
            with present_objects_kept():
                self._train()
        except BaseException:
            self._finish_checkpoint()
            raise

    def _train(self) -> None:
        self._announce()
        experiment, lost = self.experiment, None
        while True:
            try:
                if lost:
                    self.recover(lost)
                    lost = None
                elif experiment.evaluations_before is None:
                    self.initialize()
                elif experiment.step < self.steps:
                    self.step()
                else:
                    self.writer.wait()  # ranks may be lost before the last checkpoint is whole
                    return
            except LearnersLost as error:
                lost = error

    def _finish_checkpoint(self) -> None:
        """Let the write in progress end after an error, and report an error of its own."""
        try:
            self.writer.wait()
        except Exception as error:  # the first error ends the run
            self.progress.note(f"checkpoint: {one_line(error)}")

    @property
    def steps(self) -> int:
        """Configured number of training steps."""
        return self.experiment.settings.steps

    def initialize(self) -> None:
        """Do step 0: fill the curriculum, evaluate, and write the first checkpoint."""
        experiment, clock = self.experiment, StepTimer()
        with clock("gather"):
            self.fill_curriculum()
        row = experiment.outcomes.complete(experiment.drain_service_metrics())
        with clock("evaluation"):
            evaluations, episodes = self.evaluate("before")
        experiment.drain_service_metrics()  # the evaluation is not part of step 1
        experiment.evaluations_before = evaluations
        if not self.steps:
            experiment.evaluations_after = evaluations
        experiment.collapse.observe(0, evaluation_row(evaluations))
        row = {**row, **evaluation_row(evaluations), **clock.metrics()}
        self.run_folder.record(0, row, [], [], evaluated=episodes)
        self.save()
        self.writer.wait()  # so that lost learners of step 1 always find a checkpoint

    def step(self) -> None:
        """Do one step: sample, credit, learn, publish, evaluate, record, and save if it is due."""
        signals.check()
        self.writer.check()
        experiment, clock = self.experiment, StepTimer()
        step = experiment.step + 1
        experiment.begin_step(step)
        with clock("rollout"):
            batch = experiment.batches.take(step)
        with clock("credit"):
            # `played` also has the groups that the sampler dropped because they had no signal.
            groups, played = experiment.shaping.apply(batch.groups, batch.played)
            samples = assigned(experiment.credit, groups)
            if step == 1:  # a state that no checkpoint can hold is found before the first is due
                saved(experiment.credit)
        row = metrics.of_episodes(episode for group in played for episode in group.episodes)
        row |= prefixed("limit", experiment.limits(step))
        row |= prefixed("credit", measured(experiment.credit))
        learning = experiment.learning(step)  # a phase may leave out policies
        learned = [sample for sample in samples if sample.turn.policy in learning]
        row["credit/zero_advantages"] = missing_signals.zero_fraction(learned)
        self._note_missing_signals(step, played=played, groups=groups, samples=learned)
        with clock("learn"):
            experiment.rest_engine()
            row |= self._learn(step, samples)
        row |= batch.metrics
        if experiment.league is not None:
            row |= prefixed("league", experiment.league.end_step())
        # A prefetched step may begin now, after the league has counted this step: its matches
        # depend on that.
        experiment.batches.learned(step)
        row |= experiment.drain_service_metrics()
        row = experiment.outcomes.complete(row)
        experiment.step = step
        with clock("evaluation"):
            evaluated_row, evaluated = self.evaluate_due(step)
            row |= evaluated_row
        row |= experiment.collapse.observe(step, row)
        with clock("record"):
            whole = experiment.settings.keeps_episodes(step)
            timed_row = {**row, **clock.metrics()}
            self.run_folder.record(
                step, timed_row, played, samples, whole=whole, evaluated=evaluated
            )
        self.progress.step({"step": step, **row, **clock.metrics()})
        error = metrics.commonest_error(episode for group in played for episode in group.episodes)
        self.check_health(row, step, error=error)
        rolled_back = self.respond_to_collapse(row)
        if experiment.settings.keeps_checkpoint(step) and not rolled_back:
            self.save()

    def evaluate(
        self, when: str, names: Collection[str] | None = None
    ) -> tuple[dict[str, dict[str, float]], list[Group]]:
        """Run all evaluations, or those of `names`.

        Args:
            when: Time of the evaluation, as lines for the user name it: before, now or after.
            names: Names of the evaluations to run; all if None.
        Returns:
            The metrics by evaluation and metric, and one group of episodes per evaluation.
        """
        experiment, progress = self.experiment, self.progress
        results, groups = {}, []
        for name in experiment.evaluations if names is None else names:
            evaluation, rollout_fn = experiment.evaluations[name]
            progress.phase(f"evaluating {name}")
            with experiment.batches.paused():  # the evaluation uses the same services
                results[name], episodes = evaluation.run(name, rollout_fn, seed=experiment.seed)
            groups.append(Group(id=f"evaluation/{name}", episodes=tuple(episodes)))
            if when == "before":
                for line in evaluation.notes(name, episodes):
                    progress.note(line)
            progress.evaluation(name, when, results[name])
        if groups:  # without an evaluation, the counts are of games that are sampled ahead
            experiment.players.drain_counts()  # the evaluation is not part of a step
        return results, groups

    def evaluate_due(self, step: int) -> tuple[dict[str, float], list[Group]]:
        """Run the evaluations that are due at this step (all at the last step).

        Returns their metrics for metrics.jsonl and one group of episodes per evaluation.
        """
        experiment = self.experiment
        if step == self.steps:
            results, groups = self.evaluate("after")
            experiment.evaluations_after = results
            return evaluation_row(results), groups
        due = [
            name
            for name, (evaluation, _) in experiment.evaluations.items()
            if evaluation.every and step % evaluation.every == 0
        ]
        results, groups = self.evaluate("now", due)
        return evaluation_row(results), groups

    def save(self) -> None:
        """Write a checkpoint, or begin to write it once the write of the previous one has ended."""
        experiment, league = self.experiment, self.experiment.league
        path = self.writer.save(
            step=experiment.step,
            policies=experiment.policies,
            learners=experiment.trained(),
            state=experiment.state_dict(),
            keep=experiment.settings.keep_checkpoints,
            spare=experiment.collapse.spare(),
            frozen={} if league is None else league.frozen(),
        )
        if league is not None:
            league.written(path)

    def rollback(self, path: Path, alarms: Sequence[str]) -> None:
        """Continue from the older checkpoint `path` with other seeds.

        The record of the later steps moves to `rolled_back/`, with the texts of `alarms` as the
        reason. If the run is killed during the rollback, it resumes either from this checkpoint or
        from a later one; in the second case it rolls back again.
        """
        self.writer.wait()
        experiment, run = self.experiment, self.run_folder
        number = experiment.collapse.rollbacks + 1
        why = {"from": experiment.step, "to": int(path.name), "alarms": list(alarms)}
        run.set_aside(int(path.name), number, why)
        experiment.restore(path)
        experiment.collapse.rollbacks = number
        self.save()
        self.writer.wait()
        checkpoint.drop_after(self.checkpoints, experiment.step)
        run.rewind(experiment.step)

    def recover(self, lost: LearnersLost) -> None:
        """Start new learners and continue from the newest checkpoint; repeat the later steps."""
        with suppress(LearnersLost):  # the ranks that are lost may also have been writing
            self.writer.wait()
        experiment, progress = self.experiment, self.progress
        path, faults = checkpoint.latest(self.checkpoints)
        for fault in faults:
            progress.note(f"checkpoint {fault}; it is not used")
        where = f"checkpoint {path.name}" if path else "the beginning"
        step = min(experiment.step + 1, self.steps)
        progress.note(f"step {step}: {lost}; going on from {where}")
        experiment.runtime.restart(lost, path)
        if path is None:  # no step was learned yet
            self.save()
        else:
            experiment.restore(path)
            self.run_folder.rewind(experiment.step)
        experiment.drain_service_metrics()  # the lost attempt is not part of its repetition

    def respond_to_collapse(self, row: Mapping[str, float]) -> bool:
        """Report collapse alarms and apply the configured response; return True after a rollback.

        Raises CollapsedError if the response is to end the run.
        """
        experiment, progress = self.experiment, self.progress
        monitor, step = experiment.collapse, experiment.step
        known = {**evaluation_row(experiment.evaluations_before or {}), **row}
        if step == 1:
            for line in monitor.unseen(known):
                progress.note(line)
        alarms = monitor.alarms()
        for alarm in alarms:
            if alarm.new:
                progress.note(f"step {step}: signs of collapse: {alarm.text}")
        path = monitor.respond(step, checkpoints=self.checkpoints, league=experiment.league)
        if path is None:
            return False
        progress.note(f"step {step}: going back to checkpoint {path.name}, with other seeds")
        self.rollback(path, [alarm.text for alarm in alarms])
        return True

    def check_health(self, row: Mapping[str, float], step: int, *, error: str = "") -> None:
        """Raise an error that ends the run if its metrics show that it cannot go on.

        Args:
            row: The metrics of the step.
            step: Number of the step.
            error: The most common error of the step's failed episodes, quoted in the diagnosis.
        Raises:
            NothingToLearn: If too many episodes failed.
            CollapsedError: If a metric is below its minimum.
        """
        settings = self.experiment.settings
        if fault := self._failures(row, error):
            raise NothingToLearn(f"step {step}: {fault}; the newest file in failed/ has all errors")
        for name, least in settings.minimum.items():
            if name not in row and step == 1:
                self.progress.note(
                    f"run.minimum: step 1 has no metric {name!r}; {nearest(name, row)}"
                )
            if name in row and row[name] < least:
                raise CollapsedError(
                    f"step {step}: {name} fell to {row[name]:.3f}, below the threshold {least} of "
                    f"run.minimum; the policy has collapsed: begin again with a lower learning "
                    "rate or a KL term (to start from a checkpoint: policy.model="
                    "RUN/checkpoints/STEP/policies/NAME)"
                )

    def _failures(self, row: Mapping[str, float], error: str) -> str:
        """Return a diagnosis if more than `max_failed_fraction` of the episodes failed; else ""."""
        failed = row[f"episodes/{Status.FAILED}"] / max(row["episodes/count"], 1)
        limit = self.experiment.settings.max_failed_fraction
        if failed <= limit:
            return ""
        return (
            f"{failed:.0%} of the episodes failed (max_failed_fraction is {limit:.0%}), "
            f"{error or 'with no error on record'}"
        )

    def fill_curriculum(self) -> None:
        """Play rounds without updates (steps -1, -2, ...) until the curriculum has its tasks.

        Raises NothingToLearn if too many episodes of a round failed, and ConfigError if the
        curriculum does not get ready (`check_gathering`).
        """
        experiment = self.experiment
        for attempt in count(1):
            if is_ready(experiment.curriculum):
                return
            self.progress.phase(gathering_phase(experiment.curriculum, attempt))
            groups = groups_of(
                experiment.sampler,
                experiment.curriculum,
                sampled_at(experiment.rollout_fn, 0),
                step=-attempt,
                seed=experiment.seed,
            )
            played = [
                episode
                for group in played_of(experiment.sampler, groups)
                for episode in group.episodes
            ]
            error = metrics.commonest_error(played)
            if fault := self._failures(metrics.of_episodes(played), error):
                raise NothingToLearn(f"gathering first tasks, round {attempt}: {fault}")
            check_gathering(experiment.curriculum, attempt)

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.run_folder.folder / CHECKPOINTS

    def _announce(self) -> None:
        """Write the declared metrics and show the notes of runtime, policies and learners."""
        experiment, progress = self.experiment, self.progress
        with reporting_disk(self.run_folder.folder):
            write_declared(self.run_folder.folder, experiment.declared)
        progress.declared = experiment.declared
        for note in (*ACTIVITY.notes, *experiment.runtime.notes):
            progress.note(note)
        renderers = [policy.renderer for policy in experiment.policies.values()]
        for note in dict.fromkeys(line for each in renderers for line in each.notes):
            progress.note(note)
        for name, learner in experiment.learners.items():
            for note in learner.notes:
                progress.note(f"policy {name}: {note}")

    def _learn(self, step: int, samples: Sequence[Sample]) -> dict[str, float]:
        """Update every policy that learns at this step and publish its weights."""
        experiment, row = self.experiment, dict[str, float]()
        learning = experiment.learning(step)
        for name, learner in learning.items():
            own = [sample for sample in samples if sample.turn.policy == name]
            age = metrics.of_staleness(own, version=experiment.policies[name].version)
            updated = learner.update(own, step=step)
            row |= prefixed(f"policy/{name}", {**updated, **age})
            if skipped := updated.get("skipped"):
                self.progress.note(
                    f"step {step}: {skipped:g} optimizer step(s) of policy {name!r} skipped, "
                    "because loss or gradient was not finite (learner.max_skipped)"
                )
            experiment.publish(name)
        sampled = {sample.turn.policy for sample in samples}
        for name in experiment.learners:
            row[f"policy/{name}/learned"] = float(name in learning and name in sampled)
        return row

    def _note_missing_signals(
        self,
        step: int,
        *,
        played: Sequence[Group],
        groups: Sequence[Group],
        samples: Sequence[Sample],
    ) -> None:
        """Print a line if the step has nothing to learn from, or a setting has no effect.

        `samples` are those of the policies that learn at this step.
        """
        experiment = self.experiment
        unread = bool(samples) and getattr(experiment.objective, "advantage", "credit") == "none"
        unpaid = () if unread else self.unpaid_policies.lines(step, groups, samples)
        said = (
            None if unread else self.zero_advantages.line(step, groups, samples),
            *unpaid,
            self.unfinished.line(step, played),
            self.too_long_prompts.line(step, played),
        )
        for line in filter(None, said):
            self.progress.note(line)
        if step == 1:
            parts = {"credit": experiment.credit, "sampler": experiment.sampler}
            unmeasured = missing_signals.unmeasured(parts, played)
            unbranched = missing_signals.unbranched(experiment.sampler, played)
            zero_sum = missing_signals.zero_sum(experiment.sampler, played)
            opposed = missing_signals.opposed_roles(experiment.credit, groups)
            for line in (*unmeasured, *unbranched, *zero_sum, *opposed):
                self.progress.note(line)


def evaluation_row(evaluations: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of evaluations as `evaluation/<name>/<metric>`."""
    return {
        f"evaluation/{name}/{metric}": value
        for name, results in evaluations.items()
        for metric, value in results.items()
    }


def prefixed(prefix: str, row: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics with a prefix in front of their names."""
    return {f"{prefix}/{name}": value for name, value in row.items()}
