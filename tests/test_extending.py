"""Performs the recipes of docs/extending.md in a copy of the checkout.

What a recipe changes is its block of ``diff``, and what it adds a file of docs/examples. Its check
computes with TensorFlow, compares with NumPy, passes in the copy, and fails where one of the files
is left out. Then all recipes are performed in one copy, whose commands use them.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from data_sets import imagenet_source
from forked import Forked, Server

from cnnbench.cli import main

ROOT = Path(__file__).parents[1]
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Recipe:
    """A recipe of the page.

    Attributes:
      check: program that passes where the recipe was performed.
      use: command line that uses what the recipe adds.
      shows: text of its output, which no command prints without the recipe.
      adds: new files, each with the example that it is a copy of.
    """

    heading: str
    check: str
    use: str
    shows: str
    adds: dict[str, str] = field(default_factory=dict)

    @property
    def section(self):
        return EXTENDING.partition(f"\n## {self.heading}\n")[2].partition("\n## ")[0]

    @property
    def changes(self):
        """The hunks of each file that is changed, in lines."""
        block = re.search(r"^```diff\n(.*?)^```", self.section, re.MULTILINE | re.DOTALL)
        files = (text.split("\n", 1) for text in (block[1] if block else "").split("+++ ")[1:])
        return {name: [hunk.splitlines() for hunk in text.split("@@\n")] for name, text in files}

    def perform(self, tree):
        for name, example in self.adds.items():
            shutil.copy(ROOT / "docs" / "examples" / example, tree / name)
        for name, hunks in self.changes.items():
            file = tree / name
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            for hunk in hunks:
                old, new = (
                    "".join(f"{line[1:]}\n" for line in hunk if line[:1] != sign) for sign in "+-"
                )
                assert not text or text.count(old) == 1, f"{name} has no or several {old}"
                text = text.replace(old, new) if text else new
            file.write_text(text, encoding="utf-8")


# Two steps on two devices, and one step before them.
RUN = (
    "--model=trivial --device=cpu --num_gpus=2 --batch_size=2 --num_batches=2 "
    "--num_warmup_batches=1 --quiet_conditions=all --peak_flops=1e12"
)
RECIPES = (
    Recipe(
        "A flag",
        "from cnnbench.flags.help import flags_page_markdown\n"
        "from cnnbench.plan import parse_run\n"
        "from test_every_flag_is_read import test_every_flag_is_read\n"
        "assert not parse_run(['--noprint_total']).params.print_total\n"
        "assert '| `--print_total` | boolean | `true` |' in flags_page_markdown()\n"
        "test_every_flag_is_read()\n",
        f"{RUN} --noprint_total --result_json=record.json",
        "Done warm up",
    ),
    Recipe(
        "A flag that ends the loop",
        "from cnnbench.plan import parse_run\n"
        "from cnnbench.records.run import ENDED_BY\n"
        "from cnnbench.records.endings import ENDINGS, LoopProgress\n"
        "assert parse_run(['--stop_at_loss=2']).params.stop_at_loss == 2\n"
        "assert 'stop_at_loss' in ENDED_BY\n"
        "assert ENDINGS['stop_at_loss'].is_reached(2.0, LoopProgress(1.0, 1.9))\n"
        "from cnnbench.campaigns.ab.lengths import LENGTHS\n"
        "assert 'stop_at_loss' in LENGTHS\n",
        f"{RUN} --stop_at_loss=1e9",
        "--stop_at_loss ended the timed loop after 1 of 2 steps",
    ),
    Recipe(
        "A command",
        "from cnnbench.cli import main\nassert main(['images', '--help']) == 0\n",
        "images record.json --warm_up",
        "12 images",
    ),
    Recipe(
        "A campaign",
        "from cnnbench.cli import main\nassert main(['spread', '--help']) == 0\n",
        f"spread --repeats=1 --run=--num_intra_threads=1 --results=runs -- {RUN}",
        "run-1-1: ok",
    ),
    Recipe(
        "An optimizer",
        "from cnnbench.optimizers import OPTIMIZERS\n"
        "from cnnbench.plan import parse_run\n"
        "params = parse_run(['--optimizer=signum', '--signum_beta=0.5']).params\n"
        "assert OPTIMIZERS.find('signum').values(params) == {'signum_beta': 0.5}\n"
        # The mean begins with 0, so the first step has the sign of the gradient.
        "(change,) = changes_of_weights(optimizer='signum', rate=0.25)\n"
        "lengths, counts = np.unique(np.abs(change).round(5), return_counts=True)\n"
        "assert {*lengths.tolist()} <= {0.0, 0.25}\n"
        "assert lengths[-1] == 0.25, (lengths, counts)\n",
        f"{RUN} --optimizer=signum",
        "Optimizer:   signum",
    ),
    Recipe(
        "A schedule of the learning rate",
        "from cnnbench.optimizers import SCHEDULES, ScheduledSteps\n"
        "from cnnbench.plan import parse_run\n"
        "flags = ['--init_learning_rate=8', '--learning_rate_power=3']\n"
        "params = parse_run([*flags, '--learning_rate_schedule=polynomial']).params\n"
        "rate = SCHEDULES.find('polynomial')(ScheduledSteps(8.0, 0, 4, 1.0), params)\n"
        "assert [rate(step) for step in (0, 2, 4)] == [8, 1, 0]\n",
        f"{RUN} --learning_rate_schedule=polynomial --init_learning_rate=0.1",
        "total images/sec",
    ),
    Recipe(
        "A way of clipping gradients",
        "from cnnbench.plan import parse_run\n"
        "from test_every_flag_is_read import test_every_flag_is_read\n"
        "assert parse_run(['--gradient_clip_norm=2']).params.gradient_clip_norm == 2\n"
        "test_every_flag_is_read()\n"
        "(whole,) = changes_of_weights(optimizer='sgd', rate=1.0)\n"
        "(clipped,) = changes_of_weights(optimizer='sgd', rate=1.0, gradient_clip_norm=0.01)\n"
        "norm = np.linalg.norm(whole)\n"
        "assert norm > 0.02\n"
        "np.testing.assert_allclose(clipped, whole * 0.01 / norm, atol=1e-6)\n",
        f"{RUN} --gradient_clip_norm=1",
        "total images/sec",
    ),
    Recipe(
        "A flag of packing",
        "from cnnbench.plan import parse_run\n"
        "flags = ['--variable_update=replicated', '--num_gpus=2', '--reverse_gradients']\n"
        "packing = parse_run(flags).exchange.aggregation\n"
        "assert str(packing) == 'reverse'\n"
        "from cnnbench.variable_mgr.stages import make_stages\n"
        "(stage,) = make_stages(packing, ('a', 'b'), None)\n"
        "sent, inverse = stage([[1, 2], [3, 4]])\n"
        "assert (sent, inverse(sent)) == ([[2, 1], [4, 3]], [[1, 2], [3, 4]])\n"
        "flags = dict(optimizer='sgd', rate=0.1, num_gpus=2, variable_update='replicated')\n"
        "first, second = changes_of_weights(**flags, reverse_gradients=True)\n"
        "np.testing.assert_allclose(first, changes_of_weights(**flags)[0], atol=1e-6)\n"
        "np.testing.assert_array_equal(first, second)\n",
        f"{RUN} --variable_update=replicated --reverse_gradients",
        "total images/sec",
    ),
    Recipe(
        "A model",
        "from cnnbench.cli import documents\n"
        "from cnnbench.models import get_model\n"
        "assert get_model('tiny', 'imagenet').name == 'tiny'\n"
        "assert '| tiny | imagenet |' in documents.model_tables()['models']\n"
        "from cnnbench.models.declaration import declare\n"
        "from cnnbench.models.graph import GraphNetwork\n"
        "model = get_model('tiny', 'imagenet')\n"
        "shapes = {one.name: one.shape for one in declare(model, 10).variables}\n"
        "read = lambda spec, dtype: tf.zeros(shapes[spec.name], dtype)\n"
        "network = GraphNetwork(model, 10, read, training=False)\n"
        "logits = network.forward(tf.zeros([2, 64, 64, 3]))\n"
        "np.testing.assert_array_equal(logits, np.zeros([2, 10]), strict=False)\n",
        f"{RUN} --model=tiny",
        "Model:       tiny",
        {"models/networks/tiny.py": "tiny_plugin.py"},
    ),
    Recipe(
        "A data set",
        "from cnnbench.data import find_dataset\n"
        "assert find_dataset('faces', None).num_classes == 11\n"
        "assert find_dataset(None, '/data/faces').name == 'faces'\n",
        "data check faces",
        "faces",
    ),
    Recipe(
        "An all-reduce algorithm",
        "sys.modules['tensorflow'] = None\n"  # plans do not load it
        "from cnnbench.variable_mgr.all_reduce import names\n"
        "assert 'chain' in names()\n"
        "from cnnbench.campaigns.tune.space import SearchSpace, search_groups\n"
        "from cnnbench.errors import FlagError\n"
        "from cnnbench.flags.parse import parse_args\n"
        "from cnnbench.plan import parse_run\n"
        "flags = ['--variable_update=replicated', '--num_gpus=2', '--device=cpu']\n"
        "space = SearchSpace(args=parse_args([*flags, '--model=lenet']))\n"
        "first = space.make_candidate({})\n"
        "groups = search_groups(space, first, on_gpu=False, cpus=2)\n"
        "assert {'all_reduce_spec': 'chain'} in groups['aggregation']\n"
        "try:\n"
        "    parse_run([*flags, '--all_reduce_spec=chain#2'])\n"
        "except FlagError as error:\n"
        "    assert 'chain takes no shards' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
        "sys.modules['tensorflow'] = tf\n"
        "from cnnbench.variable_mgr.all_reduce import ReduceContext, create\n"
        "logical = [tf.config.LogicalDeviceConfiguration()] * 3\n"
        "(cpu,) = tf.config.list_physical_devices('CPU')\n"
        "tf.config.set_logical_device_configuration(cpu, logical)\n"
        "rng = np.random.default_rng(0)\n"
        "for count in (2, 3):\n"
        "    algorithm = create('chain', ReduceContext(devices=DEVICES[:count]))\n"
        "    values = rng.integers(-9, 9, size=(count, 5)).astype(np.float32)\n"
        "    for index in range(count):\n"
        "        step = tf.function(lambda *values: algorithm(values, index), autograph=False)\n"
        "        sums = step(*map(tf.constant, values))\n"
        "        np.testing.assert_array_equal(sums, [values.sum(0)] * count)\n",
        f"{RUN} --variable_update=replicated --all_reduce_spec=chain",
        "AllReduce:   chain",
        {"variable_mgr/all_reduce/algorithms/chain.py": "chain.py"},
    ),
    Recipe(
        "A metric",
        "from cnnbench.cli.documents import metric_tables as tables\n"
        "from cnnbench.records.metric import HISTORY, METRICS\n"
        "assert 'longest_step_ratio' in HISTORY.keys() & METRICS.keys()\n"
        "assert 'longest_step_ratio' in str(tables())\n",
        "compare record.json record.json --metrics=longest_step_ratio",
        "longest",
        {"cnnbench/records/metrics/longest.py": "metric_plugin.py"},
    ),
    Recipe(
        "A reader",
        "from cnnbench.records.readers import READERS\n"
        "READERS.load_own()\n"
        "assert READERS['speed_log'].pattern.search(b'resnet50, batch 64: 812.4 images/sec')\n",
        "import speed.log --results=imported --dry_run",
        "speed_log",
        {"cnnbench/records/readers/speed_log.py": "reader_plugin.py"},
    ),
    Recipe(
        "A variable manager",
        "from cnnbench.flags.help import run_help\n"
        "from cnnbench.variable_mgr.modes import BUILT_IN\n"
        "assert 'local_sgd: towers train alone' in ' '.join(run_help().split())\n"
        "from importlib.util import find_spec\n"
        "for mode in BUILT_IN:\n"
        "    assert find_spec('cnnbench.variable_mgr' + mode.manager.partition(':')[0])\n"
        # Two steps of each tower alone, and then the mean of both.
        "flags = dict(optimizer='sgd', rate=0.1, num_gpus=2, steps=2)\n"
        "alone = changes_of_weights(**flags, variable_update='independent')\n"
        "assert np.abs(alone[0] - alone[1]).max() > 1e-4\n"
        "for tower in changes_of_weights(**flags, variable_update='local_sgd'):\n"
        "    np.testing.assert_allclose(tower, np.mean(alone, axis=0), atol=1e-5)\n",
        f"{RUN} --variable_update=local_sgd",
        "Variables:   local_sgd",
        {"variable_mgr/local_sgd.py": "local_sgd_plugin.py"},
    ),
)


@pytest.fixture
def tree(tmp_path):
    """A new copy of the checkout without its other tests."""
    for folder in ("cnnbench", "configs", "docs", "models", "variable_mgr", "tests/flags"):
        shutil.copytree(ROOT / folder, tmp_path / "tree" / folder, ignore=_BEING_COMPILED)
    return tmp_path / "tree"


# Compiled modules are copied, too: compiling all of them takes seconds in each process of a copy.
_BEING_COMPILED = shutil.ignore_patterns("*.pyc.*")


# TensorFlow is loaded once, and cnnbench is then forgotten: a check imports it from its copy.
_LOADED = """
import sys
from cnnbench.run.runtime.loading import load_tensorflow
load_tensorflow()
sys.meta_path[:] = [one for one in sys.meta_path if getattr(one, "__module__", "") != "cnnbench"]
for name in [name for name in sys.modules if name.partition(".")[0] == "cnnbench"]:
    del sys.modules[name]
