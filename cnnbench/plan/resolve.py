"""From a command line, or from parameters, to a checked setup."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace

from cnnbench.flags.params import FLAGS, Params
from cnnbench.flags.parse import parse_args
from cnnbench.plan.checks import refusals
from cnnbench.plan.ineffective import unused_notices
from cnnbench.plan.place import with_cluster, with_exchanged_addresses, with_job_from_env
from cnnbench.plan.rules import refuse_first
from cnnbench.plan.setup import Setup, of_params
from cnnbench.variable_mgr import registry


def parse_run(
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    change: Callable[[Params], Params] = lambda params: params,
) -> Setup:
    """Parses and checks the arguments of ``cnnbench run``; UsageError names the wrong one.

    `change` gets the parameters before they are checked, and may refuse or replace them.
    """
    parsed = parse_args(argv)
    params = change(parsed.params)
    params, given, notices = with_cluster(params, parsed.explicit_flags, environ)
    setup = make_setup(params, environ)
    if params.cluster != "flags" and not setup.params.job_name:
        notices += (f"--cluster={params.cluster} names no other process: this run is alone",)
    notices = (*parsed.notices, *notices, *unused_notices(setup, given))
    return replace(setup, explicit_flags=given, notices=notices)


def make_setup(params: Params, environ: Mapping[str, str] = os.environ) -> Setup:
    """Checks each value by itself, then values against each other; FlagError names the wrong one.

    Loads the plug-in that may register the mode of --variable_update.
    """
    params = with_job_from_env(params, environ)
    if params.variable_mgr_plugin:
        registry.load_plugin(params.variable_mgr_plugin)
    for spec in FLAGS:
        value = getattr(params, spec.name)
        if value is not spec.default:
            spec.check(value)
    setup = of_params(params, registry.find(params.variable_update))
    refuse_first(params, refusals(setup))
    return setup


def joined(setup: Setup, environ: MutableMapping[str, str], tell: Callable[[str], None]) -> Setup:
    """The setup with the addresses that the processes of a job exchange; see
    `with_exchanged_addresses`."""
    params = with_exchanged_addresses(setup.params, environ, tell)
    if params is setup.params:
        return setup
    found = of_params(params, setup.place.mode)
    return replace(found, explicit_flags=setup.explicit_flags, notices=setup.notices)
