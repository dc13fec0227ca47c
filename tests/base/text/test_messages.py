"""All lines of cnnbench on standard error have one form, and one module makes it.

Tests cnnbench/base/log_lines.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import cnnbench

SOURCES = Path(cnnbench.__file__).parent
PREFIXES = ("cnnbench: ", "error: ", "warning: ", "notice: ")
# Titles, a record's error, and a message of pytest's own warnings.
OTHERS = {
    "__main__.py",  # It writes its line when no other module can be imported.
    *("cli/__init__.py", "cli/overview.py", "records/run.py", "testing.py", "pytest_plugin.py"),
    *("base/log_lines.py", "base/terminal.py"),
    *("cli/commands/explain.py", "judge/report/renderers.py"),
}


def literals(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    if not any(prefix in source for prefix in PREFIXES):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_other_module_writes_a_prefix() -> None:
    found = {
        f"{path.relative_to(SOURCES)}: {text}"
        for path in SOURCES.rglob("*.py")
        if str(path.relative_to(SOURCES)) not in OTHERS
        for text in literals(path)
        if text.startswith(PREFIXES) and "\n" not in text
    }
    assert found == set()
