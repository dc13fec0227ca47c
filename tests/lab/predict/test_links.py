"""Presets and the grammar of --link; tests/cli/test_refusals.py has what it refuses."""

import dataclasses

import pytest

from cnnbench.lab.predict.links import PRESETS, Link, parse_link


def test_a_preset_by_its_name():
    link = parse_link("link", "nvlink3")
    assert link.bandwidth == pytest.approx(240e9)
    assert link.alpha == pytest.approx(3.4e-6)
    # Three bytes of 1555 GB/s for each byte added.
    assert link.gamma == pytest.approx(3 / 1555e9)


def test_no_network_carries_more_than_its_line_rate():
    for name, link in PRESETS.items():
        if name.startswith(("tcp", "roce")):
            gbits = int(name.lstrip("tcproe"))
            assert 0.9 * gbits / 8 < link.bandwidth / 1e9 < gbits / 8


def test_parameters_of_ones_own():
    assert parse_link("link", "alpha=5e-6,bandwidth=12.5e9") == Link(
        "alpha=5e-6,bandwidth=12.5e9", 5e-6, 1 / 12.5e9, 0.0
    )


def test_a_preset_with_changes():
    changed = parse_link("link", "hdr, alpha=1e-6 ,gamma=2e-12")
    assert changed == dataclasses.replace(
        PRESETS["hdr"], name="hdr, alpha=1e-6 ,gamma=2e-12", alpha=1e-6, gamma=2e-12
    )
