"""Mistakes in plug-ins of each kind: one line with file and line of the plug-in, no traceback.

Each row replaces one part of a plug-in that works, and names a part of the expected line.
"""

from __future__ import annotations

import json

import pytest
from short_runs import TINY

from cnnbench.base import plugins
from cnnbench.records.codec import encode

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("quick_start", "forgotten")]

NETWORK = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Own(Model):
    name, dataset, image_size, batch_size = "own", "cifar10", 8, 2
    learning_rate = LearningRateSpec(0.1)

    def build(self, net, images):
        return net.logits(net.global_avg_pool(images))

register_model("own", "cifar10", Own)
"""
METHOD = "\nregister_model("
LOSS = "\n    def loss(self, outputs, labels):\n        return "
METRICS = "\n    def metrics(self, outputs, labels):\n        return "
DATA = """
import os
from cnnbench.data import Dataset, register_dataset
from cnnbench.data.folder import Findings

def find(data_dir, subset):
    return [os.path.join(data_dir, "some.bin")]

def count(files, subset):
    return 4

def open(spec):
    from cnnbench.data.pipeline import ArrayPipeline
    return ArrayPipeline(spec, [[[[0.5] * 3] * 32] * 32] * 4, [1] * 4)

def check(files, num_classes):
    return Findings()

examples = {"train": 4, "validation": 4}
functions = {"find": find, "count": count, "open": open, "check": check}
register_dataset(Dataset(name="own", num_classes=11, examples=examples, files="*", **functions))

from cnnbench.models import LearningRateSpec, Model, register_model

class Own(Model):
    name, dataset, image_size, batch_size = "own", "own", 32, 2
    learning_rate = LearningRateSpec(0.1)

    def build(self, net, images):
        return net.logits(net.global_avg_pool(images))

register_model("own", "own", Own)
"""
OPTIMIZER = """
from cnnbench.optimizers import OPTIMIZERS, OptimizerSpec, Slot, register_optimizer

def update(weight, gradient, rate, total, epsilon):
    total = total + gradient * gradient
    return rate * gradient / (total + epsilon), total

register_optimizer(
    OptimizerSpec(
        name="own",
        formula="w -= g",
        update=update,
        slots=(Slot("total", "total"),),
        constants={"epsilon": OPTIMIZERS.constants["adam_epsilon"]},
    )
)
"""
RETURN = "rate * gradient / (total + epsilon), total"
SCHEDULE = """
from cnnbench.optimizers import SCHEDULES, ScheduleSpec, register_schedule

def make(run, floor):
    return lambda step: 0.1

constants = {"floor": SCHEDULES.constants["minimum_learning_rate"]}
register_schedule(ScheduleSpec(name="own", about="as it is", make=make, constants=constants))
"""
METRIC = """
from cnnbench.records.metric import register_metric

@register_metric("s", higher_is_better=False, threshold=0.1)
def own(record):
    \"\"\"Longest step.\"\"\"
    return max(record.step_seconds)
"""
ALGORITHM = """
import tensorflow as tf
from cnnbench.variable_mgr.all_reduce import register

@register("own")
class Own:
    def __init__(self, context):
        self.devices = context.devices

    def __call__(self, tensors, index):
        return [tf.add_n(tensors)] * len(tensors)
"""
SUMS = "[tf.add_n(tensors)] * len(tensors)"
MODE = """
from cnnbench.variable_mgr import Mode, register_mode
from cnnbench.variable_mgr.per_tower import IndependentVariableMgr

class Own(IndependentVariableMgr):
    pass

register_mode(Mode(name="own", manager=Own, about="own"))
"""
READER = """
from cnnbench.records.reader import register_reader

@register_reader("own", b"some")
def read(file):
    return []
