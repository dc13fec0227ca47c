"""Checks that a fresh clone can be installed and can train, as a release and as editable.

Each way of installing gets a separate copy of the checkout and a separate environment. For a
release, the source distribution is built, and the wheel is built from it; twine checks the metadata
of both. Then the copy is deleted, so that nothing can depend on it. The wheel and the source
distribution are installed and tested one after the other. Three commands run in a folder whose
``models/`` and ``variable_mgr/`` must not be imported: a training, and a report and a page of the
documentation, which need files that are not Python.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from peers.process import run

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("release", "editable")
TRAINING = (
    "--model=trivial",
    "--device=cpu",
    "--num_gpus=2",
    "--variable_update=replicated",
    "--batch_size=2",
    "--num_warmup_batches=1",
    "--num_batches=3",
)
HELP = """Prints one line per way: on standard output if it works, else on standard error, with the
reason. Needs a package index, and takes some minutes and 3 GB below TMPDIR per way, one way
at a time; everything is removed again, also on Ctrl-C and SIGTERM. PYTHON=python3.12 names the
interpreter. Exit status: 0 if every way works, 1 if one does not, 2 for wrong use,
130 if interrupted. The last stage of .ci/run."""


class Failure(Exception):
    """One way to install cnnbench failed. The message is one line."""


def execute(
    what: str,
    command: Sequence[str],
    timeout: float,
    folder: Path,
    environment: dict[str, str] | None = None,
) -> str:
    """Runs a command that must succeed; returns its standard output.

    Raises:
      Failure: It does not succeed, or takes longer than ``timeout`` seconds; then it and its
        descendants are killed.
    """
    # Variables of Python and of this checkout are not passed on.
    variables = {"PYTHONPATH": "", "PYTHONHOME": "", **(environment or {})}
    done = run(command, timeout=timeout, environment=variables, folder=str(folder))
    if done.status != 0 or done.timed_out:
        raise Failure(f"{what}: {done.reason}")
    return "\n".join(line.text for line in done.lines)


def copy_checkout(target: Path, timeout: float) -> None:
    """Copies the files that a clone would have after the next commit."""
    options = ("-z", "--cached", "--others", "--exclude-standard")
    listed = execute("git", ["git", "ls-files", *options], timeout, ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def make_raising_packages(folder: Path) -> None:
    """Creates packages in a folder that raise an error when they are imported."""
    for name in ("models", "variable_mgr"):
        (folder / name).mkdir(parents=True)
        code = f"raise RuntimeError('the wrong {name} was imported')\n"
        (folder / name / "__init__.py").write_text(code, encoding="utf-8")


def install(folder: Path, packages: Sequence[str], timeout: float) -> str:
    """Installs packages into an environment, created if missing; returns its interpreter."""
    python = str(folder / "bin" / "python")
    words = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-input"]
    if folder.exists():
        words += ["--force-reinstall", "--no-deps"]
    else:
        make = [sys.executable, "-m", "venv", "--symlinks", str(folder)]
        execute("venv", make, timeout, folder.parent)
    execute("pip", [python, *words, *packages], timeout, folder.parent)
    return python


def build(checkout: Path, scratch: Path, timeout: float) -> list[Path]:
    """Builds and checks both distributions; returns the wheel and the source distribution.

    Raises:
      Failure: One cannot be built, or its metadata is refused.
    """
    python = install(scratch / "tools", ["build", "twine"], timeout)
    dist = scratch / "dist"
    execute(
        "build", [python, "-m", "build", "--outdir", str(dist), str(checkout)], timeout, scratch
    )
    made = sorted(dist.iterdir())
    if [one.name.partition("-")[0] for one in made] != ["cnnbench", "cnnbench"]:
        raise Failure(f"build: made {', '.join(one.name for one in made) or 'nothing'}")
    check = [python, "-m", "twine", "check", "--strict", *map(str, made)]
    execute("twine", check, timeout, scratch)
    return made


def check_way_to_install(way: str, scratch: Path, timeout: float) -> None:
    """Installs cnnbench in one way, trains and writes a report.

    Raises:
      Failure: The installation or a command fails.
    """
    checkout, environment, work = scratch / "checkout", scratch / "venv", scratch / "work"
    copy_checkout(checkout, timeout)
    make_raising_packages(work)
    sources = [["--editable", str(checkout)]]
    if way == "release":
        sources = [[str(made)] for made in build(checkout, scratch, timeout)]
        shutil.rmtree(checkout)
    for number, source in enumerate(sources):
        install(environment, source, timeout)
        run_commands(str(environment / "bin" / "cnnbench"), work / f"{number}.json", timeout)


def run_commands(cnnbench: str, record: Path, timeout: float) -> None:
    """Trains, writes a report and prints a page with the installed command.

    Raises:
      Failure: A command or the record of the training is wrong.
    """
    work, page = record.parent, record.with_suffix(".html")
    variables = {"PYTHONPATH": str(work), "TF_CPP_MIN_LOG_LEVEL": "2"}
    training = [cnnbench, *TRAINING, f"--result_json={record}"]
    report = [cnnbench, "report", str(record), f"--output={page}"]
    for command in (training, report, [cnnbench, "docs", "tutorial"]):
        execute("cnnbench", command, timeout, work, variables)
    check_record(record)


def check_record(path: Path) -> None:
    """Raises Failure unless the file is the record of a successful run of three steps."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        sound = result["status"] == "ok" and len(result["step_seconds"]) == 3
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"cnnbench: its record cannot be used: {error!r}") from error
    if not sound:
        raise Failure("cnnbench: its record does not contain three good steps")


def main(argv: Sequence[str] | None = None) -> int:
    """Checks all ways to install; returns the exit status."""
    description = "Proves that a fresh clone installs and trains, as a release and editable."
    parser = argparse.ArgumentParser(description=description, epilog=HELP, allow_abbrev=False)
    add = parser.add_argument
    add("--way", choices=WAYS, action="append", help="only this way (default: both)")
    help_text = "for each of the commands git, venv, pip and cnnbench [1800]"
    add("--timeout", type=float, default=1800, metavar="SECONDS", help=help_text)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = 0
    try:
        for way in args.way or WAYS:
            status = max(status, report(way, args.timeout))
    except KeyboardInterrupt:
        print("check_install: interrupted", file=sys.stderr)
        return 130
    return status


def report(way: str, timeout: float) -> int:
    """Checks one way to install in a temporary folder; prints the result as one line.

    Returns:
      0 if it works, else 1.
    """
    start = time.monotonic()
    prefix = f"cnnbench-{way}-"
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch:
            check_way_to_install(way, Path(scratch).resolve(), timeout)
    except Failure as failure:
        problem = str(failure)
    except OSError as error:
        problem = f"{error.filename or tempfile.gettempdir()}: {error.strerror}"
    else:
        print(f"{way}: installed and trained in {time.monotonic() - start:.0f} s", flush=True)
        return 0
    print(f"{way}: FAILED: {problem}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # The reader of output may end early.
    sys.exit(main())
