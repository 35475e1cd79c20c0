"""Log lines in SGLang's form, one write each, so that lines of nine processes never mix."""

from __future__ import annotations

import os
import time


def log(text: str, tag: str = "") -> None:
    """``[2026-01-01 10:00:00 TP0] text`` on standard error."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    raw(f"[{stamp}{' ' + tag if tag else ''}] {text}")


def raw(text: str) -> None:
    """A line without the prefix."""
    os.write(2, f"{text}\n".encode("utf-8", "surrogateescape"))
