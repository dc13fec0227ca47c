"""The README shows files and flags that exist."""

from __future__ import annotations

import re
from pathlib import Path

from cnnbench.flags import parse_args

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) >= 5
    for link in links:
        assert (ROOT / link).is_file(), link


def test_every_command_line_shown_parses() -> None:
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", README, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^(?:\$ )?(?:cnnbench|scripts/run) (--.*)$", blocks, re.MULTILINE)
    assert len(lines) >= 7
    for line in lines:
        parse_args([word for word in line.partition("#")[0].split() if word != "--help"])
