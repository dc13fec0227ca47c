"""From flags to printed predictions and files."""

import csv
import json
import subprocess
import sys

import pytest

from cnnbench.cli import main
from cnnbench.errors import FlagError, UsageError
from cnnbench.lab.predict import command, interconnect
from cnnbench.lab.predict.document import COLUMNS
from cnnbench.lab.predict.formulas import FORMULAS


def run(capsys, **given):
    assert command.main({"predict": True, **given}) == 0
    return capsys.readouterr().out


def refused(**given):
    with pytest.raises(FlagError) as error:
        command.main({"predict": True, **given})
    return str(error.value)


def column(out, title):
    """First words of the rows of a table."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    rows = []
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        if not line.startswith("#"):
            rows.append(line.split()[0])
    return rows


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Tables in one piece."""
    monkeypatch.setenv("COLUMNS", "250")


def test_a_link_gives_a_table_per_number_of_devices(capsys):
    out = run(capsys, link="hdr", devices="8..64", model="resnet50", step_seconds=0.2)
    assert "# link     hdr: alpha 14 us, bandwidth 24.84 GB/s" in out
    assert "# resnet50: 161 gradients, 102236324 bytes as float32, unpacked" in out
    assert column(out, "# predicted time") == ["8", "16", "32", "64"]
    assert column(out, "# predicted step with the fastest") == ["8", "16", "32", "64"]
    assert column(out, "# devices  fastest by size") == ["8", "16", "32", "64"]
    header = next(line for line in out.splitlines() if line.startswith("# devices"))
    assert set(header.split()) >= set(FORMULAS)


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
    network = {"model": "trivial", "data_name": "cifar10", "all_reduce_spec": "xring"}
    command.main({"predict": True, **network, **given})
    err = capsys.readouterr().err
    assert ("GPUs, not" in err and "--inter_link=" in err) == warned


def test_default_devices_reach_16384(capsys):
    out = run(capsys, link="ndr", model="trivial", data_name="cifar10", all_reduce_spec="rechd")
    rows = column(out, "# predicted time")
    assert rows[0] == "8"
    assert rows[-1] == "16384"
    assert "give --step_seconds or --record" in out


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (
            {"link": "nvlink3", "inter_link": "hdr", "devices_per_node": 4, "devices": "16"},
            ["# within a node of 4:  nvlink3", "a link per node:  hdr", "nccl/rechd"],
        ),
        ({"all_reduce_spec": "pscpu:32K:xring,xring#2"}, ["pscpu:32K:xring", "xring#2"]),
        (
            {
                "gradient_repacking": (4,),
                "agg_small_grads_max_bytes": "64K",
                "dtype": "float16",
            },
            ["51118162 bytes as float16", "up to 10 of at most 65536 bytes joined, 4 packs"],
        ),
        ({"model": "tiny", "model_plugin": "docs/examples/tiny_plugin.py"}, ["# tiny: "]),
    ],
)
def test_what_is_given_is_printed(capsys, given, texts):
    out = run(capsys, **{"link": "hdr", "devices": "8", **given})
    assert all(text in out for text in texts)


def test_an_algorithm_without_formula_is_not_predicted_but_no_error(capsys, monkeypatch):
    others = {name: formula for name, formula in FORMULAS.items() if name != "tree"}
    monkeypatch.setattr(interconnect, "FORMULAS", others)
    out = run(capsys, link="hdr", devices="8", all_reduce_spec="tree,xring")
    assert "# not predicted: tree on 8 devices: there is no formula for tree" in out


def test_a_narrow_wire_halves_the_bytes_that_count(capsys):
    given = {"link": "alpha=0,bandwidth=1e9", "devices": "8", "all_reduce_spec": "xring"}
    fast, narrow = run(capsys, **given), run(capsys, **given, wire_dtype="bfloat16")
    # 2 * 7/8 of 102 MB, and half of it.
    assert float(row(fast)[1]) == pytest.approx(178.9, rel=2e-3)
    assert float(row(narrow)[1]) == pytest.approx(89.5, rel=5e-3)


def row(out):
    """The only row of the table of times."""
    lines = out.splitlines()
    return lines[lines.index("# predicted time of the reduction, ms") + 2].split()


def test_the_step_of_a_run_record(capsys, write_record):
    record = write_record(devices=1)
    out = run(capsys, link="hdr", devices="8", record=record)
    assert "step on one device 0.2500 s, 16 images per device" in out


def test_files(capsys, tmp_path, holds):
    paths = {
        "result_json": str(tmp_path / "out.json"),
        "result_csv": str(tmp_path / "out.csv"),
        "plot": str(tmp_path / "out.svg"),
    }
    run(
        capsys,
        link="hdr",
        devices="2,4",
        all_reduce_spec="copy,xring#4",
        step_seconds=0.5,
        **paths,
    )
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
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["packing"] == "unpacked"
    assert float(rows[2]["allreduce_seconds"]) == document["rows"][2]["allreduce_seconds"]
    assert rows[1]["allreduce_seconds"] == ""
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")


