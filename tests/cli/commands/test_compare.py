"""cnnbench compare, and what `cnnbench/cli/commands/judging.py` adds to commands that judge.

Tests cnnbench/cli/commands/judging.py and cnnbench/cli/commands/next_steps.py.
"""

import contextlib
import html
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from covering import slow_if

from cnnbench.cli.commands.next_steps import comparing_command
from cnnbench.judge.compare import Criteria, compare_records
from cnnbench.records.subject import Subject


@pytest.fixture
def base(save, tmp_path):
    return save(tmp_path / "base")


@pytest.mark.parametrize(
    ("factor", "status", "word"), [(0.9, 1, "- slower"), (1.0, 0, "= same"), (1.1, 0, "+ faster")]
)
def test_the_verdict_is_printed_and_is_the_exit_code(
    call, save, base, tmp_path, factor, status, word
):
    out, err = call("compare", base, save(tmp_path / "new", factor), code=status)
    assert word in out
    assert out.endswith(f"exit code {status}: {'a' if status else 'no'} regression\n")
    assert "\x1b" not in out
    assert err == ""


def test_other_work_fails_where_fail_on_names_it(call, save, base, tmp_path):
    text = Path(base, "base0.json").read_text()
    parameters = json.loads(text)["model"]["parameters"]
    new = save(tmp_path / "new")
    for path in Path(new).iterdir():
        text = path.read_text()
        path.write_text(
            text.replace(f'"parameters": {parameters}', f'"parameters": {parameters + 1}')
        )
    codes = {"changed": 1, "slower": 0, "never": 0}
    for words, code in codes.items():
        call("compare", base, new, f"--fail_on={words}", code=code)


def test_all_outputs_say_that_an_unexpected_gain_failed(call, save, base, tmp_path):
    words = ("compare", base, save(tmp_path / "new", 1.1), "--fail_on=slower,faster")
    assert call(*words, code=1).out.endswith("exit code 1: an unexpected gain\n")
    assert json.loads(call(*words, "--format=json", code=1).out)["failed_on"] == ["faster"]
    assert "🔴 faster" in call(*words, "--format=markdown", code=1).out


def test_patterns_and_single_files(call, save, base, tmp_path):
    save(tmp_path / "new", 0.9)
    call("compare", f"{base}/*.json", f"{tmp_path}/n*", code=1)
    call("compare", f"{base}/base0.json", f"{tmp_path}/new/new1.json", code=3)


def test_a_regression_outranks_a_faulty_file_and_a_side_of_them_is_missing(
    call, save, base, tmp_path
):
    slower = save(tmp_path / "slower", 0.9)
    (tmp_path / "empty").mkdir()
    for folder, status, word in ((slower, 1, "- slower"), (tmp_path / "empty", 3, "o missing")):
        (tmp_path / folder / "9.json").write_text("")
        assert word in call("compare", base, str(folder), code=status).out


def test_unlike_machines_and_how_to_allow_them(call, save, base, tmp_path):
    new = save(tmp_path / "new", 0.9, environment={"cpu_model": "Slow CPU"})
    out = call("compare", base, new, code=3).out
    assert "cpu_model is Fast CPU in BASE and Slow CPU in NEW" in out
    call("compare", base, new, "--allow_different=cpu_model", code=1)
    call("compare", base, new, "--allow_different=hostname,machine", code=1)


@pytest.mark.parametrize("given", [(), ("--allow_different=hostname",)])
def test_what_is_not_comparable_ends_with_the_command_that_compares_it(
    call, save, base, tmp_path, given
):
    """Lists the differences in the table, Markdown and JSON, and in the command, which works."""
    unlike = {"environment": {"cpu_model": "Slow CPU", "env_MALLOC,ARENA": "1"}}
    flags = {"batch_size": 8, "precision": "bf16"}
    words = ("compare", base, save(tmp_path / "new", 0.9, flags=flags, **unlike), *given)
    out, err = call(*words, "--format=json", code=3)
    document = json.loads(out)
    command = shlex.split(document["next_step"])
    (flag,) = (word for word in command if word.startswith("--allow_different="))
    allowed = flag.partition("=")[2].split(",")
    own = {"precision", "cpu_model", "env_MALLOC?ARENA"}
    assert {*allowed} == own | {name.partition("=")[2] for name in given}
    assert err == f"cnnbench: for a verdict: {document['next_step']}\n"
    advised = re.search(r"--allow_different=(.*)\.", document["advice"])[1].split(",")
    assert {*advised} == own
    assert document["advice"] in " ".join(call(*words, code=3).out.split())
    comment = html.unescape(call(*words, "--format=markdown", code=3).out)
    assert document["next_step"].replace("=json", "=markdown") in comment
    assert json.loads(call(*command[1:], code=1).out)["advice"] == ""


