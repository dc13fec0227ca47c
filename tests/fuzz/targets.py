"""What is fuzzed: each target makes a case from a seed and tries it.

A case is right if it is taken, or refused by one of our own errors. Whatever else is raised is a
finding; so are death by a signal and ten seconds without an end, which scripts/fuzz watches for.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import math
import pickle
import random
import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from imports import GOLDEN, TRAINING

from cnnbench.errors import BenchmarkError, UsageError

REFUSALS = (UsageError, BenchmarkError)
ROOT = Path(__file__).parents[2]

Try = Callable[[random.Random, Path], None]
"""Makes and tries one case, with a folder for its files."""


class Disagreement(Exception):
    """Two parts of the program say different things of one input."""


def refused(function: Callable[[], object]) -> bool:
    """Whether a call ends in one of our own errors; any other is raised."""
    try:
        function()
    except REFUSALS:
        return True
    return False


# Texts and bytes ------------------------------------------------------------------------------

_NUMBERS = (
    *("0", "1", "2", "-1", "7", "1e-300", "1e308", "-1e308", "0.5", "nan", "inf", "1e9"),
    *("2147483647", "2147483648", "9223372036854775808", "1" + 40 * "0", "0x10", "1_000", "٣"),
)
_TEXTS = (
    *("", " ", "none", "true", "../..", "/", "/dev/null", "/proc/self/mem", "a,b", "a:b", "\0x"),
    *("é", "💥", "\udcff", "x" * 5000, "%s", "${HOME}", "run[1]", "*", "--model", "=", "#", "\n"),
)


def mutated(generator: random.Random, data: bytes) -> bytes:
    """Bytes with one to four changes: flipped, cut out, doubled, cut off or overwritten."""
    found = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(found) + 1)
        length = min(len(found) - at, generator.choice((1, 1, 2, 4, 8, 100)))
        kind = generator.randrange(5)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del found[at : at + length]
        elif kind == 2:
            found[at:at] = found[at : at + length]
        elif kind == 3 and generator.random() < 0.3:
            del found[at:]
        else:
            extreme = generator.choice((b"\0", b"\xff", b"\x7f", b"\x80"))
            found[at : at + length] = extreme * length
    return bytes(found)


def text_of(data: bytes) -> str:
    """As a person's editor would show it."""
    return data.decode(errors="replace")


# Flags ----------------------------------------------------------------------------------------


