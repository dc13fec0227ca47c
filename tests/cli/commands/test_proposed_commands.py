"""Command lines that commands propose are parsed, and have the flags of what they continue.

Tests cnnbench/cli/commands/command_lines.py, cnnbench/cli/commands/next_steps.py and
cnnbench/cli/commands/ab_report.py.
"""

from __future__ import annotations

import ast
import html
import importlib
import json
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from other_values import other

from cnnbench.campaigns.ab.sessions import find_experiment
from cnnbench.cli.commands import bisect, sweep, tune
from cnnbench.cli.commands.ab_flags import OF_ONE_EXPERIMENT, SPECS, AbFlags
from cnnbench.cli.commands.command_lines import VARIABLES, command_line_with_flags
from cnnbench.cli.commands.compare import CompareFlags
from cnnbench.cli.commands.judging import JudgingFlags
from cnnbench.flags import ACCEPTED, parse_command, parse_flags, specs_of, split_at_double_dash
from cnnbench.records.subject import Subject

COMMANDS = Path(importlib.import_module("cnnbench.cli.commands").__file__).parent

JUDGING = {
    "threshold": 3.05,
    "alpha": 0.03,
    "metrics": "throughput,step_p50_seconds",
    "allow_different": "cpu_model",
    "allow_changed_work": True,
    "fail_on": ("slower", "faster"),
    "rules": "none",
    "accept": "it is known",
}
"""A value of each flag that says how records are judged, except plug-ins."""

MEASURING = {
    "timeout": 77.0,
    "pairs": 2,
    "sequential": False,
    "burn_in": 0,
    "seconds": 0.5,
    "cool_down": 0.001,
    "pairing": "alternate",
    "explain": "never",
}
"""A value of each flag that says how an experiment is measured."""

NOT_GIVEN = {"plugin", "resume", "workers", "ps", "controller", "towers"}
OF_SIDES = {f"{side}{part}" for side in "ab" for part in ("", "_python", "_checkout", "_env")}


def specs_of_command(command):
    """The flags of a command."""
    module = importlib.import_module(f"cnnbench.cli.commands.{command}")
    return [spec for _, specs in module.HELP[1] for spec in specs]


def parsed(line):
    """The command of a command line, its values, its arguments, and the values behind --."""
    program, command, *words = shlex.split(line)
    assert program == "cnnbench"
    if command.startswith("--"):  # A run.
        return "run", parse_flags([command, *words], ACCEPTED.values()), (), {}
    before, behind = split_at_double_dash(words)
    values, arguments = parse_command(before, specs_of_command(command))
    return command, values, arguments, parse_flags(behind, ACCEPTED.values())


def words(values):
    """Flags as words of a command line."""
    texts = {
        name: ",".join(value) if isinstance(value, tuple) else value
        for name, value in values.items()
    }
    return [f"--{name}={text}" for name, text in texts.items()]


def test_the_tables_have_every_flag():
    """A new flag must be added to one of them, so that no proposed command can lose it."""
    others = {*OF_ONE_EXPERIMENT, *NOT_GIVEN, *OF_SIDES}
    names = {spec.name for spec in SPECS}
    assert {*JUDGING, *MEASURING} == names - others
    judging = {spec.name for spec in specs_of(JudgingFlags)}
    assert {*JUDGING} == judging - {*OF_ONE_EXPERIMENT, "plugin"}
    usual = vars(AbFlags())
    assert not [name for name, value in (JUDGING | MEASURING).items() if usual[name] == value]


@pytest.mark.parametrize("given", [{}, JUDGING, *({name: JUDGING[name]} for name in JUDGING)])
def test_a_new_experiment_is_judged_as_the_records_were(call, save, tmp_path, given):
    """compare proposes ab: with the flags of the records, and with those of compare."""
    names = ("model", "batch_size", "precision")
    more = {"explicit_flags": names, "flags": {"batch_size": 4, "precision": "bf16"}}
    sides = [
        save(
            tmp_path / letter,
            factor,
            subject=Subject(revision=letter * 40, dirty=False),
            **more,
        )
        for letter, factor in (("a", 1.0), ("b", 0.972))
    ]
    out = call("compare", *sides, *words(given), "--format=json", code=None).out
    document = json.loads(out)
    assert document["next_step"], document["answer"]
    command, values, arguments, run = parsed(document["next_step"])
    assert (command, arguments) == ("ab", ())
    assert values.pop("pairs") >= 6
    assert values == {"a_checkout": "a" * 40, "b_checkout": "b" * 40, **given}
    assert run == {"model": "lenet", "batch_size": 4, "precision": "bf16"}


