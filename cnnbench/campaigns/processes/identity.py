"""The identity of a campaign, which `--resume` must match.

It consists of the flags of all plans, the measured code with uncommitted changes, software and
machine, the decision thresholds and the seed. The code is checked again before each process.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cnnbench.base import plugins
from cnnbench.base.text import first_few
from cnnbench.base.values import labels_from_config
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.errors import BenchmarkError
from cnnbench.flags import FLAGS, OBSOLETE
from cnnbench.machine import repository
from cnnbench.machine.facts import comparable_fact
from cnnbench.plan.identity import KEY_LENGTH
from cnnbench.records.codec import encode
from cnnbench.records.subject import Subject

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

OTHER_COMMANDS = ("campaigns/", "judge/")
"""Folders of cnnbench that measuring processes do not import."""

_NAMED = 8  # Maximum number of differences in an error message.
_LENGTH = 40  # Maximum number of characters of a value in an error message.
_NOT_SET = "not set"


class CodeChangedError(BenchmarkError):
    """The measured code was changed during a campaign.

    The campaign ends before its next process. `code_name` names the code, such as a repository.
    """

    def __init__(self, code_name: str) -> None:
        super().__init__(
            f"the measured code was changed ({code_name}); earlier measurements are kept"
        )


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What must be equal when a campaign is resumed, as it is stored.

    Attributes:
      plans: values that identify the runs of each plan, by the name of the plan and of the value.
        If a plan exists in only one of two identities, the identities still match.
      code: commits and digests of the measured code.
      software: machine, interpreter, libraries and environment variables.
      policy: other values that determine which processes run and how their results are judged.
    """

    plans: Mapping[str, Any]
    code: Mapping[str, Any]
    software: Mapping[str, Any]
    policy: Mapping[str, Any]

    def differences(self, now: Identity) -> str:
        """Describes how a later identity differs, with both values; "" if it matches."""
        pairs = {
            f"{flag} of {name}" if name else flag: (self.plans[name], now.plans[name], flag)
            for name in self.plans
            if name in now.plans
            for flag in {**self.plans[name], **now.plans[name]}
        }
        for part in ("code", "software", "policy"):
            before, after = getattr(self, part), getattr(now, part)
            pairs |= {name: (before, after, name) for name in {**before, **after}}
        texts = [
            f"{name} ({_value_text(before, key)}, now {_value_text(after, key)})"
            for name, (before, after, key) in pairs.items()
            if before.get(key) != after.get(key)
        ]
        return first_few(texts, _NAMED, ", ") if texts else ""


def _value_text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if value is None:
        return _NOT_SET
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 3]}..."


class ConfigurationIdentity(NamedTuple):
    """The identity of one configuration that a campaign measures: its flags and its code.

    Attributes:
      identity: values that identify the plan, by the names of flags.
      config: parameters of the runs, if the plug-ins that they name are measured; None if only
        commits are.
      folder: folder in which the runs start; None means the working directory.
      parts: files that the plug-ins use; see `plugins.parts`.
      own: whether the processes run the code of this cnnbench installation.
    """

    identity: Mapping[str, Any]
    config: Mapping[str, Any] | None
    folder: Path | None = None
    parts: Sequence[str] = ()
    own: bool = True

    def measured_code(self) -> Subject:
        """The repository, commit and uncommitted changes of the measured code at the time of the
        call.
        """
        if self.config is None:
            return Subject()
        subject = repository.measured_code(self.config, self.folder, self.parts)
        return subject.with_labels(labels_from_config(self.config)) or Subject()


@dataclass(frozen=True, kw_only=True)
class CampaignIdentity:
    """What a campaign measures: the source of its `Identity`.

    Attributes:
      plans: plans by name. If a plan exists in only one of two identities, the identities still
        match.
      facts: recorded properties of this machine.
      policy: other values that determine which processes run and how their results are judged.
    """

    plans: Mapping[str, ConfigurationIdentity]
    facts: Mapping[str, Any]
    policy: Mapping[str, Any]

    @cached_property
    def initial_code_state(self) -> dict[str, Any]:
        """State of the measured code, such as commits, at the time when this property was first
        read.
        """
        return self._read_code_state()

    def values(self) -> Identity:
        """The identity at the time of the call, with code as in `initial_code_state`."""
        known = environment_identity(self.facts).items()
        software = {name.removeprefix("env_"): value for name, value in known}
        software["interpreter"] = sys.executable
        plans = {name: plan.identity for name, plan in self.plans.items()}
        parts = {"code": self.initial_code_state, "software": software, "policy": self.policy}
        # As after reading: JSON has no tuples.
        return Identity(**json.loads(json.dumps(encode({"plans": plans, **parts}))))

    def raise_if_code_changed(self) -> None:
        """Raises CodeChangedError if the measured code has changed since the first read of
        `initial_code_state`.
        """
        then, now = self.initial_code_state, self._read_code_state()
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            raise CodeChangedError(", ".join(changed))

    def _read_code_state(self) -> dict[str, Any]:
        is_own = any(plan.own for plan in self.plans.values())
        state: dict[str, Any] = {"sources of cnnbench": source_digest()} if is_own else {}
        places: dict[str, ConfigurationIdentity] = {}  # The keys name the code in error messages.
        for name, plan in self.plans.items():
            files = ", ".join(plugins.plugin_files_of_flags(plan.config or {}))
            places.setdefault(files if plan.folder is None else name, plan)
        for name, plan in places.items():
            subject, of = plan.measured_code(), f" of {name}" if name else ""
            known = {"repository": subject.repository, "commit": subject.revision}
            known["uncommitted changes"] = subject.changes
            state |= {f"{what}{of}": value for what, value in known.items() if value is not None}
        return state


def configuration_identity(resolved: ResolvedRun, /, **more: object) -> ConfigurationIdentity:
    """Creates the identity of runs in the working directory. `more` contains additional values."""
    identity = identity_values(resolved.identity, **more)
    return ConfigurationIdentity(identity, resolved.config, parts=resolved.parts)


def identity_values(flags: Mapping[str, Any], /, **more: object) -> dict[str, Any]:
    """The values that identify a run: flags that differ from their defaults, and `more`."""
    usual = {spec.name: encode(spec.default) for spec in (*FLAGS, *OBSOLETE)}
    chosen = {n: v for n, v in flags.items() if n not in usual or usual[n] != encode(v)}
    return {**chosen, **more}


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
