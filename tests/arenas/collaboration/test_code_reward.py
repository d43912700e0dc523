"""Tests of the code reward and its levels, with the real executor."""

from collections.abc import Iterator, Sequence

import pytest

from arenas.collaboration.code_reward import Grade, Test, grade
from arenas.collaboration.problems import FOLDS, STEPS, is_held_out, problems
from selfplay.sandbox import Call, Executor, FailureReason, Outcome

TESTS = [Test(arguments=str([n, n + 1]), expected=str(2 * n + 1)) for n in range(4)]
AUX = "def aux(xs):\n    return sum(xs)"
GOOD = "def f(xs):\n    total = aux(xs)\n    return total + 0"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(workers=1, wall_seconds=20.0) as running:
        yield running


def graded(executor: Executor, helper: str, main: str) -> Grade:
    return grade(helper, main, entry="f", tests=TESTS, executor=executor)


@pytest.mark.parametrize(
    ("helper", "main", "reward"),
    [
        (AUX, GOOD, 4.0),
        # Levels before the program runs.
        ("", "", 0.0),
        (AUX, "", 0.4),
        (AUX, "def g(xs):\n    return aux(xs)", 0.4),
        ("def aux(xs):\n    print(xs)", "", 0.0),
        ("def aux(xs) return", "def g(): pass", 0.0),
        ("", "def f(xs):\n    return sum(xs)", 0.6 + 0.5 + 1.0),
        ("if True:", "def f(xs):\n    return sum(xs)", 0.6),
        # The use of `aux` counts only if a passed test needs its result.
        (AUX, "def f(xs):\n    return aux(xs) + 1", 0.4 + 0.6 + 0.5),
        (AUX, "def f(xs):\n    return 1 if xs[0] == 0 else aux(7)", 0.4 + 0.6 + 0.5 + 0.25),
        (
            AUX,
            "def f(xs):\n    return aux(xs) + 0 if xs[0] == 0 else -7",
            0.4 + 0.6 + 0.5 + 0.25 + 1.5,
        ),
        # A wrapper in several forms, next to programs that are no wrappers.
        (AUX, "def f(xs):\n    return aux(xs)", 3.0),
        (AUX, 'def f(xs):\n    "so"\n    y = aux(xs)\n    return y', 3.0),
        (AUX, "def f(xs):\n    y: int = aux(xs=xs)\n    return y", 3.0),
        (AUX, "def f(xs):\n    pass\n    return aux(xs)", 3.0),
        (AUX, "def f(xs):\n    y = aux(xs)\n    y = y\n    z = y\n    0\n    return z", 3.0),
        (AUX, "def f(xs):\n    n = 0\n    return ([n, aux(xs)],)[0][1]", 3.0),
        (AUX, "def f(xs):\n    y = (aux(xs),)[0]\n    return y", 3.0),
        (AUX, "def f(xs):\n    y = aux(xs)\n    return y or 0", 4.0),
        (AUX, "def f(xs):\n    return aux(sorted(xs))", 4.0),
        (AUX, "def f(xs):\n    y = aux(xs)\n    y += 0\n    return y", 4.0),
        # One result is thrown away, and another one is used.
        (AUX, "def f(xs):\n    aux(xs)\n    return aux(xs) + 0", 4.0),
        # The code does not call a function `aux` of the helper.
        (AUX, "def f(xs):\n    return sum(xs)", 2.5),
        (AUX, AUX + "\n" + GOOD, 2.5),
        ("aux = sum", GOOD, 0.6 + 0.5 + 1.0),
        # The main agent's function counts, not one that the helper wrote.
        (AUX + "\n" + GOOD, "", 0.4),
    ],
)
def test_every_level(executor: Executor, helper: str, main: str, reward: float) -> None:
    assert graded(executor, helper, main).reward == pytest.approx(reward)


