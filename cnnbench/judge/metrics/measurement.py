"""The measurements of one process of one configuration, and their origins."""

from __future__ import annotations

import contextlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from cnnbench.base.reading import parse_json
from cnnbench.base.text.numbers import binary, counted, integer
from cnnbench.machine.software import without_places
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.parts import ErrorInfo, ModelInfo
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, subject_of

RUN = RunRecord.kind
ALL_REDUCE, BUILD, PEER, COPY = "allreduce", "build", "peer", "copy"

KINDS = {
    RUN: "runs",
    ALL_REDUCE: "all-reduces",
    BUILD: "all-reduces that were only built",
    PEER: "peers",
    COPY: "memory copies",
}
"""Kinds of measurements with their plurals, in order of display. Measurements of different kinds
are never compared. All but RUN are rows of all-reduce records."""

CONTEXT = (PEER, COPY)
"""Kinds that show other changes (machine, TensorFlow) and do not affect the exit code."""

_COMMIT, _CHANGES = 12, 7
"""Digits of a commit and of a digest of changes that are shown."""

_ABBREVIATED = re.compile("[0-9a-f]{7,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredReduction:
    """A row of an all-reduce record, measured by one process.

    Attributes:
      kind: ALL_REDUCE; BUILD, for --build_only; PEER, a reduction of another library; COPY, all
        devices copying memory at once.
      status: "failed" if it could not be measured or summed wrongly, "interrupted" if it was cut
        short, else "ok", however the process ended.
      config: flags of the process, with the row's values for those that list what is measured.
      facts: facts about process and row, as text.
      seconds: seconds of the median reduction or copy; None if none was timed or sums were wrong.
      bytes_per_sec: bus bandwidth; of a copy, the bytes that all devices write together.
      build_seconds: seconds to trace it and to call it for the first time.
    """

    kind: str
    run_id: str
    started_at: str
    status: str
    error: ErrorInfo | None
    config: Mapping[str, Any]
    explicit_flags: tuple[str, ...]
    environment: Mapping[str, Any]
    facts: tuple[tuple[str, str], ...]
    subject: Subject | None = None
    seconds: float | None = None
    bytes_per_sec: float | None = None
    build_seconds: float | None = None


Measurement: TypeAlias = RunRecord | MeasuredReduction
"""The record of a run, or a row of an all-reduce record."""


def fact_text(value: Any, name: str = "") -> str:
    """A fact as text: strings as they are, anything else as JSON; see `without_places`."""
    value = without_places(name, value)
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value)


def readable_fact(name: str, value: Any) -> str:
    """A fact for people: as by `fact_text`, but bytes in powers of 1024."""
    text = fact_text(value, name)
    return binary(int(text)) if name.endswith("_bytes") and text.isdecimal() else text


def short_commit(text: str) -> str:
    """The first digits of a full commit; other text unchanged."""
    whole = len(text) == 40 and set(text) <= set("0123456789abcdef")
    return text[:_COMMIT] if whole else text


def process_facts(record: RunRecord | AllReduceRecord) -> tuple[tuple[str, str], ...]:
    """Names and texts of the facts about a process and the measured code; commits are shortened."""
    facts = [
        (name, fact_text(value, name)[: _COMMIT if name == "git_commit" else None])
        for name, value in record.environment.items()
    ]
    if (subject := record.subject) is not None:
        names = ("repository", "revision", "dirty", "changes", "unknown")
        named = {f"subject_{name}": getattr(subject, name) for name in names}
        known = {name: fact_text(value) for name, value in named.items() if value is not None}
        facts += [(name, short_commit(text)) for name, text in known.items()]
    return tuple(facts)


Machine: TypeAlias = tuple[tuple[str, str], ...]
"""Facts by name."""

