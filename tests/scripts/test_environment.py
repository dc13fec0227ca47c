"""scripts/run and scripts/test: choosing a Python, recognising a finished environment, repair."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import make_environment
import pytest
from forked import finished

ROOT = Path(__file__).resolve().parents[2]


EnvironmentChange, State = make_environment.EnvironmentChange, make_environment.State
WANTED = State("ready", "1 2", "3.11", "/checkout", ("test",))


def _state(**changes) -> State:
    return WANTED._replace(**changes)


@pytest.mark.parametrize(
    ("exists", "state", "works", "expected"),
    [
        (False, None, False, EnvironmentChange.REBUILD),
        (True, WANTED, True, EnvironmentChange.NOTHING),
        (True, _state(extras=("and-cuda", "test")), True, EnvironmentChange.NOTHING),
        (True, _state(extras=()), True, EnvironmentChange.INSTALL),
        (True, _state(key="3 4"), True, EnvironmentChange.INSTALL),
        (True, _state(status="building"), True, EnvironmentChange.REBUILD),
        (True, _state(root="/elsewhere"), True, EnvironmentChange.REBUILD),
        (True, _state(version="3.10"), True, EnvironmentChange.REBUILD),
        (True, WANTED, False, EnvironmentChange.REBUILD),
        (True, None, True, EnvironmentChange.INSTALL),
        (True, None, False, EnvironmentChange.REFUSE),
    ],
)
def test_plan(exists, state, works, expected):
    assert make_environment.needed_change(exists, state, works, WANTED) is expected


def test_state_survives_the_file_and_a_cut_file_is_no_state(tmp_path):
    make_environment.write_state(tmp_path, WANTED)
    assert make_environment.read_state(tmp_path) == WANTED
    path = tmp_path / make_environment.STATE_FILE
    path.write_text(path.read_text()[:20])
    assert make_environment.read_state(tmp_path) is None
    assert make_environment.read_state(tmp_path / "missing") is None


def test_lock_excludes_a_second_holder_until_the_first_lets_go(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
        "import pathlib, make_environment\n"
        "with make_environment.locked(pathlib.Path(sys.argv[1]), 'waiting'):\n"
        "    print('in', flush=True)\n"
    )
    lock = tmp_path / "lock"
    with make_environment.locked(lock, ""):
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(lock)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stderr.readline() == "waiting\n"
        assert child.poll() is None
    out, _ = child.communicate(timeout=60)
    assert out == "in\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the real scripts, whose .venv is said to be finished."""
    root = (tmp_path / "check out").resolve()
    (root / "cnnbench").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "cnnbench/version.py"):
        (root / name).write_text(f"# {name}\n")
    shutil.copytree(ROOT / "scripts", root / "scripts", symlinks=True)
    bin_folder = root / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    for name in ("cnnbench", "pytest"):
        _executable(bin_folder / name, f'echo {name} "$(pwd)"; for a; do echo "<$a>"; done; exit 7')
    _finish(root, "")
    return root


