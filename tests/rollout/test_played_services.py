"""Tests of models of services: they are loaded only if something that is played names them."""

from pathlib import Path
from typing import Any

import pytest

from arenas.games.kuhn import Illegal, Kuhn
from selfplay.cli.main import main
from selfplay.config.instantiate import services_named
from selfplay.rollout.setup import Components
from tests.helpers.fault_injection import settings

pytestmark = pytest.mark.usefixtures("without_charts")


class Heavy:
    """A service whose model cannot be loaded while the file `mark` exists."""

    def __init__(self, *, mark: str) -> None:
        self.mark, self.loaded = Path(mark), 0

    def load_weights(self) -> None:
        if self.mark.exists():
            raise ValueError("the model cannot be loaded")
        self.loaded += 1


class HeavyKuhn(Kuhn):
    """A game that uses the service `heavy`."""

    services = ("heavy",)

    def __init__(self, *, heavy: Heavy | None = None, illegal: Illegal = "forfeit") -> None:
        super().__init__(illegal=illegal)
        self.heavy = heavy


class Uses:
    """A component that has a parameter with the name of a service."""

    def __init__(self, *, heavy: Heavy | None = None, other: object = None) -> None:
        self.heavy, self.other = heavy, other


def node(cls: type, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{cls.__name__}", **arguments}


def test_evaluations_and_studies_load_no_model_that_only_training_uses(tmp_path: Path) -> None:
    mark, run = tmp_path / "mark", tmp_path / "r"
    words = (
        *("+experiment=tiny/kuhn", "warmstart.steps=2", "sampler.group_size=4", "run.threads=1"),
        "warmstart.model={hidden: 16, layers: 1, heads: 2, intermediate: 32}",
        f"+services.heavy={{_target_: {__name__}.Heavy, mark: {mark}}}",
        f"arena._target_={__name__}.HeavyKuhn",
        f"warmstart.demonstrations.arena={{_target_: {__name__}.HeavyKuhn}}",
        "evaluations.hands.arena={_target_: arenas.games.kuhn.Kuhn, illegal: pass}",
        *("run.steps=1", f"run.folder={tmp_path}", "run.name=r"),
    )
    assert main(["train", *words]) == 0
    mark.touch()
    trust = ("--trust", "tests")
    assert main(["evaluate", str(run), *trust]) == 0
    assert main(["study", "crossplay", f"{run}@0", f"{run}@1", "--episodes=2", *trust]) == 0
    with pytest.raises(ValueError, match="the model cannot be loaded"):  # training plays its arena
        main(["train", f"resume={run}", "run.steps=2", *trust])


@pytest.mark.parametrize(("unplayed", "loaded"), [(("evaluations",), 0), (("arena",), 1), ((), 1)])
def test_a_model_is_loaded_if_something_played_names_it(
    tmp_path: Path, unplayed: tuple[str, ...], loaded: int
) -> None:
    config = settings(tmp_path / "model", tmp_path / "nothing")
    config["services"]["heavy"] = node(Heavy, mark=str(tmp_path / "mark"))
    config["evaluations"] = {"x": {"arena": node(HeavyKuhn)}}
    made = Components(config, unplayed=unplayed)
    made.load_services()
    assert made.services["heavy"].loaded == loaded


def test_services_are_named_by_parameters_by_text_and_by_other_services() -> None:
    services = {"heavy": node(Heavy), "last": node(Uses), "alone": node(Uses, heavy=None)}
    assert services_named({"x": [node(HeavyKuhn)]}, services) == {"heavy"}
    assert services_named({"x": node(Uses, heavy=None, other="services.last")}, services) == {
        "last",
        "heavy",
    }
    assert services_named({"x": node(Uses, heavy=None, other="services.new")}, services) == set()
