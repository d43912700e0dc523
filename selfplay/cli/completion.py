"""Command `selfplay completion`, which prints a completion script for a shell."""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence

from selfplay.cli import study
from selfplay.cli.arguments import OVERRIDDEN, nothing_more
from selfplay.config import compose, plain_data
from selfplay.errors import ConfigError, nearest

BASH = """\
# Completion of selfplay for bash; in ~/.bashrc: source <(selfplay completion bash)
_selfplay() {
    local line="${COMP_LINE:0:$COMP_POINT}" words="" word before
    word="${line##*[[:space:]]}"
    if [ "$COMP_CWORD" -le 1 ]; then
        words=@COMMANDS@
    else
        case "${COMP_WORDS[1]}" in
@CASES@
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
        before="${word%"${word##*=}"}"   # bash replaces only the text after the last =
        COMPREPLY=("${COMPREPLY[@]#"$before"}")
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *= ]]; then
        compopt -o nospace 2> /dev/null
    fi
}
complete -o default -F _selfplay selfplay
"""

ZSH = """\
#compdef selfplay
# Completion of selfplay for zsh: selfplay completion zsh > FOLDER/_selfplay, with FOLDER in fpath.
_selfplay() {
    local -a found
    if (( CURRENT == 2 )); then
        found=(@COMMANDS@)
    else
        case "${words[2]}" in
@CASES@
        esac
    fi
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
    _files
    return $(( compstate[nmatches] == 0 ))
}
if [ "$funcstack[1]" = _selfplay ]; then
    _selfplay "$@"
else
    compdef _selfplay selfplay
fi
"""

FISH = """\
# Completion of selfplay for fish; in config.fish: selfplay completion fish | source
complete -c selfplay -n __fish_use_subcommand -f -a @COMMANDS@
@CASES@
"""


def completion(options: argparse.Namespace, rest: list[str]) -> None:
    """Print the completion script for a shell."""
    nothing_more(rest, options)
    print(script(options.shell, options.parser, search=options.config_dir), end="")


def script(shell: str, parser: argparse.ArgumentParser, *, search: Sequence[str] = ()) -> str:
    """Return the completion script of a shell: commands, flags, config groups and keys.

    Args:
        shell: bash, zsh or fish.
        parser: Parser of the whole command line.
        search: More folders of config groups to complete.
    Raises:
        ConfigError: For another shell.
    """
    words = words_of(parser, search=search)
    if shell == "bash":
        cases = [f"            {name}) words={_quoted(each)} ;;" for name, each in words.items()]
        text, listed = BASH, _quoted(list(words))
    elif shell == "zsh":
        cases = [
            f"            {name}) found=({' '.join(map(shlex.quote, each))}) ;;"
            for name, each in words.items()
        ]
        text, listed = ZSH, " ".join(words)
    elif shell == "fish":
        cases = [
            f"complete -c selfplay -n '__fish_seen_subcommand_from {name}' -a {_quoted(each)}"
            for name, each in words.items()
        ]
        text, listed = FISH, _quoted(list(words))
    else:
        raise ConfigError(f"no completion for {shell!r}; {nearest(shell, SHELLS)}")
    return text.replace("@COMMANDS@", listed).replace("@CASES@", "\n".join(cases))


SHELLS = ("bash", "fish", "zsh")
"""Names of the shells that have a completion script."""


def words_of(
    parser: argparse.ArgumentParser, *, search: Sequence[str] = ()
) -> Mapping[str, Sequence[str]]:
    """Return the words that can follow each command.

    The words of `study` are the measures and the flags of all measures. If `parser` lacks them,
    because its command line has no `study`, they are added to it.
    """
    choices = list(_choices(search))
    keys = [f"{key}=" for key in compose.default_keys()]
    found = {}
    for name, command in _commands(parser).items():
        if name == "study" and not _commands(command):
            study.add_arguments(command)
        nested = _commands(command)
        actions = [a for each in (command, *nested.values()) for a in each._actions]
        flags = dict.fromkeys(flag for action in actions for flag in action.option_strings)
        more = list(nested)
        if name in OVERRIDDEN:
            more = [*choices, *keys]
        elif name == "list":
            more = compose.groups(search)
        elif name == "completion":
            more = list(SHELLS)
        found[name] = [*more, *flags]
    return found


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands: Mapping[str, argparse.ArgumentParser] = action.choices
            return commands
    return {}


def _choices(search: Sequence[str]) -> Iterator[str]:
    """Yield every config of every group, as the override that chooses it."""
    for group in compose.groups(search):
        plus = "+" if group in plain_data.GROUPS_WITH_PLUS else ""
        for name in compose.choices(group, search):
            yield f"{plus}{group}={name}"


def _quoted(words: Sequence[str]) -> str:
    return shlex.quote(" ".join(words))
