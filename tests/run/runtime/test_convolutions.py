"""Which algorithm computes the gradients of convolutions on CPUs."""

from __future__ import annotations

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.plan import check_flags
from cnnbench.run.runtime import convolutions


@pytest.mark.parametrize(
    ("flags", "kind", "kernels", "expected"),
    [
        ({}, "cpu", "eigen-avx2", "eigen-avx2"),
        ({"conv_gradients": "fastest"}, "cpu", "onednn-avx512", "onednn-avx512"),
        ({"conv_gradients": "library"}, "cpu", "eigen-avx2", "library"),
        ({}, "cpu", "eigen-avx512", "library"),
        ({}, "gpu", "eigen-avx2", "library"),
        ({"data_format": "NCHW"}, "cpu", "eigen-avx2", "library"),
        ({"xla": True}, "cpu", "eigen-avx2", "library"),
        ({"xla_compile": True}, "cpu", "eigen-avx2", "library"),
        ({"forward_only": True, "conv_gradients": "fastest"}, "cpu", "eigen-avx2", "library"),
    ],
)
def test_conv_gradients(flags, kind, kernels, expected, monkeypatch):
    monkeypatch.setattr(convolutions, "convolution_kernels", lambda host: kernels)
    assert convolutions.resolve_conv_gradients(check_flags(Params(**flags)), kind) == expected


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("cpu", "needs kernels that were measured: eigen-avx2, "), ("gpu", "is for CPUs")],
)
def test_the_fastest_gradients_are_refused_where_none_were_measured(kind, reason, monkeypatch):
    monkeypatch.setattr(convolutions, "convolution_kernels", lambda host: "library")
    setup = check_flags(Params(conv_gradients="fastest"))
    with pytest.raises(FlagError, match=rf"--conv_gradients=fastest: {reason}"):
        convolutions.resolve_conv_gradients(setup, kind)
