"""The public names of docs/public_names.md: they are there, and examples import no others.

Tests cnnbench/__init__.py.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
ROWS = re.findall(
    r"^\| `(cnnbench[\w.]*)` \| (`.*`) \|$", (DOCS / "public_names.md").read_text(), re.M
)
PUBLIC = {module: set(re.findall(r"`(\w+)`", names)) for module, names in ROWS}


def test_names_are_there():
    for module, names in PUBLIC.items():
        found = importlib.import_module(module)
        assert [name for name in names if not hasattr(found, name)] == [], module
        assert names == set(getattr(found, "__all__", names)), module


def _code():
    """Python of the examples, by place."""
    found = {path.name: path.read_text() for path in (DOCS / "examples").glob("*.py")}
    for page in DOCS.glob("*.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        found |= {f"{page.name}, block {number}": block for number, block in enumerate(blocks, 1)}
    return found


def test_examples_import_public_names():
    imported = {
        (place, node.module, alias.name)
        for place, code in _code().items()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cnnbench")
        for alias in node.names
    }
    assert len(imported) > 20
    missing = {
        (place, module, name)
        for place, module, name in imported
        if name not in PUBLIC.get(module, ()) and f"{module}.{name}" not in PUBLIC
    }
    assert missing == set()
