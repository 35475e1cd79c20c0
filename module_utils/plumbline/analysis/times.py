"""Times as records hold them: RFC 3339, UTC."""
from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache


@lru_cache(maxsize=65536)
def seconds(text: str) -> float:
    """Unix seconds of an RFC 3339 time."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def text(unix_s: float) -> str:
    """RFC 3339, UTC, milliseconds."""
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
