"""Prints verified runs per second: two fresh processes, under different hash seeds, that agree.

Usage: python scripts/bench_executor.py [--workers 2] [--runs 2000]
"""

import argparse
import os
import time

from selfplay.executor import Call, Executor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=2_000)
    options = parser.parse_args()
    program = "def f(text, n):\n    words = text.split()\n    return sorted(words * n)[:{}]"
    calls = [
        Call(program=program.format(number), arguments="'the quick brown fox', 3")
        for number in range(options.runs)
    ]
    with Executor(workers=options.workers, cache_size=0) as executor:
        began = time.perf_counter()
        executor.run(calls[:100], runs=2)
        warm = time.perf_counter()
        outcomes = executor.run(calls, runs=2)
        seconds = time.perf_counter() - warm
        one = time.perf_counter()
        for call in calls[:200]:
            executor.run([call], runs=2)
        alone = (time.perf_counter() - one) / len(calls[:200])
    failed = sum(not outcome.ok for outcome in outcomes)
    print(f"start and 100 runs  {warm - began:8.2f} s")
    print(f"verified runs       {len(calls) / seconds:8.0f} per second ({failed} failed)")
    print(f"one at a time       {1000 * alone:8.2f} ms each")
    print(f"workers {options.workers}, cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
