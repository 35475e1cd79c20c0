"""Group ``firmware_and_kernel``: what was decided when the machine started: BIOS, microcode, kernel, its command line
and settings, IOMMU and ACS."""

# ruff: noqa: PTH118
from __future__ import annotations

import os
import re
import stat
from typing import Any, Dict, List

from ..gpu import acs as acs_lines
from . import conf
from .context import Context
from .redact import redact_argv
from .values import Group, absent, unknown

# Settings of these trees are observed where they are readable by all (so that root and others see the same) and
# writable.
_SYSCTL_TREES = ("vm", "kernel", "fs", "net/core", "net/ipv4")
# Not settings, though writable: counters, values that the kernel moves by itself, identities of the host.
_MOVING = re.compile(
    r"^(kernel\.(ns_last_pid|tainted|hostname|domainname|random\..*|perf_event_max_sample_rate|pty\..*|core_pipe_limit|sched_domain\..*"
    r"|hung_task_warnings|keys\..*|usermodehelper\..*)|vm\.(stat_refresh|drop_caches|compact_memory)|fs\.(dentry-state|file-nr|inode-nr|inode-state|aio-nr)"
    r"|fs\.(binfmt_misc|nfs|mqueue)\..*"
    r"|net\.ipv4\.(conf|neigh|route)\..*)$"
)
# Set by the kernel from the memory that is free at boot: they differ a little from boot to boot unless somebody set
# them.
_SIZED = re.compile(
    r"^(net\.ipv4\.(tcp_mem|udp_mem|tcp_rmem|tcp_wmem|tcp_max_orphans|tcp_max_tw_buckets|tcp_max_syn_backlog|inet_peer_threshold)"
    r"|kernel\.(threads-max|msgmni|max_lock_depth)|fs\.(file-max|epoll\.max_user_watches|inotify\.max_user_watches|aio-max-nr)"
    r"|vm\.(min_free_kbytes|user_reserve_kbytes|admin_reserve_kbytes))$"
)


def sysctls(context: Context) -> Dict[str, str]:
    """Kernel settings by their sysctl name."""
    out: Dict[str, str] = {}
    top = str(context.path("/proc/sys"))
    for tree in _SYSCTL_TREES:
        pending = [os.path.join(top, tree)]
        while pending:
            folder = pending.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            for entry in entries:
                name = os.path.relpath(entry.path, top).replace("/", ".")
                if _MOVING.match(name) or _MOVING.match(name + ".x"):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    continue
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISREG(mode) and mode & 0o004 and mode & 0o222:
                    try:
                        with open(entry.path, "rb") as f:
                            out[name] = " ".join(f.read(4096).decode("utf-8", "replace").split())
                    except OSError:
                        continue  # a setting of a feature that is not there answers with an error
    return out


def command_line(context: Context) -> Any:
    """The kernel's command line as a list, without what only says where the kernel was loaded from."""
    found = context.read("/proc/cmdline")
    if not isinstance(found, str):
        return found
    return redact_argv([a for a in found.split() if not a.startswith(("BOOT_IMAGE=", "initrd="))])


def iommu(context: Context) -> Any:
    """``{units, groups, types}``: translating IOMMUs decide whether GPUs can reach one another."""
    units = context.names("/sys/class/iommu")
    groups = context.names("/sys/kernel/iommu_groups")
    if not units and not groups:
        return absent()
    types = sorted({context.text(f"/sys/kernel/iommu_groups/{g}/type") for g in groups} - {""})
    return {"units": len(units), "groups": len(groups), "types": types}


def bridges(context: Context) -> List[str]:
    """Addresses of the PCI bridges."""
    base = "/sys/bus/pci/devices"
    return [a for a in context.names(base) if context.text(f"{base}/{a}/class").startswith("0x0604")]


def acs(context: Context, text: str = "", why: str = "") -> Any:
    """``{bridge address: true if requests of peers are redirected}`` from ``lspci -vvv`` (root only)."""
    if not bridges(context):
        return absent()
    try:
        return {d["bdf"]: d["redirects"] for d in acs_lines.parse(text)["devices"] if d["bridge"]}
    except ValueError:
        pass
    if "<access denied>" in text:
        return unknown("lspci shows ACS only to root")
    if "Capabilities: [" in text:
        return absent()
    return unknown(why or "lspci showed no capabilities")


def observe(context: Context) -> Group:
    """The group ``firmware_and_kernel``."""
    group = Group("firmware_and_kernel")
    for item in ("bios_vendor", "bios_version", "bios_date"):
        group.identity[item] = context.read(f"/sys/class/dmi/id/{item}")
    microcode = re.search(r"(?m)^microcode\s*:\s*(\S+)", context.text("/proc/cpuinfo"))
    group.identity["microcode"] = microcode.group(1) if microcode else absent()
    group.identity["kernel"] = context.read("/proc/sys/kernel/osrelease")
    group.identity["kernel.build"] = context.read("/proc/sys/kernel/version")
    group.identity["command_line"] = command_line(context)
    group.identity["iommu"] = iommu(context)
    if bridges(context):
        tool = context.start("lspci", ["lspci", "-vvv", "-d", "::0604"]).result()
        group.identity["acs"] = acs(context, tool.out, tool.why if tool.rc != 0 else "")
    else:
        group.identity["acs"] = absent()
    for name, value in sysctls(context).items():
        (group.condition if _SIZED.match(name) else group.identity)[f"sysctl.{name}"] = value
    for item in ("enabled", "defrag", "shmem_enabled"):
        chosen = re.search(r"\[(\w+)\]", context.text(f"/sys/kernel/mm/transparent_hugepage/{item}"))
        group.identity[f"transparent_hugepage.{item}"] = chosen.group(1) if chosen else absent()
    weak = {
        n: context.text(f"/sys/devices/system/cpu/vulnerabilities/{n}")
        for n in context.names("/sys/devices/system/cpu/vulnerabilities")
    }
    group.identity["mitigations"] = weak or absent()
    group.identity.update({f"boot.{path}": said for path, said in conf.files(context, conf.BOOT).items()})
    group.condition["boot_id"] = context.read("/proc/sys/kernel/random/boot_id")
    group.condition["boot_kind"] = _boot_kind(context)
    group.condition["uptime_s"] = int(float((context.text("/proc/uptime").split() or ["0"])[0]))
    group.condition["tainted"] = context.read("/proc/sys/kernel/tainted")
    return group


def _boot_kind(context: Context) -> Any:
    """``uefi`` or ``bios`` and whether a kexec kernel is loaded. Whether power was cut before is not told by any
    kernel."""
    if not context.path("/sys/firmware").exists():
        return unknown("no /sys/firmware")
    return {
        "firmware": "uefi" if context.path("/sys/firmware/efi").exists() else "bios or none",
        "reboot_mode": context.text("/sys/kernel/reboot/mode") or None,
        "cold": None,
    }
