"""The command line: help, exit codes, streams, and what is imported.

Tests cnnbench/cli/__init__.py, cnnbench/cli/overview.py and cnnbench/cli/commands/__init__.py.
"""

import contextlib
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest
from forked import finished

import cnnbench
from cnnbench import cli
from cnnbench.cli.overview import COMMANDS
from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.flags import FLAGS, parse
from cnnbench.flags.declare import specs_of
from cnnbench.flags.groups.repeat import RepeatFlags
from cnnbench.flags.help import MOST_USED
from cnnbench.flags.obsolete import OBSOLETE
from cnnbench.flags.params import SPECS
from cnnbench.machine import repository
from cnnbench.records.subject import Subject


@pytest.fixture
def run_command(monkeypatch):
    """Replaces the run command; notes what it was called with and lets it print or misbehave."""
    module = types.ModuleType("cnnbench.cli.commands.run")
    module.outcome, module.calls = 0, []

    def main(argv):
        module.calls.append(list(argv))
        if argv == ["--output"]:
            print("a line")
        if isinstance(module.outcome, BaseException):
            raise module.outcome
        return module.outcome

    module.main = main
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.fixture
def exits(monkeypatch):
    """Notes how a process would end itself, which then raises SystemExit, and its exit code."""
    found = []

    def end(code):
        found.append(("without cleanup", code))
        raise SystemExit(code)

    monkeypatch.setattr(cli.supervisor, "exit_without_cleanup", end)
    monkeypatch.setattr(
        cli.supervisor,
        "exit_within_two_seconds",
        lambda code: found.append(("within two seconds", code)),
    )
    monkeypatch.setattr(cli.supervisor, "forks_allowed", contextlib.nullcontext)
    monkeypatch.setattr(cli.plugins, "before_loading", ())
    monkeypatch.setattr(cli.gc, "freeze", lambda: None)
    monkeypatch.setattr(sys, "argv", ["cnnbench"])
    return found


@pytest.mark.parametrize(
    ("argv", "arguments"),
    [
        ([], []),
        (["run"], []),
        (["--model=lenet", "--xla"], ["--model=lenet", "--xla"]),
        (["-model", "lenet"], ["-model", "lenet"]),
        (["run", "--model=lenet"], ["--model=lenet"]),
    ],
)
def test_run_is_the_default(run_command, argv, arguments):
    assert cli.main(argv) == 0
    assert run_command.calls == [arguments]


@pytest.mark.parametrize(
    ("outcome", "status", "line"),
    [
        (0, 0, ""),
        (3, 3, ""),
        (UsageError("no such thing"), 2, "cnnbench: error: no such thing\n"),
        (
            FlagError("num_gpus", 0, "must be at least 1"),
            2,
            "cnnbench: error: --num_gpus=0: must be at least 1\n",
        ),
        (BenchmarkError("out of\nmemory"), 4, "cnnbench: error: out of memory\n"),
        (KeyboardInterrupt(), 130, "cnnbench: error: interrupted\n"),
        # An exception that reached the interpreter would exit with 1, the code of a regression.
        (RuntimeError("surprise"), 4, "cnnbench: error: RuntimeError: surprise\n"),
    ],
)
def test_exit_codes(run_command, call, outcome, status, line):
    run_command.outcome = outcome
    err = call(code=status).err
    unforeseen = type(outcome) is RuntimeError
    assert (err.endswith(line) and err.startswith("Traceback")) if unforeseen else err == line


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["modles"], "models?"),
        (["help", "modles"], "models?"),
        (["zzz"], ", ".join(COMMANDS)),
    ],
)
def test_unknown_command(argv, hint, call):
    err = call(*argv, code=2).err
    assert f"'{argv[-1]}'" in err
    assert hint in err


@pytest.mark.parametrize("argv", [["--help"], ["-help"], ["-?"], ["--help=true"], ["help"]])
def test_help_is_one_screen_of_commands_and_flags_that_exist(argv, call):
    out, err = call(*argv)
    assert err == ""
    lines = out.splitlines()
    assert 4 < len(lines) - len(COMMANDS) <= 24  # a screen with one line for each command
    assert max(map(len, lines)) <= 80
    assert all(f"\n  {command} " in out for command in COMMANDS)
    flags = set(re.findall(r"--(?:no)?(\w+)", out)) - {"help"}
    assert flags <= {spec.name for spec in FLAGS}
    assert {"model", "batch_size", "num_gpus", "variable_update", "result_json"} <= flags


