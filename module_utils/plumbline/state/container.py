"""Group ``container``: what kind of host this is, and what another machine owns and so cannot be changed from
inside."""

from __future__ import annotations

import os
import re
from typing import Any, List, Tuple

from ..digest import digest
from .context import Context
from .values import Group, absent, unknown

HOST_OWNS = [
    "bios",
    "driver_module",
    "kernel",
    "kernel_command_line",
    "modprobe_options",
    "persistence",
    "power_caps",
    "acs",
]


def kind(context: Context) -> str:
    """``bare`` or the container's kind: docker, podman, lxc, systemd-nspawn, kubernetes, ... (``container`` if none
    is told)."""
    if context.host_kind == "bare":
        return "bare"
    told = context.text("/run/systemd/container")
    if not told:
        found = re.search(r"(?:^|\0)container=([A-Za-z0-9_-]+)", context.text("/proc/1/environ"))
        told = found.group(1) if found else ""
    if not told and context.path("/.dockerenv").exists():
        told = "docker"
    if not told and context.path("/run/.containerenv").exists():
        told = "podman"
    if not told:
        groups = context.text("/proc/1/cgroup")
        for name in ("kubepods", "docker", "lxc", "libpod"):
            if name in groups:
                told = {"kubepods": "kubernetes", "libpod": "podman"}.get(name, name)
                break
    if told:
        return told
    return "container" if context.host_kind == "container" else "bare"


def image(context: Context, found: str) -> Any:
    """The digest of the image that a container was made from, where the container can know it."""
    if found == "bare":
        return absent()
    text = context.text("/run/.containerenv")
    match = re.search(r'imageid="?(?:sha256:)?([0-9a-f]{12,64})', text)
    if match:
        return match.group(1)
    for name in ("CONTAINER_IMAGE_DIGEST", "IMAGE_DIGEST"):
        match = re.search(rf"(?:^|\0){name}=(?:\S*@)?(sha256:[0-9a-f]{{64}})", context.text("/proc/1/environ"))
        if match:
            return match.group(1)
    if found in ("lxc", "systemd-nspawn", "openvz"):
        return absent()  # these run a root file system, not an image
    kind_of_root, options = _root_mount(context)
    if kind_of_root and kind_of_root != "overlay":
        return absent()  # likewise, whatever its files say of where it came from
    layers = re.search(r"(?:^|,)lowerdir=([^,]+)", options)
    if layers:
        # The first layer is the container's own; the others are the image's, by names that this machine gave them.
        return {"layers": digest(layers.group(1).split(":")[1:])[:16]}
    return unknown(f"{found} does not tell the image's digest inside the container")


def _root_mount(context: Context) -> Tuple[str, str]:
    """(file system, options) of what is mounted at /; ("", "") if the kernel does not say."""
    for line in context.text("/proc/self/mountinfo").splitlines():
        parts = line.split()
        if len(parts) > 5 and parts[4] == "/" and "-" in parts:
            dash = parts.index("-")
            return parts[dash + 1], parts[-1]
    return "", ""


def observe(context: Context) -> Group:
    """The group ``container``."""
    found = kind(context)
    owned: List[str] = [] if found == "bare" else list(HOST_OWNS)
    return Group(
        "container",
        {"kind": found, "image": image(context, found), "owned_by_the_host": owned},
        {"observed_by_uid": os.getuid()},
    )