_MACHINE = ("gpu_names", "cpu_model", "architecture", "usable_cpus", "cgroup_cpu_limit")
"""Facts that identify a machine: no host names, since a pool of equal machines is one machine, and
nothing that may change on a machine, such as a driver, which the history should show."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of a measurement; measurements of different origins are never pooled.

    It is the measured code (side, repository, revision, uncommitted changes), the size of its
    network, the version of TensorFlow and the machine; "" and None where unknown. User labels
    except `commit` and `repository` are no part of it.

    Attributes:
      side: side of an experiment, "a" or "b".
      revision: the commit of cnnbench itself where no other is known.
      dirty: whether files differed from the revision.
      changes: digest of these differences.
      network: parameters and FLOPs per image of a run; None of reductions, and of runs that ended
        before they were known.
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
        """The origin of a measurement."""
        ab = measured.ab if isinstance(measured, RunRecord) else None
        subject = subject_of(measured.subject, measured.config, ab)
        facts = measured.environment
        commit = facts.get("git_commit")
        if subject.revision is None and not subject.unknown and isinstance(commit, str):
            dirty, changes = facts.get("git_dirty"), fact_text(facts.get("git_changes", ""))
            dirty = dirty if isinstance(dirty, bool) else None
            if subject.changes is not None:  # of a plug-in that is in no repository
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
        # Histories look up the origin of every measurement.
        return hash((*self.code, self.side, self.network, self.tensorflow, self.machine))

    @property
    def short(self) -> str:
        """The revision, a commit shortened; with a plus and digits of the changes, if any."""
        text = short_commit(self.revision)
        return f"{text}+{self.changes[:_CHANGES]}" if self.dirty and text else text

    @cached_property
    def network_size(self) -> str:
        """Parameters and FLOPs, exactly, since any difference makes another network; or ""."""
        if (one := self.network) is None:
            return ""
        parameters = one.parameters, one.trainable_parameters
        flops = one.training_flops_per_image, one.forward_flops_per_image
        texts = ["/".join(map(integer, dict.fromkeys(both))) for both in (parameters, flops)]
        return f"network of {texts[0]} parameters, {texts[1]} FLOPs"

    @property
    def code(self) -> tuple[str, str, bool | None, str]:
        """The state of the measured code, whatever its side and where it was measured."""
        return self.repository, self.revision, self.dirty, self.changes

    def parts(self) -> dict[str, str]:
        """Names and texts of its parts, for people; "" where unknown."""
        return {
            "side": self.side.upper(),
            "repository": self.repository,
            "revision": self.short,
            "network": self.network_size,
            "TensorFlow": self.tensorflow,
            "machine": machine_name(dict(self.machine)),
        }


def resolved(origins: Iterable[Origin]) -> dict[Origin, Origin]:
    """Origins with what others tell about them.

    An abbreviated commit is completed where only one of the others begins with it; a run that ended
    before its network was known gets that of an equal origin.
    """
    distinct = tuple(dict.fromkeys(origins))
    revisions = sorted({one.revision for one in distinct})
    whole = {}
    for place, text in enumerate(revisions):
        if _ABBREVIATED.fullmatch(text):
            longer = revisions[place : bisect_left(revisions, f"{text}g")]  # after all digits
            if all(map(longer[-1].startswith, longer)):
                whole[text] = longer[-1]
    found = {
        one: replace(one, revision=whole[one.revision]) if one.revision in whole else one
        for one in distinct
    }
    known = {replace(one, network=None): one for one in reversed(found.values()) if one.network}
    return {one: home if home.network else known.get(home, home) for one, home in found.items()}


def varying(origins: Iterable[Origin]) -> dict[str, tuple[str, ...]]:
    """Parts in which origins differ, with their values in order of appearance."""
    found: dict[str, dict[str, None]] = {}
    distinct = tuple(dict.fromkeys(origins))
    for origin in distinct:
        for name, text in origin.parts().items():
            found.setdefault(name, {})[text or "unknown"] = None
    differ = {name: tuple(texts) for name, texts in found.items() if len(texts) > 1}
    if len(distinct) > 1 and not differ:
        return {"machine": tuple(f"#{place}" for place in range(1, len(distinct) + 1))}
    return differ


def titles(origins: Iterable[Origin], without: Iterable[str] = ()) -> dict[Origin, str]:
    """Names of origins by the parts that vary, except those of `without`; "" for one origin."""
    distinct = tuple(dict.fromkeys(origins))
    if len(distinct) == 1:
        return {distinct[0]: ""}
    names = [name for name in varying(distinct) if name not in (*without, "machine")]
    machines = machine_names(distinct)
    named: dict[Origin, str] = {}
    taken: set[str] = set()
    for origin in distinct:
        parts = origin.parts()
        words = [part_text(name, parts[name]) for name in names]
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
    """The name of each origin's machine, numbered where the named facts are equal."""
    named: dict[Machine, str] = {}
    taken: dict[str, int] = {}
    found = {}
    for origin in origins:
        if origin.machine not in named:
            name = machine_name(dict(origin.machine))
            taken[name] = taken.get(name, 0) + 1
            named[origin.machine] = name if taken[name] == 1 else f"{name} #{taken[name]}"
        found[origin] = named[origin.machine]
    return found


def machine_name(facts: Mapping[str, str]) -> str:
    """A short name of a machine: its GPUs, else its processor and the usable share."""
    gpus = facts.get("gpu_names", "")
    with contextlib.suppress(ValueError):
        names = parse_json(gpus)
        gpus = counted(names) if isinstance(names, list) else gpus
    if gpus:
        return gpus
    cpus, limit = facts.get("usable_cpus"), facts.get("cgroup_cpu_limit")
    parts = [facts.get("cpu_model", "unknown machine")]
    parts += [f"{cpus} CPUs"] if cpus else []
    parts += [f"limited to {limit}"] if limit else []
    return ", ".join(parts)


def part_text(part: str, text: str) -> str:
    """A part of `Origin.parts` as it is named beside others."""
    if not text:
        return f"unknown {part}"
    return {"side": f"side {text}", "TensorFlow": f"TensorFlow {text}"}.get(part, text)
