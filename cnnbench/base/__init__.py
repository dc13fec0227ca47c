"""Foundations that all packages use: text, statistics, files, plug-ins and jobs."""
