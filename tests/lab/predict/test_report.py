"""The text of predictions; test_docs.py has the rest of it."""

from cnnbench.lab.predict import command as report
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.links import parse_link
from cnnbench.lab.predict.predict import FastestByDevices, FastestRange, predict
from cnnbench.lab.predict.workload import Tensor, TrainingStep
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

NETWORK = Interconnect(parse_link("link", "alpha=1e-5,bandwidth=1e9"))
STEP = TrainingStep("toy", (Tensor(250_000),), Packing(gradient_repacking=1), "float32", 0.01, 32)


def predictions():
    specs = [parse_all_reduce_spec(text) for text in ("xring", "copy", "xring#4")]
    return predict(NETWORK, STEP, specs, (1, 2, 4))


def test_times():
    # One MB at 1 GB/s: two devices send each other half of it twice, or all of it twice.
    assert report.time_lines(predictions()) == [
        "# predicted time of the reduction, ms",
        "# devices  xring   copy  xring#4  fastest",
        "        1      0      0        0  -",
        "        2  1.020  2.020        -  xring",
        "        4  1.560  6.060    1.741  xring",
        "# not predicted: xring#4 on 2 devices: 4 shards need as many devices",
    ]


def test_tables_fit_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = report.step_lines(predictions())
    assert max(map(len, lines)) <= 100
    assert [line.split()[1] for line in lines[1:3]] == ["overlapped", "devices"]


def test_fastest():
    eight = (FastestRange("rechd", 3 << 19), FastestRange("xring", None))
    ranges = [FastestByDevices(devices=8, ranges=eight), FastestByDevices(devices=16, ranges=())]
    assert report.fastest_lines(ranges) == [
        "# devices  fastest by size of a single tensor, 1 KiB to 1 GiB",
        "        8  rechd < 1.5 MiB <= xring",
        "       16  -",
    ]
