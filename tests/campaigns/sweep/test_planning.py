"""Keys of cases, and the search for a batch size.

Tests cnnbench/campaigns/sweep/plan.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN
from other_values import other

from cnnbench.campaigns.suite.entries import BatchSizeSearch
from cnnbench.campaigns.sweep.plan import plan_sweep
from cnnbench.campaigns.sweep.run import search_largest_batch
from cnnbench.errors import UsageError
from cnnbench.flags.declare import ComparedBy
from cnnbench.flags.identity import flags_compared_by
from cnnbench.flags.params import ACCEPTED

FACTS = {"hostname": "here", "tensorflow_version": "2.21.0", "load_average_1min": 1.0}
TINY = "entries: [{name: a, flags: {model: lenet}}]"


def key_of(suite, text=TINY, **facts):
    return plan_sweep(suite(text), {**FACTS, **facts}).cases[0].key


@pytest.mark.parametrize(
    ("flags", "settings", "facts", "same"),
    [
        ("", "repeats: 4, timeout: 5", {}, True),
        ("batch_size: 32", "", {}, True),
        ("progress: 'off'", "", {}, True),
        ("", "", {"load_average_1min": 7.0}, True),
        ("", "", {"git_commit": "abc"}, True),
        ("num_gpus: 2", "", {}, False),
        ("precision: bf16", "", {}, False),
        ("batch_size: 31", "", {}, False),
        ("train_dir: there, eval: true", "", {}, False),
        ("", "max_batch_search: true", {}, False),
        ("", "", {"tensorflow_version": "2.20.0"}, False),
        ("", "", {"hostname": "there"}, False),
        ("", "", {"env_TF_ENABLE_ONEDNN_OPTS": "0"}, False),
        ("", "", {"gpu_names": ["A100"]}, False),
    ],
)
def test_the_key_is_of_what_is_measured_and_of_the_environment(suite, flags, settings, facts, same):
    text = f"entries: [{{name: other, flags: {{model: lenet, {flags}}}, {settings}}}]"
    assert (key_of(suite, text, **facts) == key_of(suite)) is same


@pytest.mark.parametrize("flag", flags_compared_by(ComparedBy.NOTHING, ComparedBy.SEED))
def test_entries_that_differ_in_a_flag_that_does_not_count_are_refused(suite, flag):
    if flag not in ACCEPTED:  # of cnnbench allreduce
        pytest.skip()
    value = ACCEPTED[flag].text(other(ACCEPTED[flag]))
    text = f"entries: [{{name: a}}, {{name: b, flags: {{{flag}: '{value}'}}}}]"
    # Some cannot be given to a sweep at all.
    with pytest.raises(UsageError, match=f'"b" is the same run as "a"|--{flag}='):
        plan_sweep(suite(text), FACTS)


def test_the_key_is_of_a_plug_in_s_text(suite, tmp_path):
    plugin = tmp_path / "plugin.py"
    source = Path("docs/examples/tiny_plugin.py")
    text = (Path(__file__).parents[3] / source).read_text(encoding="utf-8").replace("tiny", "tiny9")
    plugin.write_text(text, encoding="utf-8")
    yaml = f"entries: [{{name: a, flags: {{model: tiny9, plugin: {plugin}}}}}]"
    key = key_of(suite, yaml)
    assert key_of(suite, yaml) == key
    plugin.write_text(text + "# another text\n", encoding="utf-8")
    assert key_of(suite, yaml) != key
    text = Path(LOCAL_SGD_PLUGIN).read_text(encoding="utf-8")
    plugin.write_text(text, encoding="utf-8")
    own = f"variable_update: {LOCAL_SGD}, plugin: {plugin}"
    yaml = f"entries: [{{name: a, flags: {{{own}}}}}]"
    key = key_of(suite, yaml)
    plugin.write_text(text + "# another text\n", encoding="utf-8")
    assert key_of(suite, yaml) != key


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(
    start=st.integers(1, 3000),
    limit=st.integers(1, 3000),
    unit=st.integers(1, 64),
    capacity=st.integers(0, 4000),
)
def test_finds_the_largest_multiple_that_fits(start, limit, unit, capacity):
    limit = max(limit, unit)
    search = search_largest_batch(start, BatchSizeSearch(limit=limit, multiple_of=unit))
    sizes = [next(search)]
    try:
        while True:
            sizes.append(search.send(sizes[-1] <= capacity))
    except StopIteration as end:
        found = end.value
    assert found == min(capacity, limit) // unit * unit
    assert len(set(sizes)) == len(sizes) <= 2 * (limit // unit).bit_length() + 2
    assert all(size % unit == 0 and unit <= size <= limit for size in sizes)