def _executable(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _finish(root: Path, extras: str) -> None:
    names = ("setup.py", "pyproject.toml", "cnnbench/version.py")
    data = b"".join((root / name).read_bytes() for name in names)
    key = subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout.decode()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    state = State("ready", key.strip(), version, str(root), tuple(extras.split()))
    make_environment.write_state(root / ".venv", state)


def _script(root: Path, name: str, *args: str, cwd: Path | None = None, **env: str):
    left_out = {key: None for key in os.environ if key == "PYTHON" or "CNNBENCH" in key}
    words = (root / "scripts" / name, *args)
    return finished(words, None, cwd=cwd or root.parent, environment={**left_out, **env})


def test_finished_environment_runs_at_once_from_any_folder(checkout, tmp_path):
    done = _script(checkout, "run", "--model=a b", "", cwd=tmp_path)
    assert done.stdout == f"cnnbench {tmp_path}\n<--model=a b>\n<>\n"
    assert done.stderr == ""
    assert done.returncode == 7


def test_test_script_wants_the_extra_and_runs_in_the_checkout(checkout, tmp_path):
    _finish(checkout, "test")
    done = _script(checkout, "test", "-k", "x", cwd=tmp_path)
    assert done.stdout == f"pytest {checkout}\n<-k>\n<x>\n"
    named = _script(checkout, "test", "tests/judge")
    assert named.stdout == f"pytest {checkout}\n<tests/judge>\n"


def test_the_test_script_has_two_tiers(checkout, tmp_path):
    _finish(checkout, "test")
    processes = f"pytest {checkout}\n<-n>\n<3>\n<--dist>\n<worksteal>\n"
    everyday = _script(checkout, "test", cwd=tmp_path)
    assert everyday.stdout == f"{processes}<-m>\n<not slow>\n"
    assert _script(checkout, "test", "--all", cwd=tmp_path).stdout == processes
    more = _script(checkout, "test", "--all", "-k", "a b")
    assert more.stdout == f"{processes}<-k>\n<a b>\n"


@pytest.mark.parametrize(("name", "extras"), [("fuzz", ""), ("typecheck", "test")])
def test_a_python_program_runs_by_its_name(checkout, name, extras):
    (checkout / "scripts" / f"{name}.py").write_text("import sys\nprint(sys.argv)\nsys.exit(3)\n")
    _finish(checkout, extras)
    done = _script(checkout, name, "a b")
    assert done.stdout == f"{[f'{checkout}/scripts/{name}.py', 'a b']}\n"
    assert (done.returncode, done.stderr) == (3, "")


RANGE = "cnnbench needs 3.10 to 3.13"
ANOTHER = "3.11" if sys.version_info[:2] == (3, 12) else "3.12"
"""A version that can be used and is not that of the environment."""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 3.9", f"PYTHON={{}} is Python 3.9; {RANGE}"),
        ("echo 3.14", f"PYTHON={{}} is Python 3.14; {RANGE}"),
        (
            f"case $2 in *ensurepip*) exit 1;; esac; echo {ANOTHER}",
            "PYTHON={} has no venv module (on Debian and Ubuntu: "
            f"apt install python{ANOTHER}-venv)",
        ),
        ("exit 1", "PYTHON={} does not run; give a Python from 3.10 to 3.13"),
    ],
)
def test_a_python_that_cannot_be_used_is_refused_in_one_line(checkout, tmp_path, body, reason):
    given = tmp_path / "the python"
    _executable(given, body)
    done = _script(checkout, "run", PYTHON=str(given))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"scripts/run: {reason.format(given)}\n"


def _tools(folder: Path) -> str:
    """A PATH with the standard tools that the scripts use, and no Python."""
    folder.mkdir()
    for tool in ("sh", "cat", "cksum", "dirname"):
        (folder / tool).symlink_to(shutil.which(tool))
    return str(folder)


def test_another_python_is_picked_when_python3_is_too_new(checkout, tmp_path):
    shutil.rmtree(checkout / ".venv")
    path = _tools(tmp_path / "bin")
    _executable(tmp_path / "bin" / "python3", "echo 3.14")
    fitting = (
        'case $2 in *version*) echo 3.12; exit;; import*) exit;; esac; echo "made: $*"; exit 3'
    )
    _executable(tmp_path / "bin" / "python3.12", fitting)
    done = _script(checkout, "test", PATH=path)
    assert done.returncode == 3
    assert done.stdout == ""
    assert f"made: {checkout}/scripts/make_environment.py --root {checkout} --key" in done.stderr
    assert done.stderr.rstrip().endswith("test")


