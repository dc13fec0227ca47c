"""The plan of a run: all values that its flags resolve to, with types. Does not import
TensorFlow.
"""

from cnnbench.plan.make import make_plan, parse_run
from cnnbench.plan.run_plan import RunPlan

__all__ = ["RunPlan", "make_plan", "parse_run"]
