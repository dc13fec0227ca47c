"""Paths given as URLs: local ones, those of a file system of TensorFlow, and those refused.

Tests cnnbench/plan/network.py and cnnbench/base/urls.py.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import threading
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from covering import slow_if
from data_sets import SMALL, examples
from forked import Forked
from short_runs import TINY, command

from cnnbench.base import plugins, urls
from cnnbench.cli import main
from cnnbench.cli.overview import COMMANDS
from cnnbench.data import make_input
from cnnbench.flags.declare import FlagSpec
from cnnbench.flags.params import SPECS
from cnnbench.plan import network

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("quick_start")]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    """A working directory in which no test may leave anything."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield
    assert os.listdir(folder) == []


@cache
def path_flags() -> dict[tuple[str, ...], FlagSpec]:
    """The path flags of all commands, by the words before them and their names."""
    found = {("run", name): spec for name, spec in SPECS.items()}
    for name in COMMANDS:
        sections = () if name == "run" else import_module(f"cnnbench.cli.commands.{name}").HELP[1]
        for title, specs in sections:
            words = (name, title.removeprefix("Flags of ")) if name == "data" else (name,)
            found.update({(*words, spec.name): spec for spec in specs})
    return {words: spec for words, spec in found.items() if spec.path}


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The only line that a command line prints, which is refused with exit code 2."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("cnnbench: error: ").strip()


def test_every_flag_of_a_name_like_a_path_is_declared_as_one():
    for name, spec in SPECS.items():
        if name.endswith(("_dir", "_file", "_json", "_csv", "_path", "_plugin")):
            assert spec.path, name
    assert {name for _, *_, name in path_flags()} >= {"results", "output", "plot", "log_dir"}


PATHS = [pytest.param(words, id=" ".join(words)) for words in path_flags()]


def is_another_of_its_command(param):
    """Whether a flag before it has the same words before it, and takes or refuses URLs as well."""
    (words,) = param.values
    kind = (words[:-1], path_flags()[words].takes_urls)
    kinds = ((one[:-1], spec.takes_urls) for one, spec in path_flags().items())
    return list(kinds).index(kind) < [*path_flags()].index(words)


@pytest.mark.parametrize("words", slow_if(is_another_of_its_command, PATHS))
def test_every_path_flag_takes_or_refuses_urls(words, capsys):
    spec = path_flags()[words]
    texts = ("file:///tmp/x", "file:/tmp/x", "file://localhost/tmp/x%20y,file:///z")
    assert [spec.text(spec.parse(text)) for text in texts] == ["/tmp/x"] * 2 + ["/tmp/x%20y,/z"]
    must = "must be a path, file:///PATH or a URL such as gs://bucket/folder"
    if not spec.takes_urls:
        must = "must be a local path or file:///PATH; copy files from or to a URL, as with "
        must += "gsutil cp"
    *before, flag = words
    for url in ("gs:/bucket/x", "file://host/x", *(() if spec.takes_urls else ("gs://bucket/x",))):
        assert refused(capsys, *before, f"--{flag}={url}") == f"--{flag}={url}: {must}"
    if spec.takes_urls:
        assert before == ["run"]
        assert main(["--device=cpu", f"--{flag}=foo://x/y"]) == 2
        *_, line = capsys.readouterr().err.splitlines()  # behind a notice for flags without effect
        assert line.startswith(f"cnnbench: error: --{flag}=foo://x/y: cannot be reached: ")
        assert "'foo' not implemented" in line
    else:
        assert refused(capsys, *before, f"--{flag}", "foo://x").startswith(f"--{flag}=foo://x: ")


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "gs://b/x", "b.json"),
        ("report", "b.json", "gs://b/x"),
        ("history", "gs://b/x"),
        ("explain", "gs://b/x", "b.json"),
        ("sweep", "gs://b/x"),
        ("data", "check", "gs://b/x"),
        ("data", "make-imagenet", "images", "gs://b/x"),
    ],
    ids=" ".join,
)
def test_arguments_are_local_paths(words, capsys):
    assert refused(capsys, *words).startswith("gs://b/x: must be a local path or file:///PATH; ")


