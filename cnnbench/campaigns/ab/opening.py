"""Makes A and B ready to be measured: temporary worktrees, resolved flags, the measured code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cnnbench.base.terminal import ChildProcessReporter, print_notice
from cnnbench.campaigns.ab.asking import package_versions, resolve_flags, supports
from cnnbench.campaigns.ab.experiment import SIDES
from cnnbench.campaigns.ab.shared_code import refuse_shared_code
from cnnbench.campaigns.ab.side import RESERVED, AbSide, refuse_flags
from cnnbench.campaigns.ab.worktree import worktree
from cnnbench.errors import FlagError, UsageError
from cnnbench.machine import repository
from cnnbench.machine.repository import uncommitted_changes_text


@contextlib.contextmanager
def opened_sides(
    made: Sequence[AbSide], reporter: ChildProcessReporter, refuse_equal: bool
) -> Iterator[dict[str, AbSide]]:
    """Context manager: yields A and B, of which `made` has the flags, with temporary worktrees of
    their commits, resolved flags and the measured code.

    Raises UsageError for invalid flags, as far as this version knows the flags, and if A and B load
    the same files although these should differ. If A and B have the same flags and code, raises
    UsageError with `refuse_equal`, otherwise prints a notice.
    """
    with contextlib.ExitStack() as stack:
        placed = []
        for name, side in zip("AB", made, strict=True):
            if side.commit is not None:
                if text := uncommitted_changes_text(name, side.commit):
                    print_notice(text)
                side = replace(side, checkout=stack.enter_context(worktree(side.commit)))
            reason = "cannot be used here, because a record of each process is kept"
            refuse_flags(side, RESERVED, reason)
            if side.layout and not supports(side, "launch"):
                reason = f"the cnnbench of side {name} has no launch, or cannot be started"
                raise FlagError("workers", side.layout.workers, reason)
            placed.append(side)
        placed = _measuring_own_kernels(placed, reporter)
        a = b = resolve_flags(placed[0], "A")
        if placed[1] != placed[0]:
            b = resolve_flags(placed[1], "B")
        for notice in dict.fromkeys((*a.resolved.notices, *b.resolved.notices)):
            reporter.notice(notice)
        measured = []
        for side, name in zip((a, b), SIDES, strict=True):
            subject = repository.measured_code(side.config, side.checkout, side.resolved.parts)
            measured.append(replace(side, subject=replace(subject, side=name)))
        a, b = measured
        if text := _equal_sides_text(a, b):
            if refuse_equal:
                raise UsageError(text)
            reporter.notice(text)
        both = {"a": a, "b": b}
        refuse_shared_code(both)
        yield both


_NO_GRADIENTS = ("forward_only", "eval", "input_only")


def _measuring_own_kernels(sides: Sequence[AbSide], reporter: ChildProcessReporter) -> list[AbSide]:
    """Returns A and B, with --conv_gradients=library if they have different versions of TensorFlow.

    Otherwise, both might compute gradients by cnnbench's own algorithms, and a change of
    TensorFlow's gradients would not be seen. A value other than auto is kept.
    """
    paths = [
        (side.python, {n: text for n, text in side.variables.items() if n.startswith("PYTHON")})
        for side in sides
    ]
    if paths[0] == paths[1]:
        return [*sides]
    versions = [_tensorflow_of(side) for side in sides]
    if None in versions or versions[0] == versions[1]:
        return [*sides]
    placed = []
    for side in sides:
        given = side.given_flags
        computes = all(given.get(name, "false").lower() == "false" for name in _NO_GRADIENTS)
        is_auto = given.get("conv_gradients", "auto").lower() == "auto"
        if computes and is_auto and supports(side, "conv_gradients"):
            side = side.with_added_flags({"conv_gradients": "library"})
        placed.append(side)
    if placed != [*sides]:
        both = " and ".join(filter(None, versions))
        reporter.notice(
            f"A and B have different versions of TensorFlow ({both}): --conv_gradients=auto means "
            "library, so that the gradients of each TensorFlow are measured"
        )
    return placed


def _tensorflow_of(side: AbSide) -> str | None:
    """Package and version of the TensorFlow that A or B runs; None if unknown."""
    versions = package_versions(side)
    if versions.get("tensorflow_version") is None:
        return None
    return f"{versions.get('tensorflow_package')} {versions['tensorflow_version']}"


def _equal_sides_text(a: AbSide, b: AbSide) -> str:
    """Says that A and B have the same flags and code; "" if they differ."""
    configs = [side.resolved.identity for side in (a, b)]
    code = a.code_name
    same_flags = a.flags == b.flags or (bool(configs[0]) and configs[0] == configs[1])
    same_code = (a.python, a.variables, code) == (b.python, b.variables, b.code_name)
    if not (same_flags and same_code):
        return ""
    what = "" if a.checkout is None else f": {a.revision} and {b.revision} are both {code}"
    return (
        f"A and B are the same{what}; use --a and --b, --a_python, --a_checkout or --a_env to make "
        "them differ"
    )
