"""How much a difference can matter, by the kind of the item, and what mends it.

Classes (listed in this order): ``invalidates`` (weights, drafts, arguments: another thing is measured),
``performance`` (build, edited files, NCCL, driver, power, clocks, the path between GPUs), ``possible`` (kernel,
packages), ``noise`` (folded).
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Tuple

from .values import is_absent

CLASSES: Tuple[str, ...] = ("invalidates", "performance", "possible", "noise")

# group -> [(pattern of the item, class, remedy)]; the first that matches counts.
_RULES: Mapping[str, List[Tuple[str, str, str]]] = {
    "models": [(r".*", "invalidates", "place the model again: the role sglang_models checks every digest")],
    "engine_args": [
        (r"args\..*", "invalidates", "give the server the same argument, or compare them as two arms of an experiment"),
        (
            r"environment\.(SGLANG|OMP|MKL|KMP|GOMP|CUDA|TORCH|PYTORCH|TRITON|FLASHINFER|LD|PYTHON|NVIDIA|MALLOC|GLIBC|TVM|VLLM|HF|TRANSFORMERS"
            r"|SIMULATE|NUMBA|OPENBLAS).*",
            "performance",
            "set the same variable in sglang_server's environment",
        ),
        (r"environment\..*", "possible", "set the same variable in sglang_server's environment"),
        (r".*", "performance", "run rebuild.yml: the role sglang_server writes the unit again"),
    ],
    "build": [
        (r"shared_site_packages", "noise", "follows from the distributions"),
        (
            r".*",
            "performance",
            "run rebuild.yml: the role sglang_build makes the locked build and switches `current` to it",
        ),
    ],
    "files": [
        (r"stdlib/.*", "performance", "remove it from the standard library's folder, or declare it in the lock"),
        (
            r".*",
            "performance",
            "run rebuild.yml for a build as its wheels have it, or keep the edit as a patch in the lock",
        ),
    ],
    "nccl": [
        (r"file\..*", "performance", "run rebuild.yml: the role nccl_profile writes the environment file again"),
        (r"content\..*", "performance", "give both the same graph or topology file"),
        (
            r"conf\..*|pythonpath\..*|environment\..*",
            "performance",
            "remove it or move its settings into the NCCL profile",
        ),
        (
            r".*",
            "performance",
            "give both the same NCCL profile and delivery (nccl_profile_name, nccl_profile_delivery)",
        ),
    ],
    "driver": [
        (r"gpu\.\d+\.uuid", "possible", "another card of the same kind: measure the baseline again"),
        (
            r"module.*|user_space|cuda|parameters",
            "performance",
            "install the locked driver with the role gpu_driver; a reboot may be needed",
        ),
        (
            r"gpu\.\d+\.(power_limit|persistence|mig|applications_clock|compute_mode|ecc).*",
            "performance",
            "set it again with nvidia-smi on the host (role gpu_host)",
        ),
        (
            r"gpu\.\d+\.(bar1|vbios|gsp_firmware|name|memory|link_|virtualization|addressing).*",
            "performance",
            "BIOS setting or firmware of the card: cannot be changed from here",
        ),
        (r".*", "performance", "look at IOMMU, ACS, driver parameters and the slots that the cards are in"),
    ],
    "hardware": [
        (
            r"(cpu|gpu|numa).*",
            "performance",
            "other hardware: cannot be changed from here; measure a baseline of its own",
        ),
        (r".*", "possible", "other hardware: cannot be changed from here; measure a baseline of its own"),
    ],
    "firmware_and_kernel": [
        (r"acs|iommu", "performance", "switch ACS or the IOMMU as the lock says (role gpu_host or BIOS), then reboot"),
        (r"command_line", "possible", "set the kernel command line with the role gpu_host, then reboot"),
        (r"sysctl\..*", "possible", "run rebuild.yml: the role gpu_host sets the sysctls of the lock"),
        (r"boot\..*", "possible", "run rebuild.yml: it moves the file aside or writes it again"),
        (r"transparent_hugepage.*", "possible", "set it on the kernel command line or by the role gpu_host"),
        (r"bios.*|microcode", "possible", "firmware: cannot be changed from here"),
        (r"kernel\.build", "possible", "install and boot the locked kernel"),
        (r".*", "possible", "install and boot the locked kernel"),
    ],
    "os_packages": [
        (
            r"package\.(lib)?(nvidia|cuda|nccl|xnvctrl).*|package\.(cuda|libcuda|libnccl|libnvidia).*|package\.nv.*",
            "performance",
            "install the locked version and hold it (role gpu_driver)",
        ),
        (r"package\..*|os-release", "possible", "install the locked version and hold it"),
        (r"apt\..*", "noise", "has no effect now, but decides which versions apt takes next: restore the file"),
    ],
    "runtime": [
        (r"loader\..*", "performance", "run rebuild.yml: it moves the file aside or writes it again"),
        (r"governor|boost|smt|clock_limit.*|energy.*|cgroup|module\..*", "performance", "set it again (role gpu_host)"),
        (r".*", "possible", "set it again (role gpu_host)"),
    ],
    "container": [(r".*", "possible", "another container or image: rebuild it from the locked image")],
}

# By what a unit's directive decides.
_DIRECTIVES = (
    (r"Service\.Exec.*", "invalidates"),
    (r"Service\.(Environment|PassEnvironment|UnsetEnvironment).*", "performance"),
    (
        r"Service\.(Limit|CPU|Memory|IO|Nice|NUMA|OOM|Slice|Tasks|AllowedCPUs|AllowedMemory|Delegate|Device|Private|Protect).*",
        "performance",
    ),
    (r"Service\..*", "possible"),
    (r".*", "noise"),
)
# Words of the kernel command line that decide how GPUs reach one another or how fast the processors run.
_P2P_WORDS = re.compile(
    r"iommu|^pci|pcie|nvidia|isolcpus|nohz|mitigations|intel_pstate|amd_pstate|idle=|cstate|numa|maxcpus|nosmt|hugepage"
)


# Lines of a boot-time file that decide what the driver does or how GPUs reach one another.
_DRIVER_WORDS = re.compile(r"nvidia|nouveau|vfio|iommu|pcie?\b|GRUB_CMDLINE")


def worst(classes: List[str]) -> str:
    """The class of these that counts; ``noise`` for none."""
    return min(classes, key=CLASSES.index) if classes else "noise"


def classify(group: str, item: str, was: Any, now: Any) -> Tuple[str, str]:
    """``(class, remedy)`` of a difference."""
    for pattern, impact, remedy in _RULES.get(group, []):
        if re.fullmatch(pattern, item):
            return _closer(group, item, was, now, impact), remedy
    return "possible", "find out what set it"


def _closer(group: str, item: str, was: Any, now: Any, impact: str) -> str:
    if group == "engine_args" and item.startswith("unit."):
        return worst(_unit_classes(was, now))
    if item == "command_line" and isinstance(was, list) and isinstance(now, list):
        changed = set(was) ^ set(now)
        return "noise" if not changed else "performance" if any(_P2P_WORDS.search(w) for w in changed) else impact
    if item.startswith("boot.") and any(_DRIVER_WORDS.search(line) for line in _changed_lines(was, now)):
        return "performance"
    if group == "nccl" and item.startswith("conf.") and _settings(was) == _settings(now):
        return "noise"  # comments, or a file that sets nothing
    return impact


def _changed_lines(was: Any, now: Any) -> List[str]:
    a, b = (v if isinstance(v, list) else [] for v in (was, now))
    return [str(line) for line in [*a, *b] if (line in a) != (line in b)]


def _settings(value: Any) -> Dict[str, str]:
    return value.get("variables", {}) if isinstance(value, dict) else {}


def _unit_classes(was: Any, now: Any) -> List[str]:
    if (is_absent(was) or is_absent(now)) and not was.get("directives") and not now.get("directives"):
        return ["noise"]
    a = was.get("directives", {}) if isinstance(was, dict) else {}
    b = now.get("directives", {}) if isinstance(now, dict) else {}
    changed = [d for d in {*a, *b} if a.get(d) != b.get(d)]
    return [next(c for pattern, c in _DIRECTIVES if re.fullmatch(pattern, d)) for d in changed]


def role_for(group: str, item: str) -> str:
    """The role whose run can mend a difference; "" if nothing run on this host can (hardware, firmware, the
    container's host)."""
    if group in ("build", "files"):
        return "" if item.startswith("system/") else "sglang_build"
    if group == "models":
        return "sglang_models"
    if group == "nccl":
        return "nccl_profile"
    if group == "engine_args":
        return "sglang_server"
    if group == "os_packages":
        return (
            "gpu_driver"
            if classify(group, item, None, None)[0] == "performance" or item.startswith("apt.")
            else "gpu_host"
        )
    if group == "driver":
        return (
            ""
            if re.fullmatch(r"gpu\.\d+\.(uuid|bar1.*|vbios|gsp_firmware|name|memory.*|link_.*)", item)
            else "gpu_host"
            if item.startswith("gpu.")
            else "gpu_driver"
        )
    if group in ("firmware_and_kernel", "runtime"):
        return "" if re.fullmatch(r"bios.*|microcode|mitigations|cgroup", item) else "gpu_host"
    return ""
