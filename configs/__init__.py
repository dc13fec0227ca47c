"""The suites that come with cnnbench: ``cnnbench sweep NAME``. See docs/sweep.md."""
