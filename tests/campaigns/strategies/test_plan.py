"""Which modes run with which flags.

Tests cnnbench/campaigns/strategies/session.py.
"""

from __future__ import annotations

import pytest

from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.strategies.session import StrategyCase, select_strategy_cases
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, parse_flags
from cnnbench.plan import parse_run
from cnnbench.variable_mgr import names

SMALL = ("--model=lenet", "--num_gpus=3", "--batch_size=4")


def plan(
    *words: str, modes: tuple[str, ...] | None = None, on_gpu: bool = False, steps: int = 0
) -> tuple[list[StrategyCase], list[str]]:
    given = parse_flags((*SMALL, *words), FLAGS)
    return select_strategy_cases(given, modes, on_gpu=on_gpu, weights_steps=steps)


def test_every_mode_that_works_in_one_process_is_measured() -> None:
    (_, *modes), _ = plan()
    found = {case.name for case in modes}
    assert {"parameter_server", "replicated", "independent", "distributed_all_reduce"} <= found
    assert found <= set(names())
    apart = {case.name for case in modes if case.apart}
    assert "independent" in apart
    assert not apart & {"parameter_server", "replicated", "distributed_all_reduce"}


@pytest.mark.parametrize(("on_gpu", "batch"), [(False, 12), (True, 4)])
def test_each_case_has_the_flags_of_all_and_its_own(on_gpu: bool, batch: int) -> None:
    device = ("--device=gpu", "--gpu_indices=2,0,1") if on_gpu else ()
    (alone, *modes), _ = plan("--precision=bf16", *device, on_gpu=on_gpu)
    for case in modes:
        words = {*SMALL, "--precision=bf16", f"--variable_update={case.name}"}
        assert words <= {*flags_to_arguments(case.flags)}
        assert case.resolved.config["variable_update"] == case.name
    # One tower has the work that shows the overhead.
    assert alone.resolved.batch_size == batch
    assert alone.flags.get("gpu_indices") == ("2" if on_gpu else None)
    assert alone.flags["num_gpus"] == "1"


def test_distributed_all_reduce_gets_the_spec_it_needs_unless_it_is_given() -> None:
    def spec(*words: str) -> object:
        (_, case), _ = plan(*words, modes=("distributed_all_reduce",))
        return case.resolved.config["all_reduce_spec"]

    assert spec() == "pscpu:32K:xring"
    assert spec("--all_reduce_spec=collective") == "collective"


def test_a_mode_that_cannot_take_the_flags_is_left_out_unless_it_is_asked_for() -> None:
    cases, notices = plan("--all_reduce_spec=pscpu:1K:xring")
    assert "replicated" not in [case.name for case in cases]
    assert any(n.startswith("replicated is left out: --all_reduce_spec") for n in notices)
    with pytest.raises(FlagError, match="--all_reduce_spec=pscpu:1K:xring: selects algorithms by"):
        plan("--all_reduce_spec=pscpu:1K:xring", modes=("replicated",))


def test_weights_are_trained_by_few_steps_at_a_rate_that_amplifies_no_rounding() -> None:
    given = ("--num_batches=9", "--num_warmup_batches=9", "--init_learning_rate=0.5")
    more = ("--eval_during_training_every_n_steps=2", "--trace_file=t", "--optimizer=momentum")
    modes = ("replicated", "independent")
    (alone, replicated, independent), _ = plan(*given, *more, modes=modes, steps=3)
    params = parse_run(flags_to_arguments(replicated.weights_flags)).params
    assert (params.num_batches, params.num_warmup_batches) == (3, 0)
    assert params.init_learning_rate == 1e-6
    assert params.check_replica_consistency == 1
    assert params.optimizer == "momentum"
    assert not params.trace_file
    assert not params.eval_during_training_every_n_steps
    assert independent.weights_flags == alone.weights_flags == {}
