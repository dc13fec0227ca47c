"""What makes two runs the same: digests of flags and sources, and facts of machine and software."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cnnbench.machine.facts import comparable_fact
from cnnbench.plan.run_plan import KEY_LENGTH

# Names of the recorded properties of machine and software that affect measurements.
# Load and free memory are not included, because they vary all the time.
# The commit is not included, because a digest of the source files identifies the code.
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

OTHER_COMMANDS = ("campaigns/", "judge/", "lab/predict/")
"""Folders of cnnbench that measuring processes do not import."""


def environment_identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Selects recorded properties of machine and software that may affect the speed of a run."""
    return {
        **{name: facts[name] for name in _FACTS if name in facts},
        **{name: comparable_fact(name, facts[name]) for name in facts if name.startswith("env_")},
    }


def json_digest(parts: Mapping[str, Any]) -> str:
    """SHA-256 digest of a JSON object, shortened. It does not depend on the order of the keys."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def source_digest() -> str:
    """SHA-256 digest of all Python files of cnnbench that a run may execute, shortened.

    Unlike a commit, it includes uncommitted changes, and it does not depend on documentation.
    """
    digest = hashlib.sha256()
    for package in ("cnnbench", "cnnbench.models", "cnnbench.variable_mgr"):
        spec = find_spec(package)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
        for folder in map(Path, folders):
            for file in sorted(folder.rglob("*.py")):
                inner = file.relative_to(folder).as_posix()
                if package == "cnnbench" and inner.startswith(OTHER_COMMANDS):
                    continue
                digest.update(f"{package}/{inner}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:KEY_LENGTH]