def plan(argv: Sequence[str]) -> None:
    """What a run does with its flags before it loads TensorFlow."""
    from cnnbench.plan import parse_run, resolve
    from cnnbench.run.driver.estimates import estimate_memory

    made = resolve(parse_run(argv))
    estimate_memory(made, "cpu")
    rate, steps = made.rates.schedule, made.length.batches
    if not all(math.isfinite(rate(step)) for step in (0, 1, steps // 2, steps - 1)):
        raise Disagreement(f"the learning rate is not finite: {argv}")


def flags(generator: random.Random, folder: Path) -> None:
    """Sets of flags, plausible and absurd, as far as a run checks them without TensorFlow."""
    del folder
    from cnnbench.flags import FLAGS
    from cnnbench.models import registry

    def value(spec: Any) -> str:
        if spec.name == "model" and generator.random() < 0.8:
            return generator.choice(registry.model_names(generator.choice(registry.datasets())))
        if spec.name == "all_reduce_spec":
            return spec_text(generator)
        if spec.choices and generator.random() < 0.8:
            return str(generator.choice(list(spec.choices)))
        if spec.kind.name == "boolean" and generator.random() < 0.9:
            return generator.choice(("true", "false", "1", "0"))
        if spec.kind.name in ("integer", "number", "integers", "numbers"):
            count = 1 if generator.random() < 0.8 else generator.randint(2, 4)
            return ",".join(generator.choice(_NUMBERS) for _ in range(count))
        return generator.choice((*_TEXTS, *_NUMBERS))

    chosen = generator.sample(list(FLAGS), generator.randint(1, 8))
    refused(lambda: plan([f"--{spec.name}={value(spec)}" for spec in chosen]))


# All-reduce specs -----------------------------------------------------------------------------

_ALGORITHMS = ("copy", "xring", "pscpu", "psgpu", "nccl", "nccl/xring", "collective", "rechd", "x")


def spec_text(generator: random.Random) -> str:
    """A text like a spec."""
    pieces = []
    for number in range(generator.randint(1, 7)):
        name = generator.choice((*_ALGORITHMS, *_NUMBERS, "", "#", "/"))
        shards = generator.choice(("", "", "#2", "#0", "#x", "#" + generator.choice(_NUMBERS)))
        size = generator.choice(("4", "2k", "64K", "1M", "3G", *_NUMBERS))
        pieces.append(name + shards if number % 2 == 0 or generator.random() < 0.1 else size)
    text = ":".join(pieces)
    return text if generator.random() < 0.8 else text_of(mutated(generator, text.encode()))


def specs(generator: random.Random, folder: Path) -> None:
    """Specs: one that is taken must say the same when it is written and read again."""
    del folder
    from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec

    text = spec_text(generator)

    def run() -> None:
        found = parse_all_reduce_spec(text)
        if parse_all_reduce_spec(str(found)).ranges != found.ranges:
            raise Disagreement(f"{text!r} is read as {found}, which is read differently")

    refused(run)


# Pickles of CIFAR-10 --------------------------------------------------------------------------


def pickles(generator: random.Random, folder: Path) -> None:
    """Files of CIFAR-10: damaged ones, and sound pickles of the wrong things."""
    from cnnbench.data import cifar10_files

    count = generator.randint(1, 3)
    shape = generator.choice(
        ((count, 3072), (count, 3071), (), (count,), (0, 3072), (count, 3, 32))
    )
    dtype = generator.choice(("uint8", "uint8", "int8", "float32", "int64", "S3", "M8[D]", "O"))
    array: Any = np.zeros(shape, dtype)
    label = generator.choice((0, 9, 10, -1, 2**63, 2**70, 1.0, "1", None, [1], True, b"1"))
    labels: Any = generator.choice(([label] * count, [label], (label,) * count, label, array, {}))
    content: Any = {"data": array, "labels": labels}
    content = generator.choice(
        (content, {k.encode(): v for k, v in content.items()}, [content], array, None, {"data": 3})
    )
    data = pickle.dumps(content, generator.randint(0, 5))
    path = folder / generator.choice(("data_batch_1", "data_batch_1.bin"))
    if path.suffix:
        data = generator.randbytes(generator.choice((0, 1, 3073, 6146, 3072, 10_000)))
    path.write_bytes(data if generator.random() < 0.5 else mutated(generator, data))
    taken = not refused(lambda: cifar10_files.read_cifar10_file(path, 10))
    defects = cifar10_files.check_files([path], 10).defects
    if taken == bool(defects):
        raise Disagreement(f"read: {taken}, but the check finds {defects}")


# TFRecords ------------------------------------------------------------------------------------


@functools.cache
def _example() -> bytes:
    import tensorflow as tf

    from cnnbench.data.imagenet import BOX_SIDES, serialize

    pixels = np.arange(40 * 50 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 50, 3)
    jpeg = tf.io.encode_jpeg(pixels).numpy()
    example = tf.train.Example.FromString(serialize(jpeg, 40, 50, 3, "a.jpg", "n01", "a"))
    for side, place in zip(BOX_SIDES, (0.1, 0.2, 0.7, 0.9), strict=True):
        example.features.feature[side].float_list.value.append(place)
    return bytes(example.SerializeToString())


def framed(data: bytes, length: int | None = None) -> bytes:
    """A record of a TFRecord file; its length may be a lie with a right checksum."""
    from cnnbench.data.tfrecord import masked_crc32c

    header = struct.pack("<Q", len(data) if length is None else length)
    sums = (struct.pack("<I", masked_crc32c(part)) for part in (header, data))
    return header + next(sums) + data + next(sums)


def records(generator: random.Random, folder: Path) -> None:
    """Records of ImageNet: what an evaluation takes, the check must call sound, and so on."""
    from cnnbench.data import IMAGENET, InputSpec, make_input

    subset = generator.choice(("train", "validation"))
    parts = [framed(_example()) for _ in range(3)]
    kind = generator.randrange(4)
    if kind == 0:
        parts[1] = framed(mutated(generator, _example()))
    elif kind == 1:
        parts[1] = framed(_example(), generator.choice((0, 1, 2**31, 2**40, 2**62, 2**64 - 1)))
    data = b"".join(parts)
    if kind == 2:
        data = mutated(generator, data)
    path = folder / f"{subset}-00000-of-00001"
    path.write_bytes(data)
    asked = InputSpec(
        dataset=IMAGENET,
        data_dir=str(folder),
        subset=subset,
        batch_per_device=1,
        num_devices=1,
        image_size=16,
        shuffle_buffer=4,
        fuse_decode_and_crop=False,  # else what is not kept need not be sound
        on_bad_record=generator.choice(("fail", "skip")),
        resize_method=generator.choice(("bilinear", "crop")),
    )
    found = IMAGENET.check([path], 1001)

    def read() -> int:
        with make_input(asked, ["/device:CPU:0"]) as inputs:
            steps = inputs.examples_per_epoch
            for _ in range(steps):
                inputs.next()
            return inputs.skipped().count

    failed = refused(read)
    sound = not found.defects
    if asked.on_bad_record == "fail" and asked.resize_method != "crop" and failed == sound:
        raise Disagreement(f"{subset} failed: {failed}, but the check finds {found.defects}")
    if failed and sound and asked.resize_method != "crop":
        raise Disagreement(f"{subset} failed on valid records")


# YAML suites ----------------------------------------------------------------------------------


def suites(generator: random.Random, folder: Path) -> None:
    """Suites: those that come with cnnbench, with lines and words exchanged."""
    from cnnbench.campaigns.suite.entries import parse_suite
    from cnnbench.campaigns.suite.nodes import load_yaml_file
    from cnnbench.campaigns.sweep.plan import plan_sweep

    sources = sorted((ROOT / "configs").glob("*.yaml"))
    lines = generator.choice(sources).read_text().splitlines()[:60]
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(lines))
        kind = generator.randrange(5)
        if kind == 0:
            del lines[at]
            lines = lines or [""]
        elif kind == 1:
            lines[at] = "  " * generator.randrange(3) + lines[at].strip()
        elif kind == 2:
            head, _, _ = lines[at].partition(":")
            value = generator.choice(
                (*_NUMBERS, *_TEXTS, "[]", "{}", "[1, [2]]", "&a", "*a", "!!x")
            )
            lines[at] = f"{head}: {value}"
        elif kind == 3:
            lines.insert(at, generator.choice(lines))
        else:
            lines[at] = text_of(mutated(generator, lines[at].encode(errors="replace")))
    path = folder / "suite.yaml"
    path.write_text("\n".join(lines), errors="replace")
    refused(lambda: plan_sweep(parse_suite(load_yaml_file(str(path))), {}))


# Rules ----------------------------------------------------------------------------------------

_RULES = """\
ignore = ["*.txt", "notes/**"]

[[rules]]
configurations = ["lenet*", "vgg*"]
threshold = 5
fail_on = ["slower", "faster"]
judge = ["throughput", "memory"]
metrics.memory = { threshold = 5, share = 0.25, fail_on = "never" }
metrics.throughput = { threshold = 1.5 }

[[rules]]
fail_on = "never"

[[accept]]
commit = "3f2a1bc09"
reason = "a wider stem"
until = 2999-12-31
configurations = "lenet*"
metrics = ["throughput"]

[tool.cnnbench]
rules = []
"""
_TOML_VALUES = (
    *("1", "-1", "1e-17", "1e308", "nan", "inf", "true", "''", "'x'", "[]", "{}", "[1]", "[[]]"),
    *("{a = 1}", "[{name = 'throughput'}]", "'throughput'", "['memory', 'memory']", "2999-12-31"),
    *("2030-01-01T00:00:00", "07:00:00", "9" * 400, "[" * 2000 + "]" * 2000, "{x = " * 2000),
)


def rules(generator: random.Random, folder: Path) -> None:
    """Files of rules with lines, values and bytes exchanged: rules that are read can be used."""
    from cnnbench.judge.compare import Policy, processes_needed
    from cnnbench.judge.metrics.rules_file import load_rules
    from cnnbench.records.metric import METRICS

    lines = _RULES.splitlines()
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(lines))
        kind = generator.randrange(5)
        head, equals, _ = lines[at].partition(" = ")
        if kind == 0 and equals:
            lines[at] = f"{head} = {generator.choice(_TOML_VALUES)}"
        elif kind == 1:
            lines.insert(at, generator.choice(lines))
        elif kind == 2:
            lines[at] = generator.choice(("tool = 1", "rules = 1", "[rules]", "[tool]", ""))
        elif kind == 3:
            lines[at] = text_of(mutated(generator, lines[at].encode(errors="replace")))
        else:
            lines[at] = lines[at].replace("throughput", generator.choice([*METRICS]))
    data = "\n".join(lines).encode(errors="replace")
    data = data if generator.random() < 0.8 else mutated(generator, data)
    path = folder / generator.choice(("cnnbench.toml", "pyproject.toml"))
    path.write_bytes(data)

    def use() -> None:
        found = load_rules(str(path))
        for rule in found.rules:
            rule.effects()
        for metric in METRICS.values():
            found.policy_for(Policy(), "lenet, batch 8", metric, [metric])
        processes_needed(Policy(), paired=True, share=found.smallest_share)

    refused(use)


