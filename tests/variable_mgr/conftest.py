"""A small network's worth of variables, and managers made for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr import VariableMgrSpec, create
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec
from cnnbench.variable_mgr.base import VariableMgr


@pytest.fixture(scope="session")
def declared() -> tuple[VariableSpec, ...]:
    """Kernel, bias, scale, embedding and one moment, of different sizes."""
    return (
        VariableSpec("conv0/kernel", (3, 3, 2, 4), Initializer.variance_scaling()),
        VariableSpec("conv0/bias", (4,), Initializer.constant(0.0)),
        VariableSpec("batchnorm0/gamma", (4,), Initializer.constant(1.0), weight_decay=False),
        VariableSpec(
            "batchnorm0/moving_mean",
            (4,),
            Initializer.constant(0.0),
            trainable=False,
            weight_decay=False,
            statistic=True,
        ),
        VariableSpec("affine0/kernel", (4, 5), Initializer.truncated_normal(0.1)),
    )


@pytest.fixture(scope="session")
def trainable(declared) -> tuple[VariableSpec, ...]:
    return tuple(v for v in declared if v.trainable)


Maker = Callable[..., VariableMgr]


@pytest.fixture
def make_manager(declared, cpu_devices) -> Maker:
    """make_manager(mode, towers, **fields of the spec): a manager with its variables."""

    def make(
        mode: str,
        towers: int,
        variables: Sequence[VariableSpec] = declared,
        **fields: object,
    ) -> VariableMgr:
        if mode == "distributed_all_reduce":
            hybrid = parse_all_reduce_spec("psgpu:16:xring")
            fields = {"aggregation": AggregationSpec(all_reduce=hybrid), **fields}
        spec = VariableMgrSpec(
            variable_update=mode,
            devices=tuple(cpu_devices[t % len(cpu_devices)] for t in range(towers)),
            cpu_device=cpu_devices[0],
            **fields,
        )
        manager = create(spec, variables)
        manager.create_variables()
        return manager

    return make
