"""Hooks of MkDocs (see mkdocs.yml) that add the pages outside of docs/ to the site.

Links to files that are not part of the site, such as scripts, are replaced by the text of the link.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parents[1]
_BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def _anchor(heading: str, separator: str) -> str:
    """Returns the anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: Any) -> None:
    """Gives headings the anchors that links in the pages use."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = _anchor


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages outside of docs/ to the site; README.md comes first."""
    for name, page in _BESIDE.items():
        content = (_ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Converts the links of a page to links between pages of the site."""
    del config, files
    folder = "" if page.file.src_uri in _BESIDE.values() else "docs"

    def of_site(link: re.Match[str]) -> str:
        text, path, anchor = link.groups(default="")
        target = os.path.normpath(os.path.join(folder, path))
        if target not in _BESIDE and not target.startswith("docs/"):
            return text
        return f"[{text}]({_BESIDE.get(target, target.removeprefix('docs/'))}{anchor})"

    return _LINK.sub(of_site, markdown)