@pytest.mark.parametrize(
    ("argv", "full"),
    [
        (["run", "--help"], False),
        (["help", "run"], False),
        (["run", "-h"], False),
        (["--helpfull"], True),
        (["run", "--helpfull"], True),
    ],
)
def test_help_of_a_run_has_every_flag(argv, full, call):
    lines = call(*argv).out.splitlines()
    lines = [line.replace("  -v, --", "  --") for line in lines]
    heads = [line.split("=")[0] for line in lines if line.startswith("  --")]
    names = [head.removeprefix("  --").removeprefix("[no]") for head in heads]
    assert tuple(names[: len(MOST_USED)]) == MOST_USED
    declared = (*specs_of(RepeatFlags), *FLAGS, *(OBSOLETE if full else ()))
    assert sorted(names) == sorted(spec.name for spec in declared)
    assert max(len(line) for line in lines if line.startswith("  ")) <= 80
    text = " ".join(" ".join(lines).split())
    assert "(integer; default 1; at least 1)" in text
    assert f"(string; default sgd; {SPECS['optimizer'].kind.accepted()})" in text


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "run"])
def test_help_of_a_command(command, call):
    text = call(command, "--help").out
    assert text.startswith(f"Usage: cnnbench {command} ")
    for _, specs in importlib.import_module(f"cnnbench.cli.commands.{command}").HELP[1]:
        for spec in specs:
            short = "-o, " * (spec.name == "output")
            assert f"  {short}--{spec.name}=" in text or f"  --[no]{spec.name}\n" in text
    assert call("help", command).out == text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_the_terminal(command, call, monkeypatch):
    for columns in (80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        wide = [line for line in call(command, "--help").out.splitlines() if len(line) > columns]
        assert wide == []


@pytest.mark.parametrize("command", ["run", "ab", "data"])
def test_help_in_xml(command, call):
    root = ElementTree.fromstring(call(command, "--helpxml").out)
    found = {flag.findtext("name"): flag for flag in root.iter("flag")}
    if command != "run":
        module = importlib.import_module(f"cnnbench.cli.commands.{command}")
        assert found.keys() == {spec.name for _, specs in module.HELP[1] for spec in specs}
        return
    assert call("--helpxml").out == call("run", "--helpxml").out
    assert found.keys() == {spec.name for spec in (*specs_of(RepeatFlags), *FLAGS, *OBSOLETE)}
    kinds = {"boolean": "bool", "integer": "int", "number": "float"}
    for spec in FLAGS:
        flag = found[spec.name]
        if spec.kind.name in ("integer", "string") and spec.default is not None:
            assert flag.findtext("default") == spec.text(spec.default)
        assert [one.text or "" for one in flag.iter("enum_value")] == list(spec.choices)
        assert flag.findtext("type") == kinds.get(spec.kind.name, flag.findtext("type"))
        assert spec.help in flag.findtext("meaning")


@pytest.mark.parametrize(
    ("line", "times"),
    [
        ("run --model=nosuch", 1),
        ("models --model=lenet", 1),
        ("allreduce --sizes=4Q", 1),
        ("sweep smoke --list", 2),  # its own flags, and those behind the dashes
    ],
)
def test_a_command_line_is_parsed_once(line, times, monkeypatch, call):
    parsed = []
    split = parse.split_command_line

    def counting(argv, specs):
        parsed.append(tuple(argv))
        return split(argv, specs)

    monkeypatch.setattr(parse, "split_command_line", counting)
    call(*line.split(), code=None)
    assert len(parsed) == len(set(parsed)) == times


@pytest.mark.parametrize(
    ("own", "after"),
    [
        (Subject(), ""),
        (Subject(revision="c" * 40, dirty=False), " (commit cccccccccccc)"),
        (Subject(revision="c" * 40, dirty=True), " (commit cccccccccccc with changes)"),
    ],
)
def test_version(own, after, call, monkeypatch):
    monkeypatch.setattr(repository, "cnnbench_checkout", lambda: own)
    assert call("--version").out == f"cnnbench {cnnbench.__version__}{after}\n"


FROZEN = Path(__file__).parents[1] / "frozen"


WHAT_IS_IMPORTED = """
import contextlib, io, json, sys
from cnnbench.cli import main
slow = {"tensorflow", "keras", "numpy", "pandas", "scipy", "matplotlib", "jinja2"}
slow.add("cnnbench.judge.report.sections")
allowed = set()
for line, status, more in json.loads(sys.argv[1]):
    allowed.update(more.split())
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = main(line.split())
    loaded = slow & {*sys.modules, *(name.partition(".")[0] for name in sys.modules)}
    assert (found, loaded - allowed) == (status, set()), line
    assert err.getvalue().count("cnnbench: error: ") == (status == 2), line
"""
JUDGING = ("compare", "history", "report", "explain", "ab", "gate", "bisect")
MEASURING = ("launch", "sweep", "tune")
NCCL = "--device=cpu --num_gpus=2 --all_reduce_spec=nccl"
EVERYDAY_IMPORTS = [
    ("--help", 0, ""),
    ("--version", 0, ""),
    (f"--variable_update=replicated {NCCL}", 2, ""),
    ("--num_gpus=0", 2, ""),
    ("--eval", 2, ""),
    ("compare FROZEN/ab/a FROZEN/ab/b", 3, "numpy"),
    ("history FROZEN --metric=bus_bandwidth --by=run", 3, ""),
    ("models", 0, "cnnbench.judge.report.sections"),
    ("compare", 2, ""),
    ("ab -- --model=nosuch", 2, ""),
    ("sweep smoke --dry_run", 0, ""),
    ("data check /nowhere", 2, ""),
    ("allreduce --sizes=4Q", 2, ""),
    (f"allreduce {NCCL}", 2, ""),
    ("roofline lenet --staged_vars --variable_update=replicated", 2, ""),
]
"""Command lines, their exit codes, and what they and later ones may import."""

IMPORTS_OF_HELP = [
    (f"{command} --help", 0, "cnnbench.judge.report.sections") for command in JUDGING + MEASURING
]
IMPORTS_OF_FORMATS = [
    ("history FROZEN/runs --by=run --format=csv", 0, "numpy cnnbench.judge.report.sections pandas"),
    ("report FROZEN/runs --format=csv --output=OUT.csv", 0, ""),
    ("history FROZEN/runs --by=run --plot=OUT.svg", 0, "matplotlib"),
    ("report FROZEN/runs --format=markdown --output=OUT.md", 0, ""),
    ("report FROZEN/ab/a --output=OUT.html", 0, "jinja2"),
]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(EVERYDAY_IMPORTS, id="everyday"),
        pytest.param(IMPORTS_OF_HELP, id="help"),
        pytest.param(IMPORTS_OF_FORMATS, id="formats", marks=pytest.mark.slow),
    ],
)
def test_commands_import_only_what_they_use(lines, tmp_path):
    places = {"FROZEN": str(FROZEN), "OUT": f"{tmp_path}/x"}
    text = json.dumps(lines)
    for name, place in places.items():
        text = text.replace(name, place)
    finished([sys.executable, "-c", WHAT_IS_IMPORTED, text])


