"""Tests of objects built from config nodes; all keys and types are checked before."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import pytest

from selfplay.config.instantiate import build, check, check_arguments, convert
from selfplay.errors import ConfigError
from selfplay.types import Observation

HERE = __name__


@runtime_checkable
class Judge(Protocol):
    def fault(self, question: str) -> str: ...


class Scorer(Protocol):
    def __call__(self, answer: str) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Wheel:
    size: int = 1
    kind: Literal["road", "track"] = "road"


class Vehicle:
    built: ClassVar[int] = 0

    def __init__(
        self, *, name: str, speed: float = 1.0, pair: tuple[float, float] = (0, 0)
    ) -> None:
        type(self).built += 1
        self.name, self.speed, self.pair = name, speed, pair


class Car(Vehicle):
    def __init__(
        self, *, wheels: Sequence[Wheel] = (), engine: Any = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.wheels, self.engine = wheels, engine


class Closed(Vehicle):
    def __init__(self, *, doors: int) -> None:
        super().__init__(name="closed")
        self.doors = doors


@dataclass(frozen=True, kw_only=True)
class Limits:
    least: Mapping[str, float] = field(default_factory=dict)
    most: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 0:
            raise ValueError("most is not negative")


class Fitted:
    def __init__(self, *, limits: Limits) -> None:
        self.limits = limits


class Bare:
    pass


def anything(**settings: Any) -> dict[str, Any]:
    return settings


def node(name: str, /, **keys: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.{name}", **keys}


def test_inner_nodes_are_built_first_in_mappings_and_lists() -> None:
    car = build(node("Car", name="a", wheels=[node("Wheel", size=2), node("Wheel")]))
    assert [wheel.size for wheel in car.wheels] == [2, 1]
    assert build({"x": [node("Wheel")], "y": 3}) == {"x": [Wheel()], "y": 3}


def test_a_role_knows_its_config_key() -> None:
    role = {"_target_": "selfplay.role.Role", "template": "{{ nothing }}"}
    built = build({"player": role, "inner": [role]}, where="warmstart.roles")
    assert built["inner"][0].where == "warmstart.roles.inner.0"
    with pytest.raises(
        ConfigError, match=r"^warmstart\.roles\.player \(Role\): template cannot ren"
    ):
        built["player"].prompt(Observation())


def test_plain_values_pass_through() -> None:
    for value in (None, 1, 1.5, "text", [1, "a"], {"a": {"b": None}}):
        assert build(value) == value


def test_base_classes_take_what_is_passed_on_to_them_with_their_types() -> None:
    assert build(node("Car", name="a", speed=3)).speed == 3
    with pytest.raises(ConfigError, match=r"car\.speed: 'fast' does not fit"):
        build(node("Car", name="a", speed="fast"), where="car")
    with pytest.raises(ConfigError, match=r"car\.sped: unknown key; did you mean 'speed'"):
        build(node("Car", name="a", sped=1), where="car")


def test_a_parameter_that_is_not_passed_on_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"name: unknown key; .* doors"):
        build(node("Closed", doors=1, name="b"))


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ConfigError, match=r"car\.name: missing; .*Car needs it"):
        check(node("Car"), where="car")


def test_services_fill_in_what_the_config_leaves_out_and_only_what_is_asked_for() -> None:
    services = {"engine": "motor", "radio": "on"}
    assert build(node("Car", name="a"), provided=services).engine == "motor"
    assert build(node("Car", name="a", engine=None), provided=services).engine is None
    check({"x": node("Vehicle")}, provided=["name"])


def test_a_text_names_a_service_for_a_parameter_without_text() -> None:
    services, limits = {"engine": "motor", "tight": Limits(most=1)}, "services.tight"
    fitted = node("Fitted", limits=limits)
    check(fitted, provided=services)
    assert build([fitted], provided=services)[0].limits is services["tight"]
    with pytest.raises(ConfigError, match=r"limits: 'services\.tight' does not fit"):
        build(fitted, provided={"limits": Limits()})
    with pytest.raises(ConfigError, match=r"limits: 'services\.tight' does not fit"):
        check(fitted, provided=["limits"])
    assert build(node("Vehicle", name=limits), provided=services).name == limits
    check(node("Vehicle", name=limits), provided=services)


def test_a_function_that_takes_anything_is_given_anything() -> None:
    assert build(node("anything", a=1, b=node("Wheel"))) == {"a": 1, "b": Wheel()}


def test_a_class_without_an_initialiser_takes_nothing() -> None:
    assert isinstance(build(node("Bare")), Bare)
    with pytest.raises(ConfigError, match=r"x\.a: unknown key"):
        check({"x": node("Bare", a=1)})


@pytest.mark.parametrize(
    ("hint", "given", "wanted"),
    [
        (float, "1e-4", 1e-4),
        (float, 1, 1.0),
        (int, 8.0, 8),
        (int, "8", 8),
        (str, 7, "7"),
        (str | None, None, None),
        (tuple[float, float], [1, 0.5], (1.0, 0.5)),
        (Sequence[str], ["a"], ["a"]),
        (Mapping[str, float], {"a": "0.5"}, {"a": 0.5}),
        (Literal["a", "b"], "b", "b"),
        (bool, False, False),
        (int | None, None, None),
        (Wheel, {"size": "3"}, Wheel(size=3)),
        (list[Wheel], [{"kind": "track"}], [Wheel(kind="track")]),
    ],
)
def test_values_are_used_as_the_declared_type(hint: Any, given: Any, wanted: Any) -> None:
    found = convert(hint, given, where="x")
    assert found == wanted and type(found) is type(wanted)


@pytest.mark.parametrize(
    ("hint", "given", "complaint"),
    [
        (float, "fast", "x: 'fast' does not fit: input should be a valid number"),
        (int, 8.5, "x: 8.5 does not fit"),
        (int, True, "x: true does not fit: a number is needed"),
        (float, False, "x: false does not fit: a number is needed"),
        (float, None, "x: None does not fit"),
        (int, [1], r"x: \[1\] does not fit"),
        (str, None, "x: None does not fit"),
        (Sequence[str], "abc", "x: 'abc' does not fit"),
        (tuple[float, float], [1.0], r"x: \[1\.0\] does not fit: should be a list of 2 numbers"),
        (
            tuple[float, float],
            0.9,
            r"^x: 0\.9 does not fit: should be a list of 2 numbers, such as \[0\.9, 0\.99\]$",
        ),
        (tuple[float, float] | None, [1, 2, 3], r"x: \[1, 2, 3\] .*: should be a list of 2"),
        (tuple[float, float], [1.0, "b"], r"x\.1: 'b' .* input should be a valid number"),
        (tuple[str, float], "a", r"x: 'a' does not fit: should be a list of 2 values$"),
        (tuple[str, ...], "a", r"x: 'a' does not fit: should be a list$"),
        (Mapping[str, float], {"a": "b"}, r"x\.a: 'b' does not fit"),
        (Literal["agent", "role"], "rol", "did you mean 'role'"),
        (Wheel, {"kind": "air"}, r"x\.kind: 'air' does not fit"),
        (Judge | None, "my_games.Mine", r"write \{_target_: my_games.Mine\}$"),
    ],
)
def test_a_value_that_does_not_fit_is_one_line(hint: Any, given: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        convert(hint, given, where="x")
    assert "\n" not in str(caught.value)


def test_objects_get_the_converted_values() -> None:
    made = build(node("Vehicle", name=7, speed="1e-4", pair=[1, 2]))
    assert (made.name, made.speed, made.pair) == ("7", 1e-4, (1.0, 2.0))
    assert check_arguments(Limits, {"least": {"a": "1"}}, where="x") == {"least": {"a": 1.0}}


def test_an_error_of_a_target_is_one_line() -> None:
    with pytest.raises(ConfigError, match="limits: most is not negative"):
        build(node("Limits", most=-1), where="limits")
    # A message that already begins with the key does not repeat it.
    with pytest.raises(ConfigError, match=r"^objective: low, high and kl must not be negative$"):
        build({"_target_": "selfplay.learner.objective.PolicyLoss", "kl": -1.0}, where="objective")


class Unfit(ValueError):
    """An author's error, whose message says what is wrong."""


