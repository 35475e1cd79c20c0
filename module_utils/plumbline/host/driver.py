"""Names of NVIDIA's driver packages for an exact version (docs.nvidia.com/datacenter/tesla/driver-installation-guide,
pages "Recent updates" and "Version locking").

On Ubuntu the branch is part of most names below 590 and of none from 590 on. On Debian it never is. A package
``nvidia-driver-pinning-VERSION``, installed first, keeps apt on that version.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List

from ..errors import PlumblineError

DISTRIBUTIONS = ("debian12", "debian13", "ubuntu2204", "ubuntu2404")
FIRST_WITHOUT_BRANCH = 590
# Blackwell on a workstation card needs 570.169, CUDA 13 needs 580; open kernel modules are the default from 560 on.
FIRST_OPEN_DEFAULT = 560
_VERSION = re.compile(r"(\d{3})\.\d{2,3}(?:\.\d{2})?")
# What belongs to the driver, and nothing of the container toolkit or of CUDA's own libraries.
PATTERNS = (
    "nvidia-driver*",
    "nvidia-open*",
    "nvidia-kernel*",
    "nvidia-dkms*",
    "nvidia-utils*",
    "nvidia-compute-utils*",
    "nvidia-persistenced",
    "nvidia-smi",
    "nvidia-modprobe",
    "nvidia-settings",
    "nvidia-firmware*",
    "nvidia-opencl-icd*",
    "nvidia-legacy-check",
    "firmware-nvidia-gsp",
    "libnvidia-*-[0-9][0-9][0-9]",
    "libnvidia-compute",
    "libnvidia-cfg1",
    "libnvidia-common",
    "libnvidia-decode",
    "libnvidia-encode",
    "libnvidia-extra",
    "libnvidia-fbc1",
    "libnvidia-gl",
    "libnvidia-gpucomp",
    "libnvidia-ml1",
    "libnvidia-nvvm4",
    "libnvidia-nvvm70",
    "libnvidia-ptxjitcompiler1",
    "libnvidia-allocator1",
    "libnvidia-opticalflow1",
    "libnvcuvid1",
    "libcuda1",
    "libcudadebugger1",
    "cuda-drivers*",
    "xserver-xorg-video-nvidia*",
)
# Packages that bring a kernel module: never inside a container.
KERNEL_PATTERNS = (
    "nvidia-dkms*",
    "nvidia-kernel*-dkms",
    "nvidia-kernel-source*",
    "nvidia-open*",
    "linux-modules-nvidia*",
    "cuda-drivers*",
)


def branch(version: str) -> int:
    """The branch (580) of an exact version (580.105.08). Raises PlumblineError if it is none."""
    found = _VERSION.fullmatch(str(version))
    if not found:
        raise PlumblineError(
            "not an exact driver version",
            "gpu_driver_version",
            version,
            "a version such as 580.105.08",
            "give all of it: a branch alone would let apt choose another driver at each installation",
        )
    return int(found.group(1))


def packages(version: str, distribution: str, kind: str, extent: str = "compute") -> Dict[str, Any]:
    """``{branch, pinning, names: [..], specs: ["NAME=VERSION-*"], patterns: [..], forbidden: [..]}``.

    ``distribution``: NVIDIA's name for it (``DISTRIBUTIONS``). ``kind``: ``bare``, or ``container``, which gets user
    space alone. ``extent``: ``compute``, or ``full`` with the display parts. Raises PlumblineError for what NVIDIA
    does not package.
    """
    number = branch(version)
    if distribution not in DISTRIBUTIONS:
        raise PlumblineError(
            "no driver packages are known for this distribution",
            "gpu_driver_distribution",
            distribution,
            ", ".join(DISTRIBUTIONS),
            "set gpu_driver_distribution to the one that it is made from",
        )
    if number < FIRST_OPEN_DEFAULT:
        raise PlumblineError(
            "this branch does not serve Blackwell with open kernel modules",
            "gpu_driver_version",
            version,
            f"{FIRST_OPEN_DEFAULT} or newer",
            "choose 580.95.05 or newer",
        )
    if distribution.startswith("debian"):
        names = (
            ["nvidia-open"]
            if extent == "full"
            else ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced"]
        )
        user = ["nvidia-driver-cuda"]
    else:
        suffix = f"-{number}" if number < FIRST_WITHOUT_BRANCH else ""
        names = (
            [f"nvidia-open{suffix}"]
            if extent == "full"
            else [
                f"libnvidia-compute{suffix}",
                f"nvidia-dkms{suffix}-open",
                f"nvidia-utils{suffix}",
                f"nvidia-compute-utils{suffix}",
            ]
        )
        user = [f"libnvidia-compute{suffix}", f"nvidia-utils{suffix}"]
    chosen: List[str] = user if kind == "container" else names
    return {
        "branch": number,
        "pinning": f"nvidia-driver-pinning-{version}",
        "names": chosen,
        "specs": [f"{name}={version}-*" for name in chosen],
        "patterns": list(PATTERNS),
        "forbidden": list(KERNEL_PATTERNS) if kind == "container" else [],
    }


def preferences(version: str, found: Dict[str, Any], release: str) -> str:
    """The text of a file for ``/etc/apt/preferences.d``: this version wins even over a newer installed one, and no
    driver package comes from anywhere but the repository that ``release`` describes (``l=NVIDIA CUDA``).

    For a package the first stanza that fits decides (apt_preferences(5)), so the exact version stands first.
    """
    names = " ".join(found["patterns"])
    stanzas = []
    if found["forbidden"]:
        stanzas.append(
            (
                "In a container the machine below owns the kernel module.",
                " ".join(found["forbidden"]),
                "release a=*",
                -1,
            )
        )
    stanzas += [
        ("The one version of the driver.", names, f"version {version}-*", 1001),
        ("Other versions of it stay visible; none is taken.", names, f"release {release}", 100),
        ("Never from another repository.", names, "release a=*", -1),
    ]
    return (
        "\n\n".join(
            f"# {why}\nPackage: {which}\nPin: {pin}\nPin-Priority: {priority}" for why, which, pin, priority in stanzas
        )
        + "\n"
    )


def distribution_name(os_id: str, version_id: str) -> str:
    """NVIDIA's name of a distribution: ``debian12``, ``ubuntu2404``."""
    return f"{os_id}{str(version_id).replace('.', '')}"
