"""ULIDs: identifiers that sort by the time at which they were made.

Format: github.com/ulid/spec, 48 bits of milliseconds and 80 random bits in Crockford's base 32, 26 characters.
"""
from __future__ import annotations

import os
import re
import time
from typing import Optional

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


def ulid(now_s: Optional[float] = None, random: Optional[bytes] = None) -> str:
    """A new ULID. ``now_s`` is a Unix time in seconds, ``random`` 10 bytes; both are for tests."""
    ms = int((time.time() if now_s is None else now_s) * 1000)
    value = (ms << 80) | int.from_bytes(os.urandom(10) if random is None else random, "big")
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


def made_at(text: str) -> float:
    """The Unix time in seconds at which a ULID was made."""
    ms = 0
    for character in text[:10]:
        ms = ms * 32 + _ALPHABET.index(character)
    return ms / 1000.0


def is_ulid(text: str) -> bool:
    return ULID.fullmatch(text) is not None
