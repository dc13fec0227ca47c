"""The origin of a measurement: which code was measured on which machine."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from cnnbench.base.files import parse_json
from cnnbench.base.text import counted_names, integer
from cnnbench.judge.metrics.measurement import Measurement, fact_text, short_commit
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.run import ModelInfo, RunRecord
from cnnbench.records.subject import subject_of_record

_CHANGES = 7
"""Number of digits that output shows of a digest of uncommitted changes."""

_ABBREVIATED = re.compile("[0-9a-f]{7,39}")

Machine: TypeAlias = tuple[tuple[str, str], ...]
"""The recorded properties that identify a machine, as pairs of name and text."""

_MACHINE = ("gpu_names", "cpu_model", "architecture", "usable_cpus", "cgroup_cpu_limit")
"""Properties that identify a machine. Host names are excluded, so that a pool of equal machines
counts as one machine. Properties that may change on a machine, such as a driver, are excluded, so
that histories show their effect.
"""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What was measured where: the code, the size of the network, the TensorFlow version and the
    machine. Measurements with different origins are never pooled.

    Unknown values are "" or None. `commit` and `repository` are the only labels of users that are
    part of the origin.

    Attributes:
      side: "a" or "b" for a process of side A or B of an experiment, otherwise "".
      revision: commit of the measured code or, if it is unknown, the commit of cnnbench itself.
      dirty: whether files differed from the revision.
      changes: digest of the uncommitted changes.
      network: parameters and FLOPs per image of a run; None for all-reduces, and for runs that
        ended before the network was built.
    """

    side: str = ""
    repository: str = ""
    revision: str = ""
    dirty: bool | None = None
    changes: str = ""
    network: ModelInfo | None = None
    tensorflow: str = ""
    machine: Machine = ()

    @classmethod
    def of(cls, measured: Measurement | AllReduceRecord) -> Origin:
        """Returns the origin of a measurement or of an all-reduce record."""
        ab = measured.ab if isinstance(measured, RunRecord) else None
        subject = subject_of_record(measured.subject, measured.config, ab)
        facts = measured.environment
        commit = facts.get("git_commit")
        if subject.revision is None and not subject.unknown and isinstance(commit, str):
            dirty, changes = facts.get("git_dirty"), fact_text(facts.get("git_changes", ""))
            dirty = dirty if isinstance(dirty, bool) else None
            if subject.changes is not None:  # Outside of a repository, code has none.
                dirty, changes = True, subject.changes + changes
            subject = replace(subject, revision=commit, dirty=dirty, changes=changes)
        return cls(
            side=subject.side or "",
            repository=subject.repository or "",
            revision=subject.revision or "",
            dirty=subject.dirty,
            changes=subject.changes or "",
            network=measured.model if isinstance(measured, RunRecord) else None,
            tensorflow=fact_text(facts.get("tensorflow_version", "")),
            machine=tuple((name, fact_text(facts[name])) for name in _MACHINE if name in facts),
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Cached, because histories look up the origin of every measurement.
        return hash((*self.code_state, self.side, self.network, self.tensorflow, self.machine))

    @property
    def short_revision(self) -> str:
        """The shortened commit of the revision. If files were changed, "+" and the first digits of
        the digest of the changes follow.
        """
        text = short_commit(self.revision)
        return f"{text}+{self.changes[:_CHANGES]}" if self.dirty and text else text

    @cached_property
    def network_text(self) -> str:
        """Text with the exact numbers of parameters and FLOPs of the network; "" if unknown. If two
        texts differ, the networks are different.
        """
        if (network := self.network) is None:
            return ""
        parameters = network.parameters, network.trainable_parameters
        flops = network.training_flops_per_image, network.forward_flops_per_image
        texts = ["/".join(map(integer, dict.fromkeys(both))) for both in (parameters, flops)]
        return f"network of {texts[0]} parameters, {texts[1]} FLOPs"

    @property
    def code_state(self) -> tuple[str, str, bool | None, str]:
        """The state of the code: repository, revision, whether files were changed, their digest."""
        return self.repository, self.revision, self.dirty, self.changes

    def part_texts(self) -> dict[str, str]:
        """The components of the origin, such as revision and machine: names and texts for people.
        The text of an unknown component is "".
        """
        return {
            "side": self.side.upper(),
            "repository": self.repository,
            "revision": self.short_revision,
            "network": self.network_text,
            "TensorFlow": self.tensorflow,
            "machine": machine_name(dict(self.machine)),
        }


def fill_in_origins(origins: Iterable[Origin]) -> dict[Origin, Origin]:
    """Maps each origin to a copy in which missing values, such as the network, are taken from other
    origins that are otherwise equal.

    An abbreviated commit is completed if all longer commits that begin with it agree. A run that
    ended before its network was known gets the network of an origin that is otherwise equal.
    """
    distinct = tuple(dict.fromkeys(origins))
    revisions = sorted({origin.revision for origin in distinct})
    whole = {}
    for place, text in enumerate(revisions):
        if _ABBREVIATED.fullmatch(text):
            # Finds all commits that begin with `text`: "g" comes after all hexadecimal digits.
            longer = revisions[place : bisect_left(revisions, f"{text}g")]
            if all(map(longer[-1].startswith, longer)):
                whole[text] = longer[-1]
    homes = {one: replace(one, revision=whole.get(one.revision, one.revision)) for one in distinct}
    networked = (home for home in reversed(homes.values()) if home.network)
    known = {replace(home, network=None): home for home in networked}
    return {one: home if home.network else known.get(home, home) for one, home in homes.items()}


def varying_parts(origins: Iterable[Origin]) -> dict[str, tuple[str, ...]]:
    """Maps the name of each component that differs between the origins, such as "revision", to its
    different values as text, in the order of appearance.
    """
    texts_by_name: dict[str, dict[str, None]] = {}
    distinct = tuple(dict.fromkeys(origins))
    for origin in distinct:
        for name, text in origin.part_texts().items():
            texts_by_name.setdefault(name, {})[text or "unknown"] = None
    differ = {name: tuple(texts) for name, texts in texts_by_name.items() if len(texts) > 1}
    if len(distinct) > 1 and not differ:
        return {"machine": tuple(f"#{place}" for place in range(1, len(distinct) + 1))}
    return differ


def origin_titles(origins: Iterable[Origin], without: Iterable[str] = ()) -> dict[Origin, str]:
    """Maps each origin to a unique name, made of the components that differ between the origins.
    Components in `without` are not used. A single origin has the name "".
    """
    distinct = tuple(dict.fromkeys(origins))
    if len(distinct) == 1:
        return {distinct[0]: ""}
    names = [name for name in varying_parts(distinct) if name not in (*without, "machine")]
    machines = machine_names(distinct)
    named: dict[Origin, str] = {}
    taken: set[str] = set()
    for origin in distinct:
        parts = origin.part_texts()
        words = [origin_part_text(name, parts[name]) for name in names]
        if "machine" not in without and len(set(machines.values())) > 1:
            words.append(machines[origin])
        text, number = ", ".join(words), 1
        while text in taken:
            number += 1
            text = ", ".join([*words, f"#{number}"])
        taken.add(text)
        named[origin] = text
    return named


def machine_names(origins: Iterable[Origin]) -> dict[Origin, str]:
    """Maps each origin to the name of its machine. Equal names of machines are numbered."""
    named: dict[Machine, str] = {}
    taken: dict[str, int] = {}
    names = {}
    for origin in origins:
        if origin.machine not in named:
            name = machine_name(dict(origin.machine))
            taken[name] = taken.get(name, 0) + 1
            named[origin.machine] = name if taken[name] == 1 else f"{name} #{taken[name]}"
        names[origin] = named[origin.machine]
    return names


def machine_name(facts: Mapping[str, str]) -> str:
    """Returns a short name of a machine: its GPUs or else its processor, CPUs and CPU limit."""
    gpus = facts.get("gpu_names", "")
    with contextlib.suppress(ValueError):
        names = parse_json(gpus)
        gpus = counted_names(names) if isinstance(names, list) else gpus
    if gpus:
        return gpus
    cpus, limit = facts.get("usable_cpus"), facts.get("cgroup_cpu_limit")
    parts = [facts.get("cpu_model", "unknown machine")]
    if cpus:
        parts.append(f"{cpus} {'CPU' if cpus == '1' else 'CPUs'}")
    if limit:
        parts.append(f"limited to {limit}")
    return ", ".join(parts)


def origin_part_text(part: str, text: str) -> str:
    """Returns the text for one component of an origin, such as "TensorFlow 2.21.0" or "unknown
    revision". Names of origins consist of several of these texts.
    """
    if not text:
        return f"unknown {part}"
    return {"side": f"side {text}", "TensorFlow": f"TensorFlow {text}"}.get(part, text)