def test_urls_in_flag_files_and_suites(tmp_path, capsys):
    (tmp_path / "flags").write_text("--result_json=gs://b/x\n", encoding="utf-8")
    line = refused(capsys, f"--flagfile=file://{tmp_path}/flags")
    assert line.startswith("--result_json=gs://b/x: must be a local path ")
    assert refused(capsys, "--flagfile=gs://b/x").startswith("--flagfile=gs://b/x: must be a ")
    suite = "name: s\nentries: [{name: a, flags: {model: lenet, trace_file: 'gs://b/x'}}]\n"
    (tmp_path / "suite.yaml").write_text(suite, encoding="utf-8")
    line = refused(capsys, "sweep", f"file://{tmp_path}/suite.yaml", "--dry_run")
    assert "trace_file=gs://b/x: must be a local path " in line


@pytest.mark.slow
def test_file_urls_are_local_paths(tmp_path, capfd):
    names = {
        **{"result_json": "{}.json", "result_csv": "{}.csv"},
        **dict.fromkeys(("trace_file", "graph_file"), "{}.gz"),
        **dict.fromkeys(("train_dir", "export_dir", "benchmark_log_dir", "eval_dir"), "{}"),
    }
    given = {name: f"file://{tmp_path}/{form.format(name)}" for name, form in names.items()}
    during = {"eval_during_training_every_n_steps": 4, "summary_verbosity": 1}
    assert command(**given, **during, peak_flops=1e12) == 0
    made = {form.format(name) for name, form in names.items()}
    assert {path.name for path in tmp_path.iterdir()} == {*made, "empty"}
    capfd.readouterr()
    assert main(["compare", f"file://{tmp_path}/result_json.json", given["result_json"]]) == 3
    folder = f"file://{tmp_path}/report.html"
    assert main(["report", given["result_json"], f"--output={folder}"]) == 0
    assert (tmp_path / "report.html").is_file()


# A file system of TensorFlow -----------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with an installed package whose entry point registers store:// URLs."""
    if shutil.which("g++") is None:
        if os.environ.get("CI"):
            raise RuntimeError("the file system needs the C++ compiler g++")
        pytest.skip("the file system needs the C++ compiler g++, which is not installed")
    folder = tmp_path_factory.mktemp("package")
    tensorflow, *_ = importlib.util.find_spec("tensorflow").submodule_search_locations
    source = Path(__file__).parents[1] / "file_system" / "store.cc"
    options = ["-std=c++17", "-fPIC", "-shared", "-isystem", f"{tensorflow}/include"]
    linked = [f"-L{tensorflow}", "-l:libtensorflow_framework.so.2"]
    subprocess.run(["g++", *options, source, "-o", folder / "store.so", *linked], check=True)
    (folder / "store_files.py").write_text(
        "import tensorflow as tf\n"
        f"tf.experimental.register_filesystem_plugin({str(folder / 'store.so')!r})\n",
        encoding="utf-8",
    )
    about = folder / "store-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: store\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[cnnbench.file_systems]\nstore = store_files\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(plugins, "_groups", set())
        plugins.load_entry_points(network.FILE_SYSTEMS)
    return folder


@pytest.fixture
def store(package, tmp_path, monkeypatch):
    """The folder with the files of store:// URLs."""
    monkeypatch.setenv("STORE", str(tmp_path))
    monkeypatch.setattr(urls.UrlPath, "_listed", set())
    return tmp_path


def test_training_evaluation_and_export(store, capfd):
    run = {"train_dir": "store://bucket/run", "export_dir": "store://bucket/model"}
    more = {"eval_dir": "store://bucket/eval", "summary_verbosity": 1, "save_summaries_steps": 1}
    often = {"save_model_steps": 1, "max_ckpts_to_keep": 2}
    during = {"eval_during_training_every_n_steps": 2}
    assert command(**run, **more, **often, **during) == 0
    assert capfd.readouterr().err.count("cannot be locked (URLs have no locks)") == 1
    bucket = store / "bucket"
    files = sorted(path.name for path in (bucket / "run").iterdir() if "events" not in path.name)
    kept = [f"model.ckpt-{n}.{part}" for n in (5, 6) for part in ("data-00000-of-00001", "index")]
    assert files == ["checkpoint", *kept, "training_status"]
    assert [*(bucket / "run").glob("events.*")]
    assert [*(bucket / "eval").glob("events.*")]
    assert 'model_checkpoint_path: "model.ckpt-6"' in (bucket / "run/checkpoint").read_text()
    saved = (bucket / "model/saved_model.pb").stat()

    assert command("--eval", train_dir=run["train_dir"]) == 0
    assert "loaded model from store://bucket/run/model.ckpt-6." in capfd.readouterr().out
    assert command("--eval", train_dir="store://bucket/run/model.ckpt-5") == 0
    assert "loaded model from store://bucket/run/model.ckpt-5." in capfd.readouterr().out
    assert command(num_batches=8, **run) == 0
    assert "resuming from store://bucket/run/model.ckpt-6 at global step 6" in (
        capfd.readouterr().err
    )
    assert (bucket / "model/saved_model.pb").stat().st_mtime_ns > saved.st_mtime_ns


