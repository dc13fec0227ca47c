"""Flags and parameters; imports no TensorFlow.

Every flag is declared once, as a field of a group dataclass that `Params` extends (declare.py).
"""

from __future__ import annotations

from cnnbench.flags.checks import validate
from cnnbench.flags.params import FLAGS, GROUPS, Params
from cnnbench.flags.parse import ParsedArgs, parse_args, parse_command, parse_flags

__all__ = [
    "FLAGS",
    "GROUPS",
    "Params",
    "ParsedArgs",
    "parse_args",
    "parse_command",
    "parse_flags",
    "validate",
]
