"""The simulated clock of a host: one file that says what time it is in the story, and how often the host was booted.

The clock stands still between boots. A load or wait of t seconds moves it by t, however fast it passes; a window with
requests in flight moves it by its true length. ``python -m sglang.simulation.clock FILE --advance 12d`` moves it by
hand, so that a story of days needs no days.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

CLOCK_VARIABLE = "PLUMBLINE_SIMULATOR_CLOCK"
SCHEMA = "plumbline.simulator-clock/1"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Clock:
    """The clock in ``path``; without a path it lives as long as the process."""

    def __init__(self, path: Optional[str] = None) -> None:
        self.path = Path(path) if path else None
        self._lock, self._one_writer = threading.Lock(), threading.Lock()
        self._unwritten = 0.0
        self._writing: Optional[threading.Event] = None
        self._state = self._update(lambda _state: None)
        self._busy_since: Optional[float] = None

    @property
    def now(self) -> float:
        """Simulated time, Unix seconds."""
        running = time.monotonic() - self._busy_since if self._busy_since is not None else 0.0
        with self._lock:
            return float(self._state["now"]) + self._unwritten + running

    @property
    def hours(self) -> float:
        """Simulated hours since the clock was made."""
        return (self.now - float(self._state["origin"])) / 3600.0

    def boot(self) -> int:
        """Count one more boot of this host; returns its number, from 1."""

        def count(state: Dict[str, Any]) -> None:
            state["boots"] += 1

        self._state = self._update(count)
        return int(self._state["boots"])

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        with self._lock:
            self._unwritten += seconds
        if self._writing is None:
            self.write()
        else:
            self._writing.set()

    def write_in_background(self) -> None:
        """From now on a thread writes the file: a busy disk must not hold up the steps of a server."""
        self._writing = threading.Event()
        threading.Thread(target=self._write_on, daemon=True, name="clock").start()

    def write(self) -> None:
        """Have in the file what has passed so far."""
        with self._one_writer:
            with self._lock:
                seconds = self._unwritten

            def move(state: Dict[str, Any]) -> None:
                state["now"] += seconds

            state = self._update(move)
            with self._lock:
                self._state, self._unwritten = state, self._unwritten - seconds

    def _write_on(self) -> None:
        while self._writing is not None:
            self._writing.wait()
            self._writing.clear()
            self.write()

    def window_opens(self) -> None:
        """Requests are in flight from now on: the clock runs."""
        if self._busy_since is None:
            self._busy_since = time.monotonic()

    def window_closes(self, going_on: bool = False) -> None:
        """No request is in flight any more, or (``going_on``) write down what has passed so far."""
        if self._busy_since is not None:
            passed = time.monotonic() - self._busy_since
            self._busy_since = self._busy_since + passed if going_on else None
            self.advance(passed)

    def _update(self, change: Callable[[Dict[str, Any]], None]) -> Dict[str, Any]:
        if self.path is None:
            state = dict(getattr(self, "_state", None) or _fresh())
            change(state)
            return state
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{self.path}.lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else _fresh()
            before = dict(state)
            change(state)
            if state != before or not self.path.exists():
                half = self.path.with_name(f"{self.path.name}.new")
                half.write_text(json.dumps(state), encoding="utf-8")
                half.replace(self.path)
            return state


def _fresh() -> Dict[str, Any]:
    now = round(time.time(), 3)
    return {"schema": SCHEMA, "origin": now, "now": now, "boots": 0}


def seconds(text: str) -> float:
    """``90``, ``90s``, ``5m``, ``2h`` or ``12d`` in seconds. Raises ValueError."""
    match = re.fullmatch(r"([0-9.]+)([smhd]?)", text)
    if not match:
        raise ValueError(f"{text!r} is not a time; allowed: a number with s, m, h or d")
    return float(match.group(1)) * UNITS[match.group(2) or "s"]


def main() -> None:
    """Show or move a clock."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", help="the clock's file")
    parser.add_argument("--advance", type=seconds, default=0.0, help="how far, such as 90s, 5m, 2h or 12d")
    options = parser.parse_args()
    clock = Clock(options.file)
    if options.advance:
        clock.advance(options.advance)
    print(json.dumps({"now": clock.now, "hours": round(clock.hours, 6)}))


if __name__ == "__main__":
    main()
