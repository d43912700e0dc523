"""Tests of arguments of credit methods and samplers that are not in the config."""

from selfplay.config import compose
from selfplay.credit.by_role import ByRole
from selfplay.credit.learning_progress import LearningProgress
from selfplay.credit.magrpo import MAGRPO
from selfplay.experiment.experiment import Experiment
from selfplay.sampler.dynamic import Dynamic
from selfplay.sampler.resample import Resample

PHASES = "population.phases=[{learn: [solver], steps: 2}, {learn: [proposer], steps: 1}]"


def made(*overrides: str) -> Experiment:
    """Return the experiment of these settings, closed."""
    experiment = Experiment(compose.load(list(overrides)))
    experiment.close()
    return experiment


def test_the_dynamic_sampler_compares_as_the_credit_does() -> None:
    experiment = made("+experiment=tiny/collaboration", "algorithm=magrpo", "sampler=dynamic")
    assert isinstance(experiment.credit, MAGRPO) and isinstance(experiment.sampler, Dynamic)
    assert experiment.sampler.credit is experiment.credit


def test_resampling_knows_the_roles_with_tools() -> None:
    (without, with_tools) = (
        made("+experiment=tiny/collaboration", "sampler=resample"),
        made("+experiment=tiny/tools", "sampler=resample"),
    )
    assert isinstance(without.sampler, Resample) and not without.sampler.tool_roles
    assert isinstance(with_tools.sampler, Resample)
    assert with_tools.sampler.tool_roles == {
        name for name, role in with_tools.players.roles.items() if role.tools
    }
    assert with_tools.sampler.tool_roles


def test_learning_progress_knows_the_phases_of_the_policies() -> None:
    progress = "{_target_: selfplay.credit.learning_progress.LearningProgress}"
    experiment = made(
        "+experiment=tiny/quickstart",
        "credit=by_role",
        f"+credit.methods.proposer={progress}",
        "population=separate",
        PHASES,
    )
    assert isinstance(experiment.credit, ByRole)
    method = experiment.credit.methods["proposer"]
    assert isinstance(method, LearningProgress) and method.waiting.learns
    learns = [method.waiting.learns("proposer", step) for step in range(1, 7)]
    assert learns == [False, False, True, False, False, True]
