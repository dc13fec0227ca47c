"""Parts of scripts/validate_gate: measured error rates and power of the gate."""
