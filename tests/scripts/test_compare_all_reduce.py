"""The comparison of reductions: its figures by hand, its processes with a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path

import compare_all_reduce
import pytest
from peers.demands import MET, MISSED, NOT_MEASURED, OPEN

from cnnbench.records.allreduce import AllReduceRecord, Copying, Point
from cnnbench.variable_mgr.aggregation.spec import Packing

OPTIONS = ["--devices=4", "--rounds=2", "--scenarios"]


def row(spec, seconds, *, size=16 << 20, packs=0, wrong=0, error=None, devices=4, build=None):
    return Point(
        spec=spec,
        packing=Packing(gradient_repacking=packs),
        workload="x",
        dtype="float32",
        bytes=size,
        tensors=1,
        elements=size // 4,
        devices=devices,
        seconds=tuple(seconds),
        wrong=wrong,
        error=error,
        build_seconds=build,
    )


def record(points, peers=(), copies=()):
    return AllReduceRecord(
        run_id="r",
        started_at="2026-01-02T03:04:05+00:00",
        status="ok",
        command=("cnnbench", "allreduce"),
        config={},
        points=tuple(points),
        peers=tuple(peers),
        copies=tuple(copies),
    )


def experiment(scenario):
    (found,) = compare_all_reduce.experiments(compare_all_reduce.parse([*OPTIONS, scenario]))
    return found


def test_gradients_by_hand():
    figures = experiment("gradients").figures(
        record(
            [
                row("xring", [2.0, 9.0, 1.0]),
                row("copy", [4.0]),
                row("rechd", [1.0], wrong=1),
                row("pscpu", [], error="boom"),
                row("collective", [3.0]),
            ],
            peers=[row("reduction_to_one_device", [8.0])],
        )
    )
    assert figures == {
        "ResNet-50, 4 devices: speed of xring / collective": 1.5,
        "ResNet-50, 4 devices: speed of xring / reduction_to_one_device": 4.0,
        "ResNet-50, 4 devices: speed of copy / collective": 0.75,
        "ResNet-50, 4 devices: speed of copy / reduction_to_one_device": 2.0,
    }


def test_packing_by_hand():
    points = [row("xring", [6.0]), row("xring", [1.5], packs=1), row("copy", [6.0])]
    figures = experiment("small").figures(record(points))
    assert figures == {"1000 x 4 KiB, 4 devices: xring packed / unpacked": 4.0}


def test_share_of_the_bound_by_hand():
    # Four devices copy 16 MiB each in a second: 64 MiB/s. 2 * 3 * 16 MiB take 1.5 s.
    copy = Copying(bytes=16 << 20, devices=4, seconds=(1.0,))
    points = [row("xring", [3.0]), row("xring", [1.0], size=64 << 20)]
    figures = experiment("large").figures(record(points, copies=[copy]))
    assert figures == {"16 MiB, 4 devices: xring / memory-copy bound": 0.5}


def test_build_times_by_hand():
    resnet50, _ = compare_all_reduce.experiments(compare_all_reduce.parse([*OPTIONS, "build"]))
    points = [row("copy", [], devices=n, build=s) for n, s in ((2, 1.0), (4, 2.5), (8, 3.0))]
    points += [row("xring", [], devices=2, build=1.0)]
    assert resnet50.figures(record(points)) == {
        "resnet50, 8 devices: copy traced and built, s": 3.0,
        "resnet50, 2 to 8 devices: copy build time over devices": 0.75,
    }


@pytest.mark.parametrize("scenario", compare_all_reduce.SCENARIOS)
def test_figures_are_those_that_are_demanded(scenario):
    options = compare_all_reduce.parse(["--scenarios", scenario])
    for each in compare_all_reduce.experiments(options):
        assert each.demands
        texts = [demand.text for demand in each.demands]
        assert len(set(texts)) == len(texts)


def test_every_experiment_has_a_name_of_its_own():
    names = [each.name for each in compare_all_reduce.experiments(compare_all_reduce.parse([]))]
    assert len(names) == len(set(names)) == 8


@pytest.mark.parametrize(
    ("values", "verdict"), [([1.2, 1.3, 1.25], MET), ([0.5, 0.6, 0.55], MISSED), ([0.5, 2.0], OPEN)]
)
def test_verdicts(values, verdict):
    demand = experiment("gradients").demands[0]
    assert compare_all_reduce.judge(demand, values, []).verdict == verdict


def test_what_was_not_measured_says_why():
    demand = experiment("gradients").demands[0]
    finding = compare_all_reduce.judge(demand, [], ["killed after 9 s"])
    assert (finding.verdict, finding.note) == (NOT_MEASURED, "killed after 9 s")


STAND_IN = """#!{python}
import shutil, sys
flags = dict(a.split("=", 1) for a in sys.argv[2:] if "=" in a)
assert sys.argv[1] == "allreduce", sys.argv
assert flags["--device"] == "cpu"
if flags["--num_gpus"] == "3":
    sys.exit("no three devices today")
shutil.copy("{record}", flags["--result_json"])
"""


@pytest.fixture
def stand_in(tmp_path):
    """A program in place of cnnbench, beside an interpreter that is never started."""
    points = [
        row(spec, [seconds], packs=packs)
        for spec in ("copy", "xring")
        for packs, seconds in ((0, 4.0), (1, 1.0))
    ]
    result = tmp_path / "record"
    result.write_text(record(points).to_json())
    script = tmp_path / "cnnbench"
    script.write_text(STAND_IN.format(python=sys.executable, record=result))
    script.chmod(0o755)
    return f"--cnnbench_python={tmp_path / 'python'}"


def test_rounds_of_processes(stand_in, tmp_path, capsys):
    keep = tmp_path / "keep"
    keep.mkdir()
    flags = [stand_in, "--scenarios=small", "--devices=2,4", "--rounds=2", f"--keep={keep}"]
    assert compare_all_reduce.main(flags) == 0
    printed = capsys.readouterr()
    (line,) = (x for x in printed.out.splitlines() if "2 devices: xring packed" in x)
    assert line.split()[-1] == "met"
    assert "4.000" in line
    (line,) = (x for x in printed.out.splitlines() if "4 devices: rechd packed" in x)
    assert "not measured (no such row)" in line
    assert sorted(printed.err.splitlines()) == [
        f"{number}/2: small tensors on {devices} devices" for number in (1, 2) for devices in (2, 4)
    ]
    assert len(list(Path(keep).glob("*.json"))) == 4


def test_a_failed_process_is_told(stand_in, capsys):
    flags = [stand_in, "--scenarios=small", "--devices=3", "--rounds=1"]
    assert compare_all_reduce.main(flags) == 4
    printed = capsys.readouterr()
    reason = "exit status 1: no three devices today"
    assert reason in printed.err
    assert f"not measured ({reason})" in printed.out


@pytest.mark.parametrize(
    "flags",
    [["--scenarios=x"], ["--devices=1"], ["--rounds=0"], ["--keep=/nowhere"], ["--round=1"]],
)
def test_wrong_use(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        compare_all_reduce.parse(flags)
    assert caught.value.code == 2
    assert capsys.readouterr().err
