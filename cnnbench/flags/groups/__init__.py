"""The groups of flags. Each is a frozen dataclass."""
