"""What playbooks/rebuild.yml decides on the controller: from a lock and an observed state to what must be run.

`read` checks a lock before any host is touched. `plan` sorts each difference into one of: a step (a role, or a task
file of ``plumbline_rebuild``, that mends it), the inventory (it declares otherwise than the lock), or what cannot be
changed from here, with the reason. `settle` says how it ended.
"""

from __future__ import annotations

from .ending import came_back, lines, settle
from .host import Host
from .lock_checks import check_models, digest_of_build, read
from .planning import plan
from .steps import STEPS, needs_reboot, of_lock

__all__ = [
    "STEPS",
    "Host",
    "came_back",
    "check_models",
    "digest_of_build",
    "lines",
    "needs_reboot",
    "of_lock",
    "plan",
    "read",
    "settle",
]
