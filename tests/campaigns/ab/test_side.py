"""How a side is started, and what sides are meant to differ in."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from forked import finished, gone, wait_for

from cnnbench.campaigns.ab.asking import identity_of, run_code
from cnnbench.campaigns.ab.experiment import names_that_may_differ
from cnnbench.campaigns.ab.side import AbSide, benchmark_command
from cnnbench.campaigns.launch import JobLayout
from cnnbench.campaigns.processes.program import COMMAND_LINE, own_checkout

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path):
    """A folder with a cnnbench of its own, which cannot be imported."""
    (tmp_path / "cnnbench").mkdir()
    (tmp_path / "cnnbench" / "__init__.py").write_text("raise SystemExit('hostile')")
    return tmp_path


OTHER = {"python": "/opt/python"}
JOB = {"layout": JobLayout(workers=2)}
VARIABLES = {"variables": {"A": "1"}}


@pytest.mark.parametrize(
    ("parts", "of_checkout", "root", "environment"),
    [
        ({}, False, own_checkout(), {}),
        (OTHER, False, "", {}),
        ({}, True, None, {}),
        ({**OTHER, **JOB}, True, None, {}),
        # The launch of another interpreter looks for itself where it is installed.
        ({**OTHER, **JOB, **VARIABLES}, False, "", {"PYTHONSAFEPATH": "1", "A": "1"}),
    ],
)
def test_how_a_side_is_started(checkout, parts, of_checkout, root, environment):
    side = AbSide(flags=("--model=lenet",), checkout=checkout if of_checkout else None, **parts)
    python, _, _, where, *words = side.command(Path("/r/1.json"))
    assert python == parts.get("python", sys.executable)
    assert where == (str(checkout) if root is None else root)
    job = ["launch", "--workers=2", "--"] if "layout" in parts else ["run"]
    assert words == [*job, "--model=lenet", "--result_json=/r/1.json"]
    assert side.extra_environment == environment
    assert side.is_this_cnnbench == (parts == {} and not of_checkout)


def test_the_chief_of_a_job_writes_the_record(tmp_path):
    side = AbSide(flags=("--model=lenet",), layout=JobLayout(workers=2, ps=1))
    found = benchmark_command(side, tmp_path / "1.json", tmp_path / "log")
    assert found.words == side.command(tmp_path / "1.json")
    words = ("launch", "--workers=2", "--ps=1", "--", "--model=lenet")
    assert found.blank.command == ("cnnbench", *words)


@pytest.mark.parametrize("of_checkout", [False, True])
def test_what_lies_in_the_working_directory_is_imported_from_a_checkout_only(checkout, of_checkout):
    side = AbSide(checkout=checkout if of_checkout else None)
    python, flag, launch, root, *_ = side.command(Path("r.json"))
    short = launch.replace(COMMAND_LINE, "import cnnbench; print(cnnbench.__file__)")
    assert short != launch
    done = finished([python, flag, short, root], None, cwd=checkout)
    own = str(ROOT / "cnnbench" / "__init__.py\n")
    assert (done.stdout, done.stderr) == (("", "hostile\n") if of_checkout else (own, ""))


def test_another_checkout_keeps_this_cnnbench(tmp_path):
    side = AbSide(checkout=tmp_path)
    assert side.command(Path("r"))[3] == own_checkout()
    assert side.is_this_cnnbench


def test_descriptions_name_what_is_a_sides_own_without_values_of_variables(tmp_path):
    side = AbSide(
        flags=("--model=lenet", "--a=b c"),
        own=("--a=b c",),
        python="/opt/python",
        checkout=tmp_path,
        revision="main",
        variables={"TOKEN": "secret"},
    )
    assert side.description() == "'--a=b c', python /opt/python, checkout main, variable TOKEN"
    assert AbSide(flags=("--model=lenet",)).description() == "no flags of its own"


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        (["--precision=fp32"], ["--precision=bf16"], ("precision",)),
        (["--precision=fp32"], [], ("precision",)),
        (["-precision", "fp32"], ["--precision=fp32"], ()),
        (["--model=lenet", "--xla"], ["--model=lenet", "--noxla"], ("xla",)),
        (["--xla"], ["--xla=true"], ()),
        (["--xla", "--model=lenet"], ["--model=lenet"], ("xla",)),
        (["--num_gpus=1", "--num_gpus=2"], ["--num_gpus=2"], ()),
        (["--flag_of_another_version=1"], [], ("flag_of_another_version",)),
        ([], [], ()),
    ],
)
def test_flags_that_differ(a, b, names):
    assert names_that_may_differ(AbSide(flags=tuple(a)), AbSide(flags=tuple(b))) == names
    assert names_that_may_differ(AbSide(flags=tuple(b)), AbSide(flags=tuple(a))) == names


def test_flags_in_files_differ_too(tmp_path):
    (tmp_path / "a").write_text("--precision=bf16\n--model=lenet\n")
    (tmp_path / "b").write_text("--model=lenet\n")
    a, b = (AbSide(flags=(f"--flagfile={name}",), checkout=tmp_path) for name in "ab")
    assert names_that_may_differ(a, b) == ("precision",)
    assert names_that_may_differ(a, a) == ()


def test_variables_and_interpreters_that_differ():
    a = AbSide(variables={"OMP_NUM_THREADS": "1", "SAME": "x"})
    b = AbSide(variables={"OMP_NUM_THREADS": "2", "SAME": "x"}, **OTHER)
    assert names_that_may_differ(a, b) == ("env_OMP_NUM_THREADS", "tensorflow")


def test_code_of_a_side_ends_with_the_process_that_runs_it(tmp_path):
    pid = tmp_path / "pid"
    asked = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"""
        from cnnbench.campaigns.ab.asking import run_code
        from cnnbench.campaigns.ab.side import AbSide
        run_code(AbSide(), {asked!r}, use_own_cnnbench=True, timeout=600)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    asked_pid = int(wait_for(pid))
    parent.kill()
    parent.wait()
    assert gone(asked_pid)


@pytest.mark.parametrize(
    ("code", "status", "output"),
    [("import sys; print(sys.argv[1:]); sys.exit(3)", 3, b"['x']\n"), ("print()", 0, b"\n")],
)
def test_the_output_of_code_of_a_side(code, status, output):
    done = run_code(AbSide(), code, "x", use_own_cnnbench=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, output)


def test_code_of_a_side_that_does_not_run(tmp_path):
    with pytest.raises(subprocess.TimeoutExpired):
        run_code(AbSide(), "import time; time.sleep(600)", use_own_cnnbench=True, timeout=0.5)
    side = AbSide(python=str(tmp_path / "none"))
    with pytest.raises(OSError, match="No such file"):
        run_code(side, "", use_own_cnnbench=False, timeout=60)


def test_another_interpreter_is_identified_by_its_packages():
    other = identity_of(AbSide(python=sys.executable))
    assert "numpy_version" in str(other)
    assert "numpy_version" not in str(identity_of(AbSide()))
