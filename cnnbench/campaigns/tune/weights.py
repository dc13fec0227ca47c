"""Compares the weights that the given flags and the best flags of a search train.

Both trainings use the same kernels, because different kernels round differently, which changes
gradients near 0 by several percent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cnnbench.campaigns.ab.side import make_process_request
from cnnbench.campaigns.processes import ProcessRequests, run_process
from cnnbench.campaigns.strategies.weights import (
    CHECKPOINTS,
    compare_checkpoints,
    flags_of_weights_process,
    stored_weight_distances,
    weights_tolerance,
)
from cnnbench.campaigns.tune import phrases
from cnnbench.campaigns.tune.bench import RaceBenchmark
from cnnbench.campaigns.tune.space import COMPUTING, Candidate, candidate_name
from cnnbench.errors import UsageError
from cnnbench.records.campaigns import TuneDocument
from cnnbench.variable_mgr import registry

WEIGHTS_STEPS = 3


def compare_weights(
    bench: RaceBenchmark, document: TuneDocument, leader: Candidate
) -> ProcessRequests[TuneDocument]:
    """Trains a few steps with the given flags and with the flags of the best candidate, and
    compares the weights.

    Both trainings use the leader's flags for kernels. Returns the document with the result.
    """
    first, folder = bench.settings.first, bench.folder
    no_promise = _why_weights_may_differ(first, leader)
    if no_promise:
        return replace(document, weights=no_promise)
    computing = {name: text for name, text in leader.settings.items() if name in COMPUTING}
    kernels = candidate_name(computing) if computing else ""
    try:
        reference = bench.settings.space.make_candidate(computing)
    except UsageError as error:
        return replace(document, weights=phrases.cannot_run_as_given(error, kernels))
    if reference.key == leader.key:
        return replace(document, weights=phrases.ONLY_KERNELS)
    as_given = bench.settings.command_of(first)
    distances = stored_weight_distances(folder, leader.key)
    if distances is None:
        folders, checkpoints = {}, folder.folder / CHECKPOINTS
        for name, candidate in (("as given", reference), ("tuned", leader)):
            folders[name] = checkpoints / name.replace(" ", "-")
            problem = yield from _train_weights(bench, name, candidate, folders[name])
            if problem:
                folder.remove(checkpoints)
                text = phrases.NOT_TRAINED.format(name=name, error=problem)
                return replace(document, weights=text, trains_alike=False, command=as_given)
        distances = compare_checkpoints(folder, folders, leader.key)
    distance, variable = distances["tuned"]
    tolerance = weights_tolerance(str(first.resolved.config["precision"]))
    alike = distance <= tolerance
    document = replace(
        document,
        trains_alike=alike,
        command=document.command if alike else as_given,
        weights_steps=WEIGHTS_STEPS,
        weight_distance=distance,
        weight_variable=variable,
        weights_tolerance=tolerance,
    )
    return replace(document, weights=phrases.weights(document, kernels))


def _why_weights_may_differ(first: Candidate, leader: Candidate) -> str:
    """Returns why a candidate may train other weights than the given flags (`first`), or "" if it
    trains the same weights.
    """
    if leader.resolved.config.get("forward_only"):
        return phrases.NOTHING_TRAINED
    if leader.changes:
        return phrases.OTHER_TRAINING.format(changes=", ".join(leader.changes))
    for candidate in (first, leader):
        mode = registry.find_mode(str(candidate.resolved.config["variable_update"]))
        if mode.apart or not mode.in_sync:
            return phrases.TOWERS_APART.format(mode=mode.name)
        if candidate.resolved.asynchronous:
            return phrases.ASYNCHRONOUS
    return ""


def _train_weights(
    bench: RaceBenchmark, name: str, candidate: Candidate, target: Path
) -> ProcessRequests[str]:
    """Trains the weights of a candidate for the comparison. Returns an error message, or "" after a
    success.
    """
    flags = flags_of_weights_process(candidate.flags, WEIGHTS_STEPS)
    flags["train_dir"] = str(bench.folder.unfinished_path(target))
    resolved = replace(candidate.resolved, explicit_flags=())
    training = make_process_request(
        bench.folder,
        f"weights-{candidate.key}",
        bench.settings.make_side(candidate._replace(resolved=resolved), flags),
        label=f"weights: {name}",
        key="weights",
        leaves=target,
    )
    ended = yield from run_process(bench.folder, training, bench.settings.timeout)
    return ended.message