SUM = "    return sum(xs)"
UNUSED = {
    "thrown away": f"def f(xs):\n    aux(xs)\n{SUM}",
    "assigned and not read": f"def f(xs):\n    y = aux(xs)\n{SUM}",
    "under if False": f"def f(xs):\n    if False:\n        return aux(xs)\n{SUM}",
    "under a false condition": f"def f(xs):\n    if len(xs) > 9:\n        return aux(xs)\n{SUM}",
    "after return": f"def f(xs):\n{SUM}\n    return aux(xs)",
    "in an unused function": f"def f(xs):\n    def g():\n        return aux(xs)\n{SUM}",
    "in a lambda that is not called": f"def f(xs):\n    g = lambda: aux(xs)\n{SUM}",
    "in a default": f"def f(xs, y=lambda: aux([1])):\n{SUM}",
    "times zero": "def f(xs):\n    return sum(xs) + 0 * aux(xs)",
    "taken away again": "def f(xs):\n    return sum(xs) + aux(xs) - aux(xs)",
    "not chosen": "def f(xs):\n    return (aux(xs), sum(xs))[1]",
    "not evaluated": "def f(xs):\n    return sum(xs) if True else aux(xs)",
    "both ways the same": "def f(xs):\n    return sum(xs) if aux(xs) else sum(xs)",
    "asked for its type": "def f(xs):\n    return sum(xs) if isinstance(aux(xs), int) else 0",
    "caught": f"def f(xs):\n    try:\n        aux(xs).x\n    except:\n        pass\n{SUM}",
    "in a loop of no rounds": f"def f(xs):\n    for x in []:\n        return aux(xs)\n{SUM}",
    "named only": f"def f(xs):\n    aux\n{SUM}",
    "kept in a global": f"def f(xs):\n    global y\n    y = aux(xs)\n{SUM}",
    "asked for its name": f"def f(xs):\n    assert aux.__name__ == 'aux'\n{SUM}",
    "asked for its code": f"def f(xs):\n    aux.__code__.co_varnames[0] == 'xs' or 1 / 0\n{SUM}",
    "given an object that notices copies": (
        "class C(list):\n    def __deepcopy__(self, memo):\n        C.seen = 1\n\n"
        f"def f(xs):\n    aux(C(xs))\n    assert not hasattr(C, 'seen')\n{SUM}"
    ),
    "a thousand times": f"def f(xs):\n    for _ in range(1001):\n        aux(xs)\n{SUM}",
    "with a number of 5,000 digits": f"def f(xs):\n    aux([10**5000])\n{SUM}",
}


@pytest.mark.parametrize("way", UNUSED)
def test_an_unused_call_of_aux_is_paid_like_no_call(executor: Executor, way: str) -> None:
    found = graded(executor, AUX, UNUSED[way])
    assert found.passed == 1.0 and found.reward == 2.5
    assert not found.calls_aux and found.ignores_aux


def test_a_helper_that_always_raises_is_ignored_however_often_it_is_called(
    executor: Executor,
) -> None:
    helper = "def aux(xs):\n    raise ValueError\n    return 0"
    tried = "for _ in range(1001):\n        try:\n            aux(xs)\n        except ValueError:"
    found = graded(executor, helper, f"def f(xs):\n    {tried}\n            pass\n{SUM}")
    assert found.passed == 1.0 and not found.calls_aux and found.ignores_aux


def test_a_helper_may_have_any_global_name(executor: Executor) -> None:
    helper = "_other = 1\ndef aux(xs):\n    return _other * sum(xs)"
    found = graded(executor, helper, UNUSED["thrown away"])
    assert found.passed == 1.0 and not found.calls_aux and found.ignores_aux


USED = {
    "handed to map": (
        "def aux(x):\n    return x",
        "def f(xs):\n    return sum(map(aux, xs))",
    ),
    "called by another function": (
        AUX,
        "def g(xs):\n    return aux(xs)\n\ndef f(xs):\n    return g(xs)",
    ),
    "a condition": (
        "def aux(x):\n    return x > 0",
        "def f(xs):\n    return sum(x for x in xs if aux(x))",
    ),
    "its length": ("def aux(xs):\n    return 'a' * sum(xs)", "def f(xs):\n    return len(aux(xs))"),
    "a list in which it works": (
        "def aux(xs):\n    xs.append(sum(xs))\n    return None or xs",
        "def f(xs):\n    aux(xs)\n    return xs[-1]",
    ),
    "recursive": (
        "def aux(xs):\n    return xs[0] + aux(xs[1:]) if xs else 0",
        "def f(xs):\n    return aux(xs) + 0",
    ),
    "a generator": (
        "def aux(xs):\n    for x in xs:\n        yield x\n    return None or 1",
        "def f(xs):\n    return sum(aux(xs))",
    ),
    "a generator without an end": (
        "from itertools import count\ndef aux(n):\n    yield from count(n)\n    return None or 1",
        "def f(xs):\n    return next(x for x in aux(0) if x == sum(xs))",
    ),
    "an object with methods": (
        "from collections import Counter\ndef aux(xs):\n    return Counter({'y': sum(xs)})",
        "def f(xs):\n    return aux(xs).most_common(1)[0][1]",
    ),
    "a closure": (
        "def aux(xs):\n    return lambda y: y + sum(xs)",
        "def f(xs):\n    return aux(xs)(0)",
    ),
    "where a builtin is overwritten": (
        "isinstance = sorted = callable = None\n" + AUX,
        "def f(xs):\n    return aux(xs) + 0",
    ),
    "a dictionary": (
        "def aux(xs):\n    return {'y': sum(xs)}",
        "def f(xs):\n    return aux(xs)['y']",
    ),
    "a dictionary's keys": (
        "def aux(xs):\n    return {sum(xs): 0}",
        "def f(xs):\n    return list(aux(xs))[0]",
    ),
    "a count of different values": (
        "def aux(x):\n    return x - 3",
        "def f(xs):\n    return 2 * xs[0] + len(set(aux(x) for x in xs)) - 1",
    ),
    "more than a thousand times": (
        AUX,
        "def f(xs):\n    for _ in range(1001):\n        y = aux(xs)\n    return y",
    ),
    "until it says so": (
        "def aux(y, xs):\n    return y == sum(xs)",
        "def f(xs):\n    y = 0\n    while not aux(y, xs):\n        y += 1\n    return y",
    ),
}


