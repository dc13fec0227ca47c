"""Parts of scripts/validate_gate: does the gate turn red as rarely, and as surely, as it says?"""
