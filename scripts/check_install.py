"""Proves that a fresh clone installs and trains, plain and editable.

Each way gets its own copy of the checkout and its own environment. The plain
copy is deleted after the install, so that nothing can lean on it, and training
runs in a folder whose ``models/`` and ``variable_mgr/`` must not be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("plain", "editable")
TRAINING = (
    "--model=trivial",
    "--device=cpu",
    "--num_gpus=2",
    "--variable_update=replicated",
    "--batch_size=2",
    "--num_warmup_batches=1",
    "--num_batches=3",
)


def copy_checkout(target: Path) -> None:
    """Copies what git knows or would add: what a clone would hold after the next commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def make_hostile(folder: Path) -> None:
    """Puts packages into a folder that fail when anybody imports them."""
    for name in ("models", "variable_mgr"):
        (folder / name).mkdir(parents=True)
        code = f"raise RuntimeError('the wrong {name} was imported')\n"
        (folder / name / "__init__.py").write_text(code, encoding="utf-8")


def check(way: str, scratch: Path) -> None:
    """Installs and trains one way; raises CalledProcessError or ValueError when that fails."""
    checkout, environment, work = scratch / "checkout", scratch / "venv", scratch / "work"
    copy_checkout(checkout)
    make_hostile(work)
    venv.create(environment, with_pip=True, symlinks=True)
    source = ["--editable", str(checkout)] if way == "editable" else [str(checkout)]
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", *source], check=True)
    if way == "plain":
        shutil.rmtree(checkout)
    record = work / "record.json"
    variables = dict(os.environ, PYTHONPATH=str(work), TF_CPP_MIN_LOG_LEVEL="2")
    command = [str(environment / "bin" / "cnnbench"), *TRAINING, f"--result_json={record}"]
    subprocess.run(command, cwd=work, env=variables, check=True, timeout=600)
    result = json.loads(record.read_text(encoding="utf-8"))
    if result["status"] != "ok" or len(result["step_seconds"]) != 3:
        raise ValueError(f"the {way} install trained, but its record is wrong: {record}")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns 0 when every way that was asked for works, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--way", choices=WAYS, action="append", help="only this way (default: both)"
    )
    args = parser.parse_args(argv)
    failed = []
    for way in args.way or WAYS:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"cnnbench-{way}-") as scratch:
            try:
                check(way, Path(scratch).resolve())
            except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
                failed.append(way)
                print(f"{way}: FAILED: {error}", file=sys.stderr)
                continue
        print(f"{way}: installed and trained in {time.monotonic() - start:.0f} s", flush=True)
    if failed:
        print(f"check_install: FAILED: {', '.join(failed)}", file=sys.stderr)
        return 1
    print("check_install: all ways work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
