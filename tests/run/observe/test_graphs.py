"""--graph_file and --partitioned_graph_file_prefix."""

import pytest
import tensorflow as tf
from covering import slow_if

from cnnbench.records.files import KINDS
from cnnbench.run.observe.graphs import collecting_partitions


def _read(path):
    message = type(tf.Graph().as_graph_def())
    return message.FromString(path.read_bytes())


def test_the_graph_of_the_step_can_be_imported(run, tmp_path):
    path = tmp_path / "graph.pb"
    out, _ = run(f"--graph_file={path}")
    assert "total images/sec" in out
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(_read(path), name="")
    names = {operation.name for operation in graph.get_operations()}
    assert "tower_0/affine0/MatMul" in names
    assert any("gradient_tape" in name for name in names)
    assert KINDS["graph"](path.read_bytes())


def test_a_name_in_txt_means_text(run, tmp_path):
    path = tmp_path / "graph.txt"
    run("--forward_only", f"--graph_file={path}")
    text = path.read_text()
    assert 'op: "MatMul"' in text
    assert "gradient_tape" not in text
    assert KINDS["graph as text"](path.read_bytes())


@pytest.mark.parametrize("name", slow_if(["part.txt"], ["part.pb", "part.txt"]))
def test_every_device_has_its_part(run, tmp_path, name):
    _, err = run("--num_gpus=2", f"--partitioned_graph_file_prefix={tmp_path / name}")
    suffix = name.removeprefix("part")
    files = [tmp_path / f"part{number}{suffix}" for number in range(2)]
    assert sorted(tmp_path.iterdir()) == files
    for number, path in enumerate(files):
        assert KINDS["graph" if suffix == ".pb" else "graph as text"](path.read_bytes())
        device = f"/job:localhost/replica:0/task:0/device:CPU:{number}"
        if suffix == ".txt":
            assert f'device: "{device}"' in path.read_text()
            continue
        graph = _read(path)
        assert {node.device for node in graph.node if node.device} == {device}
        # After partitioning: what another device made is received, and the layers are there.
        assert "_Recv" in {node.op for node in graph.node}
        assert any("affine0" in node.name for node in graph.node)
        assert f"{path}: {len(graph.node)} operations on {device}" in err


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


def test_evaluations_have_a_notice(run, tmp_path):
    _, err = run("--eval", f"--train_dir={tmp_path}", "--graph_file=graph.pb", code=4)
    assert "--graph_file has no effect with --eval" in err
