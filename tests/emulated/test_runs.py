"""Runs on emulated GPUs."""

from __future__ import annotations


def test_a_run(emulated):
    found = emulated("--model=trivial", "--num_gpus=2", "--batch_size=2", "--num_batches=3")
    assert found.status == 0, found.err
    assert found.record["placement"]["num_towers"] == 2
    assert {one.device for one in found.work} == {0, 1}