# Run records ----------------------------------------------------------------------------------


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: Any = value.items() if isinstance(value, dict) else []
    inner = enumerate(value) if isinstance(value, list) else inner
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


def run_records(generator: random.Random, folder: Path) -> None:
    """Documents of runs with values exchanged: what is read must be summarised and judged."""
    from cnnbench.judge.compare.configuration import Configuration
    from cnnbench.records.load import load_records
    from cnnbench.records.result_files import RUNS, run_row

    sources = sorted((ROOT / "tests/frozen/runs").glob("*.json"))
    document = json.loads(generator.choice(sources).read_text())
    values = (None, True, 0, -1, 2**63, 2**70, 1e308, "NaN", "x", "\udc80", [], [1], {}, {"a": 1})
    for _ in range(generator.randint(1, 3)):
        place = generator.choice(_places(document)[1:])
        inner = document
        try:
            for key in place[:-1]:
                inner = inner[key]
            if generator.random() < 0.2:
                del inner[place[-1]]
            else:
                inner[place[-1]] = copy.deepcopy(generator.choice(values))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has removed it
    data = json.dumps(document).encode()
    path = folder / "run.json"
    path.write_bytes(data if generator.random() < 0.7 else mutated(generator, data))

    def run() -> None:
        for record in load_records([str(path)]).records:
            Configuration.of(record)
            row = run_row(record, {})
            RUNS.format_cells(row)
            again = type(record).from_json(record.to_json())
            if again.to_json() != record.to_json():
                raise Disagreement("a record is read differently from how it was written")

    refused(run)


