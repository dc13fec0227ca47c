"""Completion scripts for shells, made of plain tables of commands and flags."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cnnbench.version import __version__


@dataclass(frozen=True)
class Flag:
    """A flag.

    Attributes:
      name: without dashes.
      is_switch: it takes no value, and has a form --noNAME.
      about: what it does, in a line.
      values: to propose.
      path: "file", "folder" or "".
    """

    name: str
    is_switch: bool
    about: str
    values: tuple[str, ...]
    path: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """As it is written; what ends in = waits for a value."""
        if self.is_switch:
            return (f"--{self.name}", f"--no{self.name}")
        return (f"--{self.name}=",)


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
      name: of the command.
      about: what it does, in a line.
      flags: it takes.
      words: arguments to propose.
    """

    name: str
    about: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]


_BASH = r"""# Completion of cnnbench @VERSION@ for bash; `cnnbench completion bash` printed it.

# Sets _cnnbench_reply to the flags of a command.
_cnnbench_flags() {
  case $1 in
@FLAGS@
    *) _cnnbench_reply='' ;;
  esac
}

# Sets _cnnbench_reply to what a flag of a command takes: words, @file, @folder, or nothing. A flag
# without a value gives @switch.
_cnnbench_values() {
  case "$1 $2" in
@VALUES@
    *) _cnnbench_reply='' ;;
  esac
}

# Sets _cnnbench_reply to the arguments of a command; nothing stands for files.
_cnnbench_words() {
  case $1 in
@WORDS@
    *) _cnnbench_reply='' ;;
  esac
}

_cnnbench() {
  local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=run flag=''
  local prefix='' word index _cnnbench_reply IFS=$'\n'
  COMPREPLY=()
  [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
  for ((index = 1; index < COMP_CWORD; index++)); do
    if [[ ${COMP_WORDS[index]} == -- ]]; then command=run; fi
  done
  # bash takes --flag=value for three words, unless somebody has changed COMP_WORDBREAKS.
  if [[ $cur == = ]]; then
    flag=$before cur=''
  elif [[ $before == = ]]; then
    flag=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $cur == -*=* ]]; then
    flag=${cur%%=*} prefix=${cur%%=*}= cur=${cur#*=}
  elif [[ $before == -?* && $before != -- ]]; then
    _cnnbench_values "$command" "${before##*-}"
    [[ $_cnnbench_reply != @switch ]] && flag=$before
  fi
  if [[ -n $flag ]]; then
    _cnnbench_values "$command" "${flag##*-}"
    case $_cnnbench_reply in
      @file) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")) ;;
      @folder) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- "$cur")) ;;
      *)
        # Of lists, the item after the last comma.
        [[ $cur == *,* ]] && prefix=$prefix${cur%,*},
        COMPREPLY=($(compgen -P "$prefix" -W "${_cnnbench_reply// /$IFS}" -- "${cur##*,}"))
        ;;
    esac
    return
  fi
  if [[ $cur == -* ]]; then
    [[ $cur == --* ]] || cur=-$cur
    _cnnbench_flags "$command"
    COMPREPLY=($(compgen -W "${_cnnbench_reply// /$IFS}" -- "$cur"))
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    return
  fi
  if [[ $COMP_CWORD == 1 ]]; then
    _cnnbench_reply='@COMMANDS@'
    COMPREPLY=($(compgen -W "${_cnnbench_reply// /$IFS}" -- "$cur"))
    return
  fi
  _cnnbench_words "$command"
  COMPREPLY=($(compgen -W "${_cnnbench_reply// /$IFS}" -- "$cur"))
  if [[ ${#COMPREPLY[@]} == 0 && $command != run ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}

complete -F _cnnbench cnnbench
"""

