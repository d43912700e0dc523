"""Tests of `selfplay check`, which tries a config without its policies."""

import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

import numpy as np
import pytest
from yaml import safe_load

from selfplay.arena import Arena
from selfplay.cli.main import main
from selfplay.config import compose
from selfplay.curriculum.fixed import FixedTasks
from selfplay.errors import ConfigError
from selfplay.experiment.experiment import check
from selfplay.experiment.trial_game import _seen, games
from selfplay.role import Role
from selfplay.types import InvalidAction, Message, Metric, Observation, Task
from tests.helpers.builders import turn

HERE = __name__
PACKAGED = {"smollm2/reasoning"} if find_spec("reasoning_gym") is None else set[str]()
EXPERIMENTS = sorted(
    {*compose.choices("experiment")} - {"paper/ttrl", "smollm2/taskset"} - PACKAGED
)
"""All experiments, except those that need a file of questions or another environment, and one
whose package may be missing."""


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Undo the changes that a command makes to this process."""
    path = sys.path[:]
    yield
    sys.path[:] = path


COUNT = count()
"""Values that depend on neither the seed nor the moves."""
LEGAL: dict[str, Any] = {"numbers": [1, 2], "word": "heads", "set": {"heads"}, "empty": set()}
"""Legal moves of views that are no lists of texts, by the fault's name."""


class Coin(Arena):
    """An arena in which two players name a side; `fault` selects an error."""

    name = "coin_v0"
    roles = {"player": 2}

    def __init__(self, *, fault: str = "") -> None:
        super().__init__()
        self.fault = fault

    def setup(self, task: Task, rng: Random) -> None:
        if self.fault == "setup":
            raise RuntimeError("no coin\nat all")
        self.lock = Lock() if self.fault == "lock" else None
        self.rule = (lambda: 1) if self.fault == "lambda" else None
        self.looks = next(COUNT) if self.fault == "dealt" else 0
        self.last: str | None = ""

    def default_task(self, rng: Random) -> Task:
        if self.fault == "no_task":
            return {"id": "coin"}  # type: ignore[return-value]
        return Task(id="coin", payload={"drawn": next(COUNT)} if self.fault == "tasks" else {})

    def acting(self) -> Sequence[str]:
        if self.fault == "role":
            return ["player_9"]
        if self.fault in ("no_agents", "word_acts", "none_acts"):
            return {"no_agents": [], "word_acts": "player_0", "none_acts": None}[self.fault]  # type: ignore[return-value]
        return self.possible_agents

    def view(self, agent: str) -> Observation:
        if self.fault == "view":
            raise KeyError("side")
        if self.fault in LEGAL:
            return Observation(fields={"legal": LEGAL[self.fault]})
        if self.fault == "view_pays":
            self.pay(agent, 0.1)
        if self.fault == "seen_none":
            return Observation(text="last: " + self.last, fields={"legal": ["heads"]})  # type: ignore[operator]
        if self.fault == "none":
            return Observation(text=None)  # type: ignore[arg-type]
        if self.fault == "fields":
            return Observation(text="x", fields=["legal"])  # type: ignore[arg-type]
        if self.fault == "looks":
            self.looks += 1
            return Observation(fields={"legal": ["heads"], "looks": self.looks})
        if self.fault == "dealt":
            return Observation(fields={"legal": ["heads"], "looks": self.looks})
        if self.fault == "seen":
            return Observation(text=str(next(COUNT)), fields={"legal": ["heads"]})
        return Observation(text="heads or tails?", fields={"legal": ["heads", "tails"]})

    def advance(self, actions: Any) -> None:
        for agent in self.possible_agents:
            self.pay(agent, float("nan") if self.fault == "pay" else 1.0)
            self.pay(agent, next(COUNT) if self.fault == "luck" else 0.0)
        if self.fault == "none_move":
            assert actions["player_0"].strip() != "nothing"
        if self.fault == "digits" and (actions["player_0"] or "").isdigit():
            self.measure(digit=int(actions["player_0"]))
        if self.fault == "keeps":
            self.notes: Any = []
        if self.fault == "seen_none" and len(self.history) == 1:
            self.last = actions["player_0"]
            return
        if self.fault == "note":
            self.note("player_0", verdict={"a": object()})
        if self.fault == "metric":
            self.measure(landed="yes")  # type: ignore[arg-type]
        if self.fault == "unknown":
            self.pay("player_9", 1.0)
        if self.fault != "endless":
            self.finish()


