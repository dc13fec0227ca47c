"""The plan of a run, resolved once from its flags.

Everything that can be refused without a device is refused here: unknown models and data sets, empty
data directories, impossible step counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cnnbench.base import plugins
from cnnbench.base.files import is_url
from cnnbench.errors import UsageError
from cnnbench.flags.declare import FlagSpec, Role, named, specs_of
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.identity import identity
from cnnbench.flags.params import FLAGS, Params
from cnnbench.flags.parse import ParsedArgs, parse_args
from cnnbench.machine.cpu import Host
from cnnbench.plan.network import NetworkPlan, SetupWithNetwork
from cnnbench.plan.place import (
    ADDRESSES,
    OF_A_PROCESS,
    JobFlagNames,
    with_cluster,
    with_exchanged_addresses,
    with_job_from_env,
)
from cnnbench.plan.refusals import refuse_contradictions, unused_notices
from cnnbench.plan.setup import Setup, of_params
from cnnbench.plan.training import InputPlan, LearningRates, Length
from cnnbench.records.codec import encode
from cnnbench.variable_mgr import all_reduce, modes

# From a command line, or from parameters, to a checked setup.


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
    setup = of_params(params, modes.find(params.variable_update), names)
    refuse_contradictions(setup)
    return setup


def joined(setup: Setup, environ: MutableMapping[str, str], tell: Callable[[str], None]) -> Setup:
    """The setup with the addresses of `with_exchanged_addresses`."""
    params = with_exchanged_addresses(setup.params, environ, tell)
    if params is setup.params:
        return setup
    found = of_params(params, setup.place.mode)
    return replace(found, explicit_flags=setup.explicit_flags, notices=setup.notices)


# What is equal in equal runs on this machine, and in all processes of a job.

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
    from cnnbench.machine.facts import packages

    versions = packages(Host())
    flags = {f"--{s.name}": s.text(values[s.name]) for s in specs if s.name not in _OWN}
    return {**{name: str(versions[name]) for name in _VERSIONS}, **flags}


def digest_of(value: object) -> str:
    """A digest of plain data, for facts too long to show."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


# The plan of a run, resolved from its parameters before TensorFlow is loaded.


@dataclass(frozen=True, kw_only=True)
class RunPlan(SetupWithNetwork):
    """The setup of a run with its network and its data."""

    length: Length
    rates: LearningRates
    input: InputPlan

    @property
    def config(self) -> dict[str, Any]:
        """The parameters as stored in records, with resolved values in place of defaults."""
        length, target = self.length, self.length.target
        config = {
            **self.params.as_dict(),
            "data_name": self.network.dataset.name,
            "batch_size": length.batch_per_device,
            "eval_batch_size": length.eval_batch_per_device,
            "num_batches": length.num_batches,
            "num_epochs": length.num_epochs,
            "num_eval_batches": length.num_eval_batches or None,
            "num_warmup_batches": length.warm_up.least,
            "fp16_loss_scale": self.numerics.loss_scale,
        }
        if target is not None:  # a top-1 accuracy has the flag of earlier records
            top_1 = target.metric == "top_1"
            config["stop_at"] = None if top_1 else str(target)
            config["stop_at_top_1_accuracy"] = target.value if top_1 else None
        return config

    def to_json(self) -> dict[str, Any]:
        """`config` as JSON values."""
        return {name: encode(value) for name, value in self.config.items()}

    @property
    def identity(self) -> dict[str, Any]:
        """What distinguishes this run from others on this machine; equal in equal runs."""
        return identity_here(self.to_json())

    @property
    def agreed(self) -> dict[str, str]:
        """Facts that must be equal in all processes of a job, as `agreed_facts`.

        Where each worker builds a step of its own, also what the flags resolve to, the sources of
        plug-ins, and what follows from plug-ins and data: one that differs would train another
        network, or another number of steps.
        """
        if not self.place.job.client_per_worker:
            return agreed_facts(self.params.as_dict())
        model, spec = self.network.model, self.network.spec
        settings = (model.learning_rate, model.batch_norm, model.metric_names, spec.elements)
        flops = (spec.forward_flops_per_image, spec.training_flops_per_image)
        return {
            **agreed_facts(self.config),
            **{f"SHA-256 of {name}": digest[:16] for name, digest in plugins.digests.items()},
            "digest of what plug-ins use": digest_of(
                [plugins.digest(path) for path in plugins.parts(self.config)]
            ),
            "digest of the model's variables": digest_of(spec.variables),
            "digest of the model's settings": digest_of((settings, flops)),
            "the number of training examples": str(self.length.train_examples),
            "the number of evaluated examples": str(self.length.eval_examples),
        }


@plugins.reported(UsageError)
def make_plan(
    run: Setup | Params,
    environ: MutableMapping[str, str] = os.environ,
    tell: Callable[[str], None] | None = None,
) -> RunPlan:
    """Resolves network, data, batch sizes and step counts; parameters are checked first.

    With `tell` this process takes its place in the job: see `with_exchanged_addresses`.

    Raises:
      FlagError: unknown model, data set or all-reduce algorithm, an impossible evaluation point,
        label smoothing for a loss without labels, or a missing backbone.
    """
    setup = make_setup(run, environ) if isinstance(run, Params) else run
    if tell is not None:
        setup = joined(setup, environ, tell)
    network = NetworkPlan.resolved(setup)
    if setup.params.all_reduce_spec is not None:
        # Only now: a plug-in may have registered an algorithm.
        setup.params.all_reduce_spec.check_names(all_reduce.names())
    length = Length.resolved(setup, network)
    rates = LearningRates.resolved(setup, network.model.learning_rate, length)
    inputs = InputPlan.resolved(setup, network, length)
    return RunPlan(**vars(setup), network=network, length=length, rates=rates, input=inputs)


Runnable: TypeAlias = "RunPlan | Params"
"""What `BenchmarkCNN` runs."""


def without_outputs(plan: RunPlan) -> RunPlan:
    """The plan of a process that writes nothing, since the chief does."""
    outputs = OutputParams()
    return replace(plan, params=plan.params.replace(**vars(outputs)), outputs=outputs)