_ZSH = r"""#compdef cnnbench
# Completion of cnnbench @VERSION@ for zsh; `cnnbench completion zsh` printed it.

_cnnbench_flags() {
  case $1 in
@FLAGS@
    (*) reply=() switches=() ;;
  esac
}

_cnnbench_values() {
  case "$1 $2" in
@VALUES@
    (*) REPLY='' ;;
  esac
}

_cnnbench_words() {
  case $1 in
@WORDS@
    (*) REPLY='' ;;
  esac
}

_cnnbench_complete_value() {
  _cnnbench_values "$1" "${2##*-}"
  case $REPLY in
    (@file) _files ;;
    (@folder) _files -/ ;;
    (*)
      # Of lists, the item after the last comma.
      compset -P '*,'
      compadd -- ${=REPLY}
      ;;
  esac
}

_cnnbench() {
  local command=run before=${words[CURRENT-1]} REPLY
  local -a reply switches commands
  commands=(
@COMMANDS@
  )
  if (( CURRENT > 2 )) && [[ ${words[2]} != -* ]]; then command=${words[2]}; fi
  if (( ${words[(I)--]} && ${words[(I)--]} < CURRENT )); then command=run; fi
  if [[ $PREFIX == -*=* ]]; then
    local flag=${PREFIX%%=*}
    compset -P 1 '*='
    _cnnbench_complete_value $command $flag
    return
  fi
  if [[ $before == -?* && $before != *=* && $before != -- ]]; then
    _cnnbench_values $command "${before##*-}"
    if [[ $REPLY != @switch ]]; then
      _cnnbench_complete_value $command $before
      return
    fi
  fi
  if [[ $PREFIX == -* ]]; then
    _cnnbench_flags $command
    _describe -o flag reply -S '' -- switches
    return
  fi
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  _cnnbench_words $command
  [[ -n $REPLY ]] && compadd -- ${=REPLY}
  [[ $command == run ]] || _files
}

if [[ $funcstack[1] == _cnnbench ]]; then _cnnbench "$@"; else compdef _cnnbench cnnbench; fi
"""


def bash(commands: Sequence[Command]) -> str:
    """The script for bash 3.2 and later."""
    flags = [
        f"    {one.name}) _cnnbench_reply='{' '.join(_spellings(one))}' ;;"
        for one in commands
        if one.flags
    ]
    values = [
        f"    {' | '.join(keys)}) _cnnbench_reply={shlex.quote(text)} ;;"
        for text, keys in _grouped(commands)
    ]
    words = [
        f"    {one.name}) _cnnbench_reply={shlex.quote(' '.join(one.words))} ;;"
        for one in commands
        if one.words
    ]
    names = " ".join(one.name for one in commands)
    return _filled(_BASH, FLAGS=flags, VALUES=values, WORDS=words, COMMANDS=[names])


def zsh(commands: Sequence[Command]) -> str:
    """The script for zsh, with a line of help beside everything."""
    flags = []
    for one in commands:
        told: dict[bool, list[str]] = {False: [], True: []}
        for flag in one.flags:
            told[flag.is_switch] += [_told(text, flag.about) for text in flag.spellings]
        if one.flags:
            flags += [f"    ({one.name})", f"      reply=({' '.join(told[False])})"]
            flags += [f"      switches=({' '.join(told[True])})", "      ;;"]
    values = [
        f"    ({' | '.join(keys)}) REPLY={shlex.quote(text)} ;;"
        for text, keys in _grouped(commands)
    ]
    words = [
        f"    ({one.name}) REPLY={shlex.quote(' '.join(one.words))} ;;"
        for one in commands
        if one.words
    ]
    names = [f"    {_told(one.name, one.about)}" for one in commands]
    return _filled(_ZSH, FLAGS=flags, VALUES=values, WORDS=words, COMMANDS=names)


def _spellings(command: Command) -> Iterable[str]:
    return (text for flag in command.flags for text in flag.spellings)


def _grouped(commands: Sequence[Command]) -> Iterable[tuple[str, list[str]]]:
    """What flags take, and the patterns of "command flag" that take it."""
    found: dict[str, list[str]] = {}
    for command in commands:
        for flag in command.flags:
            path = f"@{flag.path}" if flag.path else " ".join(flag.values)
            text = "@switch" if flag.is_switch else path
            if text:
                found.setdefault(text, []).append(f'"{command.name} {flag.name}"')
    return found.items()


def _told(word: str, about: str) -> str:
    """A word with its help, as _describe takes it."""
    return shlex.quote(f"{word.replace(':', chr(92) + ':')}:{about}")


def _filled(script: str, **parts: Sequence[str]) -> str:
    for name, lines in parts.items():
        script = script.replace(f"@{name}@", "\n".join(lines))
    return script.replace("@VERSION@", __version__)
