"""Presets and the grammar of --link; tests/cli/test_refusals.py has the sentences of refusals.

Tests cnnbench/lab/predict/predict.py.
"""

import pytest

from cnnbench.errors import FlagError
from cnnbench.lab.predict.predict import LARGEST_DOMAIN, PRESETS, parse_link


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Three bytes of 1555 GB/s for each byte added.
        ("nvlink3", (3.4e-6, 1 / 240e9, 3 / 1555e9)),
        ("alpha=5e-6,bandwidth=12.5e9", (5e-6, 1 / 12.5e9, 0.0)),
        ("hdr, alpha=1e-6 ,gamma=2e-12", (1e-6, PRESETS["hdr"].beta, 2e-12)),
        ("alpha=0,bandwidth=1,gamma=0", (0.0, 1.0, 0.0)),
        ("hdr,bandwidth=4", (PRESETS["hdr"].alpha, 0.25, PRESETS["hdr"].gamma)),
    ],
)
def test_a_preset_parameters_of_ones_own_or_both(text, expected):
    link = parse_link("link", text)
    assert link.name == text
    assert (link.alpha, link.beta, link.gamma) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hrd", "'hrd'.*hdr.*alpha=SECONDS"),
        ("", "''.*alpha=SECONDS"),
        ("alpha=1", "lacks bandwidth"),
        ("bandwidth=1,gamma=1", "lacks alpha"),
        ("hdr,alpha", "'alpha' must be alpha or bandwidth or gamma=number"),
        ("hdr,beta=1", "'beta=1' must be alpha or bandwidth or gamma=number"),
        ("hdr,alpha=1,alpha=2", "'alpha=2' is given twice"),
        ("hdr,alpha=-1", "alpha.*at least 0.*'-1'"),
        ("hdr,alpha=x", "alpha.*at least 0.*'x'"),
        ("hdr,alpha=nan", "alpha.*at least 0.*'nan'"),
        ("hdr,bandwidth=0", "bandwidth.*above 0.*'0'"),
        ("hdr,bandwidth=inf", "bandwidth.*above 0.*'inf'"),
        ("hdr,gamma=-1e-9", "gamma.*at least 0.*'-1e-9'"),
    ],
)
def test_refusals_name_the_part_that_is_wrong(text, reason):
    with pytest.raises(FlagError, match=f"^--inter_link={text}: .*{reason}"):
        parse_link("inter_link", text)


def test_no_network_carries_more_than_its_line_rate():
    for name, link in PRESETS.items():
        if name.startswith(("tcp", "roce")):
            gbits = int(name.lstrip("tcproe"))
            assert 0.9 * gbits / 8 < link.bandwidth / 1e9 < gbits / 8


def test_gpus_that_a_switch_connects():
    assert LARGEST_DOMAIN == {"nvlink2": 16, "nvlink3": 16, "nvlink4": 256}
