"""Presets and the grammar of --link."""

import dataclasses

import pytest

from cnnbench.errors import FlagError
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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nvlink33", "did you mean nvlink3"),
        ("", "there is no link ''"),
        ("alpha=1e-6", "lacks bandwidth"),
        ("bandwidth=1e9", "lacks alpha"),
        ("alpha=1,bandwidth=0", "bandwidth must be a finite number above 0, not '0'"),
        ("alpha=-1,bandwidth=1", "alpha must be a finite number of at least 0, not '-1'"),
        ("alpha=nan,bandwidth=1", "not 'nan'"),
        ("alpha=x,bandwidth=1", "not 'x'"),
        ("alpha=1,alpha=2,bandwidth=1", "'alpha=2' is given twice"),
        ("hdr,beta=1", "'beta=1' must be alpha or bandwidth or gamma=number"),
        ("hdr,edr", "'edr' must be"),
    ],
)
def test_errors_name_flag_value_and_reason(text, reason):
    with pytest.raises(FlagError) as error:
        parse_link("inter_link", text)
    assert str(error.value).startswith(f"--inter_link={text}: ")
    assert reason in str(error.value)