# Imports --------------------------------------------------------------------------------------

_LOG_DIR = """\
{"name": "current_examples_per_sec", "value": 781.5, "unit": null, "global_step": 10, \
"timestamp": "2024-01-02T03:04:05.000000Z", "extras": []}
{"name": "average_examples_per_sec", "value": 706.2, "unit": null, "global_step": 20, \
"timestamp": "2024-01-02T03:04:06.000000Z", "extras": []}
"""
_JSON_VALUES = (
    *("null", "true", "0", "-1", "1e308", "1e400", "NaN", "Infinity", "1" + "0" * 400, "2e30"),
    *("9223372036854775808", '"x"', '""', '"\\ud800"', '"\\u0000"', '"2024-13-01"', "[]", "{}"),
    *("[1]", '{"a": 1}', "[" * 2000 + "]" * 2000, "[" * 100_000, '"' + "x" * 5000 + '"'),
)
_WORDS = (
    *(b"0", b"-1", b"1e308", b"nan", b"inf", b"9" * 30, b"9" * 400, b"1e5000", b"x", b"", b"\xff"),
    *(b"\0", b"\x1b[31m", b" " * 300, b"[0]<stdout>:", b"2024-01-02T03:04:05Z ", b"'", b"{", b"\r"),
)


_PARAMETERS = """\
{"model_name": "vgg11", "run_date": "2024-01-02T03:04:04.000000Z", "dataset": {"name": "imagenet"},
 "tensorflow_version": {"version": "1.9.0", "git_hash": "v1.9.0"}, "machine_config":
 {"gpu_info": {"count": 2, "model": "P100"}, "cpu_info": {"cpu_info": "Xeon", "num_cores": 8}},
 "tensorflow_environment_variables": [{"name": "TF_X", "value": "1"}], "run_parameters": [
 {"name": "batch_size", "long_value": 16}, {"name": "batch_size_per_device", "float_value": 8.0},
 {"name": "model", "string_value": "vgg11"}, {"name": "devices", "string_value": "['/gpu:0']"}]}
"""
_FLAGS = 'Flags:       {"model": "trivial", "batch_size": 8, "device": "cpu", "precision": "bf16"}'


