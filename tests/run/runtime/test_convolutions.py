"""Which algorithm computes the gradients of convolutions on CPUs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.plan import check_flags, make_plan
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
    [("cpu", ".*eigen-avx2"), ("gpu", "is for CPUs")],
)
def test_the_fastest_gradients_are_refused_where_none_were_measured(kind, reason, monkeypatch):
    monkeypatch.setattr(convolutions, "convolution_kernels", lambda host: "library")
    setup = check_flags(Params(conv_gradients="fastest"))
    with pytest.raises(FlagError, match=rf"--conv_gradients=fastest: {reason}"):
        convolutions.resolve_conv_gradients(setup, kind)


@pytest.mark.parametrize(
    ("layout", "kind", "expected"),
    [
        ("auto", "cpu", "NHWC"),
        ("auto", "gpu", "NCHW"),
        ("NHWC", "gpu", "NHWC"),
        ("NCHW", "cpu", "NCHW"),
    ],
)
def test_the_layout_follows_from_the_device_unless_it_is_given(layout, kind, expected):
    assert convolutions.resolve_data_format(layout, kind) == expected


@pytest.mark.parametrize("supported", [True, False])
def test_nchw_is_refused_where_convolutions_do_not_have_it(supported, monkeypatch):
    class UnimplementedError(Exception):
        pass

    def conv2d(image, kernel, stride, padding, data_format):
        assert (image, kernel, stride) == ([1, 1, 4, 4], [3, 3, 1, 1], 1)
        if not supported:
            raise UnimplementedError

    fake = SimpleNamespace(
        zeros=lambda shape, dtype: shape,
        device=lambda name: nullcontext(),
        nn=SimpleNamespace(conv2d=conv2d),
        errors=SimpleNamespace(UnimplementedError=UnimplementedError),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    if supported:
        convolutions.check_nchw_support("float32")
        return
    with pytest.raises(FlagError, match=r"^--data_format=NCHW: "):
        convolutions.check_nchw_support("float32")


LIBRARY = {"conv_gradients": "library"}


@pytest.mark.parametrize(
    ("flags", "kernels", "onednn", "avoids"),
    [
        ({}, "onednn-avx512", True, True),
        ({}, "eigen-avx2", False, False),
        ({"xla": True}, "onednn-avx512", False, False),
        ({"xla_compile": True}, "onednn-avx512", False, False),
        (LIBRARY, "onednn-avx512", True, False),
        ({**LIBRARY, "forward_only": True}, "onednn-avx512", True, True),
    ],
)
def test_doubtful_convolutions_are_avoided_unless_they_are_measured(
    flags, kernels, onednn, avoids, monkeypatch
):
    monkeypatch.setattr(convolutions, "convolution_kernels", lambda host: kernels)
    plan = check_flags(Params(**flags))
    assert convolutions.uses_onednn_convolutions(plan) == onednn
    assert convolutions.avoids_doubtful(plan) == avoids


@pytest.mark.parametrize(
    ("flags", "device", "layers", "remedy"),
    [
        ({}, "/device:CPU:0", ["conv3", "conv4"], "--precision=fp32"),
        (LIBRARY, "/device:CPU:0", ["conv3"], "--conv_gradients=auto"),
        ({**LIBRARY, "forward_only": True}, "/device:CPU:0", ["conv3"], "--precision=fp32"),
        ({}, "/device:CPU:0", [], None),
        ({}, "/device:GPU:0", ["conv3"], None),
        ({"precision": "fp32"}, "/device:CPU:0", ["conv3"], None),
        ({"xla": True}, "/device:CPU:0", ["conv3"], None),
    ],
)
def test_the_first_doubtful_layer_is_named_with_a_remedy(
    flags, device, layers, remedy, monkeypatch
):
    monkeypatch.setattr(convolutions, "convolution_kernels", lambda host: "onednn-avx512")
    found = SimpleNamespace(doubtful_layers=lambda graph: graph)
    monkeypatch.setitem(sys.modules, "cnnbench.models.cpu_operations", found)
    plan = make_plan(Params(**{"model": "lenet", "device": "cpu", "precision": "bf16", **flags}))
    text = convolutions.doubtful_layer_notice(plan, device, layers)
    assert (text == "") == (remedy is None)
    if remedy is not None:
        assert layers[0] in text
        assert text.endswith(remedy)
