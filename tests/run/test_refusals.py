"""Flags of outputs and modes of a run that are refused: each with a line that names the flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnnbench.cli import main

FROZEN = ("--forward_only", "--freeze_when_forward_only")
PLUGINS = Path(__file__).parents[1] / "plugins"
INT8 = ("--device=cpu", "--precision=int8")

REFUSED: list[tuple[tuple[str, ...], str, str]] = [
    # Flags; the flag that the message names; words of its reason. Outputs:
    (("--graph_file=none/x.pb",), "graph_file=none/x.pb", "no folder"),
    (("--partitioned_graph_file_prefix=none/x",), "partitioned_graph_file_prefix", "no folder"),
    (("--trace_file=none/x",), "trace_file=none/x", "no folder"),
    (("--tfprof_file=none/x",), "tfprof_file=none/x", "no folder"),
    (("--profile_json=none/x",), "profile_json=none/x", "no folder"),
    (("--profile_layers=none/x.svg",), "profile_layers=none/x.svg", "no folder"),
    (("--profile_layers=x.txt,x.doc",), "profile_layers=x.doc", "must end in one of .txt, .csv, "),
    (("--profile_layers=x.svg,",), "profile_layers=", "must end in one of .txt, .csv, "),
    (
        ("--nouse_chrome_trace_format", "--trace_file=file/below"),
        "trace_file=file/below",
        "must be a directory to write to",
    ),
    (("--benchmark_log_dir=file/below",), "benchmark_log_dir=file/below", "must be a directory"),
    (("--xla", "--xla_cache_dir=file/below"), "xla_cache_dir=file/below", "must be a directory"),
    (
        ("--eval", "--train_dir=.", "--summary_verbosity=1", "--eval_dir=file"),
        "eval_dir=file",
        "must be a directory",
    ),
    (("--train_dir=/proc/none/ckpt",), "train_dir=/proc/none/ckpt", ""),
    (("--train_dir=model.ckpt-12",), "train_dir=model.ckpt-12", "names one checkpoint"),
    (("--export_dir=file",), "export_dir=file", "is not a folder"),
    (("--export_dir=file/below",), "export_dir=file/below", "must be a directory to write to"),
    (
        ("--export_dir=.",),
        "export_dir=.",
        "holds files, but no saved_model.pb",
    ),
    (("--train_dir=d", "--export_dir=d"), "export_dir=d", "is the file of --train_dir too"),
    (("--graph_file=a.json", "--result_json=./a.json"), "graph_file=a.json", "--result_json too"),
    (("--profile_json=x", "--result_json=x"), "", "is the file of --"),
    (("--tfprof_file=a.txt", "--profile_layers=b.svg,a.txt"), "", "the file of --tfprof_file too"),
    (
        ("--partitioned_graph_file_prefix=a.txt", "--result_json=a1.txt"),
        "partitioned_graph_file_prefix=a1.txt",
        "is the file of --result_json too",
    ),
    # Profilers need warm-up steps.
    *(
        ((f"--{flag}=x", "--num_warmup_batches=0"), flag, "leave out --num_warmup_batches=0")
        for flag in ("partitioned_graph_file_prefix", "profile_json", "trace_file", "tfprof_file")
    ),
    (("--profile_json=x", "--trace_file=y"), "profile_json=x", "cannot go with --trace_file"),
    (("--profile_json=x", "--profile_steps=0"), "profile_steps=0", "must be at least 1"),
    # Lengths of warm-ups and evaluations.
    (
        ("--warmup=auto", "--num_warmup_batches=40", "--max_warmup_batches=30"),
        "max_warmup_batches=30",
        "is less than the 40 steps",
    ),
    (("--warmup=auto", "--max_warmup_batches=19"), "max_warmup_batches=19", "at least 20"),
    (("--eval", "--train_dir=.", "--num_eval_epochs=1e9"), "num_eval_epochs=", "must be at most"),
    # Flags that a model or a data set does not support.
    (
        ("--data_name=cifar10", "--data_dir=.", "--input_preprocessor=official_models_imagenet"),
        "input_preprocessor=official_models_imagenet",
        "data set cifar10 takes default",
    ),
    (
        ("--collect_eval_results_async", "--eval_during_training_every_n_steps=2"),
        "collect_eval_results_async=true",
        "--model=trivial has no metrics that need a process",
    ),
    (("--backbone_model_path=.",), "backbone_model_path=.", "--model=trivial has no backbone"),
    (
        (
            f"--model_plugin={PLUGINS}/backbone_plugin.py",
            "--model=detector",
            "--backbone_model_path=none",
        ),
        "backbone_model_path=none",
        "there is no checkpoint",
    ),
    (
        (f"--model_plugin={PLUGINS}/oracle_plugin.py", "--model=oracle", "--label_smoothing=0.1"),
        "label_smoothing=0.1",
        "needs a softmax loss, but --model=oracle has one of its own",
    ),
    # Runs that cannot be frozen or computed in integers.
    ((*FROZEN, "--train_dir=d"), "freeze_when_forward_only", "cannot go with --train_dir"),
    (
        (*FROZEN, "--model=vgg16", "--num_gpus=4"),
        "freeze_when_forward_only",
        "has 2.06 GiB of weights, and a graph holds less",
    ),
    ((*INT8, *FROZEN), "precision=int8", "trivial has no convolution"),
    ((*INT8, "--model=lenet", "--freeze_when_forward_only"), "", "--forward_only"),
    ((*INT8, "--model=lenet", "--forward_only"), "precision=int8", "needs --forward_only and"),
    (("roofline", "lenet", *INT8, *FROZEN), "precision=int8", "not here: "),
]


@pytest.mark.parametrize(("flags", "flag", "words"), REFUSED, ids=lambda x: str(x)[:60])
def test_wrong_use_is_refused_before_anything_is_written(
    flags: tuple[str, ...],
    flag: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    model = () if flags[0] == "roofline" else ("--model=trivial",)
    assert main([*model, *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"cnnbench: error: --{flag}")
    assert words in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
