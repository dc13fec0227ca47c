"""The plan of a run (`RunPlan`): all values that the flags of the run resolve to, with types.

This package does not import TensorFlow.
"""

from cnnbench.flags import JobFlagNames, WorkKind
from cnnbench.plan.identity import digest_of_value, facts_to_agree_on
from cnnbench.plan.inputs import refuse_files_of_run
from cnnbench.plan.make import (
    check_flags,
    join_job,
    make_plan,
    parse_run,
    plan_before_plugins,
    resolve,
    without_batch_size_search,
)
from cnnbench.plan.network import model_gradients
from cnnbench.plan.place import ADDRESSES, OF_A_PROCESS
from cnnbench.plan.rules import unused_flag_notices
from cnnbench.plan.run_plan import Runnable, RunPlan, without_outputs
from cnnbench.plan.setup import MachineFlags, card_numbers, gpu_numbers

__all__ = [
    "ADDRESSES",
    "OF_A_PROCESS",
    "JobFlagNames",
    "MachineFlags",
    "RunPlan",
    "Runnable",
    "WorkKind",
    "card_numbers",
    "check_flags",
    "digest_of_value",
    "facts_to_agree_on",
    "gpu_numbers",
    "join_job",
    "make_plan",
    "model_gradients",
    "parse_run",
    "plan_before_plugins",
    "refuse_files_of_run",
    "resolve",
    "unused_flag_notices",
    "without_batch_size_search",
    "without_outputs",
]
