"""The log of oneDNN: lines of its versions, whole steps, and what a real process prints."""

import io

import pytest
from forked import Forked, cnnbench

from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.records.profiles import StepProfile
from cnnbench.run.observe import onednn
from cnnbench.run.observe.onednn import primitives_of_step

STEP = "{}\timages/sec: 389.8 +/- 0.0 (jitter = 0.0)\t6.931"
CONVOLUTION = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,backward_weights,"
    "src:f32::blocked:acdb::f0 wei:f32:a:blocked:ABcd16b16a::f0 bia:f32::blocked:a::f0 "
    "dst:f32::blocked:acdb::f0,,alg:convolution_direct,mb32_ic32oc64_ih14oh14kh5sh1dh0ph2,7.87"
)
PRODUCT = (
    "onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_f32::blocked:ba:f0 "
    "wei_f32::blocked:ab:f0 dst_f32::blocked:ab:f0,,,512x32:32x1001,0.69"
)


def read(*lines):
    return primitives_of_step(io.BytesIO("\n".join((*lines, "")).encode()))


def one(line):
    """The only call of a step with one line."""
    (found,) = read(STEP.format(1), line, STEP.format(2)) or (None,)
    return found


@pytest.mark.parametrize(
    ("line", "name", "propagation", "types", "implementation", "layouts"),
    [
        (
            *(CONVOLUTION, "convolution", "backward_weights", "f32", "jit:avx512_core"),
            "src acdb, wei ABcd16b16a, dst acdb",
        ),
        (PRODUCT, "gemm_api", "", "f32", "", "src ba, wei ab, dst ab"),
        # Names of tensors with underscores, and other kinds of formats.
        (
            "onednn_verbose,v1,primitive,exec,cpu,x,y,backward,diff_src:f8_e5m2::blocked:ab::f0 "
            "wei_s8::wino:f0 src_0:u8::any:::,,,,1",
            *("x", "backward", "f8_e5m2, s8, u8", "y", "diff_src ab, wei f0, src_0 any"),
        ),
    ],
)
def test_a_call(line, name, propagation, types, implementation, layouts):
    found = one(line)
    assert (found.name, found.propagation, found.types) == (name, propagation, types)
    assert (found.implementation, found.layouts, found.calls) == (implementation, layouts, 1)


_TENSORS = "src_bf16::blocked:acdb:f0 wei_bf16:p:blocked:ABcd16b16a2b:f0 bia_undef::undef::f0"
_REST = f"cpu,convolution,jit:avx512_core_bf16,forward_training,{_TENSORS}"


@pytest.mark.parametrize(
    "begin",
    [
        "dnnl_verbose,exec",
        "onednn_verbose,exec",
        "onednn_verbose,1699.25,exec",
        "onednn_verbose,primitive,exec",
        "onednn_verbose,v0,primitive,exec",
        "onednn_verbose,v1,1699.25,primitive,exec",
    ],
)
def test_lines_of_other_versions(begin):
    found = one(f"{begin},{_REST} dst_f32::blocked:acdb:f0,attr-scratchpad:user ,alg:x,mb50,1.3")
    assert (found.name, found.implementation) == ("convolution", "jit:avx512_core_bf16")
    assert (found.propagation, found.types) == ("forward_training", "bf16, f32")
    assert found.layouts == "src acdb, wei ABcd16b16a2b, dst acdb"


@pytest.mark.parametrize(
    "line",
    [
        "onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)",
        "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation",
        "onednn_verbose,v1,primitive,create:cache_miss,cpu,convolution,x,undef,src:f32::any:::,,,,1",
        "onednn_verbose,v1,graph,exec,cpu,100002,op,names,src:f32::blocked:ab::f0,,,,1",
        "onednn_verbose,v1,primitive,exec,gpu:0,convolution,x,undef,src:f32::blocked:ab::f0,,,,1",
        "onednn_verbose,v1,primitive,exec,cpu,convolution",
        "onednn_verbose",
        "a program said exec,cpu,convolution,x,undef,y",
        "2026-11-23 07:00:00.0: I tensorflow/core/util/port.cc:153] oneDNN is on",
        "\x00\ufffd,,,,,",
    ],
)
def test_lines_that_are_no_calls(line):
    assert one(line) is None


def test_the_last_whole_step_is_counted():
    warm_up = [CONVOLUTION] * 9
    steps = [STEP.format(1), CONVOLUTION, STEP.format(2), PRODUCT, CONVOLUTION, PRODUCT]
    found = read(*warm_up, *steps, STEP.format(3), CONVOLUTION)
    assert [(one.name, one.calls) for one in found] == [("convolution", 1), ("gemm_api", 2)]


@pytest.mark.parametrize("lines", [(), (CONVOLUTION,), (CONVOLUTION, STEP.format(1), CONVOLUTION)])
def test_a_log_without_a_whole_step(lines):
    assert read(*lines) == ()


def test_logs_are_read_to_a_limit_and_long_lines_in_pieces(limits):
    limits(onednn, _MOST_BYTES=2000)
    step = [STEP.format(1), CONVOLUTION, STEP.format(2)]
    found = read(*step, *["x" * 99] * 90, PRODUCT, STEP.format(3))
    assert [one.name for one in found] == ["convolution"]
    long = io.BytesIO(b"onednn_verbose" + b"," * 10**6)
    sizes = []
    readline = long.readline

    class Counted:
        def readline(self, most):
            sizes.append(most)
            return readline(most)

    assert primitives_of_step(Counted()) == ()
    assert max(sizes) <= 1 << 16


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_real_process(tmp_path):
    flags = ["--model=lenet", "--device=cpu", "--batch_size=32", "--quiet_conditions=all"]
    log, profile = tmp_path / "log", tmp_path / "profile.json"
    flags += [f"--profile_json={profile}", *flags_to_arguments(onednn.FLAGS)]
    assert Forked(cnnbench, flags, log, log, environment=onednn.VARIABLES).wait(180) == 0
    with log.open("rb") as file:
        found = primitives_of_step(file)
    calls = {}
    for one in found:
        key = one.name, one.propagation
        calls[key] = calls.get(key, 0) + one.calls
        assert one.types
        assert one.layouts
    # Of two convolutions; the images of the first need no gradient.
    assert calls["convolution", "forward_training"] == 2
    assert calls["convolution", "backward_weights"] == 2
    assert calls["convolution", "backward_data"] == 1
    assert all(one.implementation for one in found if one.name == "convolution")
    # What tells that a log can be read, and the allocator of these operations.
    made = StepProfile.from_json(profile.read_text())
    assert any("Mkl" in name for name in made.graph)
    assert made.allocations > 0
    assert made.allocated_bytes >= 32 * 28 * 28 * 32 * 4
