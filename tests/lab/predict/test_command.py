"""From flags to printed predictions and files."""

import csv
import json
import xml.etree.ElementTree
from dataclasses import replace

import pytest
from registries import kept

from cnnbench.errors import FlagError
from cnnbench.lab.predict import command
from cnnbench.lab.predict.predict import COLUMNS
from cnnbench.variable_mgr.all_reduce import names, registry

SMALL = {"model": "trivial", "data_name": "cifar10"}


def run(capsys, **given):
    assert command.main({"predict": True, **given}) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Tables in one piece."""
    monkeypatch.setenv("COLUMNS", "250")


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"link": "nvlink4", "devices": "8..1024"}, True),
        ({"link": "nvlink4,alpha=1e-6", "devices": "512"}, True),
        ({"link": "nvlink3", "devices": "16"}, False),
        ({"link": "nvlink4", "inter_link": "ndr", "devices": "8..1024"}, False),
        ({"link": "ndr", "devices": "1024"}, False),
    ],
)
def test_more_gpus_than_nvlink_connects_are_warned_of(capsys, given, warned):
    command.main({"predict": True, **SMALL, "all_reduce_spec": "xring", **given})
    err = capsys.readouterr().err
    assert ("GPUs, not" in err and "--inter_link=" in err) == warned


def test_an_algorithm_says_which_second_levels_are_predicted(capsys):
    nodes = {**SMALL, "link": "nvlink3", "inter_link": "hdr", "devices": "16"}
    with kept(registry.ALGORITHMS):
        register = registry.register(
            "even", cost=registry.cost_formulas()["xring"], second_levels=("tree",)
        )
        register(lambda context: None)
        found = run(capsys, **nodes)
        within = run(capsys, **{**nodes, "inter_link": None})
    assert "even/tree" in found
    assert "even" in within
    assert "even/tree" not in within


@pytest.mark.slow
def test_default_devices_reach_16384(capsys):
    out = run(capsys, **SMALL, link="ndr", all_reduce_spec="rechd")
    assert "\n        8 " in out
    assert "\n   16,384 " in out


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (
            {
                **SMALL,
                **{"link": "nvlink3", "inter_link": "hdr", "devices_per_node": 4, "devices": "16"},
            },
            ["# link within a node of 4 devices: nvlink3", "each node: hdr", "nccl/rechd"],
        ),
        (
            {**SMALL, "all_reduce_spec": "pscpu:32K:xring,xring#2"},
            ["pscpu:32K:xring", "xring#2"],
        ),
        (
            {
                "gradient_repacking": (4,),
                "agg_small_grads_max_bytes": "64K",
                "dtype": "float16",
            },
            ["51118162 bytes as float16", "up to 10 of at most 65536 bytes joined, 4 packs"],
        ),
        (
            SMALL,
            [*names(), "give --step_seconds"],
        ),
        ({"model": "tiny", "plugin": "docs/examples/tiny_plugin.py"}, ["# tiny: "]),
    ],
)
def test_what_is_given_is_printed(capsys, given, texts):
    out = run(capsys, **{"link": "hdr", "devices": "8", **given})
    assert all(text in out for text in texts)


def test_a_narrow_wire_halves_the_bytes_that_count(capsys):
    given = {"link": "alpha=0,bandwidth=1e9", "devices": "8", "all_reduce_spec": "xring"}
    # 2 * 7/8 of 102 MB, and half of it.
    for wire, milliseconds in (("", 178.9), ("bfloat16", 89.47)):
        out = run(capsys, **given, **({"wire_dtype": wire} if wire else {}))
        found = out.split("fastest\n")[1].split()[1]
        assert float(found) == pytest.approx(milliseconds, rel=3e-3)


def test_the_step_of_a_run_record(capsys, write_record):
    record = write_record(devices=1)
    out = run(capsys, link="hdr", devices="8", record=record)
    assert "step on one device 0.2500 s, 16 images per device" in out


def test_tables_fit_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out = run(capsys, **SMALL, link="hdr", devices="1,2", step_seconds=0.5)
    assert max(map(len, out.splitlines())) <= 100
    assert "overlapped\n# devices" in out


def test_a_line_of_the_step_hangs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = run(capsys, **SMALL, link="hdr", devices="2", all_reduce_spec="xring").splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("# trivial: "))
    assert lines[first + 1].startswith("#   ")
    assert not lines[first + 1].startswith("#    ")


def test_what_cannot_be_predicted_is_said(capsys):
    out = run(capsys, **SMALL, link="hdr", devices="1,2", all_reduce_spec="xring#4")
    times = "# devices  xring#4  fastest\n        1        0  -\n        2        -  -\n"
    assert times + "# not predicted: xring#4 on 2 devices: 4 shards need as many devices\n" in out
    assert out.endswith("1 KiB to 1 GiB\n        2  -\n")
    rows = run(capsys, **SMALL, link="hdr", devices="1,2,3", all_reduce_spec="xring").splitlines()
    fastest = [row.split()[2:] for row in rows if row.split()[:1] in (["1"], ["2"], ["3"])][:3]
    assert fastest == [["-"], ["xring"], ["xring"]]


def test_files(capsys, tmp_path, holds):
    paths = {f"result_{form}": str(tmp_path / f"out.{form}") for form in ("json", "csv")}
    given = {**SMALL, "devices": "2,4", "all_reduce_spec": "copy,xring#4", "step_seconds": 0.5}
    run(capsys, link="hdr", **given, **paths)
    document = json.loads((tmp_path / "out.json").read_text())
    holds("allreduce_prediction", document)
    parameters = {key: document["parameters"][key] for key in ("kind", "inter_link", "launch")}
    assert parameters == {"kind": "network", "inter_link": None, "launch": 0.0}
    assert document["parameters"]["link"]["name"] == "hdr"
    assert [(row["devices"], row["spec"]) for row in document["rows"]] == [
        (2, "copy"),
        (2, "xring#4"),
        (4, "copy"),
        (4, "xring#4"),
    ]
    assert document["rows"][1]["allreduce_seconds"] is None
    assert document["rows"][1]["not_predicted"] == "4 shards need as many devices"
    assert document["rows"][0]["efficiency"] < 1
    assert document["fastest"][0] == {"devices": 2, "ranges": [{"spec": "copy", "up_to": None}]}
    assert document["validation"] == {}
    one = {"link": "edr", "devices": "8", "all_reduce_spec": "xring"}
    run(capsys, **SMALL, **one, result_csv=paths["result_csv"])
    *rows, appended = csv.DictReader((tmp_path / "out.csv").open())
    assert appended["parameters"] == "edr"
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["packing"] == "unpacked"
    assert float(rows[2]["allreduce_seconds"]) == document["rows"][2]["allreduce_seconds"]
    assert rows[1]["allreduce_seconds"] == ""


def test_charts(capsys, tmp_path):
    path = tmp_path / "plot.svg"
    given = {"link": "hdr", "devices": "2,4", "all_reduce_spec": "xring,copy,xring/rechd"}
    run(capsys, **SMALL, **given, plot=str(path))
    root = xml.etree.ElementTree.parse(path).getroot()
    found = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    assert {"size of one tensor", "2 MiB", "512 MiB", "devices"} <= set(found)
    assert found.count("time of the reduction (s) (lower is better)") == 2
    # A spec without prediction has no curve and no place in the legends.
    assert found.count("xring") == found.count("copy") == 2
    assert "xring/rechd" not in found


@pytest.mark.parametrize("step", [{"step_seconds": 0.5}, {}])
def test_curves_follow_from_the_predictions(capsys, monkeypatch, step):
    """A ring of 8 devices without latency takes 2 * 7 / 8 of the time to send the bytes."""
    drawn = []
    monkeypatch.setattr(command, "write_plot", lambda *arguments: drawn.append(arguments))
    given = {
        "link": "alpha=0,bandwidth=1e9",
        "devices": "1,2,8",
        "all_reduce_spec": "xring,xring#3",
    }
    run(capsys, **SMALL, **given, **step, plot="plot.svg")
    run(capsys, **SMALL, **given, **step, plot="plot.svg", plot_devices=2)
    run(capsys, **SMALL, **{**given, "devices": "2"}, plot="plot.svg")
    run(capsys, **SMALL, **{**given, "devices": "1"}, plot="plot.svg")
    assert [charts[0].title.split()[-2] for _, charts, _ in drawn] == ["8", "2", "2", "2"]
    del drawn[2:]
    for (path, (by_size, by_devices), title), devices in zip(drawn, (8, 2), strict=True):
        assert path == "plot.svg"
        assert SMALL["model"] in title
        assert f" {devices} devices" in by_size.title
        (curve,) = [one for one in by_size.series if one.name == "xring"]
        assert len(by_size.series) == (2 if devices == 8 else 1)  # 3 shards need as many devices
        assert not curve.marks
        assert [curve.points[0][0], curve.points[-1][0]] == [1024, 2**30]
        assert len(curve.points) == 41
        for size, seconds in curve.points[
            20:
        ]:  # from 1 MiB, where chunks are much larger than lines
            assert seconds == pytest.approx(2 * (devices - 1) / devices * size / 1e9, rel=0.01)
        assert (by_size.x.log, by_size.x.base, by_size.y.log) == (True, 2, True)
        assert (by_devices.x.log, by_devices.x.base, by_devices.y.log) == (True, 2, not step)
        assert by_devices.y.zero == bool(step)
        numbers = {one.name: [x for x, _ in one.points] for one in by_devices.series}
        assert numbers == {"xring": [2, 8], "xring#3": [8]}
        assert [one.style for one in by_devices.series] == [0, 1]
        for _, value in by_devices.series[0].points:
            assert (0.9 < value < 1) == bool(step)
        assert ("images per device" in by_devices.title) == bool(step)


@pytest.mark.parametrize(
    ("devices", "steps", "reason"),
    [(2, (0.2, 0.3), "was measured on 2 devices"), (1, (), "contains no steps")],
)
def test_a_record_must_have_steps_of_one_device(write_record, devices, steps, reason):
    with pytest.raises(FlagError, match=f"^--record=.*{reason}"):
        run(None, link="hdr", record=write_record(devices, steps))


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("3..20", (3, 6, 12)),
        ("16, 8..32 ,1", (1, 8, 16, 32)),
        ("8..16384", tuple(2**k for k in range(3, 15))),
    ],
)
def test_device_counts(text, counts):
    assert command.parse_device_counts(text) == counts


@pytest.fixture
def write_record(lenet_runs, tmp_path):
    """Writes a run record with a mean step of a quarter of a second."""

    def write(devices, steps=(0.2, 0.3)):
        record = lenet_runs()(devices=devices, flags={"batch_size": 16}, step_seconds=steps)
        assert record.placement is not None
        placement = replace(record.placement, num_workers=devices)  # of a tower each
        path = tmp_path / f"record{devices}{len(steps)}.json"
        path.write_text(replace(record, placement=placement).to_json())
        return str(path)

    return write
