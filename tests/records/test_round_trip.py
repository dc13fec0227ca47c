"""What a run writes and prints is imported as a run of the same configuration, with its numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from covering import covering_pairs, slow_if
from short_runs import TINY

from cnnbench.judge.compare.configuration import IMPORTED, Configuration
from cnnbench.records.load import load_records
from cnnbench.records.metrics.figures import throughput

pytestmark = pytest.mark.usefixtures("quick_start")

KERAS = str(Path(__file__).parents[1] / "plugins" / "keras_plugin.py")
MODELS = [
    {"model": "trivial"},
    {"model": "lenet", "data_name": "imagenet"},
    {"model": "plain", "plugin": KERAS},
]
MODES = [
    {"variable_update": "parameter_server"},
    {"variable_update": "replicated"},
    {"variable_update": "distributed_replicated"},
    {"variable_update": "independent"},
    {"variable_update": "distributed_all_reduce", "all_reduce_spec": "pscpu"},
    {"variable_update": "collective_all_reduce"},
    {"variable_update": "mirrored_strategy"},
    {"variable_update": "central_storage_strategy"},
]


WORK = {
    "train": {"gradient_accumulation_steps": 2, "num_batches": 3, "display_every": 1},
    "evaluated": {"eval_during_training_every_n_steps": 2, "num_eval_batches": 1},
    "eval": {"eval": True, "num_eval_batches": 2},
    "forward": {"forward_only": True, "num_batches": 1, "display_every": 3},
}
KINDS = covering_pairs(
    *(WORK, ("fp32", "fp16", "bf16"), MODELS),
    # Its convolutions take long on CPUs without 16-bit floating point.
    allowed=lambda _, precision, model: precision != "fp16" or model["model"] != "lenet",
)


def of_kind(number):
    """The flags of a run, with the modes in turn on one to three devices."""
    work, precision, model = KINDS[number]
    flags = {**model, **MODES[number % len(MODES)], **WORK[work], "precision": precision}
    if flags["variable_update"] == "independent":
        flags.pop("gradient_accumulation_steps", None)
    # A process can have one MirroredStrategy with collectives.
    devices = 2 if flags["variable_update"] == "mirrored_strategy" else 1 + number % 3
    return {**flags, "num_gpus": devices}


@pytest.fixture
def media(call, tmp_path):
    """media(**flags): the records that the run wrote, and that were imported, by medium."""

    def measured(**flags):
        if flags.get("eval"):
            flags["train_dir"] = tmp_path / "train"
            of_model = {
                name: flags[name] for name in ("model", "data_name", "plugin") if name in flags
            }
            call(**{**TINY, **of_model, "num_batches": 1, "train_dir": flags["train_dir"]})
        places = {
            "result_json": tmp_path / "record" / "run.json",
            "result_csv": tmp_path / "runs.csv",
            "benchmark_log_dir": tmp_path / "logs",
        }
        places["result_json"].parent.mkdir()
        printed = call(**{**TINY, **flags, **places})
        (tmp_path / "out.txt").write_text(printed.out)
        (tmp_path / "all.txt").write_text(printed.err + printed.out)
        (record,) = load_records([tmp_path / "record"]).records
        found = {"record": record}
        for medium in ("runs.csv", "logs", "out.txt", "all.txt"):
            call("import", tmp_path / medium, f"--results={tmp_path}/of_{medium}")
            (found[medium],) = load_records([tmp_path / f"of_{medium}"]).records
        return found, printed.out

    return measured


def check(found, printed):
    record = found["record"]
    key = Configuration.of(record).key
    whole = {"runs.csv", "logs", *(("out.txt", "all.txt") if "\nFlags: " in printed else ())}
    for medium in found.keys() - {"record"}:
        one = found[medium]
        assert one.status == "ok"
        assert one.batch == record.batch
        assert one.placement.num_workers == record.placement.num_workers
        assert one.placement.num_towers == record.placement.num_towers
        if medium in whole:
            assert Configuration.of(one).key == key
            assert {"precision", "batch"}.isdisjoint(one.imported.unknown)
        else:
            assert Configuration.of(one).key != key
            assert one.config[IMPORTED] == "tf_cnn_benchmarks"
            assert "precision" in one.imported.unknown
    for medium in ("runs.csv", "logs"):
        assert found[medium].run_id == record.run_id
        assert found[medium].environment.items() <= record.environment.items()
    check_speeds(found, whole)


def check_speeds(found, whole):
    """Media with all digits have the same numbers; the output has one or two behind the point."""
    record = found["record"]
    speed = record.summary().images_per_sec or throughput(record)
    total = record.summary().total_images_per_sec
    table = found["runs.csv"]
    assert throughput(table) == throughput(record)
    assert table.summary().total_images_per_sec == total
    assert math.isclose(throughput(found["logs"]), speed, rel_tol=1e-9)
    if not record.config["eval"]:
        assert found["logs"].summary().total_images_per_sec == total
    for medium in whole & {"out.txt", "all.txt"}:
        one = found[medium]
        shown = throughput(one)
        assert (shown is None) == ("throughput" in one.imported.unknown)
        assert shown is None or abs(shown - speed) <= 0.051
        shown = one.summary().total_images_per_sec
        assert shown is None or abs(shown - total) <= 0.0051


@pytest.mark.parametrize(
    "flags",
    slow_if(
        lambda flags: "display_every" in flags,
        [
            {},
            {"precision": "bf16", "gradient_accumulation_steps": 4, "display_every": 1},
            {
                "num_gpus": 2,
                "variable_update": "replicated",
                "forward_only": True,
                "precision": "bf16",
            },
            {"eval": True, "num_eval_batches": 2, "precision": "bf16"},
        ],
    ),
)
def test_runs_of_each_kind_survive_their_import(media, flags):
    check(*media(**flags))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, len(KINDS), 2))
def test_runs_of_each_work_survive_their_import(media, number):
    check(*media(**of_kind(number)))


@pytest.mark.slow
def test_runs_that_differ_are_different_configurations(call, tmp_path):
    """Four runs whose logs alone are kept, each in a folder."""
    several = [
        {},
        {"precision": "bf16"},
        {"conv_gradients": "library"},
        {"gradient_accumulation_steps": 2},
    ]
    for number, flags in enumerate(several):
        own = {**TINY, "model": "lenet", "data_name": "imagenet", **flags}
        call(**own, benchmark_log_dir=tmp_path / str(number))
        call("import", tmp_path / str(number), f"--results={tmp_path}/records/{number}")
    records = load_records([tmp_path / "records"]).records
    assert len({Configuration.of(record).key for record in records}) == 4
    one, passes = (tmp_path / "records" / number for number in "03")
    out = call("compare", one, passes, code=None).out
    assert "gradient_accumulation_steps is 1 in BASE and 2 in NEW" in " ".join(out.split())
    assert "num_workers" not in out