class Torn:
    def __init__(self, *, how: str) -> None:
        if how == "type":
            self.size = how < 2  # type: ignore[operator]
        if how == "own":
            raise Unfit("how: too torn")
        if how == "json":
            json.loads("{}\n{")
        raise FileNotFoundError(2, "No such file", "/torn")


def test_an_error_of_an_authors_constructor_is_one_line_with_the_place() -> None:
    with pytest.raises(ConfigError, match=r"^a: \S+\.Torn: TypeError: '<' .*\.py, line \d+\)$"):
        build({"_target_": f"{HERE}.Torn", "how": "type"}, where="a")
    with pytest.raises(ConfigError, match=r"^a: \S+\.Torn: JSONDecodeError: .*\.py, line \d+\)$"):
        build({"_target_": f"{HERE}.Torn", "how": "json"}, where="a")
    with pytest.raises(ConfigError, match=r"^a: how: too torn$"):
        build({"_target_": f"{HERE}.Torn", "how": "own"}, where="a")
    with pytest.raises(FileNotFoundError):
        build({"_target_": f"{HERE}.Torn", "how": "file"}, where="a")


@pytest.mark.parametrize("file", ["__init__.py", "cards.py"])
def test_a_package_that_is_not_there_is_named_with_the_nearest_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (tmp_path / "my_games").mkdir()
    (tmp_path / "my_games" / file).write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no module 'my_game' for .*did you mean 'my_games'"):
        build({"_target_": "my_game.dice.Dice"}, where="arena")


