"""What is equal in equal runs on this machine, and in all processes of a job."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.urls import is_url
from cnnbench.flags.declare import FlagSpec, named, specs_of
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.identity import identity
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import Role
from cnnbench.machine.host import Host
from cnnbench.plan.place import ADDRESSES

KEY_LENGTH = 12
"""Digits of digests that identify runs."""

_PATHS = [
    *(one.name for one in FLAGS if one.path and one.role is Role.PLACE),
    *(name for name in plugins.FLAGS if name != plugins.FLAG),
]
_VERSIONS = ("cnnbench_version", "tensorflow_version")

_OWN = {
    # The handshake compares the addresses themselves.
    *ADDRESSES,
    *named(FLAGS, Role.JOB),
    # Machines may keep data in different places and have different GPUs.
    *("data_dir", "gpu_indices"),
    *(spec.name for spec in specs_of(OutputParams)),
}
"""Flags that may differ between the processes of a job."""


def identity_here(config: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies a run on this machine: `identity`, absolute paths, digests of plug-ins.

    The digest of a plug-in includes its `parts`.
    """
    found = identity(config, of_places=True)
    for name in _PATHS:
        if found.get(name) and not is_url(found[name]):
            found[name] = os.path.abspath(found[name])
    for name, path in plugins.files(found):
        with contextlib.suppress(OSError):
            digest = plugins.digest(path, plugins.parts({name: path}))
            number = "" if name != plugins.FLAG else f" {os.path.abspath(path)}"
            found[f"{name} digest{number}"] = digest[:KEY_LENGTH]
    found[plugins.FLAG] = [*map(os.path.abspath, found.get(plugins.FLAG) or ())]
    return found


def agreed_facts(values: Mapping[str, Any], specs: Iterable[FlagSpec] = FLAGS) -> dict[str, str]:
    """Versions and flags, by name, that must be equal (`run.cluster.handshake.meet`)."""
    from cnnbench.machine.software import packages

    versions = packages(Host())
    flags = {f"--{s.name}": s.text(values[s.name]) for s in specs if s.name not in _OWN}
    return {**{name: str(versions[name]) for name in _VERSIONS}, **flags}


def digest_of(value: object) -> str:
    """A digest of plain data, for facts too long to show."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
