"""Flags and versions that identify a run on this machine, or that all processes of a job must agree
on.

Runs with the same identity are repetitions of one measurement.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.urls import is_url
from cnnbench.flags import (
    FLAGS,
    SPECS,
    Affects,
    ComparedBy,
    FlagSpec,
    identity_flags,
    is_machine_specific,
    names_of_flags,
    specs_of,
)
from cnnbench.flags.groups.cluster import ClusterParams
from cnnbench.flags.groups.output import OutputParams
from cnnbench.machine.cpu import Host
from cnnbench.plan.place import ADDRESSES

KEY_LENGTH = 12
"""Digits of digests that identify runs."""


_PATHS = [
    spec.name for spec in FLAGS if spec.path and is_machine_specific(spec) and not spec.repeated
]


_VERSIONS = ("cnnbench_version", "tensorflow_version")


_OWN = {
    # The handshake of a job's processes compares addresses separately.
    *ADDRESSES,
    *names_of_flags(specs_of(ClusterParams), Affects.NOTHING),
    # The machines of a job may have different GPUs, and the data in different folders.
    *names_of_flags(FLAGS, ComparedBy.NUMBER),
    "data_dir",
    *(spec.name for spec in specs_of(OutputParams)),
}
"""Names of the flags that may differ between the processes of a job."""


def identity_on_this_machine(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that distinguish a run from other runs on this machine, and digests of plug-ins.

    Paths are absolute. The digest of a plug-in includes the files that it uses.
    """
    flags = identity_flags(config, of_places=True)
    for name in _PATHS:
        if flags.get(name) and not is_url(flags[name]):
            flags[name] = os.path.abspath(flags[name])
    files = plugins.plugin_files_of_flags(flags)
    flags[plugins.FLAG] = [*map(os.path.abspath, files)]
    for path in files:
        with contextlib.suppress(OSError):
            used = plugins.files_used_by_plugins({plugins.FLAG: path})
            digest = plugins.plugin_digest(path, used)[:KEY_LENGTH]
            flags[f"{plugins.FLAG} digest {os.path.abspath(path)}"] = digest
    return flags


def facts_to_agree_on(
    values: Mapping[str, Any], specs: Iterable[FlagSpec] | None = None
) -> dict[str, str]:
    """Versions and flag values that must be equal in all processes of a job, as text by name.

    The processes compare them when they connect (`cnnbench.run.handshake`).
    """
    from cnnbench.machine.facts import package_versions

    versions = package_versions(Host())
    known = [spec for spec in SPECS.values() if spec.name in values] if specs is None else specs
    flags = {f"--{s.name}": s.text(values[s.name]) for s in known if s.name not in _OWN}
    return {**{name: str(versions[name]) for name in _VERSIONS}, **flags}


def digest_of_value(value: object) -> str:
    """Returns a short digest of a value whose text is too long to compare in a message."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
