"""Which modes run with which flags."""

from __future__ import annotations

import pytest

from cnnbench.campaigns.strategies.session import StrategiesPlan, make_plan
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, parse_args, parse_flags
from cnnbench.variable_mgr import names

SMALL = ("--model=lenet", "--num_gpus=3", "--batch_size=4")


def plan(*words: str, modes: tuple[str, ...] | None = None, on_gpu: bool = False) -> StrategiesPlan:
    return make_plan(parse_flags((*SMALL, *words), FLAGS), modes, on_gpu=on_gpu)


def test_every_mode_that_works_in_one_process_is_measured() -> None:
    (update,) = (spec for spec in FLAGS if spec.name == "variable_update")
    found = {case.name for case in plan().modes}
    assert found <= set(update.choices)
    assert {"parameter_server", "replicated", "independent", "distributed_all_reduce"} <= found
    assert found <= set(names())
    assert [case.name for case in plan().modes if case.apart] == ["independent"]


def test_each_case_has_the_flags_of_all_and_its_own() -> None:
    made = plan("--precision=bf16", "--gpu_indices=2,0,1", "--device=gpu", on_gpu=True)
    for case in made.modes:
        assert {f"--variable_update={case.name}", *SMALL, "--precision=bf16"} <= set(case.flags)
        assert case.resolved.config["variable_update"] == case.name
    assert {"--num_gpus=1", "--gpu_indices=2"} <= set(made.one_tower.flags)


@pytest.mark.parametrize(("on_gpu", "batch"), [(False, 12), (True, 4)])
def test_one_tower_has_the_work_that_shows_overhead(on_gpu: bool, batch: int) -> None:
    assert plan(on_gpu=on_gpu).one_tower.resolved.batch_size == batch


def test_distributed_all_reduce_gets_the_spec_it_needs_unless_it_is_given() -> None:
    def spec(*words: str) -> object:
        (case,) = plan(*words, modes=("distributed_all_reduce",)).modes
        return case.resolved.config["all_reduce_spec"]

    assert spec() == "pscpu:32K:xring"
    assert spec("--all_reduce_spec=collective") == "collective"


def test_a_mode_that_cannot_take_the_flags_is_left_out_unless_it_is_asked_for() -> None:
    made = plan("--all_reduce_spec=pscpu:1K:xring")
    assert "replicated" not in [case.name for case in made.modes]
    assert any(n.startswith("replicated is left out: --all_reduce_spec") for n in made.notices)
    with pytest.raises(FlagError, match="--all_reduce_spec=pscpu:1K:xring: has algorithms by size"):
        plan("--all_reduce_spec=pscpu:1K:xring", modes=("replicated",))


def test_weights_are_trained_by_few_steps_at_a_rate_that_amplifies_no_rounding() -> None:
    given = ("--num_batches=9", "--num_warmup_batches=9", "--init_learning_rate=0.5")
    more = ("--eval_during_training_every_n_steps=2", "--trace_file=t", "--optimizer=momentum")
    flags = parse_flags((*SMALL, *given, *more), FLAGS)
    made = make_plan(flags, ("replicated", "independent"), on_gpu=False, weights_steps=3)
    replicated, independent = made.modes
    params = parse_args(replicated.weights_flags).params
    assert (params.num_batches, params.num_warmup_batches) == (3, 0)
    assert params.init_learning_rate == 1e-6
    assert params.check_replica_consistency == 1
    assert params.optimizer == "momentum"
    assert not params.trace_file
    assert not params.eval_during_training_every_n_steps
    assert independent.weights_flags == made.one_tower.weights_flags == ()
    assert plan().modes[0].weights_flags == ()
