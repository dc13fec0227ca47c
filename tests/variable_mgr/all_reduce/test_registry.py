from __future__ import annotations

import contextlib

import pytest

from cnnbench.errors import UsageError
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import algorithms, registry
from cnnbench.variable_mgr.all_reduce.algorithms.copy import CopyToOneDevice


def test_every_file_registers_the_name_it_bears(make_context):
    assert "copy" in all_reduce.names()
    assert list(all_reduce.names()) == sorted(all_reduce.names())
    for name in all_reduce.names():
        # Some cannot work on CPUs; that is a reason of theirs, not a missing name.
        with contextlib.suppress(ValueError):
            all_reduce.create(name, make_context(8))
    assert set(registry._factories) == set(all_reduce.names())


def test_a_name_is_taken_once(make_context):
    original = type(all_reduce.create("copy", make_context(2)))
    with pytest.raises(UsageError, match="'copy' is already registered"):
        all_reduce.register("copy")(lambda context: CopyToOneDevice(context))
    assert type(all_reduce.create("copy", make_context(2))) is original


def test_registering_the_same_factory_twice_is_no_clash(make_context):
    all_reduce.create("copy", make_context(2))
    assert all_reduce.register("copy")(CopyToOneDevice) is CopyToOneDevice


@pytest.mark.usefixtures("registered")
def test_a_factory_registered_elsewhere_is_found_by_its_name(make_context):
    all_reduce.register("warp")(CopyToOneDevice)
    assert "warp" in all_reduce.names()
    assert isinstance(all_reduce.create("warp", make_context(2)), CopyToOneDevice)


def test_an_unknown_name_is_refused(make_context):
    with pytest.raises(UsageError, match="no module registers an all-reduce algorithm 'warp'"):
        all_reduce.create("warp", make_context(2))


@pytest.mark.usefixtures("registered")
def test_a_new_file_is_found_by_itself(make_context, tmp_path, monkeypatch):
    (tmp_path / "first_of_all.py").write_text(
        "from cnnbench.variable_mgr.all_reduce.registry import register\n"
        "@register('first_of_all')\n"
        "def make(context):\n"
        "    return lambda tensors, index: [tensors[0]] * len(tensors)\n"
    )
    (tmp_path / "empty.py").write_text("")
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    assert {"copy", "empty", "first_of_all"} <= set(all_reduce.names())
    assert all_reduce.create("first_of_all", make_context(2))(["a", "b"], 0) == ["a", "a"]
    with pytest.raises(UsageError, match="no module registers an all-reduce algorithm 'empty'"):
        all_reduce.create("empty", make_context(2))
