"""Checks of the NVIDIA driver: can it be built, is it the right one, and who could exchange it."""

from __future__ import annotations

import re
from typing import Any, List, Mapping

from ..state.context import Context
from ..state.packages import parse_status
from .facts import Facts
from .finding import Finding, cannot, finding

_OPEN_LICENSE = "Dual MIT/GPL"
_HISTORY = 3


def _skip(facts: Facts, expected: Mapping[str, Any]) -> bool:
    """Where no driver is meant to be, nor is there one."""
    return not facts.has_driver and not expected.get("driver_version")


def secure_boot(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """A module that DKMS has built is not signed by anybody whom the firmware knows, unless a key was enrolled."""
    if facts.kind == "container" or _skip(facts, expected) or facts.secure_boot is None:
        return []
    keys = [
        n
        for f in ("/var/lib/dkms", "/var/lib/shim-signed/mok")
        for n in context.names(f)
        if n.lower() in ("mok.pub", "mok.der")
    ]
    enrolled = context.start("mokutil", ["mokutil", "--list-enrolled"]).result()
    known = bool(keys) and enrolled.rc == 0 and "CN" in enrolled.out
    loads = facts.driver["version"] is not None
    return finding(
        not facts.secure_boot or loads or known,
        "Secure Boot refuses kernel modules that are built here",
        "on, and no key of this host is enrolled" if facts.secure_boot else "off",
        "off, or this host's key enrolled",
        "sudo mokutil --import /var/lib/dkms/mok.pub, reboot and confirm at the console (it cannot be done from here), "
        "or turn Secure Boot off in the firmware",
    )


def headers(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """DKMS builds for the running kernel and for the one that the next boot takes; each needs its headers."""
    if facts.kind == "container" or _skip(facts, expected):
        return []
    lacking = [
        k
        for k in dict.fromkeys((facts.kernel, facts.next_kernel))
        if not context.path(f"/lib/modules/{k}/build").exists()
    ]
    return finding(
        not lacking,
        "the driver's module is built from the headers of the kernel",
        f"no headers for {', '.join(lacking)}" if lacking else f"headers for {facts.kernel}",
        f"/lib/modules/{facts.next_kernel}/build",
        f"sudo apt-get install {' '.join(f'linux-headers-{k}' for k in lacking or [facts.kernel])} "
        "(if there is none for a kernel that runs: upgrade the kernel and reboot into it)",
    )


def nouveau(_context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    if facts.kind == "container" or _skip(facts, expected):
        return []
    return finding(
        "nouveau" not in facts.modules,
        "nouveau holds the GPUs, so NVIDIA's module cannot",
        "nouveau is loaded" if "nouveau" in facts.modules else "not loaded",
        "not loaded",
        "reboot (-e allow_reboot=true); the role gpu_driver has blacklisted it",
    )


def open_modules(context: Context, _expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """Blackwell works with the open kernel modules only: with the others, "No devices were found"."""
    if not facts.has_driver:
        return []
    license_ = context.start("modinfo.license", ["modinfo", "-F", "license", "nvidia"]).result()
    told = license_.out.strip() if license_.rc == 0 else ""
    flavour = facts.driver["flavour"] or ("open" if told == _OPEN_LICENSE else "proprietary" if told else None)
    if flavour is None:
        return cannot(
            "the flavour of the kernel modules",
            "no module is loaded and modinfo knows none",
            "sudo modprobe nvidia; if that fails, see dmesg",
        )
    where = "on the machine below this container: " if facts.kind == "container" else ""
    return finding(
        flavour == "open",
        "Blackwell GPUs need the open kernel modules",
        f"{flavour} ({told or 'as loaded'})",
        f"open ({_OPEN_LICENSE})",
        where + "install the same version's open flavour (gpu_driver), then reboot",
    )


def version(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """Module as loaded, module as installed, user space and what is wanted: all one version."""
    if not facts.has_driver:
        return []
    loaded, out = facts.driver["version"], []
    wanted = str(expected.get("driver_version") or loaded or "")
    remedy_user = (
        f"install user space of exactly {loaded} (role gpu_driver)"
        if facts.kind == "container"
        else "reboot (-e allow_reboot=true)"
    )
    users = facts.user_space if isinstance(facts.user_space, list) else [facts.user_space] if facts.user_space else []
    if loaded and users:
        history = _history(context) if users != [loaded] else ""
        out += finding(
            users == [loaded],
            "user space and kernel module of the driver are one version",
            f"module {loaded}, libnvidia-ml {', '.join(users)}{history}",
            f"{loaded} and {loaded}",
            remedy_user,
        )
    elif facts.kind == "bare" and not loaded and facts.gpus:
        out += finding(
            False,
            "the driver's module is loaded",
            "not loaded",
            f"loaded, {wanted or 'any version'}",
            "reboot (-e allow_reboot=true), or: sudo modprobe nvidia",
        )
    if loaded and expected.get("driver_version"):
        out += finding(
            loaded == wanted,
            "the driver is the version that was asked for",
            loaded,
            wanted,
            "change it on the machine below this container"
            if facts.kind == "container"
            else "run site.yml, then reboot (-e allow_reboot=true)",
        )
    installed = context.start("modinfo.version", ["modinfo", "-F", "version", "nvidia"]).result()
    if facts.kind == "bare" and loaded and installed.rc == 0:
        out += finding(
            installed.out.strip() == loaded,
            "the next boot loads the module that runs now",
            f"running {loaded}, installed {installed.out.strip()}",
            loaded,
            "reboot (-e allow_reboot=true)",
        )
    if loaded and not users:
        out += finding(False, "there is a user space to the loaded module", "no libnvidia-ml", loaded, remedy_user)
    return out


def _history(context: Context) -> str:
    """The last lines of apt's history that touched the driver: what has exchanged it."""
    hits = []
    for block in re.split(r"\n\s*\n", context.text("/var/log/apt/history.log")):
        if "nvidia" in block:
            when = re.search(r"(?m)^Start-Date: (.*)$", block)
            by = re.search(r"(?m)^(?:Commandline|Requested-By): (.*)$", block)
            hits.append(f"{when.group(1) if when else '?'} {by.group(1) if by else ''}".strip())
    return f" (apt: {'; '.join(hits[-_HISTORY:])})" if hits else ""


def upgrades(context: Context, expected: Mapping[str, Any], _facts: Facts) -> List[Finding]:
    """Packages that must not move are held, and unattended upgrades leave them alone."""
    names = list(expected.get("held") or [])
    if not names or not context.path("/var/lib/dpkg/status").exists():
        return []
    status = parse_status(context.text("/var/lib/dpkg/status"))
    loose = [n for n in names if n in status and not status[n].get("held")]
    missing = [n for n in names if n not in status]
    out = finding(
        not loose and not missing,
        "packages of the driver are installed and held",
        "; ".join([*(f"{n} is not held" for n in loose), *(f"{n} is not installed" for n in missing)]) or "held",
        "held",
        f"sudo apt-mark hold {' '.join(loose)}" if loose and not missing else "run site.yml",
    )
    if "unattended-upgrades" in status:
        texts = [context.text(f"/etc/apt/apt.conf.d/{n}") for n in context.names("/etc/apt/apt.conf.d")]
        listed = [m for t in texts for m in re.findall(r"Package-Blacklist\s*\{([^}]*)\}", _uncommented(t))]
        patterns = re.findall(r'"([^"]+)"', " ".join(listed))
        open_to = [n for n in names if not any(re.match(p, n) for p in patterns)]
        out += finding(
            not open_to,
            "unattended upgrades leave the driver alone",
            f"they may upgrade {', '.join(open_to)}" if open_to else "excluded",
            "in Unattended-Upgrade::Package-Blacklist",
            "run site.yml (role gpu_driver)",
            "warning",
        )
    return out


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("//", "#")))