@pytest.mark.parametrize(
    ("pairs", "command"),
    [
        (1, "gate x --allow_different=xla,cpu_model -- --model=lenet"),
        (8, "compare a b --allow_different=cpu_model"),
    ],
)
def test_records_of_an_experiment_that_are_too_few_are_measured_again(lenet_runs, pairs, command):
    runs = lenet_runs()
    sides = [runs.of(*[100.0] * pairs, environment={"cpu_model": name}) for name in ("one", "two")]
    repeat = ("gate", "x", "--allow_different=xla", "--", "--model=lenet")
    settings = SimpleNamespace(repeat=repeat, criteria=Criteria(), smallest_alpha_share=1.0)
    found = comparing_command(compare_records(*sides), settings, ("compare", "a", "b"))
    assert found == f"cnnbench {command}"


def test_where_no_flag_helps_none_is_advised(call, save, base, tmp_path):
    """Runs of two machines within NEW, and different work."""
    mixed = save(tmp_path / "mixed", environment={"cpu_model": "Slow CPU"})
    save(tmp_path / "mixed" / "more")
    work = save(tmp_path / "work", flags={"batch_size": 16}, explicit_flags=("batch_size",))
    for new, code in ((mixed, 3), (work, 1)):
        out, err = call("compare", base, new, "--format=json", code=code)
        assert (json.loads(out)["advice"], "--allow_different" in err) == ("", False)


@pytest.mark.parametrize(
    ("parts", "command"),
    [
        (
            [{"subject": Subject(revision=letter * 40, dirty=False)} for letter in "ab"],
            "cnnbench ab --pairs=N --allow_different=precision "
            f"--a_checkout={'a' * 40} --b_checkout={'b' * 40} -- "
            "--model=lenet --batch_size=8 --precision=fp32",
        ),
        (
            [{}, {"flags": {"batch_size": 8, "precision": "bf16"}}],
            "cnnbench ab --pairs=N --allow_different=precision --a=--precision=fp32 "
            "--b=--precision=bf16 -- --model=lenet "
            "--batch_size=8",
        ),
        (
            [
                {"flags": {"batch_size": 8, "worker_hosts": "localhost:1,localhost:2"}},
                {
                    "flags": {
                        "batch_size": 8,
                        "precision": "bf16",
                        "worker_hosts": "localhost:3,localhost:4",
                    }
                },
            ],
            "cnnbench ab --pairs=N --workers=2 --allow_different=precision --a=--precision=fp32 "
            "--b=--precision=bf16 -- "
            "--model=lenet --batch_size=8",
        ),
        (
            [{"flags": {"batch_size": 8, "worker_hosts": "localhost:1", "ps_hosts": "localhost:2"}}]
            * 2,
            "for i in $(seq N); do cnnbench launch --workers=1 --ps=1 -- --model=lenet ",
        ),
        (
            [{"flags": {"batch_size": 8, "benchmark_log_dir": "d"}}] * 2,
            "for i in $(seq N); do cnnbench --model=lenet --batch_size=8 --precision=fp32 "
            "--result_json={new}/new-$(date +%s)-$i.json; done  # and in turn with these as many",
        ),
    ],
)
def test_what_is_inconclusive_ends_with_the_command_that_would_settle_it(
    call, save, tmp_path, parts, command
):
    names = ("model", "batch_size", "precision", "result_json", "worker_hosts", "job_name")
    names += ("benchmark_log_dir",)
    sides = [
        save(tmp_path / name, factor, explicit_flags=names, **more)
        for name, factor, more in zip(("base", "new"), (1, 0.972), parts, strict=True)
    ]
    json_file = f"--output={tmp_path}/comparison.json"
    out, err = call(
        "compare", *sides, "--allow_different=precision", "--format=json", json_file, code=3
    )
    assert "? inconclusive" in out
    next_step = json.loads((tmp_path / "comparison.json").read_text())["next_step"]
    shown = re.sub(r"(--pairs=|seq )\d+", r"\1N", next_step)
    assert shown.startswith(command.format(new=sides[1]))
    assert err == f"cnnbench: for a verdict: {next_step}\n"


