from __future__ import annotations

from datetime import datetime, timezone

import pytest

from cnnbench.records.timestamps import started


@pytest.mark.parametrize(
    "text",
    [
        "2026-05-04T03:02:01Z",
        "2026-05-04T03:02:01+00:00",
        "2026-05-04T05:02:01+02:00",
        "2026-05-03T20:02:01-07:00",
    ],
)
def test_one_moment_is_one_moment_whatever_the_offset(text):
    assert started(text) == datetime(2026, 5, 4, 3, 2, 1, tzinfo=timezone.utc)
    assert started(text).tzinfo is timezone.utc


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("yesterday", "is not an ISO 8601 time"),
        ("2026-05-04T03:02:01", "lacks its offset from UTC"),
        ("0001-01-01T00:00:00+14:00", "is in no year of UTC"),
        ("9999-12-31T23:59:59-14:00", "is in no year of UTC"),
    ],
)
def test_what_is_no_start_is_named(text, reason):
    with pytest.raises(ValueError, match=f"^started_at: '.*' {reason}$"):
        started(text)