@pytest.mark.parametrize(("outcome", "status"), [(0, 4), (1, 1), (3, 3), (UsageError("no"), 2)])
@pytest.mark.parametrize("buffering", [1, -1])
def test_a_command_that_succeeds_without_its_output_has_failed(
    run_command, capsys, outcome, status, buffering
):
    """Whatever wrote it; codes that say something else stay."""
    run_command.outcome = outcome
    with open("/dev/full", "w", buffering=buffering) as full, contextlib.redirect_stdout(full):
        assert cli.main(["--output"]) == status
    lost = "cnnbench: error: cannot write to standard output: No space left on device\n"
    assert lost in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "thread", "ends_early"),
    [
        (0, {}, False),
        (4, {}, False),
        (0, {"name": "cnnbench-calls", "daemon": True}, True),
        # A thread that is not a daemon may wait forever, but only if something failed.
        (0, {"name": "other"}, False),
        (4, {"name": "other"}, True),
        (130, {"name": "other"}, True),
        (1, {"name": "other"}, False),
        (4, {"name": "other", "daemon": True}, False),
    ],
)
def test_a_process_does_not_wait_for_threads_that_may_never_end(
    run_command, exits, status, thread, ends_early
):
    run_command.outcome = KeyboardInterrupt() if status == 130 else status
    end = threading.Event()
    other = threading.Thread(target=end.wait, **thread) if thread else None
    if other is not None:
        other.start()
    try:
        with pytest.raises(SystemExit) as ended, cli.interrupts.handling_signals():
            cli.entry_point()
    finally:
        end.set()
        if other is not None:
            other.join()
    assert ended.value.code == status
    assert exits == [("within two seconds", status), *[("without cleanup", status)] * ends_early]


