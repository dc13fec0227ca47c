"""Presets and the grammar of --link; tests/cli/test_refusals.py has what it refuses."""

import pytest

from cnnbench.lab.predict.predict import PRESETS, parse_link


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Three bytes of 1555 GB/s for each byte added.
        ("nvlink3", (3.4e-6, 1 / 240e9, 3 / 1555e9)),
        ("alpha=5e-6,bandwidth=12.5e9", (5e-6, 1 / 12.5e9, 0.0)),
        ("hdr, alpha=1e-6 ,gamma=2e-12", (1e-6, PRESETS["hdr"].beta, 2e-12)),
    ],
)
def test_a_preset_parameters_of_ones_own_or_both(text, expected):
    link = parse_link("link", text)
    assert link.name == text
    assert (link.alpha, link.beta, link.gamma) == pytest.approx(expected)


def test_no_network_carries_more_than_its_line_rate():
    for name, link in PRESETS.items():
        if name.startswith(("tcp", "roce")):
            gbits = int(name.lstrip("tcproe"))
            assert 0.9 * gbits / 8 < link.bandwidth / 1e9 < gbits / 8
