"""Shared foundations: text, statistics, charts, files, plug-ins, jobs."""
