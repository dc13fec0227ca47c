"""Plots of predictions."""

import xml.etree.ElementTree

from cnnbench.lab.predict import command as plot
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.links import PRESETS
from cnnbench.lab.predict.predict import predict
from cnnbench.lab.predict.workload import Tensor, TrainingStep
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

SPECS = tuple(parse_all_reduce_spec(text) for text in ("xring", "copy", "xring/rechd"))


def draw(path, model, step_seconds=0.1):
    step = TrainingStep("toy", (Tensor(1 << 20),), Packing(), "float32", step_seconds, 32)
    predictions = predict(model, step, SPECS, (2, 4, 8))
    plot.draw(str(path), model, SPECS, step, predictions, 8)


def texts(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]


def test_svg_with_labels_and_units(tmp_path):
    path = tmp_path / "plot.svg"
    draw(path, Interconnect(PRESETS["hdr"]))
    found = texts(path)
    assert {"size of one tensor", "1 MiB", "256 MiB", "devices"} <= set(found)
    assert "time of the reduction (s) (lower is better)" in found
    assert any(text.startswith("scaling efficiency") for text in found)
    assert any(text.endswith("one tensor on 8 devices") for text in found)
    # A spec without prediction has no curve and no place in the legends.
    assert found.count("xring") == found.count("copy") == 2
    assert "xring/rechd" not in found


def test_time_instead_of_efficiency_without_a_step(tmp_path):
    path = tmp_path / "plot.svg"
    draw(path, Interconnect(PRESETS["hdr"]), step_seconds=None)
    found = texts(path)
    assert sum(text.startswith("time of the reduction") for text in found) == 2
    assert not any("efficiency" in text for text in found)


def test_the_suffix_chooses_the_format(tmp_path):
    path = tmp_path / "plot.PDF"
    draw(path, Interconnect(PRESETS["hdr"]))
    assert path.read_bytes().startswith(b"%PDF")
