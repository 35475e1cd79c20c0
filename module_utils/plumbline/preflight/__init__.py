"""What must hold before a host serves or measures: every check at once, each with what would mend it.

``run(context, expected, checks)`` reads the host and returns ``{facts, findings}``. A finding is
``{check, level, what, found, expected, remedy}``; ``level`` is ``ok``, ``warning`` (it works, and may be slower or
change by itself), ``error`` (do not serve) or ``unknown`` (it could not be looked at). A check with nothing to say of
this host (no GPU, a container) has no finding.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence

from ..errors import unknown_name
from ..state.context import Context
from . import driver, gpus, limits, processes
from .facts import Facts, facts_of
from .finding import Finding

Check = Callable[[Context, Mapping[str, Any], Facts], List[Finding]]

CHECKS: Dict[str, Check] = {
    "secure_boot": driver.secure_boot,
    "headers": driver.headers,
    "nouveau": driver.nouveau,
    "open_modules": driver.open_modules,
    "driver_version": driver.version,
    "upgrades": driver.upgrades,
    "gpus": gpus.count_and_settings,
    "links": gpus.links,
    "wedged": gpus.wedged,
    "xid": gpus.xids,
    "p2p": gpus.p2p,
    "iommu": gpus.iommu,
    "acs": gpus.acs,
    "nccl_ib": limits.nccl_ib,
    "shm": limits.shm,
    "memlock": limits.memlock,
    "nofile": limits.nofile,
    "orphans": processes.orphans,
    "ports": processes.ports,
}


def run(context: Context, expected: Mapping[str, Any], checks: Sequence[str]) -> Dict[str, Any]:
    """``{facts, findings}``; raises PlumblineError for a check that does not exist. ``checks`` may be ``[all]``."""
    names = list(CHECKS) if list(checks) == ["all"] else list(checks)
    for name in names:
        if name not in CHECKS:
            raise unknown_name("check", name, CHECKS, "preflight_checks")
    facts = facts_of(context)
    findings: List[Dict[str, Any]] = []
    for name in names:
        findings += [{"check": name, **finding} for finding in CHECKS[name](context, expected, facts)]
    return {"facts": facts.as_dict(), "findings": findings}
