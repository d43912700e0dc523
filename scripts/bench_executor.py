"""Times verified runs: two fresh processes, under different hash seeds, that agree.

Usage: python scripts/bench_executor.py [--workers 2] [--runs 2000] [--json FILE]
"""

import time

from bench_timing import Line, arguments, show

from selfplay.sandbox import Call, Executor


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=2_000)
    options = parser.parse_args()
    program = "def f(text, n):\n    words = text.split()\n    return sorted(words * n)[:{}]"
    calls = [
        Call(program=program.format(number), arguments="'the quick brown fox', 3")
        for number in range(options.runs)
    ]
    with Executor(workers=options.workers, cache_size=0) as executor:
        executor.run(calls[:100], runs=2)
        warm = time.perf_counter()
        outcomes = executor.run(calls, runs=2)
        seconds = time.perf_counter() - warm
        one = time.perf_counter()
        for call in calls[:200]:
            executor.run([call], runs=2)
        alone = (time.perf_counter() - one) / len(calls[:200])
    failed = sum(not outcome.ok for outcome in outcomes)
    if failed:
        raise SystemExit(f"{failed} of {len(calls)} runs failed")
    lines = [
        Line(
            what=f"executor, {options.workers} workers",
            ours=len(calls) / seconds,
            unit="verified runs/s",
        ),
        Line(what="executor, one run after another", ours=1 / alone, unit="verified runs/s"),
    ]
    show(lines, options.json)


if __name__ == "__main__":
    main()
