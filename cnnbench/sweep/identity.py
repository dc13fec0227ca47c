"""Keys of runs: equal for runs that a resumed sweep need not repeat."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

KEY_LENGTH = 12

# Facts that change what is measured. The load, free memory and the like change from minute
# to minute, and the commit is covered by the sources themselves.
_FACTS = (
    "hostname",
    "architecture",
    "cpu_model",
    "logical_cpus",
    "usable_cpus",
    "cpu_affinity",
    "cgroup_cpu_limit",
    "cgroup_memory_limit_bytes",
    "gpu_names",
    "gpu_driver",
    "python_version",
    "tensorflow_package",
    "tensorflow_version",
    "numpy_version",
    "cnnbench_version",
)
_VARIABLE_PREFIX = "env_"

OTHER_COMMANDS = ("ab", "compare", "history", "metrics", "predict", "processes", "report", "sweep")
"""Packages and modules of cnnbench that no measuring process imports."""


def environment_identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts about a machine and its software whose change makes it another run.

    Args:
      facts: see `cnnbench.machine.facts.collect`.
    """
    return {
        **{name: facts[name] for name in _FACTS if name in facts},
        **{name: value for name, value in facts.items() if name.startswith(_VARIABLE_PREFIX)},
        "sources": source_digest(),
    }


def key(parts: Mapping[str, Any]) -> str:
    """A digest: equal parts, equal key.

    Args:
      parts: values with a JSON form; their order does not matter.
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


@cache
def source_digest() -> str:
    """Digest of the Python files that a run may execute, wherever they are installed.

    More precise than a commit: a modified checkout is another program, and a commit that
    changes documentation only is not.
    """
    digest = hashlib.sha256()
    for package in ("cnnbench", "cnnbench.models", "cnnbench.variable_mgr"):
        spec = find_spec(package)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
        for folder in map(Path, folders):
            for file in sorted(folder.rglob("*.py")):
                inner = file.relative_to(folder)
                if package == "cnnbench" and inner.parts[0].removesuffix(".py") in OTHER_COMMANDS:
                    continue
                digest.update(f"{package}/{inner}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:KEY_LENGTH]
