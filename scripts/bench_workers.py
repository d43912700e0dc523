"""Measures the cost of a turn on 8 Ray workers and on one, and the memory of 10,000 live games.

Scripted players play hands of Kuhn poker, so that only this library's work is measured: templates,
parsing, the arena, and sending specs to workers and episodes back. The cost of a turn is CPU time
of driver and workers together, and does not depend on how many cores there are; the wall clock of
the same rounds is shown too.

Usage: python scripts/bench_workers.py [--hands 8000] [--rounds 5] [--json FILE]
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_timing import Line, arguments, compared, show

from arenas.games.kuhn import Kuhn
from selfplay.config.compose import load
from selfplay.engines.transformers import TransformersEngine
from selfplay.learner.objective import PolicyLoss
from selfplay.models.tiny import build_model, build_tokenizer
from selfplay.rollout.episode_runner import EpisodeSpec
from selfplay.rollout.setup import RolloutSetup
from selfplay.runtime.cluster import require_ray
from selfplay.runtime.ray import RayRuntime
from selfplay.types import Action, Task

FEW, MANY = 1, 8
DEARER = 1.3
"""Largest allowed cost of a turn on many workers, relative to one worker."""
LIVE, MOST = 10_000, 2.0
"""Games at once, and GB that one process may take for them."""
SCRIPT = {
    "_target_": "selfplay.engines.scripted.Scripted",
    "script": "arenas.games.opponents.random_legal",
}


class Hand(Kuhn):
    """A hand that records the process in which it was played."""

    def advance(self, actions: Mapping[str, Action | None]) -> None:
        super().advance(actions)
        self.measure(process=os.getpid())


def settings(model: Path) -> dict[str, Any]:
    """Return the config of Kuhn poker in which a script plays all seats; the required policy does
    not play."""
    tokenizer = build_tokenizer(["pass", "bet"])
    sizes = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "positions": 64}
    build_model(len(tokenizer), seed=0, **sizes).save_pretrained(model)
    tokenizer.save_pretrained(model)
    config = load(["+experiment=tiny/kuhn", "evaluations=none", "run.threads=1"])
    population = {
        **config["population"],
        "policy": {"model": str(model)},
        "opponents": {"script": SCRIPT},
        "roles": {"player": "script"},
        "extra_policies": ["onlooker"],
    }
    rollout = {**config["rollout"], "max_live": LIVE}
    arena = {**config["arena"], "_target_": "bench_workers.Hand"}
    return {**config, "population": population, "rollout": rollout, "arena": arena}


def hands(count: int, first: int = 0) -> list[EpisodeSpec]:
    return [EpisodeSpec(task=Task(id="hand"), seed=first + hand) for hand in range(count)]


class Crew:
    """Some workers, and the costs of their rounds."""

    def __init__(self, config: dict[str, Any], workers: int) -> None:
        self.players = RolloutSetup(config)
        self.runtime = RayRuntime(workers=workers, worker_cpus=0.01)
        engine = self.runtime.engine(self.players)
        self.players.load(engine)
        self.runtime.trainers(self.players, PolicyLoss())
        self.play = self.runtime.rollout_fn(self.players)
        episodes = self.play(hands(workers * 8))
        self.processes = {os.getpid(), *(int(each.metrics["process"]) for each in episodes)}
        assert len(self.processes) == workers + 1
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def round(self, specs: list[EpisodeSpec]) -> None:
        cpu, wall = sum(map(spent, self.processes)), time.perf_counter()
        episodes = self.play(specs)
        turns = sum(len(episode.turns) for episode in episodes)
        self.wall.append((time.perf_counter() - wall) / turns * 1e3)
        self.cpu.append((sum(map(spent, self.processes)) - cpu) / turns * 1e3)

    def close(self) -> None:
        self.runtime.close()
        self.players.close()


def spent(process: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def live(model: Path) -> None:
    """Play many hands at once in this process, and print the most memory that it took, in GB."""
    players = RolloutSetup(settings(model))
    players.load(TransformersEngine())
    players.rollout.run(hands(LIVE))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--hands", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--live", type=Path, help=SUPPRESS)
    options = parser.parse_args()
    if options.live:
        live(options.live)
        return
    ray = require_ray()
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder))
        crews = [Crew(config, FEW), Crew(config, MANY)]
        for number in range(options.rounds):
            for crew in crews if number % 2 else crews[::-1]:
                crew.round(hands(options.hands, first=number * options.hands))
        for crew in crews:
            crew.close()
        ray.shutdown()
        command = [sys.executable, __file__, "--live", folder]
        peak = float(subprocess.run(command, check=True, capture_output=True).stdout.split()[-1])
    few, many = crews
    what = f"a turn, Kuhn, scripted, on {MANY} workers compared with {FEW}"
    cpu = compared(f"{what}: CPU", many.cpu, few.cpu, target=1 / DEARER)
    wall = compared(f"{what}: wall clock", many.wall, few.wall)
    memory = Line(
        what=f"{LIVE:,} games at once in one process",
        ours=peak,
        unit="GB",
        other=MOST,
        ratio=MOST / peak,
        low=MOST / peak,
        high=MOST / peak,
        target=1.0,
    )
    show([replace(cpu, unit="ms"), replace(wall, unit="ms"), memory], options.json)


if __name__ == "__main__":
    main()
