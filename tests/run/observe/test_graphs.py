"""--graph_file and --partitioned_graph_file_prefix."""

import pytest
import tensorflow as tf
from covering import slow_if

from cnnbench.run.observe.graphs import collecting_partitions, write_graph


def _read(path):
    message = type(tf.Graph().as_graph_def())
    return message.FromString(path.read_bytes())


@pytest.mark.parametrize(
    ("whole", "part"), slow_if([("txt", "pb")], [("pb", "txt"), ("txt", "pb")])
)
def test_the_step_and_the_part_of_every_device_as_messages_and_as_text(run, tmp_path, whole, part):
    path, prefix = tmp_path / f"graph.{whole}", tmp_path / f"part.{part}"
    parts = [tmp_path / f"part{number}.{part}" for number in range(2)]
    files = [f"--graph_file={path}", f"--partitioned_graph_file_prefix={prefix}"]
    _, err = run("--num_gpus=2", *files)
    assert sorted(tmp_path.iterdir()) == [path, *parts]
    if whole == "txt":
        assert path.read_text().startswith("node {")
    if whole == "pb":
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(_read(path), name="")
        names = {operation.name for operation in graph.get_operations()}
        assert "tower_0/affine0/MatMul" in names
        assert any("gradient_tape" in name for name in names)
    for number, file in enumerate(parts):
        device = f"/job:localhost/replica:0/task:0/device:CPU:{number}"
        if part == "txt":
            assert f'device: "{device}"' in file.read_text()
            continue
        graph = _read(file)
        assert {node.device for node in graph.node if node.device} == {device}
        # After partitioning: what another device made is received, and the layers are there.
        assert "_Recv" in {node.op for node in graph.node}
        assert any("affine0" in node.name for node in graph.node)
        assert f"{file}: {len(graph.node)} operations on {device}" in err


@pytest.mark.parametrize(("name", "as_text"), [("g.pbtxt", True), ("g.txt", True), ("g", False)])
def test_a_graph_is_text_if_its_name_says_so(tmp_path, name, as_text):
    graph = tf.Graph()
    with graph.as_default():
        tf.constant(1)
    write_graph("graph_file", str(tmp_path / name), graph.as_graph_def())
    assert (tmp_path / name).read_bytes().startswith(b"node {") == as_text


@pytest.mark.slow
def test_functions_that_ran_since_an_earlier_collection_do_not_count():
    def call(length):
        @tf.function(autograph=False)
        def function(x):
            for _ in range(length):
                x = tf.sin(x) + x
            return x

        function(tf.constant(1.0))

    for before in (1, 300):
        call(before)
        found = []
        with collecting_partitions(found):
            call(100)
        assert 200 <= sum(len(graph.node) for graph in found) < 300
