"""The plan of a run (`RunPlan`): all values that the flags of the run resolve to, with types.

This package does not import TensorFlow.
"""

from cnnbench.plan.make import check_flags, join_job, make_plan, parse_run, resolve
from cnnbench.plan.run_plan import RunPlan

__all__ = ["RunPlan", "check_flags", "join_job", "make_plan", "parse_run", "resolve"]
