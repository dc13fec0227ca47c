"""Keys of cases.

Tests cnnbench/campaigns/sweep/plan.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from oracle import LOCAL_SGD, LOCAL_SGD_PLUGIN
from other_values import other

from cnnbench.campaigns.sweep.plan import plan_sweep
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
        ("find_batch_size: true", "", {}, False),
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
    if flag not in ACCEPTED or flag == "find_batch_size":
        pytest.skip("of cnnbench allreduce, or its runs may have other batch sizes")
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
