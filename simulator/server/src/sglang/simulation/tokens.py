"""Tokens without a model: an answer depends on its prompt only, so every server gives the same one."""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import List, Sequence, Set

FIRST, VOCABULARY, BOS, EOS = 500, 31000, 1, 2
SYLLABLES = [
    a + b + c
    for a in ("", "b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v")
    for b in "aeiou"
    for c in ("", "n", "r")
]
MULTIPLIER, INCREMENT, MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1
PIECES = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


def encode(text: str) -> List[int]:
    """Token ids of ``text``, one a word or sign, after a BOS."""
    return [BOS] + [FIRST + zlib.crc32(piece.encode()) % VOCABULARY for piece in PIECES.findall(text)]


def decode(token: int) -> str:
    """The text of one token; letters and a space only, so that it needs no escaping in JSON."""
    if token < FIRST:
        return ""
    high, low = divmod(token - FIRST, len(SYLLABLES))
    return f" {SYLLABLES[high % len(SYLLABLES)]}{SYLLABLES[low]}"


class Answer:
    """The endless greedy answer to a prompt."""

    def __init__(self, prompt: Sequence[int], salt: str = "") -> None:
        """``salt`` makes it another answer: sampling, or garbage."""
        text = ",".join(map(str, prompt)) + salt
        self._state = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def next(self) -> int:
        """The next token id."""
        self._state = (self._state * MULTIPLIER + INCREMENT) & MASK
        return FIRST + (self._state >> 33) % VOCABULARY


class PrefixCache:
    """Which prefixes a radix cache would hold, by their running hash."""

    def __init__(self) -> None:
        self._prefixes: Set[int] = set()

    def clear(self) -> None:
        """Forget everything."""
        self._prefixes.clear()

    def insert(self, tokens: Sequence[int]) -> None:
        """Remember a sequence and all its prefixes."""
        state = 0
        for token in tokens:
            state = hash((state, token))
            self._prefixes.add(state)

    def match(self, tokens: Sequence[int]) -> int:
        """Length of the longest known prefix; the last token is always computed."""
        state = 0
        for length, token in enumerate(tokens[:-1]):
            state = hash((state, token))
            if state not in self._prefixes:
                return length
        return max(0, len(tokens) - 1)

    def __len__(self) -> int:
        return len(self._prefixes)