@pytest.mark.parametrize("place", ["{0}", "{0}/{0}1.json", "*/{0}*.json", "{0}/[a-z]*"])
def test_the_command_that_settles_works_and_replaces_no_record(
    call, save, tmp_path, monkeypatch, place
):
    monkeypatch.chdir(tmp_path)
    sides = ("base of it", "new")
    for side, factor in zip(sides, (1, 0.972), strict=True):
        save(tmp_path / side, factor)
    call("compare", *map(place.format, sides), "--format=json", "--output=c.json", code=3)
    command = json.loads(Path("c.json").read_text())["next_step"]
    command = re.sub(r"seq \d+", "seq 2", command)
    first, other = command.split("  # and in turn with these as many of the other side, to ")
    again = re.sub("--result_json=.*; done", lambda _: f"--result_json={other}; done", first)
    # A cnnbench that makes the file, and fails if it is there.
    program = tmp_path / "bin" / "cnnbench"
    program.parent.mkdir()
    program.write_text('#!/bin/sh -eC\nfor word; do :; done\necho {} > "${word#--result_json=}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    before = {*tmp_path.rglob("*.json")}
    subprocess.run(["sh", "-ec", f"{first}\n{again}"], check=True, timeout=60)
    made = {*tmp_path.rglob("*.json")} - before
    assert len(made) == 2 * 2


def test_the_reason_and_the_command_name_one_number(call, save, tmp_path):
    sides = [save(tmp_path / name, factor) for name, factor in (("base", 1), ("new", 0.972))]
    out, err = call("compare", *sides, code=3)
    (number,) = {*re.findall(r"(\d+) more process", " ".join(out.split()))}
    assert re.search(r"seq (\d+)", err)[1] == number


@pytest.mark.parametrize(("number", "factors"), [(7, (1, 0.972)), (3, (1, 1))])
def test_a_new_experiment_has_one_size(call, lenet_runs, saved, tmp_path, number, factors):
    """The pairs of the printed command are those of the reason, the advice and the document."""
    runs, sides = lenet_runs(), []
    for name, factor, precision in zip("ab", factors, ("fp32", "bf16"), strict=True):
        speeds = [
            factor * (100 + 3 * (pair * (2 if name == "a" else 3) % 5)) for pair in range(number)
        ]
        flags = {"model": "lenet", "precision": precision}
        made = runs.of(*speeds, flags=flags, explicit_flags=tuple(flags))
        sides.append(saved(tmp_path / name, made))
    allowed = "--allow_different=precision"
    flags = (allowed, "--alpha=0.05", "--format=json")
    out, err = call("compare", *sides, "--paired", *flags, code=3)
    document = json.loads(out)
    assert "--alpha=0.05" in shlex.split(document["next_step"])
    (result,) = document["configurations"][0]["results"]
    assert result["new_experiment"] is True
    size = str(result["needed"] or result["at_least"])
    assert re.findall(r"--pairs=(\d+)", f"{document['next_step']} {err}") == [size, size]
    told = f"{result['reason']} {document['answer']} {document['advice']}"
    assert {*re.findall(r"new experiment of (?:at least )?(\d+) pairs", told)} == {size}
    assert " more pair" not in told


def test_the_answer_about_runs_that_make_no_pairs_names_none(call, lenet_runs, saved, tmp_path):
    runs, given = lenet_runs(), {"explicit_flags": ("model",), "flags": {"model": "lenet"}}
    sides = [
        saved(tmp_path / name, runs.of(*range(100, 100 + number), **given))
        for name, number in (("base", 8), ("new", 4))
    ]
    document = json.loads(call("compare", *sides, "--paired", "--format=json", code=3).out)
    reason = "8 values in BASE and 4 in NEW make no pairs"
    assert document["answer"].startswith("Undecided: ")
    assert document["answer"].endswith(f": {reason}.")
    assert document["configurations"][0]["results"][0]["reason"] == reason


def test_what_was_interrupted_or_is_on_both_sides_is_measured_again(
    call, save, saved, lenet_runs, tmp_path
):
    given = {"explicit_flags": ("model",)}
    stopped = saved(tmp_path / "new", lenet_runs().of(100.0, status="interrupted", **given))
    save(stopped, **given)
    base = save(tmp_path / "base", **given)
    for new, why in ((stopped, "was interrupted"), (base, "in BASE and in NEW")):
        out, err = call("compare", base, str(new), "--format=json", code=3)
        document = json.loads(out)
        assert why in document["answer"]
        assert document["next_step"].startswith("for i in $(seq ")
        assert err == f"cnnbench: for a verdict: {document['next_step']}\n"


def test_jobs_on_several_machines_have_no_command_that_would_settle_them(call, save, tmp_path):
    hosts = {"flags": {"worker_hosts": "one:1,other:1"}}
    sides = [save(tmp_path / name, factor, **hosts) for name, factor in (("a", 1), ("b", 0.972))]
    out, err = call("compare", *sides, code=3)
    assert ("? inconclusive" in out, err) == (True, "")


def test_what_more_runs_will_not_settle_has_no_next_step(call, save, tmp_path):
    for side in ("base", "new"):
        for number, factor in enumerate((0.5, 1.0, 2.0)):
            save(tmp_path / side / f"{side}{number}", factor)
    sides = [str(tmp_path / side) for side in ("base", "new")]
    out, err = call("compare", *sides, "--format=json", code=3)
    document = json.loads(out)
    assert document["advice"].startswith("More processes will not help: use ")
    assert (document["next_step"], err) == ("", "")


@pytest.mark.parametrize("format", ["table", "json"])
def test_a_format_in_a_file_and_the_table_for_the_reader(call, save, base, tmp_path, format):
    new = save(tmp_path / "new", 0.9)
    printed = call("compare", base, new, f"--format={format}", code=1).out
    file = tmp_path / "report"
    out = call("compare", f"--output={file}", base, f"--format={format}", new, code=1).out
    assert file.read_text() == printed
    assert "- slower" in out


def test_policy_flags(call, save, base, tmp_path):
    new = save(tmp_path / "new", 0.95)
    call("compare", base, new, code=1)
    call("compare", base, new, "--threshold=6")
    call("compare", base, new, "--alpha=0.002", code=3)
    call("compare", base, new, "--paired", code=3)
    document = call("compare", base, new, "--metrics=throughput", "--format=json", code=1).out
    assert json.loads(document)["metrics"] == ["throughput"]


def test_text_of_records_and_names_of_files_stay_within_their_line(call, save, base, tmp_path):
    new = save(tmp_path / "new")
    (tmp_path / "new" / "y\n::stop-commands::t\x1b[31m.json").write_text("{")
    text = (tmp_path / "new" / "new0.json").read_text()
    for name in ("new0.json", "5.json"):
        (tmp_path / "new" / name).write_text(
            text.replace('"new0"', r'"x\n::error file=app.py::pwned\u001b[2J"')
        )
    err = call("compare", base, new, code=3).err
    assert [line.split(": ")[:2] for line in err.splitlines()] == [["cnnbench", "warning"]] * 2
    assert "::error" in err
    assert "::stop-commands" in err
    assert "\x1b" not in err


@pytest.mark.parametrize("stream", ["/dev/full", None])
def test_the_verdict_does_not_depend_on_where_its_text_goes(call, save, base, tmp_path, stream):
    slower = save(tmp_path / "slower", 0.8)
    with open(stream, "w") if stream else contextlib.nullcontext() as out:
        with contextlib.redirect_stdout(out):
            err = call("compare", base, slower, code=1).err
    said = "cnnbench: error: cannot write to standard output: No space left on device\n"
    assert err == (said if stream else "")


@pytest.mark.parametrize("place", slow_if(["-", "pipe"], ["-", "/dev/fd/{}", "pipe"]))
def test_output_may_be_a_stream(save, tmp_path, monkeypatch, place):
    """As in `-o -`, `-o >(cat)` and `-o FIFO`."""
    monkeypatch.chdir(tmp_path)
    sides = save(tmp_path / "base"), save(tmp_path / "new", 0.9)
    reading, writing = os.pipe()
    if place == "pipe":
        os.mkfifo("pipe")
        os.close(reading)
        reading = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    words = ["compare", *sides, "--format=json", f"--output={place.format(writing)}"]
    command = [sys.executable, "-X", "dev", "-m", "cnnbench", *words]
    with subprocess.Popen(
        command,
        stdout=writing if place == "-" else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(writing,),
        text=True,
    ) as process:
        os.close(writing)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, "Warning" in told) == (1, False), told
    with os.fdopen(reading, encoding="utf-8") as file:
        assert json.load(file)["kind"] == "comparison"
    assert {path.name for path in tmp_path.iterdir()} <= {"base", "new", "pipe"}
