"""Tests of `selfplay completion`: the words that a shell offers next."""

import shutil
import subprocess
from pathlib import Path

import pytest

from selfplay.cli.completion import SHELLS, _commands, script, words_of
from selfplay.cli.main import _parser, main
from selfplay.errors import ConfigError

SHELL = """
source "$1"
COMP_LINE="$2"; COMP_POINT=${#COMP_LINE}; COMP_WORDBREAKS="$3"
COMP_WORDS=($COMP_LINE); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
[[ "$COMP_LINE" == *" " ]] && COMP_CWORD=$((COMP_CWORD + 1))
_selfplay
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the completion script for bash."""
    path = tmp_path_factory.mktemp("completion") / "selfplay.bash"
    path.write_text(script("bash", _parser()))
    return path


def completed(path: Path, line: str, breaks: str = " =:") -> list[str]:
    """Return what bash would put in place of the last word.

    If `breaks` has the =, only the text after the word's last = is replaced.
    """
    command = ["bash", "-c", SHELL, "bash", str(path), line, breaks]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_flags_groups_and_keys(bash: Path) -> None:
    assert completed(bash, "selfplay tra") == ["train"]
    assert set(completed(bash, "selfplay ")) >= {"train", "check", "play", "completion"}
    assert completed(bash, "selfplay train --config-p") == ["--config-path"]
    assert completed(bash, "selfplay train seed=1 learner.warm") == ["learner.warmup_steps="]
    assert completed(bash, "selfplay list are") == ["arena"]
    assert completed(bash, "selfplay completion z") == ["zsh"]
    assert completed(bash, "selfplay report credit=r") == []
    assert completed(bash, "selfplay study exploitab") == ["exploitability"]
    assert completed(bash, "selfplay study exploitability runs/a --episo") == ["--episodes"]
    assert completed(bash, "selfplay study compare metrics --deri") == ["--derive"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_after_the_sign_that_breaks_words(bash: Path) -> None:
    assert completed(bash, "selfplay train credit=r") == ["rae", "reinforce_pp", "rloo"]
    assert completed(bash, "selfplay train +experiment=tiny/kuh") == ["tiny/kuhn"]
    whole = completed(bash, "selfplay train +experiment=tiny/kuh", breaks=" ")
    assert whole == ["+experiment=tiny/kuhn"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_completes_the_same_words(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    for word in ("train", "credit=rloo", "+experiment=tiny/kuhn", "learner.lr=", "--config-dir"):
        assert word in printed
    assert "@COMMANDS@" not in printed and "@CASES@" not in printed
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=printed, text=True, check=True, timeout=60)


def test_every_command_with_settings_completes_them() -> None:
    parser = _parser()
    taking = {"train", "check", "evaluate", "warmstart", "plan", "replay", "play"}
    for name, words in words_of(parser).items():
        usage = _commands(parser)[name].format_usage()
        assert ("learner.lr=" in words) == ("[key=value ...]" in usage) == (name in taking), name


def test_configs_of_a_users_folder_are_completed_too(tmp_path: Path) -> None:
    (tmp_path / "arena").mkdir()
    (tmp_path / "arena/mine.yaml").write_text("_target_: my.Arena\n")
    assert "arena=mine" in words_of(_parser(), search=[str(tmp_path)])["train"]


def test_another_shell_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"no completion for 'bsh'; did you mean 'bash'"):
        script("bsh", _parser())
    assert main(["completion", "tcsh"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
