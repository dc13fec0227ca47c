"""Reading measurement files."""

import pytest

from cnnbench.errors import FlagError
from cnnbench.flags.groups.allreduce import model_gradients
from cnnbench.lab.predict.points import read_points
from cnnbench.lab.predict.workload import Tensor, gradient_tensors
from cnnbench.variable_mgr.aggregation.spec import Packing

from .conftest import make_document, make_point


def test_a_point(write):
    document = make_document([make_point("xring#2", 10, 4, [3.0, 1.0, 2.0], 4)])
    (point,) = read_points([write(document)])
    assert str(point.spec) == "xring#2"
    assert point.seconds == 2.0
    assert point.bytes == 40
    assert point.tensors == (Tensor(3), Tensor(3), Tensor(2), Tensor(2))
    assert point.kind == "cpu"
    assert str(point) == "xring#2: 40 bytes in 4 on 4 devices"


@pytest.mark.parametrize(
    ("packing", "config", "unusual"),
    [
        (Packing(), {"all_reduce_share_memory": True, "local_parameter_device": "gpu"}, None),
        (Packing(compact_dtype="float16"), {"all_reduce_group_size": 2}, None),
        (Packing(variable_consistency="relaxed"), {}, "measured with --variable_consistency"),
        (Packing(), {"all_reduce_share_memory": False}, "measured with --noall_reduce_share"),
        (Packing(), {"local_parameter_device": "cpu"}, "measured with --local_parameter_device"),
    ],
)
def test_what_the_formulas_do_not_cover(write, packing, config, unusual):
    points = [make_point("copy/xring", 10, 4, [1.0], packing=packing)]
    (point,) = read_points([write(make_document(points, config=config))])
    assert point.packing == packing
    assert point.group_size == config.get("all_reduce_group_size", 0)
    assert (point.unusual or "").startswith(unusual or "")
    assert (point.unusual is None) == (unusual is None)


def test_the_gradients_of_a_model_have_their_own_sizes(write):
    _, shapes = model_gradients("trivial", None)
    gradients = gradient_tensors(shapes, 4)
    elements = sum(tensor.elements for tensor in gradients)
    document = make_document(
        [make_point("copy", elements, 2, [1.0], len(gradients))],
        config={"model": "trivial", "data_name": None},
    )
    (point,) = read_points([write(document)])
    assert point.tensors == gradients


def test_what_failed_or_reduced_nothing_is_left_out(write):
    points = [
        make_point("copy", 10, 4, [1.0]),
        make_point("copy", 10, 1, [1.0]),
        make_point("copy", 10, 4, []),
        make_point("copy", 10, 4, [1.0], wrong=1),
        make_point("copy", 10, 4, [1.0], error="no memory"),
    ]
    assert len(read_points([write(make_document(points))])) == 1


def test_points_of_several_files(write):
    one = write(make_document([make_point("copy", 10, 4, [1.0])]), "one.json")
    two = write(make_document([make_point("copy", 20, 4, [1.0])]), "two.json")
    assert [point.bytes for point in read_points([one, two])] == [40, 80]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("{", "is no file of cnnbench allreduce --result_json"),
        ("[]", "expected an object"),
        (make_document([], kind="run"), "kind: 'run'"),
        (make_document([], schema=2), "schema: 2"),
        (make_document([]), "holds no correct measurement on two or more devices"),
        (make_document([{"devices": 2}]), "points[0].spec: missing"),
        (make_document([make_point("copy", 10, 2, [1.0], dtype="int8")]), "'int8'"),
        (make_document([make_point("copy", 10, 2, [-1.0])]), "points[0].seconds"),
        (make_document([make_point("copy:", 10, 2, [1.0])]), "--all_reduce_spec=copy:"),
    ],
)
def test_other_files_are_refused_by_name(write, document, reason):
    path = write(document)
    with pytest.raises(FlagError) as error:
        read_points([path])
    assert str(error.value).startswith(f"--points={path}: ")
    assert reason in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FlagError, match="No such file"):
        read_points([str(tmp_path / "missing.json")])


def test_cpu_and_gpu_points_do_not_mix(write):
    point = make_point("copy", 10, 2, [1.0])
    files = [write(make_document([point], kind), f"{kind}.json") for kind in ("cpu", "gpu")]
    with pytest.raises(FlagError, match="mixes measurements on cpu and gpu"):
        read_points(files)