class Speaker(Role):
    """A role that names a side; `fault` selects an error."""

    name = "player"

    def __init__(self, *, fault: str = "") -> None:
        self.fault, self.memory = fault, "none"

    def prompt(self, observation: Observation) -> list[Message]:
        if self.fault == "prompt":
            raise AttributeError("no style")
        return [{"role": "user", "content": observation.text}]

    def parse(self, text: str) -> Any:
        if self.fault == "deaf":
            raise InvalidAction("not_heard")
        if self.fault == "no_reason":
            raise InvalidAction()
        return InvalidAction("no") if self.fault == "returned" else text


@pytest.fixture
def configs(tmp_path: Path) -> str:
    """Return a folder with configs of the arena and the role of this file."""
    for group, text in {
        "arena": f"_target_: {HERE}.Coin\nfault: ''\n",
        "roles": f"player: {{_target_: {HERE}.Speaker, fault: ''}}\n",
    }.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "coin.yaml").write_text(text)
    return str(tmp_path)


def checked(configs: str, *overrides: str) -> int:
    game = ["arena=coin", "roles=coin", "curriculum=games", "services=none", "evaluations=none"]
    return main(["check", "--config-dir", configs, *game, "warmstart=random_play", *overrides])


def test_observations_actions_and_rewards_are_printed(
    configs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(configs) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("policies: base (player)\n")
    assert "arena: task game, 2 turns, finished" in captured.out and captured.err == ""
    assert "player_0 (player) sees   heads or tails?" in captured.out
    assert "paid in all   player_0 1, player_1 1" in captured.out and "no faults" in captured.out


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("arena.fault=setup", "arena: RuntimeError: no coin at all ("),
        ("arena.fault=view", "test_trial_game.py, line "),
        ("arena.fault=no_agents", "to end the game, call finish()"),
        ("arena.fault=role", "acting() returned ['player_9'], not agents of the episode"),
        (
            "arena.fault=word_acts",
            "acting() returned 'player_0', not agents of the episode; return a list: ['player_0']",
        ),
        (
            "arena.fault=none_move",
            "the move None (no action was read) of player_0, player_1 raises AttributeError: "
            "'NoneType' object has no attribute 'strip' (",
        ),
        ("arena.fault=digits", "player_1 raises ValueError: invalid literal for int() with base"),
        (
            "arena.fault=seen_none",
            "the move None (no action was read) of player_0, player_1 raises TypeE",
        ),
        ("arena.fault=view_pays", "pay('player_0', 0.1) was called outside of setup and advance"),
        ("arena.fault=keeps", "coin_v0 changed self.notes, which Arena keeps; choose another name"),
        ("arena.fault=none_acts", "acting() returned None, not agents of the episode"),
        (
            "arena.fault=numbers",
            "view('player_1') has 1 under 'legal', which needs a list of texts",
        ),
        ("arena.fault=word", "view('player_0') has 'heads' under 'legal', which needs"),
        ("arena.fault=set", "view('player_0') has a set under 'legal', which needs a list of"),
        ("arena.fault=empty", "view('player_1') has a set under 'legal', which needs a list of"),
        ("arena.fault=none", "view('player_0') returned an Observation whose text is NoneType"),
        (
            "arena.fault=lock",
            "cannot be copied in mid-game: TypeError: cannot pickle '_thread.lock'",
        ),
        (
            "arena.fault=luck",
            "for the same seed and moves, and was paid ",
        ),
        (
            "arena.fault=dealt",
            "view('player_0') differs for the same seed and moves; all random ",
        ),
        (
            "arena.fault=looks",
            "view('player_0') differs when it is called again; view may neither change the state",
        ),
        ("arena.fault=seen", "view('player_0') differs when it is called again; view may neither"),
        ("arena.fault=fields", "an Observation whose fields is list, not Mapping"),
        ("arena.fault=lambda", "the arena cannot be pickled in mid-game: "),
        ("arena.fault=tasks", "arena: default_task makes other tasks of an equal rng; all of its"),
        ("arena.fault=no_task", "fault: Coin.default_task returned dict, not a Task"),
        ("arena.fault=pay", "nan"),
        (
            "arena.fault=note",
            "the note 'verdict' of player_0 is not plain data (Pydantic",
        ),
        (
            "arena.fault=metric",
            "measure(landed='yes'): a metric must be a finite number; leave out",
        ),
        ("arena.fault=unknown", "KeyError: coin_v0: no agent 'player_9'; did you mean"),
        ("arena.fault=endless", "had not ended after 200 turns"),
        ("roles.player.fault=prompt", "no style"),
        ("roles.player.fault=deaf", "roles.player: none of 2 legal moves was read as an action"),
        ("roles.player.fault=no_reason", "2 legal moves was read as an action (unnamed); see"),
        (
            "roles.player.fault=returned",
            "roles.player: Speaker.parse returned InvalidAction, not a text; it raises",
        ),
    ],
)
def test_each_fault_is_a_line_and_the_exit_code_is_two(
    override: str, words: str, configs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(configs, override) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert any(words in line for line in lines), lines
    assert all(line.startswith(("fault: ", "selfplay: ")) for line in lines)


def test_a_template_that_cannot_be_filled_names_its_role() -> None:
    config = compose.load(["+experiment=tiny/kuhn"])
    config["roles"]["player"] = {"_target_": "selfplay.role.Role", "template": "{{ legl }}"}
    (game, *_) = games(config, seed=0)
    words = "template cannot render: 'legl' is undefined; did you mean 'legal'?"
    assert game.faults == [f"arena: roles.player (Role): {words}"]


def test_a_missing_role_is_a_fault_of_the_key_roles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "+experiment=tiny/kuhn", "roles=pipeline"]) == 2
    error = capsys.readouterr().err.strip()
    assert (
        "roles: none is called 'player', which kuhn_v0 (arena) needs; choose roles=player or roles="
        in error
    )
    assert main(["check", "+experiment=tiny/kuhn", "arena=debate"]) == 2
    error = capsys.readouterr().err.strip()
    assert "'debater', which debate_v0 (arena) needs; choose roles=debate or roles=" in error
    assert error.endswith("or add roles.debater._target_")


