"""Opens the profile of a small run in TensorBoard, and checks that the page shows step times.

Usage: scripts/check_tensorboard FOLDER

If FOLDER contains no profile, a run writes a profile to it. The script needs Chromium, and the
command tensorboard with its profile plug-in, the package xprof: `pip install tensorboard xprof` in
any environment whose bin folder is on the PATH. The script prints the page of the plug-in. The exit
status is 0 if the page shows step times, 1 if not, 2 for wrong use.
"""

from __future__ import annotations

import importlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from command_line import run_script

from cnnbench.errors import ExitCode, UsageError

ROOT = Path(__file__).resolve().parents[1]
# The tests have a helper that controls a browser.
sys.path[:0] = [str(ROOT / "tests/helpers")]

chromium = importlib.import_module("browser")

RUN = ("--model=lenet", "--device=cpu", "--batch_size=32", "--num_batches=3")
PAGE = "data/plugin/profile/index.html"
TIMES, UNMARKED = "Host Compute Time", "No step marker observed"
PATIENCE = 60  # Seconds to wait for the page.


def page_of(folder: Path, tensorboard: str, browser: str) -> str:
    """Returns the text of the profile plug-in's first page; waits for it at most a minute."""
    with closing(socket.create_server(("localhost", 0))) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([tensorboard, f"--logdir={folder}", f"--port={port}"])
    shown = chromium.Browser(browser)
    text, end = "", time.monotonic() + PATIENCE
    try:
        while TIMES not in text and time.monotonic() < end:
            time.sleep(2)
            try:
                socket.create_connection(("localhost", port)).close()
            except ConnectionRefusedError:
                continue
            shown.open(f"http://localhost:{port}/{PAGE}")
            time.sleep(2)
            text = shown.evaluate("document.body.innerText")
    finally:
        shown.close()
        server.terminate()
        server.wait()
    return text


def main(arguments: Sequence[str]) -> int:
    """Creates the profile if it is missing, and checks the page; returns the exit status."""
    if len(arguments) != 1:
        raise UsageError("takes one folder for the profile")
    folder, browser, tensorboard = Path(arguments[0]), chromium.program(), "tensorboard"
    if browser is None:
        raise UsageError(f"none of {', '.join(chromium.NAMES)} is on the PATH")
    if shutil.which(tensorboard) is None:
        raise UsageError("tensorboard is not on the PATH: pip install tensorboard xprof")
    if not [*folder.glob("plugins/profile/*/*.xplane.pb")]:
        traced = (f"--trace_file={folder}", "--nouse_chrome_trace_format")
        subprocess.run([sys.executable, "-m", "cnnbench", *RUN, *traced], check=True)
    page = page_of(folder, tensorboard, browser)
    print(page)
    return ExitCode.OK if TIMES in page and UNMARKED not in page else ExitCode.REGRESSION


if __name__ == "__main__":
    run_script(main, __doc__)
