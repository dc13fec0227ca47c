"""Declarations of flags, grouped by topic. Each group of flags is a frozen dataclass."""
