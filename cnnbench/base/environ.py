"""Environment variables that launchers set."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cnnbench.errors import UsageError

NUMBER = "([0-9]{1,9})"
"""Pattern of a whole number, as a group."""
_LONGEST_VALUE = 100

Environment = Mapping[str, str]


def required(environ: Environment, name: str) -> str:
    """Returns the value of a variable; UsageError if it is not set."""
    text = environ.get(name, "").strip()
    if not text:
        raise UsageError(f"the environment variable {name} is not set; see --cluster")
    return text


def number(
    environ: Environment, name: str, otherwise: str = "", *, least: int = 0, most: int = 999_999_999
) -> int:
    """Reads a whole number from a variable, or from `otherwise` if the variable is not set.

    UsageError if it is not a number from `least` to `most`.
    """
    text = environ.get(name, "").strip() or otherwise or required(environ, name)
    if not re.fullmatch(NUMBER, text) or not least <= int(text) <= most:
        raise invalid(environ, name, f"must be a whole number from {least} to {most}")
    return int(text)


def invalid(environ: Environment, name: str, reason: str) -> UsageError:
    """Returns the error for a variable whose value cannot be used, with the value."""
    value = environ[name]
    short = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}..."
    return UsageError(f"the environment variable {name}={short}: {reason}")
