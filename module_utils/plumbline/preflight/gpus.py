"""Checks of the GPUs and of the paths between them."""

from __future__ import annotations

from typing import Any, List, Mapping

from ..gpu import samples, smi, topology, xid
from ..state import kernel
from ..state.context import Context
from ..state.values import is_unknown
from .facts import Facts
from .finding import Finding, cannot, finding

_NO_P2P = ("CNS", "GNS", "TNS", "NS", "DR", "U")


def count_and_settings(_context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """How many there are, and persistence, MIG and BAR1 as NVML has them (not as a daemon's state suggests)."""
    wanted, out = expected.get("gpus"), []
    if facts.smi is None:
        if wanted:
            out += finding(
                False,
                "the driver shows the GPUs",
                facts.smi_why or "no NVIDIA driver",
                f"{wanted} GPUs",
                "see the other findings; `nvidia-smi` must answer",
            )
        elif facts.has_driver:
            out += cannot(
                "the GPUs", facts.smi_why, "nvidia-smi must answer; `sudo dmesg | grep NVRM` says why it does not"
            )
        return out
    seen = facts.smi["gpus"]
    owner = "on the machine below this container: " if facts.kind == "container" else ""
    if wanted is not None:
        out += finding(
            len(seen) == int(wanted),
            "all GPUs are there",
            len(seen),
            wanted,
            "`sudo dmesg | grep -i 'fallen off the bus\\|Xid'`, then cut the power: a reboot may not bring it back",
        )
    off = [g["index"] for g in seen if g["persistence"] is False]
    out += finding(
        not off,
        "persistence mode is on",
        f"off on GPU {', '.join(map(str, off))}" if off else "on",
        "on",
        owner + "sudo systemctl enable --now nvidia-persistenced",
        "warning",
    )
    mig = [g["index"] for g in seen if "enabled" in str(g["mig"]["current"]).lower() or g["mig"]["current"] is True]
    out += finding(
        not mig,
        "MIG is off",
        f"on for GPU {', '.join(map(str, mig))}" if mig else "off",
        "off",
        owner + "sudo nvidia-smi -mig 0, then reset the GPUs or reboot",
    )
    small = [
        g["index"]
        for g in seen
        if g["bar1_mib"].get("total")
        and g["memory_mib"].get("total")
        and g["bar1_mib"]["total"] < g["memory_mib"]["total"]
    ]
    out += finding(
        not small,
        "BAR1 covers the GPU's memory",
        f"smaller on GPU {', '.join(map(str, small))}" if small else "it does",
        "BAR1 at least as large as the memory",
        "turn Resizable BAR and Above 4G Decoding on in the firmware",
        "warning",
    )
    return out


def links(_context: Context, _expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """The width must be whole even at idle; the generation counts under load only."""
    if facts.smi is None or not facts.smi["gpus"]:
        return []
    narrow = smi.summary(facts.smi)["narrow"]
    return finding(
        not narrow,
        "the PCIe links have their whole width",
        f"narrow on GPU {', '.join(map(str, narrow))}" if narrow else "whole",
        "16 lanes each",
        "reseat the card or riser; `sudo lspci -vv` shows LnkSta against LnkCap",
        "warning",
    )


def wedged(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """GPUs that are busy for nobody: a hung collective leaves them so, without an Xid."""
    seconds = float(expected.get("wedge_seconds") or 0)
    if facts.smi is None or not facts.smi["gpus"] or not seconds or str(context.sysroot) != "/":
        return []
    seen = samples.look(seconds)
    if seen is None:
        return cannot("whether a GPU is wedged", "nvidia-smi gave no samples", "nvidia-smi must answer")
    stuck = seen["wedged"]
    return finding(
        not stuck,
        "no GPU is busy for nobody",
        "; ".join(s["detail"] for s in stuck) or "none",
        "none",
        "reset them (sudo nvidia-smi --gpu-reset -i N) or reboot; a restart of the server does not help",
    )


def xids(context: Context, _expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """Faults that the kernel log has of this boot and that call for hardware or a reset."""
    if not facts.has_driver:
        return []
    log = context.start("dmesg", ["dmesg"]).result()
    if log.rc != 0:
        return cannot("the kernel log", log.why, "run as root, or set kernel.dmesg_restrict to 0")
    bad = [e for e in xid.parse(log.out) if e["suspect"] and "hardware" in e["suspect"]]
    return finding(
        not bad,
        "the kernel log has no hardware fault of a GPU",
        "; ".join(f"Xid {e['xid']} of {e['gpu']}: {e['meaning']}" for e in bad[-3:]) or "none",
        "none",
        "drain the host; power cycle it, and if it comes again have the card looked at",
        "warning",
    )


def p2p(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """What the driver allows. That it works is shown only by a data-checked collective (playbooks/nccl.yml)."""
    if not expected.get("p2p") or facts.smi is None or len(facts.smi["gpus"]) < 2:
        return []
    table = context.start("p2p.read", ["nvidia-smi", "topo", "-p2p", "r"]).result()
    try:
        if table.rc != 0:
            raise ValueError(table.why)
        found = topology.parse_p2p(table.out)
    except ValueError as error:
        return cannot("which GPUs may reach one another", error, "nvidia-smi topo -p2p r")
    names = found["gpus"]
    barred = [
        f"{a}-{b}: {found['matrix'][a][b]}"
        for a in names
        for b in names
        if a != b and found["matrix"].get(a, {}).get(b) in _NO_P2P
    ]
    return finding(
        not barred,
        "the driver lets GPUs reach one another",
        f"{len(barred)} pairs may not ({', '.join(barred[:4])})" if barred else "all pairs",
        "all pairs",
        "CNS and TNS are the chipset's and topology's: see iommu and acs, and pcie settings of the firmware; "
        "without it NCCL goes through shared memory",
        "warning",
    )


def iommu(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """An IOMMU that translates stands between GPUs: transfers hang or are slow."""
    if facts.kind == "container" or not expected.get("p2p") or facts.gpus < 2:
        return []
    found = kernel.iommu(context)
    line = context.text("/proc/cmdline")
    translating = [t for t in found.get("types", []) if t.startswith("DMA")] if isinstance(found, dict) else []
    said = " ".join(w for w in line.split() if "iommu" in w) or "nothing about it on the kernel's command line"
    return finding(
        not translating,
        "the IOMMU lets GPUs talk to one another directly",
        f"translating ({', '.join(translating)}); {said}" if translating else f"off or passing through; {said}",
        "iommu=pt, or off",
        "gpu_host_kernel_parameters: [iommu=pt] and a reboot (off gives up isolation; after a change in the firmware "
        "take the power off once)",
        "warning",
    )


def acs(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """A bridge that redirects peer traffic sends it up to the root complex and back."""
    if facts.kind == "container" or not expected.get("p2p") or facts.gpus < 2:
        return []
    tool = context.start("lspci", ["lspci", "-vvv", "-d", "::0604"]).result()
    found = kernel.acs(context, tool.out, tool.why if tool.rc != 0 else "")
    if is_unknown(found):
        return cannot("ACS of the bridges", found["unknown"], "run as root, with pciutils installed")
    on = [bdf for bdf, redirects in found.items() if redirects is True and bdf != "absent"]
    return finding(
        not on,
        "no bridge redirects traffic between GPUs",
        f"{len(on)} do ({', '.join(on[:4])})" if on else "none does",
        "none",
        "gpu_host_acs_off: true (not with untrusted guests), or turn ACS off in the firmware",
        "warning",
    )
