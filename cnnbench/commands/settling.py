"""The commands that would settle what a comparison of saved records left open."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cnnbench.ab.sequential import pairs_to_settle
from cnnbench.commands.sides import MOST_PAIRS, RESERVED, too_many
from cnnbench.compare import Comparison, Entry, Verdict
from cnnbench.flags import FLAGS
from cnnbench.metrics.measurement import Measurement, Reduction
from cnnbench.text import labels

_MOST_LINES = 3
_SPECS = {spec.name: spec for spec in FLAGS}
_LEFT_OUT = (*RESERVED, labels.FLAG)


def advice(comparison: Comparison) -> Iterator[str]:
    """A line with a command for each of the first few configurations that are inconclusive.

    Args:
      comparison: of saved records.
    """
    undecided = [
        entry
        for entry in comparison.by_severity()
        if entry.decides and entry.main.verdict is Verdict.INCONCLUSIVE
    ]
    runs = [entry for entry in undecided if not isinstance(entry.base[0], Reduction)]
    for entry in runs[:_MOST_LINES]:
        what = f"to settle {entry.name}" if len(comparison.entries) > 1 else "to settle it"
        yield f"{what}: {_command(entry, comparison)}"
    if len(runs) > _MOST_LINES:
        yield f"and {len(runs) - _MOST_LINES} more, with their own flags in the same way"


def _command(entry: Entry, comparison: Comparison) -> str:
    measured = min(len(entry.base), len(entry.new))
    pairs = pairs_to_settle(entry.main.judgement.needed or 0, measured)
    if pairs > MOST_PAIRS:
        return too_many(pairs)
    base, new = (_flags(side[-1]) for side in (entry.base, entry.new))
    common = [word for word in base if word in new]
    own = [
        f"--{name}={shlex.join(word for word in words if word not in common)}"
        for name, words in (("a", base), ("b", new))
        if set(words) - set(common)
    ]
    sides = [*_checkouts(entry), *own]
    if sides:
        return shlex.join(["cnnbench", "ab", f"--pairs={pairs}", *sides, "--", *common])
    # What makes the sides differ is not in the records: more of each, by whoever knows it.
    run = shlex.join(["cnnbench", *common])
    base_file, new_file = (
        f"{shlex.quote(label)}/more-$i.json"
        for label in (comparison.base_label, comparison.new_label)
    )
    loop = f"for i in $(seq {pairs - measured}); do {run} --result_json={new_file}; done"
    return f"{loop}; and in turn with these as many of the other side, to {base_file}"


def _flags(measurement: Measurement) -> list[str]:
    """The flags that a process was given, but for those that say where its results go."""
    return [
        f"--{name}={_SPECS[name].text(measurement.config[name])}"
        for name in measurement.explicit_flags
        if name in _SPECS and name not in _LEFT_OUT and measurement.config.get(name) is not None
    ]


def _checkouts(entry: Entry) -> list[str]:
    """The revisions of both sides, where these are what was measured."""
    subjects = [side[-1].subject for side in (entry.base, entry.new)]
    found = [one.revision for one in subjects if one is not None and not one.dirty]
    if len(found) < 2 or None in found or found[0] == found[1]:
        return []
    return [f"--{name}_checkout={revision}" for name, revision in zip("ab", found, strict=True)]
