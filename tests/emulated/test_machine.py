"""GPUs as NVML has them, and marks of records that emulated GPUs made."""

from __future__ import annotations

import json
import os
import struct
import threading
import time

import pytest

from cnnbench.machine.checks import CONDITIONS

pytestmark = pytest.mark.slow

ME = os.getpid()
THROTTLED = {"throttle": "0,0x40"}  # the second GPU, by heat
GPU_CHECKS = {"gpu_processes", "gpu_throttle"}
NOTICE = "cnnbench: the GPUs are emulated on the host's CPUs: times are no measurements\n"


def _intrude(state):
    """Another process comes to the first GPU when the run has memory of it."""
    until = time.monotonic() + 60
    while not any(state.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    (state / "1").write_bytes(struct.pack("16q", 1 << 20, *[0] * 15))


@pytest.fixture(scope="module")
def busy(emulated, tmp_path_factory):
    """A run whose second GPU is hot, and most of whose memory is this process's.

    Another process comes to the first GPU.
    """
    state = tmp_path_factory.mktemp("state")
    threading.Thread(target=_intrude, args=[state], daemon=True).start()
    return emulated(
        *("--model=trivial", "--num_gpus=2", "--gpu_indices=1,0", "--batch_size=2"),
        *("--num_batches=10", "--result_csv=runs.csv"),
        processes=f"1:{ME}:4090",
        state=state,
        **THROTTLED,
    )


def test_records_and_output_say_that_gpus_are_emulated(busy, holds):
    assert busy.record["placement"]["device"] == "emulated_gpu"
    assert busy.record["config"]["device"] == "gpu"
    assert ",emulated_gpu," in (busy.folder / "runs.csv").read_text()
    assert "Devices:     ['/emulated_gpu:1', '/emulated_gpu:0']\n" in busy.out
    assert NOTICE in busy.err
    holds("run", busy.record)


def test_facts(busy):
    facts = {name: fact for name, fact in busy.record["environment"].items() if "gpu" in name}
    assert facts == {
        "emulated_gpus": True,
        "gpu_driver": "emulated",
        "gpu_max_clocks_mhz": ["1000", "1000"],
        "gpu_names": ["EMULATED_GPU", "EMULATED_GPU"],
        "gpu_persistence_mode": ["Enabled", "Enabled"],
        "gpu_power_limits_watts": ["150.00", "150.00"],
    }


def test_energy(busy):
    measured = busy.record["measured"]
    # 100 W each, read just outside of the loop, and on a busy machine a moment later.
    joules = 200 * measured["loop_seconds"]
    assert joules - 1 < measured["gpu_energy_joules"] < joules + 100
    assert measured["energy_source"].endswith("NVML GPU 1, NVML GPU 0")


def test_conditions(busy):
    conditions = busy.record["conditions"]
    others = [f"1: {ME} ("]  # not the run itself
    for when in ("before", "during"):
        assert conditions[when]["gpu_clocks_mhz"] == [500, 1000]
        assert conditions[when]["gpu_throttle_reasons"] == ["1: thermal_hardware"]
        found = conditions[when]["gpu_processes"]
        assert [text[: len(other)] for text, other in zip(found, others, strict=True)] == others
        others.append("0: 1 (")
    notes = {(note["id"], note["when"]): note["text"] for note in conditions["notes"]}
    assert notes["gpu_processes", "before"].startswith(f"GPU 1 also runs {ME} (")
    assert notes["gpu_processes", "during"].startswith("processes started during the run: 1 (")
    assert notes["gpu_processes", "during"].endswith(") on GPU 0")
    assert notes["gpu_throttle", "before"].endswith("held down on GPU 1 (thermal_hardware)")
    assert "GPU 1 (heat, " in notes["gpu_throttle", "during"]


def test_memory_that_is_left(busy):
    assert "with --num_gpus=2, but 6 MiB is available" in busy.err


def test_a_run_is_compared_with_runs_on_other_gpus_never(busy, alone, tmp_path):
    other = json.loads(json.dumps(busy.record))
    other["placement"]["device"] = "gpu"
    del other["environment"]["emulated_gpus"]
    for number, record in enumerate((busy.record, other)):
        (tmp_path / f"{number}.json").write_text(json.dumps({**record, "run_id": f"{number}"}))
    files = tmp_path / "0.json", tmp_path / "1.json"
    found = alone("compare", *files, "--allow_different=gpu,machine,device")
    assert found.status == 3
    assert found.out.startswith("Not comparable: emulated_gpus is true in BASE and none in NEW.")


def test_env(emulated):
    facts = emulated("env", "--json", record=False)
    assert json.loads(facts.out)["facts"]["gpu_names"] == ["EMULATED_GPU", "EMULATED_GPU"]
    others = ",".join(set(CONDITIONS) - GPU_CHECKS)  # the host that runs the test may be busy
    check = ("env", "--check", "--seconds=0.2", f"--quiet_conditions={others}")
    hot = emulated(*check, "--", "--gpu_indices=1", record=False, status=3, **THROTTLED)
    assert hot.out.split(":")[0] == "gpu_throttle"
    assert "gpu_throttle" not in emulated(*check, record=False, **THROTTLED).out


def test_local_workers_divide_the_gpus(emulated):
    found = emulated(
        *("launch", "--workers=2", "--", "--model=trivial", "--data_name=cifar10"),
        *("--batch_size=2", "--num_batches=3", "--variable_update=collective_all_reduce"),
        *("--result_json=record.json", "--quiet_conditions=load"),
        record=False,
        **THROTTLED,
    )
    files = (found.folder / "trace").glob("*.tsv")
    used = [{line.split("\t")[0] for line in file.read_text().splitlines()} for file in files]
    assert sorted(map(sorted, filter(None, used))) == [["0"], ["1"]]
    assert found.record["placement"]["device"] == "emulated_gpu"
    assert "[worker:0] " + NOTICE in found.err
    # The chief has the GPU that is not hot, and the other worker is no stranger to it.
    assert not {note["id"] for note in found.record["conditions"]["notes"]} & GPU_CHECKS


def test_parts_of_a_card_are_one_card(emulated):
    found = emulated(
        *("--model=trivial", "--data_name=cifar10", "--num_gpus=2", "--gpus_per_card=2"),
        *("--batch_size=2", "--num_batches=3", "--peak_flops=1e12"),
        gpus=1,
        parts=2,
    )
    assert "cnnbench: --gpus_per_card=2: the GPUs are parts of cards, and their speed" in found.err
    assert found.record["environment"]["gpu_names"] == ["EMULATED_GPU"]
    assert found.record["measured"]["peak_flops_per_sec"] == 1e12
    assert found.record["measured"]["energy_source"].endswith("NVML GPU 0")
    assert found.record["config"]["gpus_per_card"] == 2


def test_a_strategy_that_takes_all_gpus_of_workers_gets_those_of_the_run(emulated):
    found = emulated(
        *("launch", "--workers=2", "--ps=1", "--", "--model=trivial", "--data_name=cifar10"),
        *("--batch_size=2", "--gpus_per_card=2", "--num_batches=3"),
        *("--result_json=record.json", "--variable_update=parameter_server_strategy"),
        gpus=1,
        parts=2,
        record=False,
    )
    assert found.record["placement"]["num_towers"] == 2
    assert {one.device for one in found.work} == {0}


def test_all_reduces(emulated, holds):
    found = emulated(
        "allreduce", "--num_gpus=2", "--all_reduce_spec=nccl", "--sizes=4K", "--num_batches=2"
    )
    assert found.record["placement"]["device"] == "emulated_gpu"
    assert NOTICE in found.err
    holds("allreduce", found.record)
