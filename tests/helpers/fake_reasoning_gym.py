"""A stand-in for the package reasoning_gym, with the part of its interface that the library uses.

`install` writes it below a folder called site-packages, because the sandbox imports packages from
there. Its verifiers behave like some of the real ones: one evaluates the answer as Python.
"""

from pathlib import Path

import pytest

FACTORY = '''
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace


@dataclass
class Style:
    mark: str = "?"


@dataclass
class Config:
    largest: int = 50
    style: Style = field(default_factory=Style)
    seed: int = 0
    size: int = 10


class Sums:
    def __init__(self, config):
        self.config = config
        self.loaded = True

    def __getitem__(self, index):
        rng = Random(self.config.seed + index)
        a, b = rng.randint(0, self.config.largest), rng.randint(0, self.config.largest)
        metadata = {"source_index": index, "terms": (a, b), "largest": {1: self.config.largest}}
        question = f"{a} + {b}{self.config.style.mark}"
        return {"question": question, "answer": str(a + b), "metadata": metadata}

    def score_answer(self, answer, entry):
        terms = entry["metadata"]["terms"]
        assert isinstance(terms, tuple) and entry["metadata"]["largest"][1] > 0
        assert self.config.style.mark == "?"
        return 1.0 if answer == str(sum(terms)) else 0.25


class Evaluated(Sums):
    def score_answer(self, answer, entry):
        return float(eval(answer) == int(entry["answer"]))


class Loaded(Sums):
    def score_answer(self, answer, entry):
        try:
            return 1.0 if self.loaded and answer == entry["answer"] else 0.0
        except:
            return 0.5


class Pair(Sums):
    """Has two questions at most."""

    def __getitem__(self, index):
        question = f"pair {Random(self.config.seed + index).randint(0, 1)}"
        return {"question": question, "answer": None, "metadata": {}}


class Curriculum:
    LARGEST = [3000, 5000, 9000]

    def __init__(self):
        self.attributes = {"largest": SimpleNamespace(levels=self.LARGEST)}

    def set_global_level(self, level):
        self.chosen = level

    def generate_configuration(self):
        return Config(largest=self.LARGEST[self.chosen])


DATASETS = {
    "sums": (Sums, Config),
    "evaluated": (Evaluated, Config),
    "loaded": (Loaded, Config),
    "pair": (Pair, Config),
    "composite": (Sums, Config),
}
CURRICULA = {"sums": Curriculum}


def create_curriculum(name):
    return CURRICULA[name]()
'''


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "0.1.25") -> None:
    """Put the package into `folder` and at the front of the search path, in place of a real one."""
    site = folder / "site-packages"
    package = site / "reasoning_gym"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "factory.py").write_text(FACTORY)
    metadata = site / f"reasoning_gym-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: reasoning-gym\nVersion: {version}\n"
    )
    monkeypatch.syspath_prepend(str(site))
