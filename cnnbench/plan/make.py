"""Converts a command line or flag values to a `RunPlan`, and refuses invalid flags.

All errors that can be found without a device are raised here: unknown models and data sets, empty
data directories, impossible step counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.rules import raise_first_refusal
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import SPECS, JobFlagNames, Params, ParsedArgs, parse_args
from cnnbench.plan.job import locate_job, prepare_process
from cnnbench.plan.place import OF_A_PROCESS, resolve_place, work_of
from cnnbench.plan.rules import RULES_OF_NETWORK, rules_of_run, unused_flag_notices
from cnnbench.plan.run_plan import RunPlan
from cnnbench.plan.setup import resolve_exchange, resolve_numerics
from cnnbench.variable_mgr import all_reduce, registry

_FIND = "find_batch_size"


def parse_run(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> RunPlan:
    """Checks a command line of ``cnnbench run`` and returns its plan, without reading data.

    UsageError names the wrong flag.
    """
    return check_flags(parse_args(argv), environ)


def make_plan(run: Params | ParsedArgs, environ: Mapping[str, str] = os.environ) -> RunPlan:
    """Checks the flags of a run and resolves them to a plan, with its network and data.

    The process does not join a job. See `check_flags` and `resolve`.
    """
    return resolve(check_flags(run, environ))


@plugins.reporting_plugin_errors(UsageError)
def check_flags(
    run: Params | ParsedArgs,
    environ: Mapping[str, str] = os.environ,
    names: JobFlagNames = OF_A_PROCESS,
) -> RunPlan:
    """Checks each flag and all combinations of flags, and loads the plug-ins that the flags name.

    Returns a plan with notices, whose network, data set and lengths are not resolved yet.

    Args:
      environ: the environment in which --cluster finds the job.
      names: names of a job's flags for error messages.

    Raises:
      FlagError: a wrong value or a contradiction.
    """
    args = run if isinstance(run, ParsedArgs) else None
    flags = run.params if isinstance(run, ParsedArgs) else run
    explicit = None if args is None else tuple(args.given)
    params, notices = locate_job(flags, environ, explicit)
    plugins.load_plugins_of_flags(vars(params))
    plan = _check_and_plan(flags, params, names)
    if args is None or explicit is None:
        return plan
    # --variable_update=horovod has set --cluster; it counts as if the user had set it.
    if params.cluster != flags.cluster:
        explicit = (*explicit, "cluster")
    notices = (*args.notices, *notices, *unused_flag_notices(plan, explicit))
    return replace(plan, explicit_flags=explicit, notices=notices)


def join_job(
    plan: RunPlan, environ: MutableMapping[str, str], tell: Callable[[str], None]
) -> RunPlan:
    """Prepares this process for its job. A process that runs or serves calls this function once.

    With --cluster=mpi, the processes exchange their addresses, and `tell` prints a line about
    missing addresses. A process whose number on its machine is known gets its own GPUs:
    CUDA_VISIBLE_DEVICES in `environ` is changed.

    Returns the plan with the addresses of all processes.

    Raises:
      FlagError: the processes of a machine must divide its GPUs and are not numbered.
      BenchmarkError: addresses are missing after --cluster_timeout.
    """
    if plan.params.cluster not in ("slurm", "mpi"):
        return plan
    params = prepare_process(plan.params, environ, tell)
    if params is plan.params:
        return plan
    joined = _plan_of_flags(plan.given, params, plan.place.names)
    return replace(joined, explicit_flags=plan.explicit_flags, notices=plan.notices)


@plugins.reporting_plugin_errors(UsageError)
def resolve(plan: RunPlan) -> RunPlan:
    """Resolves the network, the data set, the lengths and the input of a plan.

    Raises:
      FlagError: an unknown model, data set or all-reduce algorithm, an impossible evaluation point,
        label smoothing for a loss without labels, or a missing backbone.
    """
    raise_first_refusal(RULES_OF_NETWORK, plan)
    # If a size flag equals the model's default, it is recorded as unset, so that equal runs have
    # equal flags.
    changes: dict[str, Any] = dict.fromkeys(plan.network.own_sizes)
    layout = plan.network.model.data_format
    if layout != "auto":
        changes["data_format"] = layout
    if changes:
        plan = plan.with_changes(params=plan.params.replace(**changes))
    if plan.params.all_reduce_spec is not None:
        # Only now, after plug-ins are loaded, are all names of algorithms known.
        spec = plan.params.all_reduce_spec
        spec.check_algorithm_names(all_reduce.names(spec.algorithm_names))
    for part in ("length", "rates", "input"):
        getattr(plan, part)
    return plan


def without_batch_size_search(args: ParsedArgs) -> tuple[ParsedArgs, RunPlan]:
    """Removes --find_batch_size from the flags of a run. Also returns the plan without the flag.

    Raises FlagError for flags that cannot be combined with --find_batch_size.
    """
    plan = make_plan(args := args.including({_FIND: False}))
    for flag, is_wrong in {
        "eval": plan.params.eval,
        "input_only": plan.params.input_only,
        # The batch of the evaluation may not fit, and the search does not change it.
        "eval_batch_size": plan.params.eval_batch_size > 0,
        # The folder may contain a checkpoint of a run with another batch size.
        "train_dir": plan.checkpoint_save_folder is not None,
        "worker_hosts": plan.place.job.in_cluster,
    }.items():
        if is_wrong:
            raise FlagError(_FIND, True, f"cannot be used with --{flag}")
    return args, plan


def _check_and_plan(given: Params, params: Params, names: JobFlagNames) -> RunPlan:
    """Creates a plan from the flags. Raises FlagError for invalid or contradictory flags."""
    for spec in SPECS.values():
        value = getattr(params, spec.name)
        if value is not spec.default:
            spec.check(value)
    plan = _plan_of_flags(given, params, names)
    raise_first_refusal(rules_of_run(plan.place.mode), plan)
    return plan


def plan_before_plugins(
    flags: Params,
    environ: Mapping[str, str] = os.environ,
    names: JobFlagNames = OF_A_PROCESS,
    explicit: tuple[str, ...] | None = None,
) -> RunPlan | None:
    """Creates the plan of a run without loading plug-ins; None if a flag may need a plug-in.

    For example, an unknown --model may be the name of a plug-in's model. FlagError for flags that
    are wrong with any plug-in. For `explicit`, see `locate_job`.
    """
    try:
        return _check_and_plan(flags, locate_job(flags, environ, explicit)[0], names)
    except FlagError as error:
        if plugins.is_name_flag(error.flag):
            return None
        raise


def _plan_of_flags(given: Params, params: Params, names: JobFlagNames) -> RunPlan:
    """Creates a plan from the flags. Network and data set are not resolved yet."""
    work = work_of(params)
    place = resolve_place(params, work, registry.find_mode(params.variable_update), names)
    numerics = resolve_numerics(params, work)
    return RunPlan(
        params=params,
        given=given,
        work=work,
        place=place,
        numerics=numerics,
        exchange=resolve_exchange(params, work, place, numerics),
    )
