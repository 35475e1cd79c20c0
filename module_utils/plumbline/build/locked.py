"""The lock of a host's builds: whoever makes, moves or points to one holds it."""

from __future__ import annotations

import contextlib
import fcntl
import time
from pathlib import Path
from typing import Iterator

from ..errors import PlumblineError
from .manifest import builds_dir

WAIT_S = 1800.0  # what a killed maker started may still run


@contextlib.contextmanager
def locked(root: Path) -> Iterator[int]:
    """Hold the lock of the builds below ``root``; gives its file descriptor.

    A process that inherits the descriptor holds the lock too, so that what an aborted build left running is waited
    for. Raises PlumblineError after `WAIT_S`.
    """
    folder = builds_dir(root)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as f:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PlumblineError(
                        "a build has been made on this host for too long",
                        str(folder / ".lock"),
                        f"still held after {WAIT_S:.0f} s",
                        None,
                        f"wait for it; fuser -v {folder}/.lock names it",
                    ) from None
                time.sleep(0.2)
        yield f.fileno()
