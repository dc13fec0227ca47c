"""From a command line, or from parameters, to a checked setup."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace

from cnnbench.base import plugins
from cnnbench.flags.params import FLAGS, Params
from cnnbench.flags.parse import ParsedArgs, parse_args
from cnnbench.plan.notices import unused_notices
from cnnbench.plan.place import (
    OF_A_PROCESS,
    JobFlagNames,
    with_cluster,
    with_exchanged_addresses,
    with_job_from_env,
)
from cnnbench.plan.refusals import refuse_contradictions
from cnnbench.plan.setup import Setup, of_params
from cnnbench.variable_mgr import registry


def parse_run(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Setup:
    """Parses and checks the arguments of ``cnnbench run``; UsageError names the wrong one."""
    return of_args(parse_args(argv), environ=environ)


def of_args(
    args: ParsedArgs,
    names: JobFlagNames = OF_A_PROCESS,
    environ: Mapping[str, str] = os.environ,
) -> Setup:
    """Checks the given flags of a run; see `make_setup`."""
    params, given, notices = with_cluster(args.params, tuple(args.given), environ)
    setup = make_setup(params, environ, names)
    if params.cluster != "flags" and not setup.params.job_name:
        notices += (f"--cluster={params.cluster} names no other process: this run is alone",)
    notices = (*args.notices, *notices, *unused_notices(setup, given))
    return replace(setup, explicit_flags=given, notices=notices)


def make_setup(
    params: Params,
    environ: Mapping[str, str] = os.environ,
    names: JobFlagNames = OF_A_PROCESS,
) -> Setup:
    """Checks each value by itself, then values against each other; FlagError names the wrong one.

    Loads plug-ins. `names` are what refusals call the flags of a job.
    """
    params = with_job_from_env(params, environ)
    plugins.load_all(vars(params))
    for spec in FLAGS:
        value = getattr(params, spec.name)
        if value is not spec.default:
            spec.check(value)
    setup = of_params(params, registry.find(params.variable_update), names)
    refuse_contradictions(setup)
    return setup


def joined(setup: Setup, environ: MutableMapping[str, str], tell: Callable[[str], None]) -> Setup:
    """The setup with the addresses of `with_exchanged_addresses`."""
    params = with_exchanged_addresses(setup.params, environ, tell)
    if params is setup.params:
        return setup
    found = of_params(params, setup.place.mode)
    return replace(found, explicit_flags=setup.explicit_flags, notices=setup.notices)
