"""The start time in a record: ISO 8601 text with any offset from UTC."""

from __future__ import annotations

from datetime import datetime, timezone


def started(started_at: str) -> datetime:
    """The time in UTC.

    Args:
      started_at: as in a record, ISO 8601 with offset.

    Raises:
      ValueError: not ISO 8601, without an offset, or not within the years 1 to 9999 of UTC;
        names the key.
    """
    try:
        # Python 3.10 does not know the suffix Z.
        start = datetime.fromisoformat(started_at.replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"started_at: {started_at!r} is not an ISO 8601 time") from None
    if start.tzinfo is None:
        raise ValueError(f"started_at: {started_at!r} lacks its offset from UTC")
    try:
        return start.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"started_at: {started_at!r} is in no year of UTC") from None
