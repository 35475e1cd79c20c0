"""What of a host makes collectives hang, in a sentence: the IOMMU, ACS on the bridges, and GPUs left busy for
nobody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Union

from ..gpu import samples
from ..state import kernel
from ..state.cache import DigestCache
from ..state.context import Context
from ..state.values import is_unknown


def after_hang(root: Union[str, Path], sysroot: Union[str, Path] = "/", nvidia_smi: str = "nvidia-smi") -> str:
    """``IOMMU=translating (DMA-FQ); ACS redirects peers on 4 bridges (0000:00:01.1, ...)``, and wedged GPUs.

    Read after a collective has hung. Changes nothing.
    """
    context = Context(root=Path(root), cache=DigestCache(None), sysroot=Path(sysroot))
    said = [_iommu(context), _acs(context)]
    seen = samples.look(2.0, nvidia_smi=nvidia_smi)
    said += [stuck["detail"] for stuck in (seen or {}).get("wedged") or []]
    return "; ".join(said)


def _iommu(context: Context) -> str:
    found = kernel.iommu(context)
    types = found.get("types", []) if isinstance(found, dict) else []
    if "groups" not in found or not found["groups"]:
        return "IOMMU=off"
    translating = [kind for kind in types if kind.startswith("DMA")]
    return f"IOMMU={'translating' if translating else 'passing through'} ({', '.join(types) or 'type unknown'})"


def _acs(context: Context) -> str:
    if not kernel.bridges(context):
        return "ACS: no bridge to be seen"
    tool = context.start("lspci", ["lspci", "-vvv", "-d", "::0604"]).result()
    found = kernel.acs(context, tool.out, tool.why if tool.rc != 0 else "")
    if is_unknown(found):
        return f"ACS unknown ({found['unknown']})"
    on = sorted(bdf for bdf, redirects in found.items() if redirects is True and bdf != "absent")
    if not on:
        return "ACS redirects nothing"
    return f"ACS redirects peers on {len(on)} bridge{'s' if len(on) > 1 else ''} ({', '.join(on[:4])})"