def test_changed_requirements_and_a_moved_checkout_are_noticed(checkout, tmp_path):
    path = _tools(tmp_path / "bin")
    reason = "needs Python 3.10 to 3.13; found no Python;"
    (checkout / "setup.py").write_text("# more\n")
    done = _script(checkout, "run", PATH=path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert reason in done.stderr
    _finish(checkout, "")
    assert _script(checkout, "run", PATH=path).returncode == 7
    moved = checkout.rename(tmp_path / "moved")
    assert reason in _script(moved, "run", PATH=path).stderr
    shutil.rmtree(moved / ".venv")
    assert reason in _script(moved, "run", PATH=path).stderr


def test_given_environment_is_used_as_it_is(checkout, tmp_path):
    given = tmp_path / "given" / "bin"
    given.mkdir(parents=True)
    (given / "python").symlink_to(sys.executable)
    _executable(given / "cnnbench", "echo given")
    assert _script(checkout, "run", CNNBENCH_VENV=str(given.parent)).stdout == "given\n"
    wrong = _script(checkout, "run", CNNBENCH_VENV=str(tmp_path))
    assert wrong.returncode == 2
    assert wrong.stderr == f"scripts/run: CNNBENCH_VENV={tmp_path} has no bin/python\n"


PYTEST = r"""
printf '%s\n' "$*" >> calls
case $* in
  *--shuffle=*)
    mkdir -p .pytest_cache/v/cache
    echo '{"tests/a.py::x": true, "tests/a.py::y[1]": true, "tests/b.py::z": true}' > \
      .pytest_cache/v/cache/lastfailed
    exit "$STATUS" ;;
  *a.py) exit 0 ;;
esac
exit 1
"""


@pytest.fixture
def shuffled(checkout):
    """Runs the suite in shuffled order; its status, its output and pytest's arguments."""
    _executable(checkout / ".venv" / "bin" / "pytest", PYTEST)
    _finish(checkout, "test")

    def run(status, **given):
        done = _script(checkout, "shuffled_test", "--maxfail=9", STATUS=status, **given)
        calls = (checkout / "calls").read_text().splitlines()
        return done.returncode, done.stdout.splitlines(), calls

    return run


WHOLE = "-n 3 --dist worksteal --cache-clear --shuffle={} --maxfail=9"


def test_failures_in_a_shuffled_order_are_told_from_broken_tests_and_never_pass(shuffled):
    lines = [
        "order of the tests: SHUFFLE=17",
        "tests/a.py: order: it passes by itself (SHUFFLE=17)",
        "tests/b.py: broken: it fails by itself, too (SHUFFLE=17)",
    ]
    calls = [WHOLE.format(17), "-q tests/a.py", "-q tests/b.py"]
    assert shuffled("1", SHUFFLE="17") == (1, lines, calls)


@pytest.mark.parametrize("status", ["0", "2"])
def test_a_shuffled_suite_without_a_failed_test_is_not_repeated(shuffled, status):
    found, (line,), calls = shuffled(status)
    seed = re.fullmatch(r"order of the tests: SHUFFLE=(\d+)", line)[1]
    assert (found, calls) == (int(status), [WHOLE.format(seed)])


def test_python_programs_start_by_one_script():
    folder = ROOT / "scripts"
    starts = {one.stem: one.with_suffix("") for one in folder.glob("*.py")}
    linked = {name for name, path in starts.items() if path.is_symlink()}
    assert {os.readlink(starts[name]) for name in linked} == {"script.sh"}
    # This one chooses a Python and makes its own environments.
    assert {name for name, path in starts.items() if path.exists()} - linked == {"check_install"}


def test_range_of_the_scripts_is_the_range_of_the_package():
    text = (ROOT / "scripts" / "environment.sh").read_text()
    oldest, newest = (
        int(re.search(rf"^{n}=(\d+)", text, re.MULTILINE)[1]) for n in ("OLDEST", "NEWEST")
    )
    range_of_package = f'requires-python = ">=3.{oldest},<3.{newest + 1}"'
    assert range_of_package in (ROOT / "pyproject.toml").read_text()
