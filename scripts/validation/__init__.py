"""Modules of scripts/validate_gate, which measures error rates and power of verdicts."""
