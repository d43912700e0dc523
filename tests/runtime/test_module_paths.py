"""Tests of the folders in which actors of Ray search for modules."""

import subprocess
import sys
from pathlib import Path

import pytest

from selfplay.runtime.cluster import environment

pytest.importorskip("ray")

SCRIPT = """
from selfplay.runtime.cluster import RayCluster

class Importer:
    def found(self, name):
        import importlib, os, sys
        return importlib.import_module(name).__file__, os.getcwd() in sys.path

cluster = RayCluster(address=None, cpus=1, timeout=60)
cluster.reserve([{"CPU": 1}])
actor = cluster.actor(Importer, bundle=0, resources={"CPU": 1})
for name in ("arenas", "own_module"):
    print(*cluster.get(actor.found.remote(name), "a name"))
cluster.close()
"""


def test_actors_do_not_search_the_current_folder_unless_the_driver_does(tmp_path: Path) -> None:
    downloads, own = tmp_path / "downloads", tmp_path / "own"
    for folder, name in ((downloads, "arenas"), (own, "own_module")):
        folder.mkdir()
        (folder / f"{name}.py").write_text("")
    (own / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(own / "script.py")]
    completed = subprocess.run(command, cwd=downloads, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    arenas, own_module = (line.split() for line in completed.stdout.splitlines())
    assert not Path(arenas[0]).is_relative_to(tmp_path) and arenas[1] == "False"
    assert own_module == [str(own / "own_module.py"), "False"]


def test_the_entry_of_an_editable_installation_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = "__editable__.selfplay-0.2.0.finder.__path_hook__"
    monkeypatch.setattr(sys, "path", [str(tmp_path / "own"), entry])
    assert environment()["PYTHONPATH"] == str(tmp_path / "own")
