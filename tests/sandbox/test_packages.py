"""Tests of packages that programs may import: these are visible and read-only, others hidden."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfplay.errors import ConfigError
from selfplay.sandbox import Executor, FailureReason
from selfplay.sandbox.process import IsolationError
from tests.helpers.sandbox_attacks import isolated, run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder of packages: a named one, one that it imports, and another one."""
    folder = tmp_path_factory.mktemp("python") / "site-packages"
    for name in ("named_package", "loaded_package", "other_package"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"HERE = __file__\nNAME = {name!r}\n")
        (folder / name / "data.txt").write_text(f"data of {name}")
    with (folder / "named_package/__init__.py").open("a") as file:
        file.write("import loaded_package\n")
    (folder / "named_package/later.py").write_text("VALUE = 7\n")
    return folder


@pytest.fixture(scope="module")
def executor(site: Path) -> Iterator[Executor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        limits = {"wall_seconds": 20.0, "cpu_seconds": 5.0}
        with isolated(workers=1, packages=["named_package"], **limits) as pool:
            yield pool


def read(name: str) -> str:
    return (
        "import os\n"
        "def f():\n"
        "    import named_package\n"
        "    home = os.path.dirname(os.path.dirname(named_package.HERE))\n"
        f"    return open(os.path.join(home, {name!r})).read()\n"
    )


def test_a_named_package_and_its_files_can_be_used(executor: Executor) -> None:
    whole = "def f():\n    import named_package\n    return named_package.NAME"
    assert run(executor, whole).value == "'named_package'"
    later = "def f():\n    from named_package.later import VALUE\n    return VALUE"
    assert run(executor, later).value == "7"
    assert run(executor, read("named_package/data.txt")).value == "'data of named_package'"
    assert run(executor, read("loaded_package/data.txt")).value == "'data of loaded_package'"


def test_no_other_package_is_there(executor: Executor) -> None:
    assert not run(executor, read("other_package/data.txt")).ok
    assert not run(executor, "def f():\n    import other_package").ok
    assert not run(executor, "def f():\n    import numpy").ok
    assert not run(executor, "def f():\n    return open('/etc/passwd').read()").ok


def test_files_of_a_package_cannot_be_written(executor: Executor, site: Path) -> None:
    program = read("named_package/data.txt").replace(")).read()", "), 'w').write('x')")
    assert run(executor, program).reason is FailureReason.FORBIDDEN
    assert (site / "named_package/data.txt").read_text() == "data of named_package"


@pytest.fixture
def folder(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder on the import path, with packages that are nowhere else and with one that
    has the name of an installed package."""
    for name in ("pathed_package", "pathed_dependency", "pathed_other", "loaded_package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"HERE = __file__\nNAME = {name!r}\n")
        (tmp_path / name / "data.txt").write_text(f"data of {name} in the folder")
    with (tmp_path / "pathed_package/__init__.py").open("a") as file:
        file.write("import pathed_dependency, loaded_package\n")
    (tmp_path / "no_package").mkdir()
    (tmp_path / "no_package/data.txt").write_text("a secret")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_package_in_another_folder_of_the_path_can_be_used(
    executor: Executor, folder: Path
) -> None:
    """The fixture `executor` skips the test if the kernel cannot isolate processes."""
    with Executor(workers=1, packages=["pathed_package"], wall_seconds=20.0) as pool:

        def data(name: str) -> str | None:
            program = read(f"{name}/data.txt").replace("named_package", "pathed_package")
            return run(pool, program).value

        assert data("pathed_package") == "'data of pathed_package in the folder'"
        assert data("pathed_dependency") == "'data of pathed_dependency in the folder'"
        assert data("loaded_package") == "'data of loaded_package in the folder'"  # first on path
        assert data("pathed_other") is None and data("no_package") is None
        assert not run(pool, "def f():\n    import pathed_other").ok


def test_a_folder_that_is_no_package_stays_hidden(executor: Executor, folder: Path) -> None:
    assert "no_package" in os.listdir(folder)
    with (
        pytest.raises(IsolationError, match="No module named 'no_package'"),
        Executor(workers=1, packages=["no_package"], wall_seconds=20.0) as pool,
    ):
        run(pool, "def f():\n    return 0")


def test_an_executor_without_packages_has_none(site: Path) -> None:
    with isolated(workers=1, wall_seconds=20.0, cpu_seconds=5.0) as pool:
        assert not run(pool, "def f():\n    import named_package").ok


@pytest.mark.parametrize("name", ["no_such_package", "os.path", "../x", ""])
def test_a_package_that_is_not_installed_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"executor\.packages: no package"):
        Executor(packages=[name])
