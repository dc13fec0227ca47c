"""The plan of a run: everything that its flags resolve to, as typed values; no TensorFlow."""

from cnnbench.plan.make import make_plan, parse_run
from cnnbench.plan.run_plan import RunPlan

__all__ = ["RunPlan", "make_plan", "parse_run"]
