"""The plan of a run: everything that its flags resolve to, as typed values; no TensorFlow."""

from cnnbench.plan.run_plan import RunPlan, make_plan, make_setup, parse_run
from cnnbench.plan.setup import Setup

__all__ = ["RunPlan", "Setup", "make_plan", "make_setup", "parse_run"]