def test_rows_are_appended_to_a_table(capsys, tmp_path):
    path = str(tmp_path / "out.csv")
    for link in ("edr", "hdr"):
        run(capsys, link=link, devices="8", all_reduce_spec="xring", result_csv=path)
    with open(path) as file:
        assert [row["parameters"] for row in csv.DictReader(file)] == ["edr", "hdr"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"link": "nvlink9"}, "--link=nvlink9: there is no link"),
        ({"link": "hdr", "inter_link": "x"}, "--inter_link=x: there is no link"),
        ({"link": "hdr", "devices": "8-16"}, "--devices=8-16: "),
        ({"link": "hdr", "model": "resnet51"}, "--model=resnet51: unknown"),
        ({"link": "hdr", "all_reduce_spec": "ring"}, "there is no algorithm 'ring'"),
        ({"link": "hdr", "plot": "x.jpg"}, "--plot=x.jpg: must end in .svg, .png or .pdf"),
        ({"link": "hdr", "result_json": "/"}, "--result_json=/: is a folder"),
        ({"link": "hdr", "result_csv": "/nowhere/x.csv"}, "--result_csv=/nowhere/x.csv: "),
        ({"link": "hdr", "record": "/nowhere"}, "--record=/nowhere: cannot be read: No such file"),
        ({"link": "hdr", "devices_per_node": 4}, "--devices_per_node=4: has no effect without"),
        ({"link": "hdr", "plot_devices": 4}, "--plot_devices=4: has no effect without --plot"),
        (
            {"link": "hdr", "batch_size": 4},
            "--batch_size=4: has no effect without --step_seconds or --record",
        ),
        (
            {"link": "hdr", "gradient_repacking": (1, 2)},
            "--gradient_repacking=1,2: must be one value with --predict",
        ),
        (
            {"link": "hdr", "agg_small_grads_max_bytes": "many"},
            "--agg_small_grads_max_bytes=many: must be sizes in bytes",
        ),
    ],
)
def test_errors_name_flag_and_value(given, message):
    assert message in refused(**given)


def test_records_of_several_devices_and_of_failed_runs_are_refused(write_record):
    two = write_record(devices=2)
    assert "was measured on 2 devices" in refused(link="hdr", record=two)
    empty = write_record(devices=1, steps=())
    assert "holds no steps" in refused(link="hdr", record=empty)
    one = write_record(devices=1)
    assert "contradicts --record" in refused(link="hdr", record=one, step_seconds=0.1)


def test_documents_fitted_to_points_by_earlier_versions_are_valid(holds):
    prediction = dict.fromkeys(COLUMNS[:-1]) | {"model": "trivial", "bytes": 8, "gradients": 1}
    prediction |= {"dtype": "float32", "packing": "unpacked", "parameters": "fitted"}
    document = {
        "schema": 1,
        "kind": "allreduce_prediction",
        "model": "trivial",
        "parameters": {
            "rates": {"ops": 1e-6},
            "cache_bytes": 2.0**24,
            "group_size": 0,
            "kind": "host",
        },
        "rows": [{**prediction, "devices": 2, "spec": "copy"}],
        "fastest": [{"devices": 2, "ranges": [{"spec": "copy", "up_to": None}]}],
        "validation": {
            "held-out sizes": [
                {
                    "spec": "copy",
                    "packing": "unpacked",
                    "bytes": 8,
                    "tensors": 1,
                    "devices": 2,
                    "measured_seconds": 0.5,
                    "predicted_seconds": 0.25,
                    "relative_error": -0.5,
                }
            ]
        },
    }
    holds("allreduce_prediction", document)


def test_parameters_must_come_from_somewhere():
    with pytest.raises(UsageError, match="--link=PRESET"):
        command.main({"predict": True})


def test_points_of_earlier_versions_are_refused_with_what_to_use(capsys):
    assert main(["allreduce", "--predict", "--points=points.json", "--devices=4"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--points was removed" in line
    assert "--link=" in line


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


@pytest.mark.parametrize("text", ["", "8..", "a", "8,,9", "0", "16..8"])
def test_wrong_device_counts_are_refused(text):
    with pytest.raises(FlagError) as error:
        command.parse_device_counts(text)
    assert str(error.value).startswith(f"--devices={text}: ")


def test_tensorflow_is_not_imported():
    code = (
        "import sys; from cnnbench.lab.predict.command import main;"
        "given = {'predict': True, 'link': 'hdr', 'devices': '8'};"
        "main(given);"
        "assert not {'tensorflow', 'matplotlib', 'scipy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def write_record(lenet_runs, tmp_path):
    """Writes a run record with a mean step of a quarter of a second."""

    def write(devices, steps=(0.2, 0.3)):
        record = lenet_runs()(devices=devices, flags={"batch_size": 16}, step_seconds=steps)
        path = tmp_path / f"record{devices}{len(steps)}.json"
        path.write_text(record.to_json())
        return str(path)

    return write
