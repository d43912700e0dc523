"""Tests of the verifier of antiderivatives: right answers score, and tricks do not."""

import pytest

from arenas.questions.integrals import INTEGRANDS, Integrals

ANTIDERIVATIVES = (
    "exp(3*x) * (x**2/3 - 2*x/9 + 2/27)",
    "x * sin(2*x) / 2 + cos(2*x) / 4 + x**4 / 4",
    "x**3 * log(x) / 3 - x**3 / 9",
    "exp(2*x) * (2*sin(3*x) - 3*cos(3*x)) / 13",
    "atan((x + 2) / 3) / 3",
    "7/4 * log(x - 2) + 5/4 * log(x + 2)",
    "x**2 / 2 - log(x**2 + 1) / 2",
    "-cos(x)**3 / 3 + cos(x)**5 / 5",
    "x - log(exp(x) + 1)",
    "x * atan(x) - ln(x**2 + 1) / 2",
    "(x**2 + 1) / 2 * atan(x) - x / 2",
    "(x**2 + 1)**(5/2) / 5 - (x**2 + 1)**(3/2) / 3",
    "x * log(x**2 + 1) - 2*x + 2 * atan(x)",
    "x / 2 * (sin(log(x)) - cos(log(x)))",
    "2 * asin(x / 2) - x * sqrt(4 - x**2) / 2",
    "log(x) - log(x + 1) + 1 / (x + 1)",
)
DRAWS = 100


def _paid(question: str, answer: str) -> float:
    """Return the mean score over many draws of places; added spaces change only the draw."""
    verifier = Integrals()
    return sum(verifier(answer, {"question": question + " " * n}) for n in range(DRAWS)) / DRAWS


@pytest.mark.parametrize(
    ("question", "answer"), list(zip(INTEGRANDS, ANTIDERIVATIVES, strict=True))
)
def test_a_right_answer_scores_wherever_it_is_tried(question: str, answer: str) -> None:
    assert _paid(question, answer) == 1.0
    assert _paid(question, f"{answer} + 1000 + C") == 1.0
    assert _paid(question, f"({answer}) * 1.05") == 0.0


FORBIDDING = [
    "0 * asin(x)",
    "0 * acos(x)",
    "0 * sqrt(1 - x**2)",
    "0 * (1 - x**2)**0.5",
    "0 * (1 - x**2)**(-1/2)",
    "0 * exp(1000 * x**2 - 1000)",
    "0 * 10**(400 * x**2)",
    "0 * asin(asin(x))",
    "0 * asin(9**9**9 * (x + 1)) * 0",
    "0 * log(0 * sqrt(1 - x**2) + 1)",
    "asin(x) - asin(x)",
    "(1 - x**2)**0.5 / 10**99",
]


@pytest.mark.parametrize("term", FORBIDDING)
def test_an_answer_cannot_forbid_the_places_where_it_is_wrong(term: str) -> None:
    series = {
        "exp(x)": "1 + x + x**2/2 + x**3/6 + x**4/24",
        "sin(x)": "x**2/2 - x**4/24 + x**6/720",
        "cos(x)": "x - x**3/6 + x**5/120",
        "atan(x)": "x**2/2 - x**4/12 + x**6/30 - x**8/56",
        "log(x**2 + 1)": "x**3/3 - x**5/10 + x**7/21 - x**9/36",
    }
    for question, answer in series.items():
        assert _paid(question, f"{answer} + {term}") == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "x**3/3 + 1000 * sin(20*pi*x)",  # a wave with the length of the longest interval
        "x**3/3 + 10**300",
        "x**3/3 * 10**20 - x**3/3 * 10**20",
        "10**309 * x",
        "1e400",
        "1e308 * 10 * x - 1e308 * 10 * x",
        "x**3/3 + 0 / 0",
        "x**3/3 + 0 / (x - x)",
        "x**3/3 + 0 * log(x - x)",
        "x**3/3 + (x - x)**(-1) * 0",
        "x**3/3 * sqrt(x**2) / x",  # right only on one side of 0
        "(x**3 + sqrt(x**6)) / 6",
        "x**3/3 + 0 * sqrt(x)",
        "0",
        "C",
    ],
)
def test_no_trick_with_numbers_scores(answer: str) -> None:
    assert _paid("x**2", answer) <= 0.1


def test_an_interval_over_a_pole_is_not_used() -> None:
    """Sums over a pole are finite but without meaning: a right answer would look wrong there."""
    verifier = Integrals(places=40, reach=0.5)
    for n in range(30):
        assert verifier("log(x)", {"question": "1/x" + " " * n}) == 1.0
        assert verifier.fault("1/x" + " " * n) is None
