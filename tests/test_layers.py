"""Arrows point down: no module imports one of a higher layer, lazily or for types only."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]

LAYERS = (
    ("errors", "reading", "version"),
    ("text", "stats", "interrupts"),
    ("plugins",),
    ("charts",),
    ("models", "runtime"),
    ("variable_mgr", "data", "cluster"),
    ("records",),
    ("machine",),
    ("flags",),
    ("step", "metrics"),
    ("observe",),
    ("driver", "compare", "allreduce", "predict"),
    ("report", "processes", "roofline"),
    ("launch",),
    ("history", "ab", "sweep"),
    ("bisect", "strategies"),
    ("testing",),
    ("pytest_plugin", "commands"),
    ("cli", "schemas"),
    ("__main__",),
)
"""From the bottom up. Packages of one layer do not know each other."""

STILL = {}
"""Arrows that still point up or sideways; each is to go, none to come."""

RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def _modules():
    for top in ("cnnbench", "models", "variable_mgr"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if top == "cnnbench" else ("cnnbench", *parts)
            yield ".".join(parts).removesuffix(".__init__"), path


MODULES = dict(_modules())


def _imports(name, path):
    """Modules of ours that a module imports anywhere in its text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES or node.module in MODULES:
                    yield inner if inner in MODULES else node.module


GRAPH = {name: set(_imports(name, path)) - {name} for name, path in MODULES.items()}


def _package(name):
    return name.split(".")[1] if "." in name else "cnnbench"


def _circles(graph):
    """Groups of nodes that reach each other (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_every_package_has_a_layer():
    assert {_package(name) for name in MODULES} - {"cnnbench"} == set(RANK)


def test_arrows_point_down():
    upward = sorted(
        (name, other)
        for name, others in GRAPH.items()
        for other in others
        if (a := _package(name)) != (b := _package(other))
        and "cnnbench" not in (a, b)
        and (a, b) not in STILL
        and RANK[a] <= RANK[b]
    )
    assert upward == []


def test_no_module_imports_itself_by_way_of_others():
    # The root's lazy attributes (cnnbench.BenchmarkCNN) are for users, and nobody inside.
    inner = {name: others - {"cnnbench"} for name, others in GRAPH.items() if name != "cnnbench"}
    assert _circles(inner) == []


def test_no_package_imports_itself_by_way_of_others():
    packages = defaultdict(set)
    for name, others in GRAPH.items():
        packages[_package(name)] |= {_package(other) for other in others} - {_package(name)}
    assert _circles({name: others for name, others in packages.items() if name != "cnnbench"}) == []


def test_a_circle_is_found():
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
