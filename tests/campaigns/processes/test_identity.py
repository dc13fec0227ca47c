"""What must be equal when a campaign is resumed, and code that changes meanwhile."""

from __future__ import annotations

import pytest

from cnnbench.campaigns.processes import identity as module
from cnnbench.campaigns.processes.identity import (
    CampaignIdentity,
    CodeChangedError,
    ConfigurationIdentity,
    configuration_identity,
    identity_values,
)
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.errors import BenchmarkError

FACTS = {"hostname": "here", "tensorflow_version": "2.21.0", "load_average_1min": 1.0}


def identity_of(plans=None, facts=FACTS, **policy):
    given = (plans or {}).items()
    of_plans = {name: ConfigurationIdentity(values, None, own=False) for name, values in given}
    return CampaignIdentity(plans=of_plans, facts=facts, policy=policy)


def test_a_configuration_is_what_differs_from_the_defaults():
    flags = {"model": "lenet", "batch_size": 32, "num_batches": None, "own_flag": 1}
    values = identity_values({**flags, "xla": False}, side="a")
    assert values["model"] == "lenet"
    assert values["own_flag"] == 1
    assert values["side"] == "a"
    assert "xla" not in values
    resolved = ResolvedRun(identity={"model": "lenet"}, config={"x": 1}, parts=("p",))
    assert configuration_identity(resolved, side="a") == ConfigurationIdentity(
        {"model": "lenet", "side": "a"}, {"x": 1}, parts=("p",)
    )


@pytest.mark.parametrize(
    ("then", "now", "texts"),
    [
        (identity_of(seed=1), identity_of(seed=1), ()),
        (identity_of(seed=1), identity_of(seed=2), ("seed (1, now 2)",)),
        (identity_of(seed=1), identity_of(), ("seed (1, now not set)",)),
        (identity_of({"a": {"x": 1}}), identity_of({"a": {"x": "2"}}), ("x of a (1, now 2)",)),
        (identity_of({"": {}}), identity_of({"": {"x": True}}), ("x (not set, now true)",)),
        # A plan may be added, and facts that change always.
        (identity_of({"a": {"x": 1}}), identity_of({"b": {"x": 2}}), ()),
        (identity_of(), identity_of(facts={**FACTS, "load_average_1min": 9.0}), ()),
        (
            identity_of(),
            identity_of(facts={**FACTS, "tensorflow_version": "2.20.0"}),
            ("tensorflow_version (2.21.0, now 2.20.0)",),
        ),
        (identity_of(s="x" * 500), identity_of(s="y"), ("...", "now y")),
    ],
)
def test_differences_of_campaigns_are_named(then, now, texts):
    text = then.values().differences(now.values())
    assert all(one in text for one in texts)
    assert bool(text) == bool(texts)


def test_code_that_changes_meanwhile_is_named(monkeypatch):
    sources = iter(("one", "one", "two"))
    monkeypatch.setattr(module, "source_digest", lambda: next(sources))
    plans = {"": ConfigurationIdentity({}, None)}
    identity = CampaignIdentity(plans=plans, facts={}, policy={})
    assert identity.initial_code_state == {"sources of cnnbench": "one"}
    identity.raise_if_code_changed()
    with pytest.raises(BenchmarkError, match="sources of cnnbench"):
        identity.raise_if_code_changed()


def test_an_edited_plug_in_changes_the_measured_code(tmp_path, git):
    git(tmp_path, "init")
    plugin = tmp_path / "net.py"
    plugin.write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    plan = ConfigurationIdentity({}, {"plugin": (str(plugin),)}, tmp_path, own=False)
    identity = CampaignIdentity(plans={"a": plan}, facts={}, policy={})
    plugin.write_text("first = 1")
    identity.raise_if_code_changed()  # compared with the state at the first call
    plugin.write_text("second = 1")
    with pytest.raises(CodeChangedError, match="uncommitted changes of a"):
        identity.raise_if_code_changed()
