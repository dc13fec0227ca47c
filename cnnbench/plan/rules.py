"""Refuses flags of a run that contradict each other, and finds flags without effect.

The rules stand with their owners: the groups of flags (`cnnbench.flags.groups`), the modes, and the
network and the data set (`cnnbench.plan.network`). This module only collects them.
"""

from __future__ import annotations

from collections.abc import Iterable

from cnnbench.base import plugins
from cnnbench.base.rules import (
    FlagRule,
    always,
    notices_about,
    raise_first_refusal,
    refuse,
    refuse_any_value,
)
from cnnbench.errors import UsageError
from cnnbench.flags.facts import RunFacts
from cnnbench.flags.groups import (
    cluster,
    data,
    model,
    optimizer,
    output,
    run,
    runtime,
    strategies,
    variable_update,
)
from cnnbench.flags.params import FLAGS, SPECS
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.files import refuse_shared_outputs
from cnnbench.variable_mgr.modes import Mode

# Input paths and folders come first: if two flags name the same path, the later flag is refused.
# Several flags may name the same folder of logs or caches.
_PATHS = (
    plugins.FLAG,
    *(spec.name for spec in FLAGS if spec.takes_urls and spec.name != "eval_dir"),
    *(spec.name for spec in FLAGS if spec.path == "file" and spec.name != plugins.FLAG),
)


def _refuse_shared_files(p: RunFacts) -> None:
    """Raises FlagError if two flags name the same file."""
    refuse_shared_outputs(
        (flag, path)
        for flag in _PATHS
        # Without --use_chrome_trace_format, --trace_file is a folder, which checkpoints may share.
        if flag != "trace_file" or p.params.use_chrome_trace_format
        for value in [SPECS[flag].text(getattr(p.params, flag) or "")]
        for path in (value.split(",") if flag in ("profile_layers", plugins.FLAG) else [value])
        if path
    )


def _explain_missing_needs(p: RunFacts) -> str:
    """Returns which flag the mode needs and the run lacks; "" if it lacks none."""
    needs = p.place.mode.needs.items()
    missing = (f"--{name}={value}" for name, value in needs if getattr(p.params, name) is None)
    example = next(missing, "")
    return f"needs {example.partition('=')[0]}, such as {example}" if example else ""


def rules_of_run(mode: Mode) -> tuple[FlagRule[RunFacts], ...]:
    """All rules about the flags of runs in a mode, in the order of their priority.

    The job and the mode come first, then flags that exclude each other, then all other rules by
    group of flags. If several rules refuse flags, the first rule is reported. If a flag has no
    effect for several reasons, the first rule gives the reason.

    Raises:
      UsageError: a mode of a plug-in names a flag that does not exist.
    """
    for name in (*(name for rule in mode.rules for name in rule.flags), *mode.needs):
        if name not in SPECS:
            declared = f"the declaration of mode {mode.name} names --{name}"
            raise UsageError(f"{declared}, which is not a flag")
    return (
        *cluster.RULES,
        *mode.rules,
        refuse_any_value("variable_update", always, _explain_missing_needs),
        *cluster.CONFLICTS,
        *run.CONFLICTS,
        *model.CONFLICTS,
        *variable_update.CONFLICTS,
        *strategies.CONFLICTS,
        *runtime.CONFLICTS,
        *run.RULES,
        *model.RULES,
        *optimizer.rules_of_constants(),
        *optimizer.RULES,
        *variable_update.RULES,
        *strategies.RULES,
        *runtime.RULES,
        *data.RULES,
        *output.RULES,
        refuse(_PATHS, always, _refuse_shared_files),
    )


def refuse_contradictions(plan: RunPlan) -> None:
    """Raises FlagError for the first contradiction between flags, before data is read."""
    raise_first_refusal(rules_of_run(plan.place.mode), plan)


def unused_flag_notices(plan: RunPlan, explicit_flags: Iterable[str]) -> tuple[str, ...]:
    """Returns notices about flags of the command line without effect, one notice for each reason.

    Flags that are set to their default are ignored if the default is false, zero or empty.
    """
    explicit = [
        name
        for name in explicit_flags
        # The flags of absl.app, which cnnbench run also accepts, have no values in a plan.
        if name not in SPECS
        or (value := getattr(plan.params, name))
        or value != SPECS[name].default
    ]
    return notices_about(rules_of_run(plan.place.mode), plan, explicit)
