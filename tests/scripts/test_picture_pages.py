"""Pictures of pages."""

from __future__ import annotations

import os
from pathlib import Path

import browser as chromium
import picture_pages
import pytest
from PIL import Image

from cnnbench.errors import UsageError


@pytest.mark.slow
def test_a_picture_has_the_upper_end_of_a_part(tmp_path: Path) -> None:
    path = chromium.program()
    if path is None and not os.environ.get("CI"):
        pytest.skip("no Chromium")
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    blue = "<p id=p style='margin: 0; height: 2000px; background: blue'>"
    page.write_text(f"<body style='margin: 0'><p style='margin: 0; height: 1500px'></p>{blue}</p>")
    browser = chromium.Browser(path)
    picture_pages.take(browser, page, "#p", picture)
    browser.close()
    with Image.open(picture) as image:
        assert image.size == (1000, 900)
        assert image.convert("RGB").getcolors() == [(900_000, (0, 0, 255))]


def test_a_terminal_shows_the_command_and_its_output_as_text() -> None:
    page = picture_pages.terminal_page(["ab", "--a=", "--b=--x y"], "a < b & c\n\n")
    assert "$ cnnbench ab --a= &#x27;--b=--x y&#x27;</b>\na &lt; b &amp; c</pre>" in page


@pytest.mark.parametrize("words", [(), ("a", "b")])
def test_wrong_use_is_refused_before_anything_is_measured(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="takes one folder"):
        picture_pages.main(words)


def test_a_comment_has_tables_and_folded_parts() -> None:
    table = "| verdict | change |\n| --- | --: |\n| 🔴 slower | -10.0 % |"
    folded = "<details><summary>Why</summary>\n\n- noise of `B`\n\n</details>"
    page = picture_pages.comment_page(f"### A regression\n\n{table}\n\n{folded}\n")
    assert "<h3>A regression</h3>" in page
    assert "<td><span style='color: #d1242f'>●</span> slower</td>" in page
    assert "<summary>Why</summary>\n<ul>\n<li>noise of <code>B</code></li>" in page