@functools.cache
def result_files() -> dict[str, bytes]:
    """A result file of each format that `cnnbench import` reads, by name. A name that ends with
    benchmark_run.log is that of a description, which is beside `_LOG_DIR`.
    """
    from cnnbench.records.load import load_run
    from cnnbench.records.result_files import RUNS, run_row

    of_ancestor = GOLDEN.glob("*.txt")
    frozen = ROOT / "tests/frozen/runs/lenet-1.json"
    record = json.loads(frozen.read_text())
    row = run_row(load_run(str(frozen)), {"model": "lenet"})
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "result.csv"
        RUNS.append(str(table), [row])
        rows = table.read_text()
    found = {path.name: path.read_bytes() for path in sorted(of_ancestor)}
    written = {
        **{"metric.log": _LOG_DIR, "result.csv": rows},
        "own.txt": TRAINING.replace("==========", f"{_FLAGS}\n=========="),
        "official-benchmark_run.log": _PARAMETERS.replace("\n", ""),
        "own-benchmark_run.log": json.dumps({"run_parameters": [], "record": record}),
    }
    return {**found, **{name: text.encode() for name, text in written.items()}}


def mutated_result(generator: random.Random, name: str) -> bytes:
    """A result file with one to three changes of values, words, lines or bytes."""
    data = result_files()[name]
    for _ in range(generator.randint(1, 3)):
        kind = generator.choice((1, 1, 1, 1, 0, 2, 3) if name.endswith(".log") else (0, 2, 3))
        if kind == 0:
            data = mutated(generator, data)
        elif kind == 1:
            spans = [at.span() for at in re.finditer(rb'"[^"]*"|[-+.\w]+', data)]
            data = _replaced(generator, data, spans, generator.choice(_JSON_VALUES).encode())
        elif kind == 2:
            spans = [at.span() for at in re.finditer(rb"[^\s,:]+", data)]
            data = _replaced(generator, data, spans, generator.choice(_WORDS))
        else:
            lines = data.split(b"\n")
            at = generator.randrange(len(lines))
            if generator.random() < 0.5:
                lines.insert(at, generator.choice(lines))
            else:
                del lines[at]
            data = b"\n".join(lines)
    return data


def _replaced(
    generator: random.Random, data: bytes, spans: Sequence[tuple[int, int]], text: bytes
) -> bytes:
    start, end = generator.choice(spans or [(0, 0)])
    return data[:start] + text + data[end:]


def imports(generator: random.Random, folder: Path) -> None:
    """Damaged result files: what is imported must be read by every command, or be left out."""
    name = generator.choice([*result_files()])
    import_result(mutated_result(generator, name), folder, name, pages=generator.random() < 0.1)