def test_a_plug_in_of_compare_is_one_of_the_new_experiment(call, save, tmp_path):
    plugin = Path(__file__).parents[3] / "docs/examples/metric_plugin.py"
    more = {"explicit_flags": ("model",)}
    sides = [
        save(tmp_path / name, factor, subject=Subject(revision=name * 40, dirty=False), **more)
        for name, factor in (("a", 1.0), ("b", 0.972))
    ]
    out = call("compare", *sides, f"--plugin={plugin}", "--format=json", code=3).out
    _, values, _, _ = parsed(json.loads(out)["next_step"])
    assert values["plugin"] == (str(plugin),)


def test_jobs_and_further_runs_have_the_flags_of_the_records(call, save, tmp_path):
    flags = {"batch_size": 4, "worker_hosts": "localhost:1,localhost:2", "ps_hosts": "localhost:3"}
    more = {"explicit_flags": ("model", "batch_size", "worker_hosts", "ps_hosts"), "flags": flags}
    sides = [save(tmp_path / n, factor, **more) for n, factor in (("a", 1.0), ("b", 0.972))]
    step = json.loads(call("compare", *sides, "--format=json", code=3).out)["next_step"]
    (line,) = re.findall("do (cnnbench launch .*) --result_json=", step)
    command, values, _, run = parsed(line)
    assert (command, values) == ("launch", {"workers": 2, "ps": 1})
    assert run == {"model": "lenet", "batch_size": 4}
    del flags["worker_hosts"], flags["ps_hosts"]
    sides = [save(tmp_path / n / n, factor, **more) for n, factor in (("c", 1.0), ("d", 0.972))]
    step = json.loads(call("compare", *sides, "--format=json", code=3).out)["next_step"]
    (line,) = re.findall("do (cnnbench .*) --result_json=", step)
    assert parsed(line) == ("run", {"model": "lenet", "batch_size": 4}, (), {})


def test_allowing_keeps_the_flags_of_compare(call, save, tmp_path):
    given = {name: JUDGING[name] for name in JUDGING if name != "allow_different"}
    unlike = {"environment": {"cpu_model": "Slow CPU"}}
    sides = [save(tmp_path / "a"), save(tmp_path / "b", 0.9, **unlike)]
    done = call("compare", *sides, *words(given), "--paired", "--format=json", code=3)
    command, values, arguments, _ = parsed(json.loads(done.out)["next_step"])
    own = {"allow_different": "cpu_model", "paired": True, "format": "json"}
    assert (command, values, arguments) == ("compare", {**given, **own}, tuple(sides))


@pytest.mark.parametrize(
    "fail_on", [None, ("slower",), ("slower", "faster", "step"), ("step",), ("never",)]
)
def test_a_report_names_the_comparison_that_gives_its_verdict(call, save, tmp_path, fail_on):
    given = {name: JUDGING[name] for name in ("threshold", "allow_different", "rules")}
    asked = {} if fail_on is None else {"fail_on": fail_on}
    sides = [save(tmp_path / "a"), save(tmp_path / "b", 0.9)]
    page = ("--format=markdown", f"--output={tmp_path}/r.md", *words(given | asked))
    call("report", sides[1], f"--baseline={sides[0]}", *page, code=None)
    (line,) = re.findall("<code>(cnnbench compare .*?)</code>", (tmp_path / "r.md").read_text())
    command, values, arguments, _ = parsed(html.unescape(line))
    assert (command, arguments) == ("compare", tuple(sides))
    if fail_on is not None:
        asked["fail_on"] = tuple(word for word in fail_on if word != "step") or ("never",)
    assert values == {**given, **asked}


