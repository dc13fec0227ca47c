"""Measures small runs on this machine, and writes screenshots of their pages to docs/pictures.

Usage: scripts/picture_pages RESULTS

RESULTS is a folder for records and pages. What it already has is not measured again; the whole
takes five minutes on two cores, which should have nothing else to do. Needs Chromium; the exit
status is 0, 2 for wrong use, or that of a command that failed.
"""

from __future__ import annotations

import base64
import importlib
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from command_line import run_script

from cnnbench.errors import ExitCode, UsageError

ROOT = Path(__file__).resolve().parents[1]
# The tests have a helper that controls a browser.
sys.path[:0] = [str(ROOT / "tests/helpers")]

chromium = importlib.import_module("browser")

PICTURES = ROOT / "docs" / "pictures"
WIDTH, MOST_HEIGHT = 1000, 900
COLOURS = 256
RUN = ("--device=cpu", "--batch_size=64")
# By results: the command that writes them, and the selectors of page parts by picture.
PAGES = (
    (
        "ab",
        ("ab", "--results=ab", "--explain=always", "--pairs=8", "--b=--num_intra_threads=1"),
        ("--", "--model=lenet", "--num_batches=30", *RUN),
        {"report": "body", "explain": "#why"},
    ),
    (
        "roofline.json",
        ("roofline", "alexnet", "--json=roofline.json"),
        ("--num_batches=4", *RUN),
        {"roofline": "#roofline"},
    ),
)


def take(browser: Any, page: Path, part: str, picture: Path) -> None:
    """Writes a screenshot of the upper end of a part of a page."""
    from PIL import Image

    browser.open(page.resolve().as_uri())
    browser.show(WIDTH)
    box = f"document.querySelector('{part}').getBoundingClientRect()"
    top, height = browser.evaluate(f"[{box}.top + scrollY, {box}.height]")
    clip = {"x": 0, "y": top, "width": WIDTH, "height": min(height, MOST_HEIGHT), "scale": 1}
    taken = browser("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    with Image.open(io.BytesIO(base64.b64decode(taken["data"]))) as image:
        image.convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def main(arguments: Sequence[str]) -> int:
    """Writes all screenshots; returns the exit status."""
    if len(arguments) != 1:
        raise UsageError("takes one folder for records and pages")
    path = chromium.program()
    if path is None:
        raise UsageError(f"none of {', '.join(chromium.NAMES)} is on the PATH")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    cnnbench = (sys.executable, "-m", "cnnbench")
    for results, command, rest, parts in PAGES:
        if not (folder / results).exists():
            status = subprocess.run([*cnnbench, *command, *rest], cwd=folder).returncode
            if status not in (ExitCode.OK, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE):
                return status
        page = f"{results}.html"
        report = ("report", results, f"--output={page}")
        subprocess.run([*cnnbench, *report], cwd=folder, check=True)
        browser = chromium.Browser(path)
        for name, part in parts.items():
            take(browser, folder / page, part, PICTURES / f"{name}.png")
        browser.close()
    return ExitCode.OK


if __name__ == "__main__":
    run_script(main, __doc__)