@pytest.mark.parametrize(("fact", "status"), [("connected", 0), ("interrupted", 130)])
def test_a_process_that_was_connected_or_interrupted_ends_at_once(
    run_command, exits, fact, status, monkeypatch
):
    if fact == "connected":
        monkeypatch.setattr(cli.supervisor.state, "connected", True)
    else:
        monkeypatch.setattr(cli.interrupts, "was_interrupted", lambda: True)
    with pytest.raises(SystemExit), cli.interrupts.handling_signals():
        cli.entry_point()
    assert exits == [("within two seconds", status), ("without cleanup", status)]


def test_a_full_disk_under_standard_error_changes_nothing(run_command):
    for outcome, status in ((0, 0), (UsageError("no"), 2), (RuntimeError("surprise"), 4)):
        run_command.outcome = outcome
        with open("/dev/full", "w", buffering=1) as full, contextlib.redirect_stderr(full):
            assert cli.main([]) == status


@pytest.mark.parametrize(("status", "found"), [(0, cli.BROKEN_PIPE), (1, 1), (3, 3)])
def test_a_verdict_outranks_a_reader_that_leaves_at_the_end(run_command, status, found):
    class Left(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    run_command.outcome = status
    with contextlib.redirect_stdout(Left()):
        assert cli.main([]) == found


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "cnnbench", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (cli.BROKEN_PIPE, b"")


@pytest.mark.parametrize(("closed", "status"), [("1>&-", 4), ("0>&- 1>&-", 4), ("2>&-", 0)])
def test_a_closed_standard_output_is_lost_like_a_full_one(closed, status):
    command = f"exec {shlex.quote(sys.executable)} -m cnnbench --version {closed}"
    lost = "cnnbench: error: cannot write to standard output: Bad file descriptor\n"
    assert finished(["sh", "-c", command], status).stderr == (lost if status else "")


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_closed_streams_do_not_fail_a_command_nor_mix_with_its_files(tmp_path, closed):
    """A file that is opened next would get the number of a closed stream."""
    output = tmp_path / "history.json"
    code = (
        f"import os, sys; [os.close(n) for n in {closed}]; "
        "os.execv(sys.executable, [sys.executable, '-m', 'cnnbench', 'history', "
        f"'{FROZEN}/runs', '--format=json', '--by=run', '--output={output}'])"
    )
    finished([sys.executable, "-c", code])
    assert json.loads(output.read_text())["metric"] == "throughput"


@pytest.mark.parametrize("word", ["--only_check_args", "--only_check_flags", "-only_check_args=1"])
def test_only_check_args_prints_the_plan_and_runs_nothing(word, call, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a benchmark was made")

    monkeypatch.setattr("cnnbench.run.driver.benchmark_cnn.BenchmarkCNN.__init__", fail)
    words = ["--num_gpus=2", "--global_batch_size=12", "--gradient_accumulation_steps=3"]
    lines = call(word, "--model=lenet", *words, "--init_learning_rate=1e-3").out.splitlines()
    assert lines[:1] == ["Model:       lenet"]
    assert "Batch size:  12 global" in lines
    assert "             2 per device and pass, 3 passes" in lines
    assert lines[-2:] == ["--init_learning_rate=0.001", "--num_gpus=2"]
    assert call(word, "--model=lenet", "--num_gpus=0", code=2).err.count("\n") >= 1
    assert "Model" in call("--noonly_check_args", word, "--flagfile=", "--batch_size=3").out


@pytest.mark.parametrize("words", [["allreduce"], ["launch", "--workers=2", "--"]])
def test_only_check_args_is_for_runs(words, call):
    err = call(*words, "--only_check_args", code=2).err
    assert err.startswith("cnnbench: error: --only_check_args=true: ")
