"""Mistakes in plug-ins of each kind: one line with file and line of the plug-in, no traceback.

Each row replaces one part of a plug-in that works, and names a part of the expected line. What is
checked alike in all kinds is in base/test_plugins.py, and values in the tests of their packages.
"""

from __future__ import annotations

import json

import pytest
from covering import slow_if
from data_sets import write_records
from forked import Forked, cnnbench
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
PREPROCESS = "\n    def preprocess(self, example, seed, *, training):\n        return "
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


def data_set(opening):
    """The plug-in of a data set with another function `open`."""
    head, rest = DATA.split("def open(spec):")
    return f"{head}{opening}{rest[rest.index(chr(10) + 'def check') :]}"


PIPELINE = data_set("""
def open(spec):
    import tensorflow as tf
    from cnnbench.data.pipeline import Pipeline

    class Own(Pipeline):
        def __init__(self, spec):
            super().__init__(spec, 4)

        def tower_batches(self):
            def example(number):
                return {"image": tf.fill([32, 32, 3], 0.5), "label": number}

            examples = tf.data.Dataset.range(4).repeat().map(example)
            return examples.batch(self.spec.batch_per_device, drop_remainder=True)

    return Own(spec)

""")
NO_JPEG = "tf.io.decode_jpeg(tf.io.read_file('data/some.bin'))[:32, :32]"
RECORDS = data_set("""
def open(spec):
    import tensorflow as tf
    from cnnbench.data.records import RecordPipeline

    class Own(RecordPipeline):
        def decode(self, record, position):
            label = tf.strings.to_number(record, tf.int64)
            return {"image": tf.fill([32, 32, 3], 0.5), "label": label}

        def examine(self, record):
            pass

    return Own(spec)

""").replace("some.bin", "some.tfrecord")
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

