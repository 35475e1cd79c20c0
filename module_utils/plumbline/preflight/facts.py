"""What several checks need to know of a host, read once."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional

from ..gpu import smi
from ..host.driver import distribution_name
from ..state import container
from ..state.context import Context
from ..state.driver import has_driver, loaded_module, user_space
from ..state.hardware import gpus

_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass
class Facts:
    """``kind``: bare or container. ``driver`` is of the loaded module: {version, flavour}, values null where there is
    none. ``smi``: the parsed ``nvidia-smi -q -x``, or null with ``smi_why``."""

    kind: str
    container: str
    distribution: str
    kernel: str
    next_kernel: str
    command_line: List[str]
    gpus: int
    has_driver: bool
    driver: Dict[str, Optional[str]]
    user_space: Any
    secure_boot: Optional[bool]
    modules: List[str]
    smi: Optional[Dict[str, Any]] = None
    smi_why: str = ""

    def as_dict(self) -> Dict[str, Any]:
        out = asdict(self)
        del out["smi"], out["modules"]
        return out


def _release_key(name: str) -> List[Any]:
    return [int(part) if part.isdigit() else part for part in re.findall(r"\d+", name)]


def next_kernel(context: Context, running: str) -> str:
    """The kernel that the next boot most likely takes: the newest with an image in /boot; the running one if none."""
    images = [name[len("vmlinuz-") :] for name in context.names("/boot") if name.startswith("vmlinuz-")]
    return max(images, key=_release_key) if images else running


def secure_boot(context: Context) -> Optional[bool]:
    """Whether Secure Boot is on, from its EFI variable (four bytes of attributes, one of value); null without EFI."""
    try:
        data = context.path(f"/sys/firmware/efi/efivars/{_SECURE_BOOT}").read_bytes()
    except OSError:
        return None
    return data[4] == 1 if len(data) == 5 else None


def facts_of(context: Context) -> Facts:
    kind = container.kind(context)
    if context.host_kind == "bare":
        kind = "bare"
    release = dict(re.findall(r'(?m)^(ID|VERSION_ID)="?([^"\n]*)"?$', context.text("/etc/os-release")))
    kernel = context.text("/proc/sys/kernel/osrelease")
    facts = Facts(
        kind="bare" if kind == "bare" else "container",
        container="" if kind == "bare" else kind,
        distribution=distribution_name(release.get("ID", ""), release.get("VERSION_ID", "")),
        kernel=kernel,
        next_kernel=next_kernel(context, kernel),
        command_line=context.text("/proc/cmdline").split(),
        gpus=len(gpus(context)),
        has_driver=has_driver(context),
        driver=loaded_module(context.text("/proc/driver/nvidia/version")),
        user_space=user_space(context),
        secure_boot=secure_boot(context),
        modules=[line.split()[0] for line in context.text("/proc/modules").splitlines() if line.strip()],
    )
    if not isinstance(facts.user_space, str):
        facts.user_space = facts.user_space if isinstance(facts.user_space, list) else None
    if facts.has_driver:
        answer = context.start("smi", ["nvidia-smi", "-q", "-x"]).result()
        try:
            if answer.rc != 0:
                raise ValueError(answer.why)
            facts.smi = smi.parse_query(answer.out)
        except ValueError as error:
            facts.smi_why = str(error)
    return facts
