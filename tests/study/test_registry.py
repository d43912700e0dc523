"""The registry: each measure declares itself in one module, and no measure loads torch."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

from selfplay.study import measures as package
from selfplay.study.registry import comparable, measures

NAMES = (
    *("ablate", "behaviour", "compare", "counterfactual", "crossplay", "dynamics", "exploit"),
    *("exploitability", "forgetting", "hacking", "influence", "language", "metrics", "passk"),
    *("payoffs", "reciprocity", "roleswap", "tasktypes", "transfer"),
)


def test_every_declaration_is_found() -> None:
    modules = [
        import_module(f"{package.__name__}.{m.name}") for m in iter_modules(package.__path__)
    ]
    declared = [module.MEASURE for module in modules if hasattr(module, "MEASURE")]
    assert len({measure.name for measure in declared}) == len(declared), "a name is used twice"
    assert tuple(measures()) == NAMES
    assert set(measures().values()) == set(declared)
    for measure in declared:
        options = [option.name for option in measure.options]
        assert len(options) == len(set(options)), f"{measure.name} has an option twice"


def test_measures_of_one_run_are_comparable() -> None:
    several = {"compare", "crossplay", "payoffs", "tasktypes", "transfer"}
    tables = {"behaviour", "language"}  # of one run, but their results are tables over the steps
    assert set(NAMES) - set(comparable()) == several | tables


def test_the_help_of_studies_loads_no_torch() -> None:
    code = (
        "import sys; from selfplay.cli.main import _parser; _parser(['study']);"
        "assert 'selfplay.study.measures.payoffs' in sys.modules;"
        "assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
