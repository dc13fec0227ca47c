"""Plug-ins by themselves: their values, errors, files and what they register.

tests/test_plug_ins.py and tests/test_plug_in_mistakes.py have those of each kind, in commands.

Tests cnnbench/base/interfaces.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

from cnnbench.base import interfaces, plugins
from cnnbench.base.plugins import PluginInterfaceError
from cnnbench.base.registry import Registry
from cnnbench.errors import BenchmarkError, FlagError, UsageError

TENSOR = np.zeros((2, 3), np.float32)


def even(value, arguments):
    return "" if value % 2 == 0 else f"even for {arguments}"


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        (1, int, ()),
        (np.int32(1), int, ()),
        (1.5, int, ("an int", "1.5")),
        (1, float, ()),
        (np.float32(1), float, ()),
        (TENSOR, float, ("a float", "float32 tensor [2, 3]")),
        (np.zeros((), np.int8), float, ()),
        ("x", str, ()),
        (None, str, ("a str", "None")),
        (None, str | None, ()),
        (1, str | None, ("a str", "1")),
        (1, Any, ()),
        (print, Callable[[int], str], ()),
        (1, Callable, ("a Callable", "1")),
        ({"a": 1}, Mapping[str, int], ()),
        ({"a": "b"}, Mapping[str, int], ("for 'a' an int", "'b'")),
        ({1: 1}, Mapping[str, int], ("as a key a str", "1")),
        ([1], Mapping, ("a Mapping", "a list")),
        ([1, 2], Sequence[int], ()),
        ((1, "2"), Sequence[int], ("an int", "'2'")),
        ("12", Sequence[str], ("a Sequence", "'12'")),
        (range(3), range, ()),
        ([1], range, ("a range", "a list")),
        ((1, "a"), tuple[int, str], ()),
        ([1], tuple[int, str], ("a tuple of 2", "a list of 1")),
        ((1, 2, 3), tuple[int, ...], ()),
        ((1, "a"), tuple[int, ...], ("an int", "'a'")),
        (2, Annotated[int, even], ()),
        (3, Annotated[int, even], ("even for (7,)",)),
        ("3", Annotated[int, even], ("an int", "'3'")),
        ("x" * 50, int, ("an int", "a str")),
    ],
)
def test_values_are_checked_against_annotations(value, hint, words):
    found = interfaces.describe_mismatch(value, hint, (7,))
    assert bool(found) == bool(words)
    assert [word for word in words if word not in found] == []


def tensor(*sizes, rank=None, dtype="int32"):
    """Something with the shape and the type of a tensor; of an unknown rank without sizes."""

    class Shape(tuple):
        pass

    shape = Shape(sizes)
    shape.rank = len(sizes) if rank is None else rank
    return SimpleNamespace(shape=shape, dtype=dtype)


def test_sizes_of_tensors():
    unknown = SimpleNamespace(shape=SimpleNamespace(rank=None), dtype=np.dtype("float16"))
    assert interfaces.tensor_sizes(TENSOR) == [2, 3]
    assert interfaces.tensor_sizes(tensor(None, 3)) == [None, 3]
    assert interfaces.tensor_sizes(unknown) is None
    assert interfaces.value_text(unknown) == "a float16 tensor of any rank"
    assert interfaces.value_text(tensor(None, 3)) == "an int32 tensor [None, 3]"
    agree = interfaces.sizes_agree
    assert agree([2, 3], [2, None])
    assert agree(None, [2])
    assert agree([2], None)
    assert not agree([2, 3], [2, 4])
    assert not agree([2], [2, 3])


def checked(function, returns, takes=None):
    return interfaces.with_checked_results(function, returns, takes)


def test_results_of_functions_are_checked_in_each_call():
    made = checked(lambda value: value, int)
    assert made(3) == 3
    with pytest.raises(PluginInterfaceError, match=r"test_plugins\.py:\d+: .* must return an int"):
        made("3")
    # `Any` is everything but what is returned by mistake.
    anything = checked(lambda value: value, Any)
    assert anything([1]) == [1]
    for nothing in (None, "x", 1, (one for one in ())):
        with pytest.raises(PluginInterfaceError, match="must return a result, not "):
            anything(nothing)
    with pytest.raises(PluginInterfaceError, match="not yield"):
        anything(one for one in ())


def test_functions_that_are_returned_are_checked_too():
    made = checked(lambda: lambda x: x, Callable[[int], int])()
    assert made(1) == 1
    with pytest.raises(PluginInterfaceError, match="an int, not 'a'"):
        made("a")
    x = types.new_class("x")
    with pytest.raises(PluginInterfaceError, match=r"must take \(x\)"):
        checked(lambda: lambda: 1, Callable[[x], int])()

    class Twice:
        def __call__(self, value):
            return value * 2

    twice = checked(lambda: Twice(), Callable[..., int])
    assert twice()(2) == 4
    assert twice()(3) == 6
    with pytest.raises(PluginInterfaceError, match="an int, not 'aa'"):
        twice()("a")


@pytest.mark.parametrize(
    ("function", "takes", "fits"),
    [
        (lambda a, b: 1, ["a", "b"], True),
        (lambda a: 1, ["a", "b"], False),
        (lambda a, *, b: 1, ["a", "*", "b"], True),
        (lambda a, b, c: 1, ["a", "*", "b"], False),
        (lambda a, **more: 1, ["a", "*", "b"], True),
        (lambda b: 1, ["a"], True),
    ],
)
def test_parameters_are_checked_once(function, takes, fits):
    if fits:
        assert checked(function, int, takes)
    else:
        with pytest.raises(PluginInterfaceError, match="must take"):
            checked(function, int, takes)


def test_functions_of_cnnbench_are_not_wrapped():
    own = interfaces.describe_mismatch
    assert checked(own, int) is own
    bound = functools.partial(own, 1)
    assert checked(bound, int) is bound
    assert checked(len, int) is not len


class Interface:
    count: int
    share: float
    name: str
    at: Callable[[int], str]
    shared: ClassVar[str] = ""

    def build(self, size: int, *, flat: bool) -> str:
        """What plug-ins define."""

    def end(self) -> None:
        """Whose result is not looked at."""


def test_methods_of_a_class_are_checked():
    class Own(Interface):
        def build(self, size, flat):
            return size

        def end(self):
            return 1

        def __repr__(self):
            return "own"

        def other(self):
            return None

    interfaces.guard_plugin_methods(Own, Interface)
    own = Own()
    assert own.build("3", flat=True) == "3"
    with pytest.raises(PluginInterfaceError, match=r"Own\.build\(\) must return a str, not 3"):
        own.build(3, flat=True)
    assert (own.end(), own.other()) == (1, None)

    class Wrong(Interface):
        def build(self, size):
            return ""

    with pytest.raises(PluginInterfaceError, match=r"must take \(self, size, \*, flat\)"):
        interfaces.guard_plugin_methods(Wrong, Interface)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, ""),
        ({"count": "1"}, "mine: count must be an int"),
        ({"count": 0}, "mine: count=0"),
        ({"share": 0}, ""),
        ({"name": None}, "mine: name must be a str"),
        ({"shared": 1}, ""),
    ],
)
def test_attributes_of_an_object_are_checked(wrong, words):
    made = Interface()
    values = {"count": 1, "share": 0.5, "name": "a", "at": lambda index: index, **wrong}
    vars(made).update(values)
    if words:
        with pytest.raises(UsageError, match=words):
            interfaces.check_plugin_attributes(made, Interface, "mine")
    else:
        interfaces.check_plugin_attributes(made, Interface, "mine")
        with pytest.raises(PluginInterfaceError, match="a str, not 1"):
            made.at(1)


def test_some_attributes_are_not_checked():
    made = Interface()
    vars(made).update(count=0, share=0.5, name="a", at=str)
    interfaces.check_plugin_attributes(made, Interface, "mine", "count", "at")
    assert made.at is str


@pytest.mark.parametrize("name", ["", "a\n", None, 1])
def test_names_are_printable_text(name):
    plugins.check_name("a thing", "a b")
    with pytest.raises(UsageError, match=f"^a thing .*{name!r}".replace("\\", "\\\\")):
        plugins.check_name("a thing", name)


# Files of --plugin, which register things of a kind of this test.


@pytest.fixture
def things():
    """The registry of a kind of objects, and a table that holds some of them by another name."""
    further = {}
    table = Registry("thing", "register_thing", flag="thing", further=[further])
    table["own"] = object()
    yield table, further
    del plugins._kinds["thing"]


@pytest.fixture
def file(tmp_path, things, monkeypatch):
    """file(TEXT): a plug-in with this text, which calls `thing(NAME)`."""
    table, further = things

    def thing(name):
        table[name] = further[f"the {name}"] = object()

    monkeypatch.setattr("builtins.thing", thing, raising=False)
    path = tmp_path / "mine.py"

    def write(text):
        path.write_text(text)
        return str(path)

    yield write
    plugins.forget_plugin(Path(os.path.realpath(path)))


def test_a_file_registers_and_an_edit_of_it_replaces(file, things):
    table, further = things
    path = file("thing('a')\nthing('b')")
    assert plugins.load_plugin_file(path)["thing"] == ("a", "b")
    first = table["a"]
    assert plugins.plugin_of_object("thing", "a") == f"--plugin={path}"
    assert plugins.plugin_of_object("thing", "own") is None
    assert plugins.load_plugin_file(path)["thing"] == ("a", "b")
    assert table["a"] is first
    with pytest.raises(UsageError):
        plugins.load_plugin_file(file("1 / 0"))
    assert ([*table], further) == (["own"], {})
    plugins.load_plugins_of_flags({"plugin": [file("thing('c')")]})
    assert [*table] == ["own", "c"]
    assert [*further] == ["the c"]
    assert plugins.plugin_of_object("thing", "a") is None
    plugins.forget_plugin(Path(os.path.realpath(path)))
    assert ([*table], further) == (["own"], {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "register_thing"),
        ("INITIALISES_ONLY = 1", "INITIALISES_ONLY = True"),
        ("thing('a')\nINITIALISES_ONLY = True", "registers a"),
        ("thing('a')\nFILES = 'x'", "FILES"),
        ("thing('a')\nFILES = [1]", "FILES"),
        ("thing('a')\nFILES = ['gone.txt']", "gone.txt"),
        ("thing('a')\nraise KeyError('k')", r"mine\.py:2: .*KeyError: 'k'"),
        ("thing('a')\nraise ValueError", r"mine\.py:2: .*ValueError$"),
        ("thing('a'", "SyntaxError"),
        (
            "thing('a')\nraise ValueError('first\\nsecond')",
            r"mine\.py:2: .*ValueError: first second$",
        ),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class Stop(BaseException): pass\nraise Stop('now')", "Stop: now"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
        (
            "class Mute(Exception):\n    def __str__(self): raise self\nraise Mute",
            r"Mute: \(its __str__ raises Mute\)",
        ),
    ],
)
def test_files_that_are_wrong_register_nothing(file, things, text, words):
    path = file(text)
    with pytest.raises(UsageError, match=words) as refused:
        plugins.load_plugin_file(path)
    assert "--plugin=" in str(refused.value) or refused.value.frames
    if "INITIALISES" not in text:
        assert [*things[0]] == ["own"]


def test_a_file_may_only_prepare_something(file):
    added = plugins.load_plugin_file(file("INITIALISES_ONLY = True"))
    assert not any(added.values())
    with pytest.raises(FlagError, match=r"--plugin=.*missing\.py"):
        plugins.load_plugin_file("missing.py")


def test_files_of_flags():
    assert plugins.plugin_files_of_flags({}) == ()
    assert plugins.plugin_files_of_flags({"plugin": "a.py"}) == ("a.py",)
    assert plugins.plugin_files_of_flags({"plugin": ["a.py", "b.py"]}) == ("a.py", "b.py")


def test_the_digest_covers_files_beside_it(file, tmp_path):
    for name in ("data.txt", "beside.py"):
        (tmp_path / name).write_text("x = 1")
    path = file(
        "import sys\nsys.path.insert(0, str(__file__.rpartition('/')[0]))\nimport beside\n"
        "sys.path.pop(0)\nthing('a')\nFILES = ['data.txt']"
    )
    flags = {"plugin": [path]}
    assert plugins.files_used_by_plugins(flags) == ()  # which is not loaded
    plugins.load_plugin_file(path)
    used = plugins.files_used_by_plugins(flags)
    assert [os.path.basename(one) for one in used] == ["beside.py", "data.txt"]
    assert plugins.files_used_by_plugins({}) == ()
    digests = {plugins.plugin_digest(path), plugins.plugin_digest(path, used)}
    (tmp_path / "data.txt").write_text("y")
    digests.add(plugins.plugin_digest(path, used))
    (tmp_path / "data.txt").unlink()
    digests.add(plugins.plugin_digest(path, used))
    assert len(digests) == 4
    assert str(tmp_path / "beside.py") == plugins.loaded_packages()["beside"]
    assert not {"os", "cnnbench", "cnnbench.base"} & {*plugins.loaded_packages()}


def test_code_of_a_plug_in_runs_in_a_block_of_its_own(tmp_path):
    before, seen = (os.getcwd(), plugins.running_plugin_name()), []

    def fail():
        seen.append(plugins.running_plugin_name())
        with plugins.containing_plugin_code("inner"):
            seen.append(plugins.running_plugin_name())
        seen.append(plugins.running_plugin_name())
        os.chdir(tmp_path)
        raise KeyError("x")

    with pytest.raises(KeyError) as raised, plugins.containing_plugin_code("mine"):
        fail()
    assert seen == ["mine", "inner", "mine"]
    assert (os.getcwd(), plugins.running_plugin_name()) == before
    with pytest.raises(BenchmarkError, match=r"^mine: KeyError: 'x'$"):
        with plugins.reporting_plugin_errors(BenchmarkError):
            raise raised.value


def test_a_parent_sees_which_plug_in_its_child_runs():
    plugins.share_running_plugin()
    child = os.fork()
    if not child:
        with plugins.containing_plugin_code("mine"):
            os._exit(0)
    os.waitpid(child, 0)
    assert plugins.running_plugin_name() == "mine"
    plugins.share_running_plugin()
    assert plugins.running_plugin_name() == ""


def test_errors_of_others_stay_as_they_are():
    for error in (
        KeyboardInterrupt(),
        FlagError("plugin", "x", "y"),
        MemoryError(),
        ValueError("not of a plug-in"),
    ):
        with pytest.raises(type(error)) as raised, plugins.reporting_plugin_errors(UsageError):
            raise error
        assert raised.value is error
    with pytest.raises(UsageError, match=r"^mine: ValueError: a b$"):
        with plugins.reporting_plugin_errors(UsageError, "mine"):
            raise ValueError("a\n b")
    with pytest.raises(BenchmarkError, match=r"^wrong$"):
        with plugins.reporting_plugin_errors(BenchmarkError):
            raise PluginInterfaceError("wrong")


def test_places_in_code_of_plug_ins(file):
    path = file("def fail():\n    1 / 0\nthing('a')\nthing(fail)\n")
    assert plugins.calling_plugin_location() == ""
    (_, fail) = plugins.load_plugin_file(path)["thing"]
    with pytest.raises(ZeroDivisionError) as raised:
        fail()
    assert plugins.plugin_location_of_error(raised.value) == f"{path}:2: fail()"
    assert plugins.plugin_location_of_error(ValueError()) == ""
    assert plugins.definition_location(fail) == f"{path}:1: fail()"
    text = (
        f'File "{path}", line 7, in outer\nFile "{path}", line 8, in <lambda>\n'
        'File "/x.py", line 9, in other\n'
    )
    assert plugins.plugin_location_in_text(text) == f"{path}:8: <lambda>"
    assert plugins.plugin_location_in_text('File "/x.py", line 9, in other') == ""


def test_modules_of_a_package(tmp_path):
    for name in ("__init__.py", "b.py", "a.py", "c.txt"):
        (tmp_path / name).touch()
    package = types.ModuleType("package")
    package.__path__ = [str(tmp_path)]
    assert plugins.submodule_names(package) == ["a", "b"]
    package.__path__ = [str(tmp_path / "gone")]
    with pytest.raises(BenchmarkError, match=r"gone"):
        plugins.submodule_names(package)


def test_contexts_enclose_all_code_of_plug_ins_from_now_on(monkeypatch):
    monkeypatch.setattr(plugins, "_around", [])
    events = []

    @contextlib.contextmanager
    def noted():
        events.append("enter")
        yield
        events.append("exit")

    with plugins.containing_plugin_code("mine"):
        plugins.add_plugin_code_context(noted)
        assert events == ["enter"]  # also the rest of this block
    assert events == ["enter", "exit"]
    with plugins.containing_plugin_code("other"):
        assert events[2:] == ["enter"]
    assert events[2:] == ["enter", "exit"]
    plugins.add_plugin_code_context(noted)
    assert events[4:] == []
