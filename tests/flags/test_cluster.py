"""What flags say about the job."""

from __future__ import annotations

from cnnbench.flags import Params
from cnnbench.flags.cluster import agreed_facts
from cnnbench.version import __version__


def test_processes_agree_on_what_is_measured_but_not_on_where_it_is_written():
    facts = agreed_facts(Params(model="lenet", num_batches=7))
    assert facts["cnnbench_version"] == __version__
    assert facts["tensorflow_version"].count(".") == 2
    assert facts["--model"] == "lenet"
    assert facts["--num_batches"] == "7"
    own = Params(model="lenet", num_batches=7, task_index=1, result_json="x", data_dir="/a")
    assert agreed_facts(own) == facts
    assert agreed_facts(own.replace(batch_size=3)) != facts