def test_reserved_parameters_are_no_keys() -> None:
    assert check_arguments(Vehicle, {}, where="x", reserved=("name",)) == {}
    with pytest.raises(ConfigError, match=r"x\.name: unknown key"):
        check_arguments(Vehicle, {"name": "a"}, where="x", reserved=("name",))


def test_checking_builds_nothing_and_looks_into_nested_nodes() -> None:
    before = Vehicle.built
    tree = {"list": [node("Car", name="a", wheels=[node("Wheel", size="big")])]}
    with pytest.raises(ConfigError, match=r"^list\.0\.wheels\.0\.size: 'big' does not fit"):
        check(tree)
    with pytest.raises(ConfigError, match=r"^wheel: unknown key; did you mean 'wheels'"):
        check(node("Car", name="a", wheel=[node("Wheel")]))
    assert Vehicle.built == before


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("selfplay.credit.grpo.GRPOO", "no 'GRPOO' in selfplay.credit.grpo; did you mean 'GRPO'"),
        ("selfplay.credit.grpo.Rloo", "no 'Rloo' in selfplay.credit.grpo; choose from: GRPO$"),
        ("selfplay.credit.grop.GRPO", "no module 'selfplay.credit.grop' .*'selfplay.credit.grpo'"),
        ("nowhere_at_all.Thing", "no module 'nowhere_at_all' .*run in the folder that holds"),
        ("Thing", "'Thing' is not a dotted name"),
        ("", "'' is not a dotted name"),
        (".Thing", "is not a dotted name"),
        (3, "is not a dotted name"),
        ("selfplay.credit.grpo", "is neither a class nor a function"),
        (f"{HERE}.HERE", "is neither a class nor a function"),
    ],
)
def test_a_target_that_is_not_there_is_one_line(name: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\._target_: .*" + complaint):
        check({"x": {"_target_": name}})


def test_a_module_that_fails_to_import_is_one_line_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_on_import.py").write_text("import json\njson.nothing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"AttributeError: .*failing_on_import\.py, line 2"):
        check({"x": {"_target_": "failing_on_import.Thing"}})
    # Python's own code raises this error; the author's line is named.
    lines = ("from dataclasses import dataclass", "@dataclass", "class A:", " x: list = []")
    (tmp_path / "failing_in_python.py").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"ValueError: .*failing_in_python\.py, line \d\)$"):
        check({"x": {"_target_": "failing_in_python.A"}})
    (tmp_path / "failing_to_parse.py").write_text("x = 1\ndef def\n")
    with pytest.raises(ConfigError, match=r"SyntaxError: .*\(failing_to_parse\.py, line 2\)$"):
        check({"x": {"_target_": "failing_to_parse.A"}})


def verify(answer: str) -> float:
    return float(bool(answer))


class Asked:
    def __init__(
        self,
        *,
        verifier: Scorer | None = None,
        rule: Callable[[str], float] | None = None,
        plain: Any = None,
    ) -> None:
        self.verifier = verifier


def test_a_function_in_the_place_of_an_object_that_is_called_is_explained() -> None:
    for key in ("verifier", "rule"):
        words = (
            rf"^x\.{key}\.answer: missing; .*\.verify needs it; a config calls a function at once"
        )
        with pytest.raises(ConfigError, match=words):
            check(node("Asked", **{key: node("verify")}), where="x")
    for wrong in (node("Asked", plain=node("verify")), {"plain": node("verify")}):
        with pytest.raises(ConfigError, match=r"plain\.answer: missing; \S+\.verify needs it$"):
            check(wrong)


def test_a_class_without_settings_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^x\.a: unknown key; \S+\.Bare takes no settings$"):
        check({"x": node("Bare", a=1)})
