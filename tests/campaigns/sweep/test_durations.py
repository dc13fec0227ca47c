"""How long a campaign takes, while it runs."""

from __future__ import annotations

import io

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.processes.campaign import Campaign


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
