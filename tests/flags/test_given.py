"""What mypy says about programs of users: the arguments of `Params`, and the examples of plug-ins.

The types of flags that also take text or lists are in cnnbench/flags/declare.py.
"""

from __future__ import annotations

import re
import sys

import pytest
import typecheck
from forked import finished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = sorted((typecheck.ROOT / "docs" / "examples").glob("*.py"))

PROGRAM = """\
from collections.abc import Mapping

from cnnbench import BenchmarkCNN, Params
from cnnbench.arrays import Array, Tensor
from cnnbench.models import Model
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, parse_all_reduce_spec

params = Params(model="resnet50", num_gpus=2, num_epochs=2, momentum=0.5, train_dir=None)
Params(modle="resnet50")  # error: "modle"
Params(num_gpus="2")  # error: "num_gpus"
Params(num_gpus=None)  # error: "num_gpus"
Params(momentum="0.5")  # error: "momentum"
Params(learning_rate=0.5)  # error: "learning_rate"

Params(all_reduce_spec="xring#2")
Params(all_reduce_spec=parse_all_reduce_spec("xring#2"))
Params(all_reduce_spec=2)  # error: "AllReduceSpec | str | None"
Params(display_every="10s", stop_at="top_1:0.7", piecewise_learning_rate_schedule="0.3;10;0.2")
Params(display_every=10.5)  # error: "display_every"
Params(eval_during_training_at_specified_steps="1,2")
Params(eval_during_training_at_specified_steps=[1, 2])
Params(eval_during_training_at_specified_epochs=(1, 2.5), plugin="a.py,b.py")
Params(eval_during_training_at_specified_steps=("1", "2"))  # error: "eval_during_training
Params(plugin=[1])  # error: "int"

Params(constants={"my_momentum": 0.5})
Params(constants={"my_momentum": "x"})  # error: "str"
Params(my_momentum=0.5)  # error: "my_momentum"

larger = params.replace(batch_size=64, all_reduce_spec="xring")
size: int = larger.batch_size
params.replace(batchsize=64)  # error: "batchsize"
params.replace(batch_size="64")  # error: "batch_size"
Params.from_dict({"batch_size": "64"})

spec: AllReduceSpec | None = params.all_reduce_spec
steps: tuple[int, ...] = params.eval_during_training_at_specified_steps
text: str = params.all_reduce_spec  # error: "str"
print(params.batchsize)  # error: "batchsize"
params.num_gpus = 2  # error: "num_gpus"
steps_per_second: float = BenchmarkCNN(larger).run().summary().images_per_sec / size


class Own(Model):
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs - labels

    def host_metrics(self, rows: Mapping[str, Array]) -> Mapping[str, float]:
        return {"mean": float(rows["told"].mean())}

    def host_rows(self, features: Tensor, outputs: Tensor) -> int:  # error: "host_rows"
        return 0
"""


def errors_by_line(text, path):
    """The errors of mypy in the file of this name: all messages of a line, by its number."""
    # mypy repeats messages of earlier runs, in which the folder had another name.
    found, name = {}, re.escape(path.name)
    for line, message in re.findall(rf"^(?:.*/)?{name}:(\d+): error: (.*)", text, re.M):
        found[int(line)] = f"{found.get(int(line), '')}{message}\n"
    return found


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The program, and what mypy says about it and the examples."""
    typecheck.link_tree(typecheck.ROOT, typecheck.ROOT / typecheck.TREE)
    program = tmp_path_factory.mktemp("user") / "program.py"
    program.write_text(PROGRAM)
    # As scripts/typecheck, so that mypy checks the package only once.
    words = [sys.executable, "-m", "mypy", program, *EXAMPLES]
    environment = {"MYPYPATH": str(typecheck.TREE)}
    done = finished(words, 1, environment=environment, seconds=800, cwd=typecheck.ROOT)
    return program, done.stdout


def test_wrong_arguments_and_names_are_reported_and_no_others(checked):
    program, told = checked
    expected = {
        number: line.partition("# error: ")[2]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# error: " in line
    }
    found = errors_by_line(told, program)
    assert found.keys() == expected.keys(), told
    for number, part in expected.items():
        assert part in found[number]


def test_examples_have_no_errors(checked):
    _, told = checked
    wrong = {path.name: errors_by_line(told, path) for path in EXAMPLES}
    assert {name: found for name, found in wrong.items() if found} == {}