@pytest.mark.parametrize("way", USED)
def test_a_result_that_a_test_needs_is_paid_however_it_is_used(
    executor: Executor, way: str
) -> None:
    found = graded(executor, *USED[way])
    assert found.passed == 1.0 and found.calls_aux and not found.ignores_aux
    assert found.reward == pytest.approx(4.0)


def test_outcomes_have_names(executor: Executor) -> None:
    main = (
        "def f(xs):\n    return [1, xs[0], 1 / 0 if xs[0] > 1 else 3, f][xs[0] if xs[0] < 3 else 3]"
    )
    found = graded(executor, AUX, main)
    assert found.outcomes == ("passed", "wrong", "raised", "raised") and found.passed == 0.25
    assert found.reward == pytest.approx(0.4 + 0.6 + 0.5 + 0.25)


class Slow(Executor):
    """An executor that counts calls. All calls time out, except the first of the first three."""

    calls = 0

    def run(
        self, calls: Sequence[Call], *, runs: int = 1, timeouts: int | None = None
    ) -> list[Outcome]:
        self.calls += len(calls)
        late = [Outcome(reason=FailureReason.TIMEOUT) for _ in calls]
        return [Outcome(reason=FailureReason.OK, value="1"), *late[1:]] if self.calls == 3 else late


def test_after_three_timeouts_no_test_is_run() -> None:
    tests = [Test(arguments="1", expected="1")] * 9
    slow = Slow()
    found = grade(AUX, GOOD, entry="f", tests=tests, executor=slow)
    assert slow.calls == 6 + 2, "the passed test is run again with two other helpers"
    assert not found.calls_aux, "a timeout does not prove that aux is needed"
    assert found.outcomes == ("passed", *["timeout"] * 5, *["not_run"] * 3)
    assert found.passed == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    "code",
    ["\x00", "(" * 5_000, "x = " + "-" * 9_000 + "1", "a" * 1_000_000, "def f(:", "\ud800", "\\"],
)
def test_hostile_code_is_no_program(executor: Executor, code: str) -> None:
    assert graded(executor, code, code).reward == 0.0
    assert graded(executor, code, GOOD).reward in (0.6, 0.6 + 0.5)
    assert graded(executor, AUX, code).reward == 0.4


def test_problems_are_solved_by_their_own_steps_and_split_by_them() -> None:
    splits = [problems(count=300, split=split, seed=2) for split in ("train", "held_out")]
    pairs = [{(t.payload["step"], t.payload["fold"]) for t in tasks} for tasks in splits]
    assert (len(pairs[0]), len(pairs[1])) == (30, 6) and not pairs[0] & pairs[1]
    assert all(is_held_out(*pair) for pair in pairs[1])
    assert {step for step, _ in pairs[1]} == set(STEPS)
    for task in (*splits[0][:40], *splits[1][:12]):
        for arguments, expected in task.payload["tests"]:
            numbers = [STEPS[task.payload["step"]](x) for x in eval(arguments)]
            assert repr(FOLDS[task.payload["fold"]](numbers)) == expected
    assert splits[0] == problems(count=300, seed=2) != problems(count=300, seed=3)
    assert len({task.id for task in splits[0]}) == 300
    with pytest.raises(ValueError, match="at least 1"):
        problems(count=0)
