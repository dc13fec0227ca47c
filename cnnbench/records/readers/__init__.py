"""Readers of `cnnbench import`, one program each; see `cnnbench.records.reader`."""