"""
RUN = ["run", *(f"--{name}={value}" for name, value in {**TINY, "num_batches": 1}.items())]
SMALL = [word for word in RUN if not word.startswith(("--model", "--init", "--data_name"))]
REDUCED = ["allreduce", "--all_reduce_spec=own", "--num_gpus=2", "--device=cpu", "--sizes=64"]
# By kind: a plug-in, the command that uses it, and rows of old text, new text, part of the line.
KINDS = {
    "network": (
        NETWORK,
        [*SMALL, "--model=own", "--init_learning_rate=0.1", "--print_training_accuracy"],
        [
            ("net, images", "net", "Own.build() must take (self, net, features): too many"),
            ("self, net, images", "self", "Own.build() must take (self, net, features)"),
            ("net, images", "net, images, size", "missing a required argument: 'size'"),
            ("return net.logits", "net.logits", "Own.build() must return a result, not None"),
            ("return net.logits", "return 'x' or net.logits", "must return a result, not 'x'"),
            ("return net.logits(net.global_avg_pool(images))", "return images", "logits of shape"),
            ("return net", "{}['k']\n        return net", "Own.build(): KeyError: 'k'"),
            ("pool(images)", "pool(image)", "Own.build(): NameError: name 'image'"),
            ("pool(images)", "pool(images, 3, 4, 5)", "Own.build(): TypeError"),
            ("(net.global", "(net.apply(lambda: 1, images, shape=(3,)) or net.global", "TypeError"),
            (
                NETWORK[NETWORK.index("net.logits") : NETWORK.index("\n\nregister")],
                "net.apply(lambda x: tf.zeros([2, 11]) + OWN, images, shape=(11,))\n\n"
                "import tensorflow as tf\nOWN = tf.Variable(0.5)",
                "own.py:12: <module>: the tf.Variable made here is not trained, and no variable",
            ),
            ("Spec(0.1)", "Spec(-1)", "Own(): learning rate -1 must be finite and at least 0"),
            ("Spec(0.1)", "Spec(float('inf'))", "learning rate inf must be finite"),
            ("Spec(0.1)", "Spec('fast')", "TypeError"),
            ("LearningRateSpec(0.1)", "0.1", "learning_rate must be a LearningRateSpec, not 0.1"),
            ("8, 2", "8, 0", "batch_size=0 must be at least 1"),
            ("8, 2", "'large', 2", "'large'"),
            ("def build", "def built", "abstract"),
            ('10", Own)', '10", lambda: None)', "its factory made a NoneType"),
            ('10", Own)', '10", lambda size: Own())', "missing 1 required positional argument"),
            (METHOD, LOSS.replace(", labels", "") + "1.0\n" + METHOD, "Own.loss() must take"),
            (METHOD, LOSS + "'x'\n" + METHOD, "Own.loss() must return a float32 tensor [n]"),
            (METHOD, LOSS + "outputs\n" + METHOD, "Own.loss() must return a float32 tensor [n]"),
            (METHOD, METRICS + "[]\n" + METHOD, "Own.metrics() must return a Mapping, not a list"),
            (
                METHOD,
                "\n    def preprocess(self, example, seed):\n        return example\n" + METHOD,
                "Own.preprocess() must take (self, example, seed, *, training)",
            ),
        ],
    ),
    "data set": (
        DATA,
        [*SMALL, "--model=own", "--init_learning_rate=0.1", "--data_dir=data", "--data_name=own"],
        [
            ("(data_dir, subset)", "(data_dir)", "find() must take (str, str)"),
            ("(files, subset)", "(files)", "count() must take (Sequence, str)"),
            ("open(spec)", "open()", "open() must take (InputSpec)"),
            ("(files, num_classes)", "(files)", "check() must take (Sequence, int)"),
            ("return [os", "[os", "find() must return a Sequence, not None"),
            ("some.bin", "other.bin", "which does not exist"),
            ("return 4", "return 'four'", "count() must return an int, not 'four'"),
            ("return 4", "return {}['k']", "count(): KeyError: 'k'"),
            ("return ArrayPipeline", "ArrayPipeline", "Pipeline, not None"),
            (
                "return ArrayPipeline",
                "import numpy\n    return numpy.zeros(3) if spec else ArrayPipeline",
                "open() must return a cnnbench.data.pipeline.Pipeline, not a float64 tensor [3]",
            ),
            ("return ArrayPipeline", "return {}['k']", "open(): KeyError: 'k'"),
            ("classes=11", "classes='ten'", "num_classes must be an int, not 'ten'"),
            ('{"train": 4', '{"train": 0', "examples['train'] must be at least 1, not 0"),
            ('"find": find', "\"find\": 'find'", "find must be a Callable, not 'find'"),
            ("functions = {", "functions = {'size': 3, ", "TypeError"),
        ],
    ),
    "optimizer": (
        OPTIMIZER,
        [*RUN, "--optimizer=own"],
        [
            ("rate, total, epsilon):", "rate, total):", "update() must take (*, weight, gradient"),
            ("rate, total, epsilon):", "rate, epsilon):", "unexpected keyword argument 'total'"),
            ("total, epsilon):", "total, epsilon, beta):", "missing a required argument: 'beta'"),
            (RETURN, "total", "update() must return a tuple of 2"),
            ("return rate", "rate", "update() must return a tuple of 2, not None"),
            (RETURN, "gradient, total[0]", "tensors of the shape of the weight, [3072, 1], not"),
            (RETURN, "0.1, total", "tensors of the shape of the weight, [3072, 1], not 0.1"),
            (RETURN, "{}['k'], total", "update(): KeyError: 'k'"),
            ("        update=update,\n", "", "needs either an operation or an update"),
            ('"adam_epsilon"', '"no_epsilon"', "KeyError: 'no_epsilon'"),
        ],
    ),
    "schedule": (
        SCHEDULE,
        [*RUN, "--learning_rate_schedule=own"],
        [
            ("run, floor", "run", "make() must take (run, *, floor): got an unexpected keyword"),
            ("return lambda step: 0.1", "return 0.1", "make() must return a Callable, not 0.1"),
            ("lambda step:", "lambda:", "<lambda> must take (int): too many positional"),
            ("step: 0.1", "step: [0.1]", "<lambda> must return a float, not a list"),
            (
                "step: 0.1",
                "step: __import__('numpy').ones(2)",
                "<lambda> must return a float, not a float64 tensor [2]",
            ),
            ("step: 0.1", "step: None", "<lambda> must return a float, not None"),
            ("step: 0.1", "step: -1", "a finite rate of at least 0, not -1 for step 0"),
            ("step: 0.1", "step: float('nan')", "a finite rate of at least 0, not nan"),
            ("step: 0.1", "step: {}['k']", "<lambda>: KeyError: 'k'"),
            ("make=make", "make=None", "schedule own needs a function, not None"),
        ],
    ),
    "metric": (
        METRIC,
        ["compare", "base", "new", "--metrics=own"],
        [
            ("(record)", "()", "own() must take (record): too many positional arguments"),
            ("(record)", "(record, side)", "own() must take (record): missing a required"),
            ("return max", "return 'x' or max", "own() must return a float, not 'x'"),
            ("return max", "return [] + [0] or max", "own() must return a float, not a list"),
            ("return max", "return {}['k'] or max", "own(): KeyError: 'k'"),
            ("record.step_seconds", "record.step_times", "own(): AttributeError"),
            ("threshold=0.1", "threshold='much'", "threshold must be a float, not 'much'"),
            ("threshold=0.1", "line=lambda: ''", "<lambda> must take (Summary)"),
            ("threshold=0.1", "limit=0.1", "unexpected keyword argument 'limit'"),
        ],
    ),
    "all-reduce algorithm": (
        ALGORITHM,
        [*REDUCED, "--num_batches=1", "--progress=off"],
        [
            ("(self, context)", "(self)", "Own.__init__() must take (context): too many"),
            ("tensors, index", "tensors", "Own.__call__() must take (self, Sequence, int)"),
            (f"return {SUMS}", SUMS, "Own.__call__() must return a list, not None"),
            (SUMS, "[tf.add_n(tensors)]", "a tensor for each of 2 devices, not 1"),
            (SUMS, "[tf.add_n(tensors)[0]] * 2", "must return sums of a float32 tensor [16], not"),
            (SUMS, "[1.0, 1.0]", "must return sums of a float32 tensor [16], not 1.0"),
            (SUMS, "{}['k']", "Own.__call__(): KeyError: 'k'"),
            ("context.devices", "context.device", "Own.__init__(): AttributeError"),
            (
                '("own")',
                '("own")\ndef f(all, index):\n    return 1\n',
                "f() must take (context)",
            ),
            ('("own")', '("own")\ndef f(context):\n    return 1\n', "f() must return a Callable"),
        ],
    ),
    "mode": (
        MODE,
        [*RUN, "--variable_update=own"],
        [
            ("manager=Own", "manager=int", "mode own needs a manager: a subclass of VariableMgr"),
            ('name="own"', 'name="Own mode"', "a mode needs a name of lower-case letters"),
            ("pass", "def __init__(self):\n        pass", "takes 1 positional argument but 3"),
            ("about=", "copies='two', about=", "copies must be a Copies, not 'two'"),
        ],
    ),
    "reader": (
        READER,
        ["import", "data/some.bin", "--results=results", "--strict"],
        [
            ("read(file)", "read()", "read() must take (file): too many positional arguments"),
            ("return []", "return 3", "read() must return an Iterable, not 3"),
            ("return []", "return {}['k']", "read(): KeyError: 'k'"),
        ],
    ),
}
ROWS = [(kind, *row) for kind, (_, _, rows) in KINDS.items() for row in rows]


@pytest.fixture
def forgotten():
    """Removes what the plug-in of a test has registered."""
    yield
    for file in plugins.loaded():
        plugins.forget(file)


@pytest.fixture
def folder(tmp_path, monkeypatch, runs):
    """The working directory, with files of a data set and records of two sides."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "some.bin").write_text("some")
    for side in ("base", "new"):
        (tmp_path / side).mkdir()
        for number in range(3):
            record = runs(step_seconds=[0.1, 0.1, 0.2])
            (tmp_path / side / f"{number}.json").write_text(json.dumps(encode(record)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_has_rows_enough():
    assert len(ROWS) >= 60


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mistake_it_works(kind, call, folder):
    text, words, _ = KINDS[kind]
    (folder / "own.py").write_text(text)
    # Three runs are too few for a verdict, and an import without a record is an error.
    call(*words, "--plugin=own.py", code={"metric": 3, "reader": 2}.get(kind, 0))


def test_a_foreign_variable_beside_trained_ones_is_a_warning(call, folder):
    text, words, _ = KINDS["network"]
    own = "import tensorflow as tf\nOWN = tf.Variable(1.0)\n" + text
    scaled = "net.apply(lambda x: x * OWN, images, shape=(8, 8, 3))"
    (folder / "own.py").write_text(own.replace("pool(images)", f"pool({scaled})"))
    lines = call(*words, "--plugin=own.py").err.splitlines()
    (warning,) = [line for line in lines if "tf.Variable" in line]
    assert warning.startswith(f"cnnbench: warning: {folder}/own.py:2: <module>: the tf.Variable")


@pytest.mark.parametrize(("kind", "old", "new", "reason"), ROWS)
def test_a_mistake_is_one_line(kind, old, new, reason, call, folder):
    text, words, _ = KINDS[kind]
    assert old in text
    (folder / "own.py").write_text(text.replace(old, new, 1))
    printed = call(*words, "--plugin=own.py", code=None)
    assert "Traceback" not in printed.err
    (error,) = [line for line in printed.err.splitlines() if ": error: " in line]
    assert reason in error
    assert "own.py" in error
