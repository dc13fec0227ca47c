"""Measures small runs on this machine, and writes pictures of their results to docs/pictures.

The pictures show parts of reports, the terminal with the output of `cnnbench ab`, and a comment of
a pull request, docs/examples/comment.md.

Usage: scripts/picture_pages RESULTS

RESULTS is a folder for records, outputs and pages. A command whose results are already there does
not run again. All commands together take five minutes on two cores, which should have nothing else
to do. The script needs Chromium. The exit status is 0, 2 for wrong use, or that of a command that
failed.
"""

from __future__ import annotations

import base64
import html
import importlib
import io
import shlex
import subprocess
import sys
import textwrap
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
COMMENT = ROOT / "docs" / "examples" / "comment.md"
WIDTH, MOST_HEIGHT = 1000, 900
COLOURS = 256
COLUMNS = 110
# Each command with the file or folder of its results.
COMMANDS = {
    "ab": (
        *("ab", "--results=ab", "--explain=always", "--pairs=8", "--b=--optimizer=adam"),
        *("--", "--model=lenet", "--num_batches=100", "--device=cpu", "--batch_size=8"),
    ),
    "roofline.json": (
        *("roofline", "alexnet", "--json=roofline.json", "--num_batches=4"),
        *("--device=cpu", "--batch_size=64"),
    ),
}
# Each picture with its page, and the selector of the part of the page.
PARTS = {
    "terminal": ("ab.terminal.html", "body"),
    "report": ("ab.html", "body"),
    "explain": ("ab.html", "#why"),
    "roofline": ("roofline.json.html", "#roofline"),
    "comment": ("comment.html", "body"),
}
TERMINAL_STYLE = """body { margin: 0; padding: 14px 18px; background: #1d2127; color: #e4e6ea; }
pre { margin: 0; font: 13px/1.45 "DejaVu Sans Mono", monospace; white-space: pre; }
b { color: #8fd18f; }"""
COMMENT_STYLE = """body { margin: 0; padding: 4px 24px 16px; background: #fff; color: #1f2328; }
body { font: 14px/1.5 "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif; }
table { border-collapse: collapse; } td, th { border: 1px solid #d1d9e0; padding: 5px 12px; }
h3, h4 { margin: 16px 0 8px; } code, pre { font: 12px/1.45 "DejaVu Sans Mono", monospace; }
pre { padding: 12px; background: #f6f8fa; white-space: pre-wrap; } details { margin: 12px 0; }"""
CIRCLES = {"🔴": "#d1242f", "🟡": "#bf8700", "🟢": "#1a7f37", "🔵": "#0969da", "⚪": "#8c959f"}
"""Colours of the emoji in comments, which a machine without a font of emoji cannot show."""


def terminal_page(command: Sequence[str], output: str) -> str:
    """An HTML page that looks like a terminal with a command of cnnbench and its output."""
    words = f"$ {shlex.join(('cnnbench', *command))}"
    lines = textwrap.wrap(words, COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
    head = f"<!doctype html><meta charset=utf-8><style>{TERMINAL_STYLE}</style>"
    shown = html.escape("\n".join(lines)), html.escape(output.rstrip())
    return f"{head}<pre><b>{shown[0]}</b>\n{shown[1]}</pre>\n"


def comment_page(comment: str) -> str:
    """An HTML page with a comment in GitHub's Markdown: tables, and parts that are folded."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(comment)
    for emoji, colour in CIRCLES.items():
        body = body.replace(emoji, f"<span style='color: {colour}'>●</span>")
    return f"<!doctype html><meta charset=utf-8><style>{COMMENT_STYLE}</style><body>{body}</body>\n"


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
    for results, command in COMMANDS.items():
        output = folder / f"{results}.txt"
        if not ((folder / results).exists() and output.exists()):
            with output.open("wb") as file:
                done = subprocess.run([*cnnbench, *command], cwd=folder, stdout=file, stderr=file)
            if done.returncode not in (ExitCode.OK, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE):
                print(output.read_text("utf-8"), file=sys.stderr)
                return done.returncode
        page = terminal_page(command, output.read_text("utf-8"))
        (folder / f"{results}.terminal.html").write_text(page, "utf-8")
        report = ("report", results, f"--output={results}.html")
        subprocess.run([*cnnbench, *report], cwd=folder, check=True)
    comment = comment_page(COMMENT.read_text("utf-8"))
    (folder / "comment.html").write_text(comment, "utf-8")
    browser = chromium.Browser(path)
    for name, (page, part) in PARTS.items():
        take(browser, folder / page, part, PICTURES / f"{name}.png")
    browser.close()
    return ExitCode.OK


if __name__ == "__main__":
    run_script(main, __doc__)