EXPORTING = """
import sys
sys.path.insert(0, {package!r})
from forked import cnnbench
cnnbench()
"""


@pytest.mark.slow
def test_a_process_of_its_own_exports(store, package, tmp_path):
    """Nothing but the entry point of the package tells it of the file system."""
    words = [f"--{key}={value}" for key, value in TINY.items()]
    words += ["--peak_flops=1e12", "--export_dir=store://bucket/model"]
    out, err = tmp_path / "out", tmp_path / "err"
    process = Forked(EXPORTING.format(package=str(package)), words, out, err)
    assert process.wait(100) == 0, err.read_text()
    assert "cnnbench: SavedModel written to store://bucket/model\n" in err.read_text()
    assert (store / "bucket/model/saved_model.pb").is_file()


@pytest.mark.parametrize("name", slow_if(["coco", "librispeech"], SMALL))
def test_data_sets(name, store, small_set, cpu_devices, capfd):
    small = SMALL[name]
    shutil.copytree(small_set(name), store / "files")
    for subset in ("train", "validation"):
        count = small.dataset.num_examples(subset, str(store / "files"))
        assert small.dataset.num_examples(subset, "store://files") == count
    with make_input(small.spec("store://files", "validation"), cpu_devices[:1]) as source:
        batches = [source.next()[0] for _ in range(source.steps_per_epoch)]
    assert sorted(examples(batches, small.of)) == sorted(small.examples["validation"])
    if name == "cifar10":
        assert command(data_dir="store://files", data_name=name) == 0
        assert "total images/sec" in capfd.readouterr().out


def test_refusals_of_the_file_system(store, monkeypatch, capsys):
    tiny = [f"--{name}={value}" for name, value in TINY.items()]
    monkeypatch.setenv("STORE_REFUSES", "bucket/")
    line = refused(capsys, *tiny, "--train_dir=store://bucket/run")
    assert line.startswith("--train_dir=store://bucket/run: must be a directory to write to: ")
    assert line.endswith(" is not for you")
    line = refused(capsys, *tiny, "--export_dir=store://bucket/model")
    assert line.startswith("--export_dir=store://bucket/model: ")
    line = refused(capsys, *tiny, "--data_dir=store://nothing")
    assert line == "--data_dir=store://nothing: there is no such directory"
    (store / "other").mkdir()
    (store / "other/file").write_text("mine", encoding="utf-8")
    line = refused(capsys, *tiny, "--export_dir=store://other")
    assert line.endswith("contains files, but no saved_model.pb; name another folder")


def test_a_newest_checkpoint_that_cannot_be_read_is_not_passed_over(store, monkeypatch, capsys):
    assert command(train_dir="store://bucket/run", save_model_steps=1) == 0
    before = {path: path.read_bytes() for path in (store / "bucket/run").iterdir()}
    capsys.readouterr()
    monkeypatch.setenv("STORE_BREAKS", "model.ckpt-6.index")
    assert command(train_dir="store://bucket/run", num_batches=9) == 4
    *_, line = capsys.readouterr().err.splitlines()
    assert line == ("cnnbench: error: store://bucket/run cannot be read: the connection is lost")
    before[store / "bucket/run/training_status"] = b"failed\n"
    assert {path: path.read_bytes() for path in (store / "bucket/run").iterdir()} == before


def test_a_file_system_that_does_not_answer(store, monkeypatch, capsys):
    monkeypatch.setenv("STORE_DELAY", "1")
    monkeypatch.setattr(network, "_ANSWER_SECONDS", 0.1)
    line = refused(capsys, "--data_dir=store://files", "--device=cpu")
    assert line == "--data_dir=store://files: cannot be reached: no answer within 0.1 s"
    for thread in threading.enumerate():
        if thread.name == network._ACCESS_THREAD:
            thread.join()  # before the variables of the file system are gone
