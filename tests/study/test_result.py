"""Results of studies: plain data that every reader of JSON takes."""

import json
import math

from selfplay.study.result import Result, Table


def test_numbers_that_are_not_finite_are_null() -> None:
    row = [math.inf, -math.inf, math.nan, 1.5, None, "inf"]
    table = Table(title="t", columns=list("abcdef"), rows=[row])
    made = Result(measure="m", title="m", definition="", tables=[table])
    text = json.dumps(made.to_json(), allow_nan=False)
    assert list(json.loads(text)["tables"][0]["rows"][0].values()) == [
        *[None] * 3,
        1.5,
        None,
        "inf",
    ]