class Weighed(Coin):
    """An arena that measures `weight` in every game, and declares `found` and never measures it."""

    measures = {"found": Metric()}

    def advance(self, actions: Any) -> None:
        super().advance(actions)
        self.measure(weight=1.0)


def test_a_metric_that_the_game_lacks_is_a_note(
    configs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = (
        f"arena: {{_target_: {HERE}.Weighed}}, tasks: [{{_target_: selfplay.types.Task, id: a}}]"
    )

    def notes(name: str) -> list[str]:
        node = f"+evaluations.short={{{evaluation}, metrics: {{shown: {name}}}}}"
        assert checked(configs, node) == 0
        captured = capsys.readouterr()
        assert "no faults" in captured.out
        return captured.err.splitlines()

    (line,) = notes("wieght")
    assert line.startswith("note: evaluations.short.metrics.shown: the game of the check has no")
    assert "'wieght'" in line and line.endswith("did you mean 'weight'?")
    assert notes("weight") == [] and notes("found") == []


class Headed(Coin):
    """An arena with a chief metric that it neither declares nor measures."""

    measures = {"found": Metric()}
    chief = ("found", "fuond")


def test_a_chief_metric_that_nothing_declares_is_a_note(
    configs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(configs, f"arena._target_={HERE}.Headed") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "note: arena: Headed.chief has 'fuond', which is not in measures; did you mean 'found'?"
    )


class Unsaved(FixedTasks):
    """A curriculum whose state no checkpoint can hold."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}


def test_a_curriculum_whose_state_cannot_be_saved_is_a_fault() -> None:
    config = compose.load(["+experiment=tiny/kuhn", "evaluations=none"])
    tasks = [{"_target_": "selfplay.types.Task", "id": "a"}]
    config["curriculum"] = {"_target_": f"{HERE}.Unsaved", "tasks": tasks, "batch": 1}
    (game,) = games(config, seed=0)
    (fault,) = game.faults
    assert fault.startswith("curriculum: Unsaved.state_dict has 'seen', which a checkpoint cannot")


class SpeakerUnmade(Speaker):
    """A role that does not call the constructor of its base."""

    def __init__(self) -> None:
        self.fault = ""


class Unmade(Coin):
    """An arena that does not call the constructor of its base."""

    def __init__(self) -> None:
        self.fault = ""


class NoRoles(Coin):
    """An arena without roles."""

    roles = {}


class Misnamed(Coin):
    """An arena without a name of its own, and with a role that is no identifier."""

    name = Arena.name
    roles = {"player": 2, "score-keeper": 1}


class Counted(Coin):
    """An arena with a number of agents from numpy, and a role without agents."""

    roles: Any = {"player": np.int64(2), "judge": 0}


class Empty(Coin):
    """An arena with a role and no agent."""

    roles = {"player": 0}


def test_names_of_an_arena_that_cannot_be_used_are_faults(
    configs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    role = f"{{_target_: {HERE}.Speaker}}"
    nodes = (f"+roles.score-keeper={role}", f"arena._target_={HERE}.Misnamed")
    assert checked(configs, *nodes) == 2
    error = capsys.readouterr().err
    assert "fault: arena: Misnamed has no name; write for example name = 'my_game_v0'" in error
    assert "fault: arena: Misnamed.roles: 'score-keeper' is no name; use letters, digits" in error


def test_every_number_of_agents_that_an_arena_accepts_is_no_fault(
    configs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = f"+roles.judge={{_target_: {HERE}.Speaker}}"
    code = checked(configs, judge, f"arena._target_={HERE}.Counted")
    assert code == 0, capsys.readouterr().err
    assert type(Counted().roles["player"]) is int
    assert checked(configs, f"arena._target_={HERE}.Empty") == 2
    fault = "fault: arena: Empty.roles: no role has an agent; at least 1 is needed"
    assert fault in capsys.readouterr().err


def test_a_prompt_that_is_no_text_is_shown_as_python() -> None:
    content = [{"type": "image", "url": "a\nb"}]
    seen = _seen(turn("player_0", messages=({"role": "user", "content": content},)))
    assert seen == str(content)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (f"arena={{_target_: {HERE}.Unmade}}", "arena: Unmade.__init__ does not call super()."),
        (f"arena={{_target_: {HERE}.NoRoles}}", "arena: NoRoles has no roles; write for example"),
        (f"arena={{_target_: {HERE}.Speaker}}", "arena._target_: Speaker is not a selfplay.Arena"),
        (
            f"roles.player={{_target_: {HERE}.Coin}}",
            "roles.player._target_: Coin is not a self",
        ),
        (
            f"roles.player={{_target_: {HERE}.SpeakerUnmade}}",
            "roles.player: SpeakerUnmade.__init__ does not call super().__init__(); add the call",
        ),
    ],
)
def test_invalid_classes_of_arenas_and_roles_are_refused(override: str, words: str) -> None:
    config = compose.load(["+experiment=tiny/kuhn"])
    key, _, node = override.partition("=")
    parent, _, last = key.rpartition(".")
    (config[parent] if parent else config)[last] = safe_load(node)
    with pytest.raises(ConfigError, match=re.escape(words)):
        check(config)


def test_a_config_that_training_refuses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "+experiment=tiny/kuhn", "credit=arpo"]) == 2
    assert main(["check", "+experiment=tiny/kuhn", "run.name=../x"]) == 2
    assert len(capsys.readouterr().err.splitlines()) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_checked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", f"+experiment={name}"])
    assert code == 0, capsys.readouterr().err
