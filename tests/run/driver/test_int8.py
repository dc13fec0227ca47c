"""--precision=int8 from the command line."""

import json

import pytest

from cnnbench.machine.cpu import Host, processor_facts

INFERENCE = ("--device=cpu", "--forward_only", "--freeze_when_forward_only", "--precision=int8")
STEPS = ("--batch_size=2", "--num_batches=2", "--num_warmup_batches=1")

has_instructions = not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(
    processor_facts(Host()).get("cpu_isa") or ()
)


@pytest.mark.slow
@pytest.mark.skipif(not has_instructions, reason="this CPU has no products of 8-bit integers")
@pytest.mark.usefixtures("quick_start")
def test_a_run_says_how_much_of_it_computes_in_integers(tmp_path, call):
    path = tmp_path / "record.json"
    towers = ("--num_gpus=2", "--variable_update=replicated")
    words = (*INFERENCE, *STEPS, *towers, "--model=resnet20", "--data_name=cifar10")
    out, err = call(*words, f"--result_json={path}")
    assert "total images/sec: " in out
    assert "19 of 19 convolutions compute in 8-bit integers, all other layers in fp32\n" in err
    record = json.loads(path.read_text())
    assert record["config"]["precision"] == "int8"
    # There is no measured rate of products of 8-bit integers to hold it against.
    assert record["measured"].get("peak_flops_per_sec") is None


def test_it_is_refused_on_a_cpu_without_the_instructions(made_up_machine, call):
    (made_up_machine / "proc/cpuinfo").write_text("processor: 0\nflags: avx2 avx512f\n")
    message = "--precision=int8: this CPU has none of avx512_vnni, avx_vnni, amx_int8; use bf16"
    assert message in call(*INFERENCE, "--model=lenet", code=2).err


@pytest.mark.skipif(not has_instructions, reason="this CPU has no products of 8-bit integers")
def test_it_is_refused_without_onednn(monkeypatch, call):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    message = "--precision=int8: its kernels are oneDNN's; unset TF_ENABLE_ONEDNN_OPTS"
    assert message in call(*INFERENCE, "--model=lenet", code=2).err
