"""Prints the exact values of debates by quotation (`arena=evidence_debate`).

The value is the probability that the honest side wins if both sides play optimally. The table has
it for each order of speaking under the arena's own rule. For three facts it also has the value
under the best of the 64 deterministic rules, which no judge that decides without chance can exceed;
with more facts there are too many rules.

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
    """Return two values if a side drawn at random speaks first, under the arena's rule and under
    the best rule, and the number of best rules."""
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
