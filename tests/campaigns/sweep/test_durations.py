"""How long a sweep takes, before it starts and while it runs."""

from __future__ import annotations

import dataclasses
import io

import pytest

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.sweep.planning import ordered
from cnnbench.campaigns.sweep.runner import outlook
from cnnbench.run.driver import estimates

SUITE = "entries: [{name: a, flags: {device: cpu, model: lenet, num_batches: 5}}]"


@pytest.fixture(autouse=True)
def known_rate(limits):
    limits(estimates, cpu_rate=lambda: 1e11)


def test_a_first_guess_from_flops(plan):
    text = outlook(ordered(plan(SUITE).cases, 1), Campaign(Reporter()))
    assert text == (
        "7 processes of 1 configuration, 7 of each (repeats: auto): about 55 s, a first guess"
    )


def test_earlier_sweeps_know_better(plan):
    cases = plan(SUITE.replace("name: a", "name: a, repeats: 3")).cases
    campaign = Campaign(Reporter())
    campaign.remember((cases[0].key, False), 60.0)
    text = outlook(ordered(cases, 1), campaign)
    assert text == "3 processes of 1 configuration: about 3 min, as before"


def test_searches_and_unknown_devices_are_not_guessed(plan):
    (case,) = plan(SUITE.replace("name: a", "name: a, max_batch_search: true")).cases
    text = outlook(ordered([case], 1), Campaign(Reporter()))
    assert text.endswith("about 55 s, a first guess, and 1 search for batch sizes")
    work = dataclasses.replace(case.resolved.work, kind="gpu")
    unknown = dataclasses.replace(case, resolved=dataclasses.replace(case.resolved, work=work))
    assert outlook(ordered([unknown], 1), Campaign(Reporter())).endswith(
        "their duration is known after the first"
    )


def test_time_left_is_of_what_was_measured():
    campaign = Campaign(Reporter(said := io.StringIO()), cool_down=0.001)
    campaign.remember("old", 5.0)
    campaign.expect(["a", "a", "b", "c", "a", "old"])
    for seconds in (10.0, 20.0, 3.0):
        campaign.begin("x")
        campaign.end("x", "ok", seconds)
    campaign.drop("a")
    campaign.begin("x")
    campaign.end("x", "ok", 1.0)
    # What is not known yet takes as long as the others of this campaign did.
    etas = [line.rpartition(" ETA ")[2] for line in said.getvalue().splitlines()]
    assert etas == ["45 s", "50 s", "31 s", "5 s"]
