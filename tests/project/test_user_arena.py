"""Tests of a user's own arena: one file, a few lines of YAML, no change to the library."""

import json
from pathlib import Path

import pytest

from tests.helpers.command_process import finished, metrics, one_line, run

ARENA = '''
"""Two players say words; each is paid for the letter that the task names."""

from selfplay.arena import Arena
from selfplay.types import Observation, Task


class Letters(Arena):
    name = "letters_v0"
    roles = {"speaker": 2}

    def __init__(self, *, letter: str = "a", rounds: int = 2) -> None:
        super().__init__()
        self.letter, self.rounds = letter, rounds

    def setup(self, task, rng):
        self.said = []

    def acting(self):
        return self.possible_agents

    def view(self, agent):
        return Observation(fields={"letter": self.letter, "round": len(self.said)})

    def advance(self, actions):
        self.said.append(dict(actions))
        for agent, text in actions.items():
            self.pay(agent, (text or "").count(self.letter))
        if len(self.said) == self.rounds:
            self.measure(letters=sum(t.count(self.letter) for s in self.said for t in s.values()))
            self.finish()


def tasks(count: int) -> list[Task]:
    return [Task(id=f"letters-{number}", type="letters") for number in range(count)]
'''

CONFIGS = {
    "arena/letters.yaml": "_target_: my_games.letters.Letters\nletter: e\n",
    "roles/letters.yaml": (
        "speaker:\n  _target_: selfplay.role.Role\n"
        "  template: 'Say words with {{ letter }}'\n  memory: conversation\n"
    ),
    "curriculum/letters.yaml": (
        "_target_: selfplay.curriculum.fixed.FixedTasks\nbatch: 4\n"
        "tasks: {_target_: my_games.letters.tasks, count: 8}\n"
    ),
    "evaluations/letters.yaml": (
        "letters:\n  arena: {_target_: my_games.letters.Letters, letter: e}\n"
        "  tasks: {_target_: my_games.letters.tasks, count: 2}\n  metrics: {letters: letters}\n"
    ),
    "experiment/letters.yaml": (
        "# @package _global_\ndefaults:\n"
        + "".join(
            f"  - override /{group}: letters\n"
            for group in ("arena", "roles", "curriculum", "evaluations")
        )
        + "  - override /credit: grpo\n"
        "run: {experiment: letters, steps: 1, threads: 1}\n"
        "sampling: {default: {max_tokens: 12}}\n"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a user's package and configs."""
    (tmp_path / "my_games").mkdir()
    (tmp_path / "my_games/letters.py").write_text(ARENA)
    for name, text in CONFIGS.items():
        path = tmp_path / "my_configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_users_arena_is_trained_resumed_and_evaluated(folder: Path) -> None:
    model = finished() / "checkpoints/000003/policies/base"
    mine = ("--config-dir", "my_configs", "+experiment=letters")
    outcome = run("train", *mine, "run.name=mine", f"policy.model={model}", cwd=folder)
    assert outcome.code == 0, outcome.err
    line = metrics(folder / "runs/mine")[-1]
    assert line["episodes/count"] == 4
    assert line["role/speaker/reward"] > 0, "no word has an e, so the rewards are not tested"
    assert line["policy/base/samples"] == 4 * 2 * 2
    assert line["policy/base/gradient_norm"] > 0
    refused = run("evaluate", "runs/mine", "--json", cwd=folder)
    typed = "selfplay evaluate runs/mine --json --trust my_games"
    assert refused.code == 2 and one_line(refused.err).endswith(typed)
    evaluated = run(*typed.split()[1:], cwd=folder)
    values = json.loads(evaluated.out)["evaluations"]["letters"]
    assert values["letters"] == line["evaluation/letters/letters"]
    assert run("train", "resume=runs/mine", cwd=folder).code == 2
    assert run("train", "resume=runs/mine", "--trust", "my_games", cwd=folder).code == 0


def test_configs_of_a_user_are_listed_and_suggested(folder: Path) -> None:
    listed = run("list", "arena", "--config-dir", "my_configs", cwd=folder)
    names = {line.split()[0] for line in listed.out.splitlines()}
    assert {"absolute_zero", "letters"} <= names
    outcome = run("train", "--config-dir", "my_configs", "arena=leters", cwd=folder)
    assert "did you mean 'letters'?" in one_line(outcome.err)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("class Letters", "class Words"), "no 'Letters' in my_games.letters"),
        (("import Arena", "import Arenas"), "cannot import my_games.letters: ImportError"),
        (("def setup", "def def setup"), "cannot import my_games.letters: SyntaxError"),
        (("import Arena", "import Arena\nimport nowhere_at_all"), "needs the package 'nowhere_at_"),
        (("import Arena", "import Arena\n1 / 0"), "ZeroDivisionError: division by zero"),
        (
            ("self.letter, self", "raise ValueError('no such letter')\n        self"),
            "no such letter",
        ),
    ],
)
def test_a_fault_in_a_users_arena_is_one_line(
    change: tuple[str, str], complaint: str, folder: Path
) -> None:
    path = folder / "my_games/letters.py"
    path.write_text(path.read_text().replace(*change))
    model = finished() / "checkpoints/000003/policies/base"
    mine = ("--config-dir", "my_configs", "+experiment=letters")
    outcome = run("train", *mine, f"policy.model={model}", cwd=folder)
    assert outcome.code == 2, outcome.err
    assert complaint in one_line(outcome.err)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("name", ["roles", "arenas", "configs"])
def test_a_package_that_takes_one_of_our_names_is_named(name: str, folder: Path) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    outcome = run("train", "+experiment=tiny/smoke", cwd=folder, first_on_path=folder)
    assert outcome.code == 2
    error = one_line(outcome.err)
    assert f"the package {name!r} in {folder}" in error and "rename your own package" in error