@register_metric("own", "s", higher_is_better=False, threshold=0.1)
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
from cnnbench.records.readers import register_reader

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
            ("return net.logits(net.global_avg_pool(images))", "return images", "logits of shape"),
            ("return net.logits(net.global_avg_pool(images))", "return [images]", "not a list"),
            (
                NETWORK[NETWORK.index("net.logits") : NETWORK.index("\n\nregister")],
                "net.apply(lambda x: tf.zeros([2, 11]) + OWN, images, shape=(11,))\n\n"
                "import tensorflow as tf\nOWN = tf.Variable(0.5)",
                "own.py:12: <module>: the tf.Variable created here is not trained, and no variable",
            ),
            ("Spec(0.1)", "Spec(-1)", "Own(): learning rate -1 must be finite and at least 0"),
            (METHOD, LOSS.replace(", labels", "") + "1.0\n" + METHOD, "Own.loss() must take"),
            (
                METHOD,
                "\n    def preprocess(self, example, seed):\n        return example\n" + METHOD,
                "Own.preprocess() must take (self, example, seed, *, training)",
            ),
            (
                METHOD,
                PREPROCESS + "{**example, 'image': example['image'][:4]}\n" + METHOD,
                "must return image as a tensor [8, 8, 3], not a float32 tensor [4, 8, 3]",
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
            ('"find": find', "\"find\": 'find'", "find must be a Callable, not 'find'"),
            (
                "* 32] * 32]",
                "* 16] * 16]",
                "open(): ArrayPipeline must deliver image as a float32 tensor [2, 32, 32, 3] for "
                "data set own, not a float32 tensor [2, 16, 16, 3]",
            ),
            ("[1] * 4", "[1] * 3", "open(): the arrays have different numbers of rows: 4, 3"),
            (", [1] * 4", "", "ArrayPipeline needs an array for each of image, label, not 1"),
        ],
    ),
    "pipeline": (
        PIPELINE,
        [*SMALL, "--model=own", "--init_learning_rate=0.1", "--data_dir=data", "--data_name=own"],
        [
            ("batches(self)", "batches(self, spec)", "Own.tower_batches() must take (self): mis"),
            ("return examples", "examples", "Own.tower_batches() must return a Dataset, not None"),
            ("return examples", "return {}['k'] or examples", "Own.tower_batches(): KeyError: 'k'"),
            ('"label": number', '"label": {}["k"]', "KeyError"),
            ("super().__init__(spec, 4)", "pass", "Own.__init__ must call super().__init__(spec, "),
            (
                "(spec, 4)",
                "(spec, 'four')",
                "attribute Own.num_examples must be an int, not 'four'",
            ),
            (
                "(Pipeline)",
                "(type('Any', (), {'__init__': lambda *given: None}))",
                "open() must return a subclass of cnnbench.data.pipeline.Pipeline, not a Own",
            ),
            (
                "[32, 32, 3], 0.5",
                "[32, 32], 0.5",
                "Own must deliver image as a float32 tensor [2, 32, 32, 3] for data set own, not a "
                "float32 tensor [2, 32, 32]",
            ),
            ("self.spec.batch_per_device", "3", "not a float32 tensor [3, 32, 32, 3]"),
            ('"label":', '"class":', "a mapping with image, label for data set own, not one with"),
            (
                '{"image": tf.fill([32, 32, 3], 0.5), "label": number}',
                "tf.fill([32, 32, 3], 0.5), number",
                "Own must deliver a mapping with image, label for data set own, not a tuple",
            ),
            (
                "tf.fill([32, 32, 3], 0.5)",
                "tf.numpy_function(lambda: __import__('numpy').ones(3, 'f'), [], tf.float32)",
                "[2, 32, 32, 3] for data set own, not a float32 tensor [2, 3]",
            ),
            (
                "tf.fill([32, 32, 3], 0.5)",
                f"tf.ensure_shape(tf.cast({NO_JPEG}, tf.float32), [32, 32, 3])",
                "Own.tower_batches(): data: ",
            ),
            (
                "tf.data.Dataset.range(4)",
                "tf.data.Dataset.from_generator(lambda: {}['k'], tf.int64, [])",
                "<lambda>: data: KeyError: 'k'",
            ),
        ],
    ),
    "record pipeline": (
        RECORDS,
        [*SMALL, "--model=own", "--init_learning_rate=0.1", "--data_dir=data", "--data_name=own"],
        [
            ("record, position", "record", "Own.decode() must take (self, record, position): too"),
            ('"label": label', '"class": label', "values of all elements, not without label"),
            (
                "[32, 32, 3]",
                "[16, 16, 3]",
                "image must have the shape [32, 32, 3], not [16, 16, 3]",
            ),
        ],
    ),
    "optimizer": (
        OPTIMIZER,
        [*RUN, "--optimizer=own"],
        [
            ("rate, total, epsilon):", "rate, total):", "update() must take (*, weight, gradient"),
            ("total, epsilon):", "total, epsilon, beta):", "missing a required argument: 'beta'"),
            (RETURN, "gradient, total[0]", "tensors of the shape of the weight, [3072, 1], not"),
            (RETURN, "0.1, total", "tensors of the shape of the weight, [3072, 1], not 0.1"),
            (RETURN, "{}['k'], total", "update(): KeyError: 'k'"),
            ("slots=", "takes_step=True, slots=", "step): got an unexpected keyword"),
        ],
    ),
    "schedule": (
        SCHEDULE,
        [*RUN, "--learning_rate_schedule=own"],
        [
            ("run, floor", "run", "make() must take (run, *, floor): got an unexpected keyword"),
            ("return lambda step: 0.1", "return 0.1", "make() must return a Callable, not 0.1"),
            ("lambda step:", "lambda:", "<lambda> must take (int): too many positional"),
            (
                "step: 0.1",
                "step: __import__('numpy').ones(2)",
                "<lambda> must return a float, not a float64 tensor [2]",
            ),
            ("step: 0.1", "step: -1", "a finite rate of at least 0, not -1 for step 0"),
            ("step: 0.1", "step: {}['k']", "<lambda>: KeyError: 'k'"),
        ],
    ),
    "metric": (
        METRIC,
        ["compare", "base", "new", "--metrics=own"],
        [
            ("(record)", "()", "own() must take (record): too many positional arguments"),
            ("return max", "return 'x' or max", "own() must return a float, not 'x'"),
            ("return max", "return {}['k'] or max", "own(): KeyError: 'k'"),
            ("threshold=0.1", "threshold='much'", "threshold must be a float, not 'much'"),
            ("threshold=0.1", "line=lambda: ''", "<lambda> must take (Summary)"),
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
            (SUMS, "{}['k']", "Own.__call__(): KeyError: 'k'"),
            ('("own")', '("own", check=lambda: None)', "<lambda> must take (context): too many"),
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
    for file in set(plugins._files):
        plugins.forget_plugin(file)


@pytest.fixture
def folder(tmp_path, monkeypatch, runs):
    """The working directory, with files of a data set and records of two sides."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "some.bin").write_text("some")
    write_records(tmp_path / "data" / "some.tfrecord", [b"0", b"1", b"2", b"3"])
    for side in ("base", "new"):
        (tmp_path / side).mkdir()
        for number in range(3):
            record = runs(step_seconds=[0.1, 0.1, 0.2])
            (tmp_path / side / f"{number}.json").write_text(json.dumps(encode(record)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def is_another_of_its_kind(row):
    """Whether the table has a mistake in a plug-in of the same kind before this one."""
    return next(one for one in ROWS if one[0] == row[0]) is not row


@pytest.mark.parametrize(
    "kind", slow_if(["all-reduce algorithm", "record pipeline", "data set"], KINDS)
)
def test_without_a_mistake_it_works(kind, call, folder):
    text, words, _ = KINDS[kind]
    (folder / "own.py").write_text(text)
    # Three runs are too few for a verdict, and an import without a record is an error.
    call(*words, "--plugin=own.py", code={"metric": 3, "reader": 2}.get(kind, 0))


# What keras.utils.clear_session() does; an import of Keras takes long.
CLEAR = "import tensorflow as tf; tf.compat.v1.reset_default_graph()"


@pytest.mark.parametrize(
    ("cleared", "first", "place"),
    [
        (False, "", "2: <module>: "),
        (True, "", "2: <module>: "),
        # TensorFlow forgets who watches; the network that uses the variable is named.
        (False, f"{CLEAR}; ", "10: Own.build(): Variable"),
    ],
)
def test_a_foreign_variable_beside_trained_ones_is_a_warning(cleared, first, place, call, folder):
    if cleared:
        exec(CLEAR, {})
    text, words, _ = KINDS["network"]
    own = f"import tensorflow as tf\n{first}OWN = tf.Variable(1.0)\n{text}"
    scaled = "net.apply(lambda x: x * OWN, images, shape=(8, 8, 3))"
    (folder / "own.py").write_text(own.replace("pool(images)", f"pool({scaled})"))
    lines = call(*words, "--plugin=own.py").err.splitlines()
    (warning,) = [line for line in lines if "tf.Variable" in line]
    assert warning.startswith(f"cnnbench: warning: {folder}/own.py:{place}")


@pytest.mark.parametrize(("kind", "old", "new", "reason"), slow_if(is_another_of_its_kind, ROWS))
def test_a_mistake_is_one_line(kind, old, new, reason, call, folder):
    text, words, _ = KINDS[kind]
    assert old in text
    (folder / "own.py").write_text(text.replace(old, new, 1))
    printed = call(*words, "--plugin=own.py", code=None)
    assert "Traceback" not in printed.err
    (error,) = [line for line in printed.err.splitlines() if ": error: " in line]
    assert reason in error
    assert "own.py" in error


def test_a_record_that_only_fails_to_decode_is_named(call, folder):
    text, words, _ = KINDS["record pipeline"]
    (folder / "own.py").write_text(text)
    write_records(folder / "data" / "some.tfrecord", [b"0", b"1", b"x", b"3"])
    err = call(*words, "--plugin=own.py", code=4).err
    assert "cnnbench: error: data/some.tfrecord: record 2: StringToNumber" in err


def test_a_file_that_cannot_be_read_is_named_by_the_check_of_its_data_set(call, folder):
    text, words, _ = KINDS["pipeline"]
    text = text.replace("0.5)", f"tf.cast({NO_JPEG}[0, 0, 0], tf.float32))")
    text = text.replace("return Findings()", "return Findings(defects=[f'{files[0]}: no JPEG'])")
    (folder / "own.py").write_text(text)
    err = call(*words, "--plugin=own.py", code=4).err
    assert "cnnbench: error: data/some.bin: no JPEG (" in err


SWITCH = "__import__('tensorflow').compat.v1.disable_eager_execution()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("\nfrom", f"\n{SWITCH}\nfrom", "--plugin=own.py"),
        ("return net", f"return {SWITCH} or net", "build()"),
        # Unlike `build`, `loss` is only called while the step is traced.
        (METHOD, f"{LOSS}{SWITCH} or outputs[:, 0]{METHOD}", "loss()"),
    ],
)
def test_a_plug_in_that_switches_off_eager_execution_is_named(tmp_path, old, new, place):
    """In a process of its own, because nothing can switch it on again."""
    (tmp_path / "own.py").write_text(NETWORK.replace(old, new, 1))
    words = ["--plugin=own.py", "--model=own", "--device=cpu"]
    words += ["--data_name=cifar10", "--num_batches=1"]
    err = tmp_path / "err"
    assert Forked(cnnbench, words, tmp_path / "out", err, tmp_path).wait(100) == 2
    told = err.read_text()
    (error,) = (line for line in told.splitlines() if ": error: " in line)
    assert f"{place}: switches off eager execution" in error
    assert "own.py" in error
    assert "Traceback" not in told


def test_memory_that_a_plug_in_lacks_is_reported_with_its_place(call, folder):
    text, words, _ = KINDS["network"]
    head, build, rest = text.partition("    def build(self, ")
    arguments, end, body = rest.partition(":\n")
    text = f"{head}{build}{arguments}{end}        raise MemoryError\n{body}"
    (folder / "own.py").write_text(text)
    (error,) = call(*words, "--plugin=own.py", code=4).err.splitlines()[-1:]
    assert error.startswith("cnnbench: error: ")
    assert error.endswith("build(): out of memory")
    assert "own.py:" in error