def import_result(data: bytes, folder: Path, name: str, *, pages: bool = True) -> int:
    """Imports a file and uses its records in all commands, or only in those that write no pages.
    Returns the number of records. `name` is one of `result_files`.
    """
    from cnnbench import cli

    def command(*words: str) -> tuple[int, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(words)
        if "Traceback" in err.getvalue():
            raise Disagreement(f"{words[0]}: {err.getvalue()}")
        return code, err.getvalue()

    path, results = folder / "file", str(folder / "results")
    if name.endswith("benchmark_run.log"):
        path = folder / "benchmark_run.log"
        (folder / "metric.log").write_text(_LOG_DIR)
    path.write_bytes(data)
    code, told = command("import", str(path), f"--results={results}")
    if code not in (0, 3) or told.count("\n") > 4:
        raise Disagreement(f"import ends with {code}: {told}")
    files = [*Path(results).rglob("*.json")]
    commands: list[tuple[str, ...]] = []
    if files:
        page = f"--output={folder / 'page.html'}"
        commands += [("history", results), ("compare", results, results)]
        commands += [("report", results, page)] if pages else []
    for words in commands:
        code, told = command(*words)
        if code not in (0, 1, 3) or "skipped" in told or "left out" in told:
            raise Disagreement(f"{words[0]} ends with {code}: {told}")
    return len(files)


# Journals -------------------------------------------------------------------------------------


def journals(generator: random.Random, folder: Path) -> None:
    """Damaged journals: a torn journal has the first events, a flipped bit is refused or read."""
    from cnnbench.campaigns.processes.journal import Journal

    journal = Journal(folder / "events.jsonl")
    values: tuple[object, ...] = (None, True, 0.04, 2**70, "}", '"names": 1', {"a": [1]}, [], "é")
    for number in range(generator.randint(1, 4)):
        journal.add("look", number=number, value=generator.choice(values))
    written = list(journal.read())
    assert len(written) == len(journal.path.read_bytes().splitlines())
    data = bytearray(journal.path.read_bytes())
    is_torn = generator.random() < 0.5
    if is_torn:
        del data[generator.randrange(len(data)) :]
    else:
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    journal.path.write_bytes(data)

    def run() -> None:
        events = list(journal.read())
        if is_torn and events != written[: len(events)]:
            raise Disagreement(f"{events} were not written")

    refused(run)


# Plug-ins -------------------------------------------------------------------------------------

_BODIES = (
    "return net.logits(net.flatten(images))",
    "return net.logits(images)",
    "return None",
    "return images",
    "return net.conv(images, {n}, {n})",
    "return net.logits(net.flatten(net.conv(images, {n}, {n}, {n})))",
    "return net.logits(net.max_pool(images, {n}, {n}))",
    "raise {error}",
    "return self.build(net, images)",
    "return net.logits(net.flatten(net.variable('v', ({n},), 3)))",
    "return net.unknown(images)",
    "return {{'a': images}}",
)
_ENDS = (
    *6 * ("register_model('fuzzed', 'imagenet', Fuzzed)",),
    "register_model('fuzzed', 'imagenet', Fuzzed())",
    "register_model('resnet50', 'imagenet', Fuzzed)",
    "register_model({n}, None, Fuzzed)",
    "register_model('fuzzed', 'imagenet', lambda: {n})",
    "raise {error}",
    "pass",
    "import sys; sys.exit({n})",
    ")",
)
_ERRORS = (
    "KeyError()",
    "SystemExit(0)",
    "RecursionError('x')",
    "ValueError('\\n\\0')",
    "OSError()",
)


def plug_ins(generator: random.Random, folder: Path) -> None:
    """Plug-in files with every kind of mistake."""
    from cnnbench.base import plugins
    from cnnbench.models import registry

    registry.datasets()

    def filled(text: str) -> str:
        number = generator.choice(("0", "1", "-1", "3", "None", "'x'", "1e300", "2**70"))
        return text.format(n=number, error=generator.choice(_ERRORS))

    path = folder / "plug_in.py"
    name = generator.choice(("'fuzzed'", "None", "3"))
    size = filled("{n}") if generator.random() < 0.3 else "8"
    path.write_text(
        "from cnnbench.models import LearningRateSpec, Model, register_model\n\n"
        "class Fuzzed(Model):\n"
        f"    name = {name}\n"
        "    dataset = 'imagenet'\n"
        f"    image_size = {size}\n"
        "    batch_size = 4\n"
        "    learning_rate = LearningRateSpec(base=0.1)\n\n"
        "    def build(self, net, images):\n"
        f"        {filled(generator.choice(_BODIES))}\n\n"
        f"{filled(generator.choice(_ENDS))}\n"
    )
    registry.all_model_names()  # all modules of networks are imported
    before = dict(registry.MODELS)
    try:

        def run() -> None:
            from cnnbench.flags import Params
            from cnnbench.plan import make_plan

            registry.load_plugin(str(path))
            name = "fuzzed" if "fuzzed" in registry.model_names("imagenet") else "trivial"
            make_plan(Params(model=name))

        refused(run)
    finally:
        registry.MODELS.clear()
        registry.MODELS.update(before)
        plugins.forget_plugin(path)


TARGETS: dict[str, Try] = {
    "flags": flags,
    "specs": specs,
    "pickles": pickles,
    "records": records,
    "suites": suites,
    "rules": rules,
    "run_records": run_records,
    "imports": imports,
    "journals": journals,
    "plug_ins": plug_ins,
}


def generator_of(target: str, seed: int, number: int) -> random.Random:
    """The source of all that is random in a case."""
    return random.Random(f"{target} {seed} {number}")


def attempt(target: str, seed: int, number: int, folder: Path) -> None:
    """Tries one case.

    Args:
      target: of `TARGETS`.
      seed, number: of the case.
      folder: for its files; empty.

    Raises:
      Exception: the case is a finding.
    """
    TARGETS[target](generator_of(target, seed, number), folder)