"""

# What checks use.
_TOOLS = """
import sys
sys.path[:0] = [".", "tests/flags"]
import numpy as np
import tensorflow as tf

DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(3))

def changes_of_weights(rate, steps=1, **flags):
    # How steps of a small network change all weights, in a vector for each tower.
    from cnnbench import BenchmarkCNN, Params
    from cnnbench.variable_mgr import towers

    small = dict(model="trivial", data_name="cifar10", device="cpu", batch_size=2)
    small |= dict(weight_decay=0, num_warmup_batches=0)
    built = BenchmarkCNN(Params.from_dict({**small, **flags})).build()
    built.manager.after_initialization()
    if flags.get("variable_update") == "independent":
        built.manager.after_restore()  # copies are equal, as those of local_sgd are at first

    def weights():
        variables = built.manager.savable_variables()
        copies = [variables[name].copies for name in sorted(variables)]
        return [
            np.concatenate([towers.read(copy).numpy().ravel() for copy in of_tower])
            for of_tower in zip(*copies)
        ]

    before = weights()
    for _ in range(steps):
        built.step(rate).loss.numpy()
    return [after - first for after, first in zip(weights(), before)]

"""


@pytest.fixture(scope="module")
def loaded():
    """The server that forks the processes of checks."""
    server = Server(_LOADED)
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.heading)
def test_a_recipe_names_every_file_that_it_needs(recipe, tree, loaded, tmp_path):
    files = recipe.changes.keys() | recipe.adds
    assert files
    passed, error = [], tmp_path / "err"
    recipe.perform(tree)
    for left_out in (*files, ""):
        performed = tree / left_out
        text = performed.read_bytes() if left_out else b""
        if (ROOT / left_out).is_file():
            shutil.copy2(ROOT / left_out, performed)
        elif left_out:
            performed.unlink()
        error.unlink(missing_ok=True)
        code = _TOOLS + recipe.check
        with Forked(code, (), tmp_path / "out", error, tree, server=loaded) as process:
            if process.wait(240) == 0:
                passed.append(left_out)
        if left_out:
            performed.write_bytes(text)
    assert passed == [""], error.read_text()


# Runs command lines one after the other in one process: their exit codes and what they print.
_COMMANDS = """
import contextlib, io, json, sys
sys.path[:0] = ["."]
from cnnbench.cli import main
results = []
for line in sys.argv[1:]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = main(line.split())
        except BaseException as error:
            code = repr(error)
    results.append((code, printed.getvalue()))
