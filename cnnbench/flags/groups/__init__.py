"""The groups of flags: one frozen dataclass each."""
