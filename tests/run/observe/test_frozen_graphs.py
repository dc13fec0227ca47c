"""--freeze_when_forward_only: weights as constants of the graph."""

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import NETWORKS, RATE, build


def _built(**flags):
    return build("oracle", forward_only=True, batch_size=2, num_gpus=2, **flags)


@pytest.mark.parametrize("mode", slow_if(["independent"], ["parameter_server", "independent"]))
def test_no_variable_is_read(mode):
    frozen = _built(variable_update=mode, freeze_when_forward_only=True)
    free = _built(variable_update=mode)
    reads = [
        sum(op.type == "ReadVariableOp" and op.name.startswith("tower_") for op in ops)
        for ops in (built.step.graph.get_operations() for built in (frozen, free))
    ]
    assert reads[0] < reads[1]
    names = {v.name for v in frozen.step.graph.variables}
    assert not any(name.startswith(("A", "B")) for name in names)
    loss = frozen.step(RATE).loss.numpy()
    assert loss == free.step(RATE).loss.numpy() != 0
    for variable in frozen.manager.savable_variables().values():
        variable.assign(tf.zeros_like(variable.primary))
    assert frozen.step(RATE).loss.numpy() == loss


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--precision=bf16"], ["--xla_compile"]])
def test_a_run_has_the_losses_of_one_that_reads(run, tmp_path, flags):
    path = tmp_path / "graph.pb"
    plugin = f"--plugin={NETWORKS}"
    shared = [plugin, "--model=poison", "--data_name=imagenet", "--forward_only", *flags]
    out, _ = run(*shared, "--freeze_when_forward_only", f"--graph_file={path}")
    graph = type(tf.Graph().as_graph_def()).FromString(path.read_bytes())
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    kernels = [
        tf.make_ndarray(node.attr["value"].tensor)
        for node in nodes
        if node.op == "Const" and "conv0" in node.name and "Read" not in node.name
    ]
    assert any(kernel.shape == (2, 2, 3, 3) and np.any(kernel) for kernel in kernels)
    again, _ = run(*shared)
    accuracies = [
        [row.split("\t")[2:] for row in text.splitlines() if "images/sec: " in row]
        for text in (out, again)
    ]
    assert accuracies[0] == accuracies[1]
