"""Transcripts of commands."""

from __future__ import annotations

import pytest
from golden import Transcript


@pytest.fixture
def transcript(request: pytest.FixtureRequest, tmp_path) -> Transcript:
    """transcript(CASE, TEXT): compares a text with the file golden/*.txt of the test file."""
    folder, name = request.path.parent / "golden", request.path.stem.removeprefix("test_")
    tests = [name for name in vars(request.module) if name.startswith("test_")]
    return Transcript(folder / f"{name}.txt", request.node.originalname, tests, tmp_path)
