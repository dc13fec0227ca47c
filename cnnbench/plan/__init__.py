"""The plan of a run (`RunPlan`): all values that the flags of the run resolve to, with types.

This package does not import TensorFlow.
"""

from cnnbench.plan.make import make_plan, parse_run
from cnnbench.plan.run_plan import RunPlan

__all__ = ["RunPlan", "make_plan", "parse_run"]
