"""Reads the YAML files of suites, and expands their entries to the configurations to measure."""

from __future__ import annotations

from cnnbench.campaigns.suite.expand import SweepCase, expand_entry
from cnnbench.campaigns.suite.files import YamlNode, find_suite, load_yaml_file, shipped_suites
from cnnbench.campaigns.suite.keys import (
    AUTO,
    BatchSizeSearch,
    Limits,
    Suite,
    SuiteEntry,
    parse_suite,
)

__all__ = [
    "AUTO",
    "BatchSizeSearch",
    "Limits",
    "Suite",
    "SuiteEntry",
    "SweepCase",
    "YamlNode",
    "expand_entry",
    "find_suite",
    "load_yaml_file",
    "parse_suite",
    "shipped_suites",
]
