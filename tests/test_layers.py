"""Arrows point down: no module imports one of a higher layer, lazily or for types only."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]

WINGS = (
    ("arrays", "errors", "lazy_tensorflow", "version"),
    ("base",),
    ("models", "optimizers", "variable_mgr"),
    ("records",),
    ("machine",),
    ("flags",),
    ("data",),
    ("plan",),
    ("run", "judge"),
    ("lab",),
    ("campaigns",),
    ("testing",),
    ("cli", "pytest_plugin"),
    ("__main__",),
)
"""From the bottom up. Wings of one layer do not know each other."""

INSIDE = {
    "base": (
        (
            "escapes",
            "interrupts",
            "lazy_numpy",
            "shared",
            "stats",
            "text",
            "urls",
            "values",
        ),
        ("additive", "files", "locks", "log_lines", "notebook"),
        ("charts", "job", "inference", "plugins", "rules", "slow_steps", "terminal", "time_series"),
        ("interfaces", "steady_state", "tables"),
        ("document", "launcher", "levels", "message", "ports", "registry"),
        ("child", "star"),
        ("rendezvous",),
    ),
    "run": (("runtime",), ("handshake", "observe", "step", "watchdog"), ("driver",)),
    "judge": (
        ("metrics",),
        ("compare",),
        ("explain",),
        ("report",),
        ("history",),
        ("notebook",),
    ),
    "lab": (("all_reduce", "roofline"),),
    "campaigns": (
        ("processes",),
        ("launch",),
        ("ab", "job_session", "suite"),
        ("repeat",),
        ("bisect", "sweep"),
        ("tune",),
    ),
    "cli": (("overview", "running"), ("commands",), ("documents", "__init__")),
}
"""The same for the packages and modules of a wing that consists of packages."""

NEEDS_NO_TENSORFLOW = ("base", "judge", "records", "machine", "flags", "campaigns")
"""Wings of which no module imports TensorFlow, lazily or not."""

FOR_URLS = "cnnbench.base.urls"
"""Imports it where a file behind a URL is accessed, which only flags of runs may name."""

LAZY = "cnnbench.lazy_tensorflow"
"""Imports it when one of its names is used first."""


def _modules():
    for top in ("cnnbench", "models", "variable_mgr"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if top == "cnnbench" else ("cnnbench", *parts)
            yield ".".join(parts).removesuffix(".__init__"), path


MODULES = dict(_modules())


FOLDER = ROOT / "scripts"
SCRIPTS = {
    ".".join(path.relative_to(folder).with_suffix("").parts): path
    for folder in (FOLDER, FOLDER / "peers/children")
    for path in folder.rglob("*.py")
}
"""Modules of scripts, by the names that they import each other by."""


@cache
def _contents():
    """What every module imports anywhere in its text, and its classes."""
    return _read(MODULES)


def _statements(block):
    """All statements of a block, also those within others."""
    for node in block:
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, inner, ()))


def _imported_by_name(module):
    """What a module gives `import_module`: constants, a table, or the beginning of an f-string."""
    tree, found = ast.parse(MODULES[module].read_text(encoding="utf-8")), set()
    values = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        called = getattr(node, "func", None)
        if getattr(called, "attr", getattr(called, "id", "")) != "import_module":
            continue
        name = getattr(node.args[0], "values", node.args)[0]
        name = getattr(name, "value", name) if isinstance(name, _PARTS) else name
        name = values.get(name.id, name) if isinstance(name, ast.Name) else name
        constants = (one for one in ast.walk(name) if isinstance(one, ast.Constant))
        found |= {one.value.rstrip(".") for one in constants}
    return found & MODULES.keys() - {module}


_PARTS = (ast.FormattedValue, ast.Subscript)


def _read(modules):
    imports, classes = defaultdict(set), {}
    for name, path in modules.items():
        nodes = [*_statements(ast.parse(path.read_text(encoding="utf-8")).body)]
        classes[name] = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
        for node in nodes:
            if isinstance(node, ast.Import):
                imports[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    imports[name].add(inner if inner in modules else node.module)
    return imports, classes


@cache
def _graph():
    """What every module imports of ours."""
    imports, _ = _contents()
    return {name: imports[name] & MODULES.keys() - {name} for name in MODULES}


def _place(name):
    """The wing of a module, and its package or module in a wing that consists of packages."""
    wing, *rest = [*name.split(".")[1:], "__init__"]
    return wing, rest[0] if wing in INSIDE else ""


PLACES = {name: _place(name) for name in MODULES if name != "cnnbench"}


def _ranks():
    """Layer among all wings, and layer within the wing."""
    ranks = {}
    for outer, wings in enumerate(WINGS):
        for wing in wings:
            ranks[wing, ""] = ranks[wing, "__init__"] = (outer, len(INSIDE.get(wing, ())))
            for inner, names in enumerate(INSIDE.get(wing, ())):
                ranks.update({(wing, name): (outer, inner) for name in names})
    return ranks


RANKS = _ranks()


def _is_below(other, place):
    """Whether a wing lies in a lower layer, or a package in one of the same wing."""
    level = 1 if other[0] == place[0] else 0
    return RANKS[other][level] < RANKS[place][level]


def test_every_package_has_a_layer():
    listed = {wing for layer in WINGS for wing in layer}
    assert {wing for wing, _ in PLACES.values()} == listed
    for wing, layers in INSIDE.items():
        inside = {inner for found, inner in PLACES.values() if found == wing}
        assert inside - {"__init__"} == {name for layer in layers for name in layer} - {"__init__"}


def test_twelve_packages_explain_the_program():
    folders = [path for path in (ROOT / "cnnbench").iterdir() if (path / "__init__.py").exists()]
    assert len(folders) <= 12


def test_arrows_point_down():
    others = sorted(
        (name, other)
        for name, place in PLACES.items()
        for other in (_graph()[name] | _imported_by_name(name)) - {"cnnbench"}
        if place != PLACES[other] and not _is_below(PLACES[other], place)
    )
    assert others == []


def test_a_run_gets_a_plan_and_no_flags() -> None:
    readers = sorted(
        (name, other)
        for name, (wing, _) in PLACES.items()
        if wing == "run"
        for other in _graph()[name]
        if PLACES.get(other, ("",))[0] == "flags"
    )
    assert readers == []


def test_tensorflow_is_imported_in_few_wings():
    imports, _ = _contents()
    users = {
        name
        for name, imported in imports.items()
        if LAZY in imported or {"tensorflow", "keras"} & {one.partition(".")[0] for one in imported}
    }
    needless = {name for name in users if name.split(".")[1] in NEEDS_NO_TENSORFLOW}
    assert needless == {FOR_URLS}


def test_no_module_imports_itself_by_way_of_others() -> None:
    # The root's lazy attributes (cnnbench.BenchmarkCNN) are for users, and nobody inside.
    inner = {name: others - {"cnnbench"} for name, others in _graph().items() if name != "cnnbench"}
    TopologicalSorter(inner).prepare()  # CycleError names a cycle


def test_no_script_imports_itself_by_way_of_others() -> None:
    imports, _ = _read(SCRIPTS)
    graph = {name: imports[name] & SCRIPTS.keys() for name in SCRIPTS}
    assert graph["validation.races"] == {"validation.studies"}
    assert "steps" in graph["bare_input"]
    TopologicalSorter(graph).prepare()


def test_no_package_hides_a_module_behind_another_object_of_its_name():
    hidden = [
        f"{package}.{alias.asname or alias.name}"
        for package, path in MODULES.items()
        if path.name == "__init__.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module != package
        for alias in node.names
        if f"{package}.{alias.asname or alias.name}" in MODULES
    ]
    assert hidden == []


def test_class_names_occur_once():
    _, classes = _contents()
    places = defaultdict(list)
    for module, own in classes.items():
        for name in own:
            places[name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
