"""The pytest plug-in, in sessions of its own.

Tests cnnbench/testing.py.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

# Each session in this process would import them anew, as what it imports is forgotten afterwards,
# and NumPy can be imported only once.
import numpy  # noqa: F401
import pytest
from covering import slow_if

import cnnbench.campaigns.ab.side
import cnnbench.judge.report.renderers
import cnnbench.records.files
import cnnbench.testing  # noqa: F401

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def session(pytester, fake_python, quick_processes, quick_answers, monkeypatch):
    """Runs the source of a test file; PYTHON in it is an interpreter that only pretends."""
    # The same whether cnnbench's entry point is installed or not.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(source, *arguments, own_process=False):
        text = f"PYTHON = {fake_python!r}\n{textwrap.dedent(source)}"
        pytester.makepyfile(text)
        start = pytester.runpytest_subprocess if own_process else pytester.runpytest_inprocess
        # The suite's own process may have imported the plug-in already, of which pytest warns.
        quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
        return start("-p", "cnnbench.pytest_plugin", "-rw", *quiet, *arguments)

    return run


@pytest.mark.slow
def test_a_test_asserts_on_throughput_and_tensorflow_is_not_loaded(session):
    result = session(
        """
        import sys

        def test_fast(cnnbench):
            result = cnnbench("--model=lenet", python=PYTHON, processes=3)
            assert 100 <= result.images_per_sec < 101
            assert result.images_per_sec == result.value("throughput")
            assert len(result.records) == len(result.paths) == 3
            assert result.record.batch.global_ == 8
            assert "tensorflow" not in sys.modules

        def test_too_slow(cnnbench):
            assert cnnbench(python=PYTHON, env={"SPEED": "50"}).images_per_sec > 99
        """,
        own_process=True,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*assert 50.* > 99"])


TERMINAL = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.get_plugin("terminalreporter").isatty = lambda: True
"""


@pytest.mark.parametrize(
    ("terminal", "arguments", "shown"),
    slow_if(
        lambda case: case[1],
        [(True, (), True), (True, ("-v",), True), (True, ("-q",), False), (False, (), False)],
    ),
)
def test_progress_and_the_time_left(session, pytester, terminal, arguments, shown):
    if terminal:
        pytester.makeconftest(TERMINAL)
    result = session(
        """
        def test_fast(cnnbench, capfd):
            cnnbench("--model=lenet", python=PYTHON, processes=3)
            assert capfd.readouterr() == ("", "")
        """,
        *arguments,
    )
    result.assert_outcomes(passed=1)
    text = result.stdout.str()
    if not shown:
        assert "[1/3]" not in text
        return
    assert "\x1b[K[1/3] cnnbench --model=lenet ..." in text
    for number, end in (("1", r" ETA \S+ s"), ("2", r" ETA \S+ s"), ("3", "$")):
        line = rf"\[{number}/3\] cnnbench --model=lenet: ok 100\.\d images/sec \(\S+ s\){end}"
        assert re.search(line, text, re.MULTILINE), text


def test_wrong_use_is_reported_in_one_line(session):
    result = session(
        """
        def test_typo(cnnbench):
            flags = ("--modell=lenet",)
            cnnbench(*flags)

        def test_fact(cnnbench):
            result = cnnbench("--model=lenet", python=PYTHON)
            cnnbench.compare(result, result, allow_different=["cpu_modell"])
        """
    )
    result.assert_outcomes(failed=2)
    lines = [line for line in result.stdout.lines if line.startswith("test_wrong_use_is_reported")]
    first, second = (line for line in lines if ".py:" in line)
    assert first.endswith(".py:5: unknown flag --modell; did you mean --model?")
    assert ".py:9: --allow_different=cpu_modell: " in second
    assert "def test_typo" not in result.stdout.str()


def test_it_costs_nothing_when_unused(session):
    result = session(
        """
        import sys

        def test_modules():
            assert not [m for m in sys.modules if m.startswith("cnnbench.") and m not in
                        ("cnnbench.pytest_plugin", "cnnbench.version")]
            assert not {"tensorflow", "numpy", "absl"} & set(sys.modules)
        """,
        own_process=True,
    )
    result.assert_outcomes(passed=1)


def test_a_process_that_fails_fails_the_test_with_its_last_words(session):
    result = session(
        """
        def test_crash(cnnbench):
            cnnbench("--model=lenet", python=PYTHON, env={"FAKE": '{"die": "no such device"}'})

        def test_without_a_word(cnnbench):
            cnnbench(python=PYTHON, env={"FAKE": '{"fail": ["1-1"], "message": ""}'})
        """
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*cnnbench run --model=lenet: ended with exit code 1; last log line: no such device",
            "*its last lines of output:",
            "*about to measure",
            "*cnnbench run: BenchmarkError",
        ]
    )
    result.stdout.no_fnmatch_line("*testing.py*")


