"""Reading measurement files."""

import pytest

from cnnbench.errors import FlagError
from cnnbench.predict.points import median, read_points
from cnnbench.predict.tensor import Tensor

from .conftest import make_document, make_point


def test_a_point(write):
    (point,) = read_points(
        [write(make_document([make_point("xring#2", 10, 4, [3.0, 1.0, 2.0], 4)]))]
    )
    assert str(point.spec) == "xring#2"
    assert point.seconds == 2.0
    assert point.bytes == 40
    assert point.tensors == (Tensor(3), Tensor(3), Tensor(2), Tensor(2))
    assert point.kind == "cpu"
    assert str(point) == "xring#2: 40 bytes in 4 on 4 devices"


def test_packing_groups_and_consistency_are_read(write):
    packed = make_point(
        "copy/xring",
        10,
        4,
        [1.0],
        packing={
            "gradient_repacking": 2,
            "agg_small_grads_max_bytes": 100,
            "agg_small_grads_max_group": 3,
            "compact_dtype": "float16",
            "variable_consistency": "relaxed",
        },
    )
    (point,) = read_points([write(make_document([packed], config={"all_reduce_group_size": 2}))])
    assert point.packing.gradient_repacking == 2
    assert point.packing.agg_small_grads_max_group == 3
    assert point.packing.compact_dtype == "float16"
    assert point.group_size == 2
    assert point.unusual == "measured with --variable_consistency=relaxed"


@pytest.mark.parametrize(
    ("config", "unusual"),
    [
        ({}, None),
        ({"all_reduce_share_memory": True, "local_parameter_device": "gpu"}, None),
        ({"all_reduce_share_memory": False}, "measured with --noall_reduce_share_memory"),
        ({"local_parameter_device": "cpu"}, "measured with --local_parameter_device=cpu"),
    ],
)
def test_what_the_formulas_do_not_cover(write, config, unusual):
    document = make_document([make_point("copy", 10, 4, [1.0])], config=config)
    (point,) = read_points([write(document)])
    assert (point.unusual or "").startswith(unusual or "")
    assert (point.unusual is None) == (unusual is None)


def test_the_gradients_of_a_model_have_their_own_sizes(write):
    from cnnbench.predict.gradients import model_gradients

    gradients = model_gradients("trivial", None, 4)
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
        ("{", "is not JSON"),
        ("[]", "is not a file of cnnbench allreduce --result_json"),
        ({"schema": 1, "kind": "run"}, "is not a file of cnnbench allreduce --result_json"),
        (make_document([], schema=2), "has schema 2, this version reads 1"),
        (make_document([]), "holds no correct measurement on two or more devices"),
        (make_document([{"devices": 2}]), "malformed point: lacks 'seconds'"),
        (make_document([make_point("copy", 10, 2, [1.0], dtype="int8")]), "lacks 'int8'"),
        (make_document([make_point("copy", 10, 2, [-1.0])]), "malformed point: seconds [-1.0]"),
        (make_document([make_point("copy:", 10, 2, [1.0])]), "malformed point"),
        (make_document([], placement=None), "malformed point"),
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


def test_median():
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    with pytest.raises(ValueError):
        median([])
