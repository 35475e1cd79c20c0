"""Process titles, and children that die with their parent, in the standard library."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when its parent ends; ``parent`` is the pid that it had when it was started."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_title(title: str) -> None:
    """Show ``title`` in process lists, as setproctitle does, which SGLang's workers call.

    The title is written over the memory of the arguments and, unless SPT_NOENV is set, of the environment: after that
    /proc/PID/environ no longer shows the environment that the process works with.
    """
    try:
        import setproctitle
    except ImportError:
        _overwrite(title)
    else:
        setproctitle.setproctitle(title)


def _overwrite(title: str) -> None:
    # The environment is moved to the heap first: its old place is about to be overwritten.
    for name, value in list(os.environ.items()):
        os.putenv(name, value)
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        start, end_of_arguments, end = (int(fields[place]) for place in (45, 46, 48))
        last = end_of_arguments if os.environ.get("SPT_NOENV") else end
        size = last - start
        if start and size > 1:
            text = title.encode()[: size - 1]
            ctypes.memmove(start, text + b"\0" * (size - len(text)), size)
        with open("/proc/self/comm", "w", encoding="utf-8") as file:
            file.write(title[:15])
    except (OSError, IndexError, ValueError):
        return
