"""Measure the CPU time of the viewer's lists of episodes and groups, and the making of their index.

Usage: python scripts/lists_cost.py [--steps 20000] [--episodes 25]
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from starlette.testclient import TestClient

from selfplay.types import Episode, Status, Task, Turn, to_json
from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.index import EpisodeIndex
from selfplay.viewer.server import application

REPEATS = 3
VIEWS = ("north", "south", "east", "west")
WORDS = tuple(f"word{number}" for number in range(200))
PAGES = {
    "newest step": "episodes",
    "a late page": "episodes?page=1900",
    "one step": "episodes?step=7",
    "role and outcome": "episodes?role=sender&outcome=paid",
    "sorted by reward": "episodes?sort=reward&down=1",
    "sorted by a metric, a late page": "episodes?sort=metric/accuracy&page=1900",
    "sorted by reward, frequent word": "episodes?sort=reward&said=say",
    "sorted by reward, rare word": "episodes?sort=reward&said=rare",
    "sorted by reward, one step": "episodes?sort=reward&step=7",
    "frequent word said": "episodes?said=say",
    "rare word said": "episodes?said=rare",
    "groups": "groups",
    "groups by spread": "groups?sort=spread&down=1",
    "groups, frequent word said": "groups?said=say",
    "language": "language",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=25, help="per step, in groups of 5")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "long"
        size = sum(make(run, options.steps, options.episodes))
        cache = Path(folder) / "cache"
        begun = time.process_time()
        index = EpisodeIndex(run, cache / "viewer")
        index.update(float("inf"))
        spent = time.process_time() - begun
        index.close()
        count = options.steps * options.episodes
        bytes_ = sum(path.stat().st_size for path in (cache / "viewer").iterdir())
        print(f"{count:,} episodes, {size / 1e6:,.0f} MB of records")
        print(
            f"index: {spent:.0f} s of CPU, {count / spent:,.0f} episodes/s, {bytes_ / 1e6:,.0f} MB"
        )
        made = application(RunCatalogue([run]), cache=cache / "viewer")
        with TestClient(made, base_url="http://127.0.0.1") as client:
            for name, page in PAGES.items():
                costs = [cost(client, page) for _ in range(REPEATS)]
                print(f"{name}: {1000 * statistics.median(costs):.0f} ms")


def make(run: Path, steps: int, episodes: int) -> Iterator[int]:
    """Write a run of a signalling game; yield the bytes of each step."""
    (run / "episodes").mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 0\n")
    template = json.dumps(to_json(episode()))
    for step in range(1, steps + 1):
        rng, lines = random.Random(step), []
        for place in range(episodes):
            view = rng.randrange(len(VIEWS))
            word = WORDS[view] if rng.random() < 0.9 else rng.choice(WORDS)
            right = rng.random() < 0.5
            rare = "rare" if step == 7 and place == 0 else "often"
            text = template.replace("VIEW", VIEWS[view]).replace("WORD", word)
            text = text.replace("RARE", rare).replace('"reward": 0.0', f'"reward": {int(right)}.0')
            text = text.replace("0.123", f"{rng.random():.3f}")
            head = {"group": f"{step}.0.{place // 5}", "member": place % 5, "advantages": []}
            lines.append(f'{json.dumps(head)[:-1]}, "episode": {text}}}\n')
        data = "".join(lines)
        (run / "episodes" / f"{step:06d}.jsonl").write_text(data)
        yield len(data)


def episode() -> Episode:
    """Return the episode whose words are replaced."""
    turns = tuple(
        Turn(
            agent=f"{role}_0",
            role=role,
            policy="base",
            version=0,
            prompt_ids=tuple(range(40)),
            completion_ids=tuple(range(12)),
            logprobs=(-0.25,) * 12,
            loss_mask=(1,) * 12,
            messages=(
                {"role": "system", "content": "Agree on a code for the four directions."},
                {"role": "user", "content": shown},
            ),
            text=f"I say {spoken} as RARE",
            action=spoken,
            spoken=role == "sender",
            info={"verdict": "correct"},
        )
        for role, shown, spoken in (("sender", "VIEW", "WORD"), ("receiver", "WORD", "VIEW"))
    )
    metrics = {"accuracy": 0.123, "illegal": 0.0}
    task = Task(id="code", type="signal")
    return Episode(
        arena="signal_v0", task=task, seed=0, turns=turns, status=Status.FINISHED, metrics=metrics
    )


def cost(client: TestClient, page: str) -> float:
    """Ask for a page; return the seconds of CPU."""
    begun = time.process_time()
    answer = client.get(f"/run/long/{page}")
    assert answer.status_code == 200, answer.text
    return time.process_time() - begun


if __name__ == "__main__":
    main()
