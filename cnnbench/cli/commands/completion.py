"""``cnnbench completion``: print the completion of this command line for bash or zsh.

The scripts pass the words of a command line to ``cnnbench completion --words``, which prints
possible completions of the last word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

from cnnbench.base.terminal import print_result
from cnnbench.cli.overview import COMMANDS
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import ACCEPTED, FlagSpec, flag, parse_command, specs_of
from cnnbench.flags.groups.repeat import RepeatFlags

_BASH = r"""# Completion of cnnbench for bash; `cnnbench completion bash` printed it.
_cnnbench() {
  local word about IFS=$'\n' cur=${COMP_WORDS[COMP_CWORD]} prefix=
  COMPREPLY=()
  while IFS=$'\t' read -r word about; do
    case $word in
      :file | :folder)
        compopt -o filenames 2>/dev/null
        [[ $cur == -*=* ]] && prefix=${cur%%=*}=
        cur=${cur#"$prefix"} cur=${cur#=} word=${word/:file/-f} word=${word/:folder/-d}
        COMPREPLY+=($(compgen -P "$prefix" "$word" -- "$cur"))
        ;;
      *)
        [[ $word == *= ]] && compopt -o nospace 2>/dev/null
        COMPREPLY+=("$word")
        ;;
    esac
  done < <(printf '%s\n' "${COMP_WORDS[@]:1:COMP_CWORD}" | cnnbench completion --words 2>/dev/null)
}
complete -F _cnnbench cnnbench
"""

_ZSH = r"""#compdef cnnbench
# Completion of cnnbench for zsh; `cnnbench completion zsh` printed it.
_cnnbench() {
  local word about
  local -a complete open
  while IFS=$'\t' read -r word about; do
    case $word in
      (:file) compset -P '*='; _files ;;
      (:folder) compset -P '*='; _files -/ ;;
      (*=) open+=("${word//:/\\:}:$about") ;;
      (*) complete+=("${word//:/\\:}:$about") ;;
    esac
  done < <(print -rl -- "${(@Q)words[2,CURRENT-1]}" "$PREFIX" |
    cnnbench completion --words 2>/dev/null)
  if (( $#open + $#complete )); then _describe -o cnnbench open -S '' -- complete; fi
}
if [[ $funcstack[1] == _cnnbench ]]; then _cnnbench "$@"; else compdef _cnnbench cnnbench; fi
"""

_SHELLS = {"bash": _BASH, "zsh": _ZSH}

_ABOUT = """\
Usage: cnnbench completion bash|zsh

Prints a script with which a shell completes commands, flags, values of flags that have a list of
values, and names of files and folders.

  cnnbench completion bash > ~/.local/share/bash-completion/completions/cnnbench
  cnnbench completion zsh > "${fpath[1]}/_cnnbench"

The first needs the package bash-completion; without it: source <(cnnbench completion bash).
"""


@dataclass(frozen=True, kw_only=True)
class CompletionFlags:
    """Flags with which the printed scripts call `cnnbench completion`."""

    words: bool = flag(
        False,
        "Read the words after cnnbench, one per line, and print the possible completions of the "
        "last word, each with a tab and a line of help. The scripts call this command.",
    )


HELP = (_ABOUT, [("Flags", specs_of(CompletionFlags))])


def argument_completions() -> tuple[str, ...]:
    """The names of the supported shells, which a shell proposes as the argument of the command."""
    return tuple(_SHELLS)


def main(argv: Sequence[str]) -> int:
    """Prints the script, or the completions of a command line."""
    values, names = parse_command(argv, specs_of(CompletionFlags))
    if values.get("words"):
        words = sys.stdin.read().removesuffix("\n").split("\n")
        for word, about in complete_last_word(words):
            print_result(f"{word}\t{about}")
        return ExitCode.OK
    if len(names) != 1 or names[0] not in _SHELLS:
        what = " ".join(names) or "nothing"
        raise UsageError(f"cnnbench completion takes one of {', '.join(_SHELLS)}, not {what!r}")
    print_result(_SHELLS[names[0]].rstrip("\n"))
    return ExitCode.OK


def complete_last_word(typed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the possible completions of a command line's last word, each with a line of help.

    `typed` contains the words after ``cnnbench``. The last word may be unfinished. bash gives
    ``--flag=value`` as three words; then only the value is completed. ``:file`` and ``:folder``
    stand for all names of files and of folders.
    """
    words = _join_flags(typed)
    word = words[-1]
    before = word[: len(word) - len(typed[-1])] if typed[-1] != "=" else word
    for text, about in _completions(words):
        yield text if text.startswith(":") else text.removeprefix(before), about


def _join_flags(typed: Iterable[str]) -> list[str]:
    """Joins a flag, ``=`` and its value to one word."""
    words: list[str] = []
    joins = False
    for word in typed:
        if word == "=" and words and words[-1].startswith("-") and "=" not in words[-1]:
            words[-1] += word
            joins = True
        elif joins:
            words[-1] += word
            joins = False
        else:
            words.append(word)
    return words


def _completions(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    *previous, word = words
    command = previous[0] if previous and not previous[0].startswith("-") else "run"
    if "--" in previous:
        command = "run"
    is_other = command in COMMANDS and command != "run"
    module = import_module(f"cnnbench.cli.commands.{command}") if is_other else None
    own: Iterable[FlagSpec] = ()
    if module is not None:
        own = (spec for _, specs in module.HELP[1] for spec in specs)
    elif "--" not in previous:
        own = specs_of(RepeatFlags)
    of_runs = ACCEPTED if getattr(module, "TAKES_RUN_FLAGS", command == "run") else {}
    flags = {**{spec.name: spec for spec in own}, **of_runs}
    named = {**flags, **{spec.short: spec for spec in flags.values() if spec.short}}
    if word.startswith("-") and "=" in word:
        name, _, value = word.partition("=")
        yield from _complete_value(named.get(name.lstrip("-")), value, f"{name}=")
        return
    last = previous[-1] if previous else ""
    if last.startswith("-") and "=" not in last and last != "--":
        spec = named.get(last.lstrip("-"))
        is_negation = last.lstrip("-").removeprefix("no") in flags
        if not (spec.kind.name == "boolean" if spec else is_negation):
            yield from _complete_value(spec, word, "")
            return
    if word.startswith("-"):
        for spec in flags.values():
            switch = (f"--{spec.name}", f"--no{spec.name}")
            for text in switch if spec.kind.name == "boolean" else (f"--{spec.name}=",):
                if text.lstrip("-").startswith(word.lstrip("-")):
                    yield text, spec.help.partition(". ")[0].rstrip(".")
    elif not previous:
        commands = {**COMMANDS, "help": "explain a command"}
        yield from ((name, text) for name, text in commands.items() if name.startswith(word))
    else:
        words_of: Iterable[str] = (
            COMMANDS if command == "help" else getattr(module, "argument_completions", tuple)()
        )
        choices = [(text, "") for text in words_of if text.startswith(word)]
        yield from choices
        if not choices and command != "run":
            yield ":file", ""


def _complete_value(spec: FlagSpec | None, value: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the completions of a flag's value or, for lists, of the item after the last comma."""
    if spec is None:
        return
    if spec.path:
        yield f":{spec.path.split()[0]}", ""
        return
    earlier_items, comma, item = value.rpartition(",")
    for choice in spec.choices or (spec.known() if spec.known else ()):
        if choice and choice.startswith(item):
            yield f"{prefix}{earlier_items}{comma}{choice}", ""
