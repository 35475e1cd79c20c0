"""Ansible's forked workers, and what becomes of them when the controller is killed."""
from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_controller() -> None:
    """Let the kernel end this forked worker when the ansible-playbook process ends, however it ends.

    A worker whose result is larger than a pipe holds would else wait for ever for somebody to read it. The module that
    it started goes on: what it measures lies in the spool.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)