with open("results.json", "w") as file:
    json.dump(results, file)
"""


@pytest.mark.slow
def test_all_recipes_run_together(tree, loaded, tmp_path):
    for recipe in RECIPES:
        recipe.perform(tree)
    imagenet_source(tmp_path / "images")
    for folder in tmp_path.glob("images/*/c1[1-9]"):
        shutil.rmtree(folder)  # the data set of the page has ten classes
    assert main(["data", "make-imagenet", str(tmp_path / "images"), str(tree / "faces")]) == 0
    for file in [*(tree / "faces").glob("*-of-*")]:
        file.rename(file.with_name(f"faces-{file.name}"))
    (tree / "speed.log").write_text("resnet50, batch 64: 812.4 images/sec\n", encoding="utf-8")
    lines = [recipe.use for recipe in RECIPES]
    error = tmp_path / "err"
    with Forked(_COMMANDS, lines, tmp_path / "out", error, tree, server=loaded) as process:
        assert process.wait(300) == 0, error.read_text()
    results = dict(zip(lines, json.loads((tree / "results.json").read_text()), strict=True))
    for recipe in RECIPES:
        code, printed = results[recipe.use]
        assert (code in (0, 3), recipe.shows in printed) == (True, True), (recipe.heading, printed)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.heading)
def test_a_recipe_counts_the_files_that_it_changes(recipe):
    said = re.search(r"you\s+change\s+(no|\d+)\s+existing\s+files?", recipe.section)
    assert said is not None
    changed = sum((ROOT / name).exists() for name in recipe.changes)
    assert said[1] == str(changed or "no")


def test_every_recipe_is_performed():
    headings = re.findall(r"^## (A.*)$", EXTENDING, re.MULTILINE)
    # A Keras model changes no file: tests/run/driver/test_keras_models.py runs several.
    assert {*headings} - {"A path", "A Keras model"} == {recipe.heading for recipe in RECIPES}
