"""Files that are written without waiting for the disk, which takes no CPU time."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
