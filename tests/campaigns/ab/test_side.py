"""How a side is started, and what sides are meant to differ in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.campaigns.ab.flags import side_differences
from cnnbench.campaigns.ab.side import Side, measuring
from cnnbench.campaigns.launch.tasks import JobLayout
from cnnbench.campaigns.processes.child import own_checkout

ROOT = Path(__file__).resolve().parents[3]


def launched(side, folder, code="import cnnbench, sys; print(cnnbench.__file__); sys.exit(3)"):
    """What a side's process would import, with its command line cut short by a fake cli."""
    python, flag, launch, root, *_ = side.command(Path("r.json"))
    short = launch.replace("from cnnbench.cli import entry_point; entry_point()", code)
    assert short != launch
    command = [python, flag, short, root]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    return done.stdout.strip()


def test_the_command_of_a_plain_side():
    side = Side(flags=("--model=lenet",))
    command = side.command(Path("/r/1.json"))
    assert command[0] == sys.executable
    assert command[-3:] == ("run", "--model=lenet", "--result_json=/r/1.json")
    assert command[3] == own_checkout()
    assert side.is_this_cnnbench


def test_a_job_is_launched_and_its_chief_writes_the_record(tmp_path):
    side = Side(flags=("--model=lenet",), layout=JobLayout(workers=2, ps=1))
    record = tmp_path / "1.json"
    words = ("launch", "--workers=2", "--ps=1", "--", "--model=lenet", f"--result_json={record}")
    assert side.command(record)[4:] == words
    found = measuring(side, record, tmp_path / "log")
    assert found.words == side.command(record)
    assert found.blank.command == ("cnnbench", *words[:-1])
    assert found.environment == {}


def test_a_launch_of_another_interpreter_looks_for_itself_where_it_is_installed(tmp_path):
    side = Side(layout=JobLayout(workers=2), python="/opt/python", variables={"A": "1"})
    assert side.environment == {"PYTHONSAFEPATH": "1", "A": "1"}
    (tmp_path / "cnnbench").mkdir()
    (tmp_path / "cnnbench" / "__init__.py").touch()
    own = Side(layout=side.layout, python="/opt/python", checkout=tmp_path)
    assert own.environment == {}
    assert Side(python="/opt/python").environment == {}


def test_what_lies_in_the_working_directory_is_not_imported(tmp_path):
    (tmp_path / "cnnbench").mkdir()
    (tmp_path / "cnnbench" / "__init__.py").write_text("raise SystemExit('hostile')")
    assert launched(Side(), tmp_path).startswith(str(ROOT))


def test_a_checkout_of_cnnbench_is_what_runs(tmp_path):
    package = tmp_path / "cnnbench"
    package.mkdir()
    (package / "__init__.py").touch()
    side = Side(checkout=tmp_path)
    assert launched(side, tmp_path) == str(package / "__init__.py")
    assert not side.is_this_cnnbench


def test_another_checkout_keeps_this_cnnbench(tmp_path):
    side = Side(checkout=tmp_path)
    assert launched(side, tmp_path).startswith(str(ROOT))
    assert side.is_this_cnnbench


def test_another_interpreter_brings_its_own():
    side = Side(python="/opt/python")
    assert side.command(Path("r"))[0] == "/opt/python"
    assert side.command(Path("r"))[3] == ""
    assert not side.is_this_cnnbench


def test_descriptions_name_what_is_a_sides_own_without_values_of_variables(tmp_path):
    side = Side(
        flags=("--model=lenet", "--a=b c"),
        own=("--a=b c",),
        python="/opt/python",
        checkout=tmp_path,
        revision="main",
        variables={"TOKEN": "secret"},
    )
    assert side.description() == "'--a=b c', python /opt/python, checkout main, variable TOKEN"
    assert Side(flags=("--model=lenet",)).description() == "nothing of its own"


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
    assert side_differences(Side(flags=tuple(a)), Side(flags=tuple(b))) == names
    assert side_differences(Side(flags=tuple(b)), Side(flags=tuple(a))) == names


def test_flags_in_files_differ_too(tmp_path):
    (tmp_path / "a").write_text("--precision=bf16\n--model=lenet\n")
    (tmp_path / "b").write_text("--model=lenet\n")
    a, b = (Side(flags=(f"--flagfile={name}",), checkout=tmp_path) for name in "ab")
    assert side_differences(a, b) == ("precision",)
    assert side_differences(a, a) == ()


def test_variables_and_interpreters_that_differ():
    a = Side(variables={"OMP_NUM_THREADS": "1", "SAME": "x"})
    b = Side(variables={"OMP_NUM_THREADS": "2", "SAME": "x"}, python="/opt/python")
    assert side_differences(a, b) == ("env_OMP_NUM_THREADS", "tensorflow")
