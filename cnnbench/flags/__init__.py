"""Declares the flags of all commands, each as one dataclass field, and parses command lines. Does
not import TensorFlow.
"""

from __future__ import annotations

from cnnbench.flags.params import FLAGS, GROUPS, Params
from cnnbench.flags.parse import (
    ParsedArgs,
    args_from_values,
    parse_args,
    parse_command,
    parse_flag_texts,
    parse_flags,
)

__all__ = [
    "FLAGS",
    "GROUPS",
    "Params",
    "ParsedArgs",
    "args_from_values",
    "parse_args",
    "parse_command",
    "parse_flag_texts",
    "parse_flags",
]
