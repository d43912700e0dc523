"""Prints the exact values of debates by quotation (`arena=evidence_debate`).

The value is the probability that the honest side wins if both sides play optimally: by the order of
speaking under the arena's own rule, and under the best of all deterministic rules, which bounds
what a judge that decides without chance can reach. These are 64 rules for three facts; for more
facts there are too many.

Usage: python scripts/evidence_values.py [--facts 3 5] [--checked 0 0.25 0.5 1]
"""

import argparse

from arenas.debate.evidence_value import ORDERS, counters, ruled_value, rules, value


def main() -> None:
    """Print a table for each number of facts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--facts", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--checked", type=float, nargs="+", default=[0.0, 0.25, 0.5, 0.75, 1.0])
    asked = parser.parse_args()
    for facts in asked.facts:
        columns = [*ORDERS, *(["one first", "best rule", "number"] if facts == 3 else [])]
        print(f"{facts} facts\n{'checked':>8}" + "".join(f"{each:>17}" for each in columns))
        for checked in asked.checked:
            row = [value(facts=facts, checked=checked, order=order) for order in ORDERS]
            if facts == 3:
                row += ruled(checked)
            print(f"{checked:8.2f}" + "".join(f"{each:17.4g}" for each in row))


def ruled(checked: float) -> list[float]:
    """Return the values if a side drawn at random speaks first: of the circle and of the best rule,
    and the number of rules that reach it."""
    found = [(ruled_value(rule, facts=3, checked=checked), rule) for rule in rules(3)]
    best = max(each for each, _ in found)
    (circle,) = (
        each
        for each, rule in found
        if all(wins == counters(one, two, 3) for (one, two), wins in rule.items())
    )
    return [circle, best, sum(abs(each - best) < 1e-9 for each, _ in found)]


if __name__ == "__main__":
    main()