@pytest.mark.parametrize(
    ("ini", "argument", "told"),
    [
        ("[pytest]\ncnnbench_timeout = 1\n", "", "killed after 1 s*about to measure"),
        ("", ", timeout=0.2", "killed after"),
    ],
)
def test_a_process_that_hangs_is_killed(session, pytester, ini, argument, told):
    pytester.makeini(ini)
    result = session(
        f"""
        def test_hang(cnnbench):
            cnnbench(python=PYTHON, env={{"FAKE": '{{"wait": 60}}'}}{argument})
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{told}*"])


def test_a_time_out_that_is_no_number_is_refused(session, pytester):
    pytester.makeini("[pytest]\ncnnbench_timeout = soon\n")
    result = session("def test_it(cnnbench): pass")
    result.stdout.fnmatch_lines(["*cnnbench_timeout = soon: must be a number of seconds*"])


def test_flags_are_checked_before_anything_is_started(session):
    result = session(
        """
        import pytest
        from cnnbench.errors import UsageError

        def test_wrong_flag(cnnbench):
            with pytest.raises(UsageError, match="--model=nosuch: unknown"):
                cnnbench("--model=nosuch")
            with pytest.raises(UsageError, match="--plugin=nosuch.py: cannot be read"):
                cnnbench("--plugin=nosuch.py")
            assert not cnnbench.folder.exists() or not list(cnnbench.folder.iterdir())
        """
    )
    result.assert_outcomes(passed=1)


def test_a_process_does_not_meet_what_another_has_left(session, pytester):
    (pytester.path / "ff").write_text("--train_dir=x\n")
    result = session(
        """
        import pytest
        from cnnbench.errors import FlagError

        @pytest.mark.parametrize("flag", ["--result_csv=x", "--train_dir=x", "--flagfile=ff"])
        def test_of_several(cnnbench, flag):
            with pytest.raises(FlagError, match="=x: each process would"):
                cnnbench(flag, python=PYTHON, processes=2)
            cnnbench(flag, python=PYTHON)

        def test_evaluations_share_it(cnnbench):
            cnnbench("--train_dir=x", "--eval", python=PYTHON, processes=2)

        def test_records(cnnbench):
            with pytest.raises(FlagError, match="--result_json=x: cannot be used with the fixture"):
                cnnbench("--result_json=x", python=PYTHON)

        @pytest.mark.parametrize("processes", [0, -1])
        def test_none(cnnbench, processes):
            with pytest.raises(ValueError, match=f"processes={processes}: must be at least 1"):
                cnnbench(python=PYTHON, processes=processes)
        """
    )
    result.assert_outcomes(passed=7)


_COMPARING = """
    import os

    def test_not_slower(cnnbench):
        result = cnnbench(python=PYTHON, processes={processes}, env={{"SPEED": "{speed}"}})
        cnnbench.compare(result, baseline="baseline.json"{more})
"""


def comparing(speed=100, processes=5, more=""):
    return _COMPARING.format(speed=speed, processes=processes, more=more)


def test_a_baseline_is_written_and_compared_with(session, pytester, holds):
    assert session(comparing(), "--cnnbench-update").ret == 0
    document = json.loads((pytester.path / "baseline.json").read_text())
    holds("baseline", document)
    assert len(document["records"]) == 5
    session(comparing()).assert_outcomes(passed=1)
    session(comparing(speed=120)).assert_outcomes(passed=1)
    result = session(comparing(speed=80))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*20.0 % slower (19.9 to 20.1 %)*", "*- slower*"])
    session(comparing(speed=80, more=", threshold=30")).assert_outcomes(passed=1)
    path = (pytester.path / "baseline.json").rename(pytester.path / "elsewhere.json")
    (pytester.path / "baseline.json").symlink_to(path)
    assert session(comparing(), "--cnnbench-update").ret == 0
    assert (pytester.path / "baseline.json").is_symlink()


def test_what_cannot_be_decided_is_told_as_the_test_asks(session):
    session(comparing(), "--cnnbench-update")
    result = session(
        """
        import pytest

        @pytest.mark.parametrize("undecided", ["warn", "ignore", "skip", "fail"])
        def test_it(cnnbench, undecided):
            result = cnnbench(python=PYTHON, processes=2)
            cnnbench.compare(result, baseline="baseline.json", undecided=undecided)
        """,
        "-v",
    )
    result.assert_outcomes(passed=2, skipped=1, failed=1, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            *("*test_it?warn? PASSED*", "*test_it?ignore? PASSED*"),
            *("*test_it?skip? SKIPPED*", "*test_it?fail? FAILED*"),
            "*CnnbenchWarning: cnnbench: lenet*inconclusive*2 processes*",
        ]
    )


def test_a_baseline_is_looked_at_before_anything_is_measured(session, pytester):
    text = """
        def test_it(cnnbench):
            result = cnnbench(python=PYTHON, processes=5, baseline="baseline.json", env={})
            print("all five ran")
            cnnbench.compare(result)
    """
    result = session(text)
    result.assert_outcomes(failed=1)
    output = result.stdout.str()
    assert re.search(r"baseline baseline\.json cannot be used.*--cnnbench-update", output)
    assert "all five ran" not in output
    # One error, not one within another.
    assert "During handling" not in output
    assert "Traceback" not in output
    session(text, "--cnnbench-update").assert_outcomes(passed=1)
    session(text).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "*baseline.json cannot be used: cut off*"),
        ('{"schema": 2, "kind": "baseline"}', "*reads schema 1, not 2*"),
    ],
)
def test_a_baseline_that_cannot_be_read_fails_the_test(session, pytester, text, message):
    (pytester.path / "baseline.json").write_text(text)
    result = session(comparing())
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


def test_what_cannot_be_compared_is_refused(session):
    result = session(
        """
        import pytest

        def test_facts(cnnbench):
            result = cnnbench(python=PYTHON)
            for fine in (["cpu_model", "gpu_*"], ("machine",)):
                cnnbench.compare(result, result, allow_different=fine, undecided="ignore")

        def test_without_a_baseline(cnnbench):
            with pytest.raises(ValueError, match="needs a baseline"):
                cnnbench.compare(cnnbench(python=PYTHON))
        """
    )
    result.assert_outcomes(passed=2)


def test_two_results_and_folders_of_records_are_compared(session):
    result = session(
        """
        def test_two(cnnbench):
            one = cnnbench(python=PYTHON, processes=4)
            other = cnnbench(python=PYTHON, processes=4, env={"SPEED": "130"})
            assert cnnbench.compare(other, baseline=one).entries[0].main.word == "faster"
            (one.paths[0].parent / "base").mkdir()
            for path in one.paths:
                path.rename(path.parent / "base" / path.name)
            folder = one.paths[0].parent / "base"
            assert cnnbench.compare(other, baseline=folder).entries[0].main.word == "faster"
        """
    )
    result.assert_outcomes(passed=1)


def test_records_are_kept_where_asked(session, pytester):
    session(comparing(), "--cnnbench-update", "--cnnbench-results=kept")
    (folder,) = (pytester.path / "kept").iterdir()
    assert re.search(r"test_not_slower-[0-9a-f]{12}$", folder.name)
    assert sorted(path.name for path in folder.glob("*.json")) == [
        f"1-{n}.json" for n in range(1, 6)
    ]
    assert (folder / "1-1.log").read_text() == "about to measure\n"


def test_results_behind_a_url_are_refused(session, pytester):
    result = session(comparing(), "--cnnbench-results=gs://bucket/kept")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("*--cnnbench-results=gs://bucket/kept: must be a local path *")
    assert [path.name for path in pytester.path.glob("gs*")] == []


def test_tests_with_similar_names_have_folders_of_their_own(session, pytester):
    session(
        f"""
        import pytest

        def note(folder):
            folder.mkdir(parents=True)  # fails where another test has made it

        @pytest.mark.parametrize("name", ["a/b", "a:b", "a+b", "A/b"])
        def test_it(cnnbench, name):
            note(cnnbench.folder)

        def test_one_{"x" * 130}(cnnbench):
            note(cnnbench.folder)

        def test_two_{"x" * 130}(cnnbench):
            note(cnnbench.folder)
        """,
        "--cnnbench-results=kept",
    ).assert_outcomes(passed=6)
    assert len({path.name.lower() for path in (pytester.path / "kept").iterdir()}) == 6


def test_baselines_are_relative_to_the_root_of_the_tests(session, pytester, monkeypatch):
    (pytester.path / "pytest.ini").write_text("[pytest]\n")
    session(comparing(), "--cnnbench-update")
    elsewhere = pytester.mkdir("elsewhere")
    monkeypatch.chdir(elsewhere)
    file = next(pytester.path.glob("test_*.py"))
    session(comparing(), f"--rootdir={pytester.path}", str(file)).assert_outcomes(passed=1)
    assert list(elsewhere.iterdir()) == []


def test_the_entry_point_names_the_plug_in():
    section = '[project.entry-points.pytest11]\ncnnbench = "cnnbench.pytest_plugin"\n'
    assert section in (ROOT / "pyproject.toml").read_text()


def test_a_real_process(session, loaded_processes):
    result = session(
        """
        def test_fast(cnnbench):
            flags = ["--model=trivial", "--data_name=cifar10", "--device=cpu", "--batch_size=2"]
            result = cnnbench(*flags, "--num_batches=3", "--num_warmup_batches=1",
                              "--peak_flops=1e12")
            assert result.images_per_sec > 0.1
            assert len(result.record.step_seconds) == 3
        """
    )
    result.assert_outcomes(passed=1)
