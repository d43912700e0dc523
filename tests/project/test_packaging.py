"""Tests that a clone, an editable install and a wheel behave alike, from any folder."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.repository import ROOT

PACKAGES = ("selfplay", "roles", "arenas", "configs")
OFFLINE = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed")

pytestmark = pytest.mark.slow


def run(*command: str | Path, **settings: Path | dict[str, str]) -> str:
    """Return the standard output of a command that must succeed."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False, **settings)  # type: ignore[call-overload]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return str(ran.stdout)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the packages of the repository, because a build leaves files in its folder."""
    copy = tmp_path_factory.mktemp("source") / "clone"
    for package in PACKAGES:
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / package, ignore=unwanted)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy / file)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library's wheel."""
    folder, clone = tmp_path_factory.mktemp("wheel"), source.with_name("built")
    shutil.copytree(source, clone)
    options = [option for option in OFFLINE if option != "--ignore-installed"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, clone)
    (built,) = folder.glob("selfplay-*.whl")
    return built


class Installation(NamedTuple):
    """An environment that has the library from a clone, an editable install or a wheel."""

    environment: Path
    home: Path
    variables: dict[str, str]

    def python(self, cwd: Path, *arguments: str) -> str:
        """Run the environment's Python in another folder."""
        return run(self.environment / "bin" / "python", *arguments, cwd=cwd, env=self.variables)


@pytest.fixture(scope="module", params=["clone", "editable", "wheel"])
def installation(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """Make an environment with the installed dependencies and without an installed selfplay.

    Python reads no .pth files in a folder that a .pth file names, so an editable install of this
    clone among the dependencies has no effect.
    """
    environment = tmp_path_factory.mktemp(request.param) / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    (site,) = environment.glob("lib/python3.*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    home = site
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install")
    if request.param == "clone":
        home, variables["PYTHONPATH"] = source, str(source)
    elif request.param == "editable":
        home = source
        run(*pip, *OFFLINE, "--editable", source, env=variables)
    else:
        run(*pip, *OFFLINE, request.getfixturevalue("wheel"), env=variables)
    return Installation(environment, home, variables)


def test_the_packages_import_from_any_folder(installation: Installation, tmp_path: Path) -> None:
    names = ", ".join(PACKAGES)
    code = f"import json, {names}; print(json.dumps([m.__file__ for m in ({names},)]))"
    files = json.loads(installation.python(tmp_path, "-c", code))
    assert [Path(file).parent for file in files] == [installation.home / name for name in PACKAGES]


@pytest.mark.parametrize(("arguments", "word"), [("--help", "train"), ("list", "quickstart")])
def test_the_command_line_works_from_any_folder(
    installation: Installation, tmp_path: Path, arguments: str, word: str
) -> None:
    assert word in installation.python(tmp_path, "-m", "selfplay", arguments)
    assert not list(tmp_path.iterdir()), "a command that only prints has left files"


def test_the_console_script_is_installed(installation: Installation, tmp_path: Path) -> None:
    if "PYTHONPATH" in installation.variables:
        return  # a clone that is not installed has no script, only `python -m selfplay`
    assert "train" in run(installation.environment / "bin" / "selfplay", "--help", cwd=tmp_path)


def test_the_wheel_holds_every_file_and_nothing_else(source: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    paths = (path for package in PACKAGES for path in (source / package).rglob("*"))
    files = {str(path.relative_to(source)) for path in paths if path.is_file()}
    assert any(name.startswith("configs/") and name.endswith(".yaml") for name in files)
    assert packed == files, f"missing {files - packed}, in excess {packed - files}"