@pytest.fixture
def ab(call, fake_python, quick_processes, quick_answers, tmp_path, monkeypatch):
    """ab(FLAG...): an experiment of stand-ins whose speeds scatter. Returns what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    sides = [f"--{side}_python={fake_python}" for side in "ab"]
    for side in "ab":
        say = {"parent": os.getpid(), "salt": side, "scatter": 0.05}
        sides.append(f"--{side}_env=FAKE={json.dumps(say)}")

    def ab(*flags, code=None):
        return call("ab", *sides, "--results=r", "--seed=1", *flags, code=code)

    return ab


RUN = {"model": "lenet", "batch_size": 4}


def given_flags(values):
    """What was given, without the flags of A and B, and without the values of variables."""
    return {name: value for name, value in values.items() if name not in OF_SIDES}


def test_an_experiment_is_repeated_and_judged_again_as_it_was(ab, fake_python):
    given = JUDGING | MEASURING
    done = ab(*words(given), "--format=json", "--", *words(RUN))
    command, values, arguments, run = parsed(json.loads(done.out)["repeat"])
    assert (command, arguments, run) == ("ab", (), RUN)
    pairs = values.pop("pairs")
    assert given_flags(values) == {name: given[name] for name in given if name != "pairs"}
    assert pairs >= given["pairs"]
    assert [values[f"{side}_python"] for side in "ab"] == [fake_python] * 2
    assert [values[name] for name in VARIABLES] == [("FAKE=...",)] * 2
    (line,) = re.findall("to judge the records again: (cnnbench compare .*)", done.err)
    command, values, arguments, _ = parsed(line)
    assert (command, arguments) == ("compare", ("r/a", "r/b"))
    criteria, found = (
        find_experiment(Path("r")).experiment.criteria,
        CompareFlags(**values).criteria(),
    )
    for name in ("policy", "metrics", "allow_changed_work", "fail_on", "rules"):
        assert getattr(found, name) == getattr(criteria, name), name
    assert {*JUDGING["allow_different"].split(",")} <= {*found.allow_different}
    assert values["accept"] == JUDGING["accept"]


def test_a_plug_in_of_ab_is_given_to_judge_again(ab):
    plugin = Path(__file__).parents[3] / "docs/examples/metric_plugin.py"
    done = ab(f"--plugin={plugin}", *words(MEASURING), "--", *words(RUN))
    (line,) = re.findall("to judge the records again: (cnnbench compare .*)", done.err)
    assert parsed(line)[1]["plugin"] == (str(plugin),)


def test_an_experiment_goes_on_with_its_flags_and_with_those_of_its_last_session(ab, call):
    given = {**MEASURING, "threshold": 2.0, "alpha": 0.03, "metrics": "throughput", "pairs": 6}
    del given["sequential"]
    done = ab(*words(given), "--", *words(RUN), code=3)
    (line,) = re.findall("for a verdict.*: (cnnbench ab .*)", done.err)
    command, values, arguments, run = parsed(line)
    assert values.pop("pairs") > given["pairs"]
    assert [values.pop(name) for name in VARIABLES] == [("FAKE=...",)] * 2
    assert (command, arguments, run) == ("ab", (), {})
    assert values == {"resume": True, "results": "r"}  # All others are stored in the folder.
    stored = find_experiment(Path("r")).experiment
    assert given_flags(stored.values_given) == {**given, "results": "r", "seed": 1}
    assert parse_flags(stored.common, ACCEPTED.values()) == RUN
    # Flags that a later session may change are not stored.
    session = {"fail_on": ("slower", "faster"), "accept": "known", "explain": "auto"}
    fakes = [f"--{name}=FAKE={{}}" for name in VARIABLES]
    done = call("ab", "--resume", "--results=r", "--pairs=6", *fakes, *words(session), code=3)
    (line,) = re.findall("for a verdict.*: (cnnbench ab .*)", done.err)
    assert given_flags(parsed(line)[1]) == {**values, **session, "pairs": parsed(line)[1]["pairs"]}


def test_a_gate_is_repeated_with_its_flags(
    call, git, tmp_path, monkeypatch, quick_processes, quick_answers
):
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "r")
    commits = []
    for text in ("1", "2"):
        (tmp_path / "r" / "file.py").write_text(text)
        git(tmp_path / "r", "add", ".")
        git(tmp_path / "r", "commit", "--quiet", "-m", text)
        commits.append(git(tmp_path / "r", "rev-parse", "HEAD")[:12])
    monkeypatch.chdir(tmp_path / "r")
    repeats = []
    monkeypatch.setattr(
        "cnnbench.cli.commands.ab_session.run_experiment",
        lambda values, common, repeat: repeats.append((values, common, repeat)) or 0,
    )
    given = {**JUDGING, **MEASURING, "always_measure": True}
    call("gate", "main~1", *words(given), f"--results={tmp_path}/out", "--", *words(RUN))
    ((values, common, repeat),) = repeats
    command, own, arguments, run = parsed(shlex.join(["cnnbench", *repeat]))
    assert (command, own, arguments, run) == ("gate", given, tuple(commits), RUN)
    assert parse_flags(common, ACCEPTED.values()) == RUN
    names = {*given} - {"always_measure"}
    assert {name: values[name] for name in names} == {name: given[name] for name in names}


def every_flag(command):
    """A value of every flag of a command other than its default, and the words that give them."""
    values = {}
    for spec in specs_of_command(command):
        value = other(spec) if spec.below is None else spec.below / 2
        if value is not False and spec.name not in ACCEPTED:
            values[spec.name] = ("x=1",) if spec.name in VARIABLES else spec.parse(spec.text(value))
    return values


@pytest.mark.parametrize("command", ["ab", "bisect", "gate", "sweep", "tune", "compare"])
def test_going_on_keeps_every_flag(command):
    """All campaigns print this command line if they are interrupted."""
    specs, values = specs_of_command(command), every_flag(command)
    given = [
        f"--{spec.name}={spec.text(values[spec.name])}" for spec in specs if spec.name in values
    ]
    assert len(given) > 5
    arguments = ["one", "two"] if command in ("bisect", "gate", "compare") else []
    behind = [] if command == "compare" else ["--", *words(RUN)]
    line = command_line_with_flags(command, [*arguments, *given, *behind], specs, results="r")
    program, name, *rest = shlex.split(line)
    before, after = split_at_double_dash(rest)
    found, there = parse_command(before, specs) if "results" in values else (None, None)
    assert (program, name) == ("cnnbench", command)
    if found is None:  # A command without this flag.
        assert rest == [*arguments, *given, "--results=r"]
        return
    masked = {name: ("x=...",) for name in VARIABLES if name in values}
    assert found == {**values, **masked, "results": "r"}
    assert (list(there), list(after)) == (arguments, behind[1:])


def test_a_bisection_is_repeated_with_more_pairs(monkeypatch):
    given = every_flag("bisect")
    monkeypatch.setattr(bisect, "pairs_for_answers", lambda steps: 99)
    argv = ["good", "bad", *words(given), "--", *words(RUN)]
    step = SimpleNamespace(is_undecided=True, lost=False)
    (line,) = bisect._next_step_lines(SimpleNamespace(unanswered_steps=[step]), "folder", argv)
    command, values, arguments, run = parsed(line.removeprefix("for a verdict: "))
    del given["resume"]
    assert values == {**given, "pairs": 99, "results": "folder-99"}
    assert (command, arguments, run) == ("bisect", ("good", "bad"), RUN)
    step = SimpleNamespace(is_undecided=False, lost=True)
    (line,) = bisect._next_step_lines(SimpleNamespace(unanswered_steps=[step]), "folder", argv)
    command, values, arguments, run = parsed(line.removeprefix("to go on: "))
    assert (values, arguments, run) == ({**given, "resume": True}, ("good", "bad"), RUN)


def test_a_longer_search_has_the_flags_of_the_search():
    given = every_flag("tune")
    specs = (*tune._OWN, *ACCEPTED.values())
    line = tune._longer_search([*words(given), "--", *words(RUN)], specs, 90)
    command, values, arguments, run = parsed(line)
    del given["results"], given["resume"]
    assert (command, values, arguments, run) == ("tune", {**given, "minutes": 90}, (), RUN)


def test_a_suite_for_gpus_is_scaled_with_its_flags(monkeypatch):
    flags = {"device": SimpleNamespace(text="cpu"), "batch_size": SimpleNamespace(text="2")}
    suite = SimpleNamespace(on_cpu=SimpleNamespace(filter="lenet", flags=flags))
    monkeypatch.setattr(sweep, "count_gpus", lambda host: 0)
    given = {name: value for name, value in every_flag("sweep").items() if name != "filter"}
    options = SimpleNamespace(filter=None)
    line = sweep._cpu_command(suite, ["one", *words(given)], options, {"batch_size": "4"})
    command, values, arguments, run = parsed(line)
    assert (command, arguments) == ("sweep", ("one",))
    assert values == {**given, "filter": "lenet"}
    assert run == {"device": "cpu", "batch_size": 4}


MAKERS = {"flag_words", "command_line_with_flags", "printing_resume_command", "replace_flags"}
WORDS = "words that begin with cnnbench"
PROPOSING = {
    "ab": {"flag_words"},
    "ab_report": {"command_line_with_flags", "flag_words", WORDS},
    "allreduce": {WORDS},  # those of the record
    "bisect": {"command_line_with_flags", "printing_resume_command", "replace_flags"},
    "command_lines": {"command_line_with_flags", "replace_flags", WORDS},
    "compare": {"flag_words", WORDS},
    "explain": {"command_line_with_flags"},
    "gate": {"flag_words", "replace_flags"},
    "next_steps": {"command_line_with_flags", WORDS},
    "report": {WORDS},
    "roofline": {WORDS},  # those of the record
    "sweep": {"command_line_with_flags", "printing_resume_command", WORDS},
    "tune": {"printing_resume_command", "replace_flags", WORDS},
}
"""Modules of commands that make command lines, and what they make them with. Before you add one,
add a test of its command line to this file."""


def test_every_module_that_proposes_commands_is_tested_here():
    found = {}
    for path in COMMANDS.glob("*.py"):
        made = set()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in MAKERS:
                    made.add(name)
                case ast.List(elts=[ast.Constant(value="cnnbench"), *_]):
                    made.add(WORDS)
                case ast.Tuple(elts=[ast.Constant(value="cnnbench"), *_]):
                    made.add(WORDS)
        if made:
            found[path.stem] = made
    assert found == PROPOSING
