"""Writes what each playbook run did, one JSON line a run, so that a scenario can be held to having done something."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: plumbline_counts
type: aggregate
short_description: tasks of each playbook run, by host and outcome
description:
  - Appends C({playbook, check, seconds, hosts}) to the file that PLUMBLINE_COUNTS names.
requirements:
  - enabled (ANSIBLE_CALLBACKS_ENABLED)
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "plumbline_counts"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: Any) -> None:
        self._playbook = Path(playbook._file_name).name
        self._started = time.monotonic()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        path = os.environ.get("PLUMBLINE_COUNTS")
        if not path:
            return
        hosts = {name: stats.summarize(name) for name in stats.processed}
        line = {
            "playbook": self._playbook,
            "check": bool(context.CLIARGS.get("check")),
            "seconds": round(time.monotonic() - self._started, 1),
            "hosts": hosts,
        }
        with open(path, "a") as f:
            f.write(json.dumps(line) + "\n")
