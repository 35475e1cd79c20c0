"""Which all-reduce the engine really uses at decode: a profile that NCCL never sees there cannot matter there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Dict, List, Optional

# (implementation, the engine's own line). The first that is found decides.
_LINES = (
    ("pcie_ipc", re.compile(r"PCIe-IPC all-?reduce enabled[^\n]*", re.I)),
    ("flashinfer_fusion", re.compile(r"FlashInfer all-?reduce fusion (?:is )?enabled[^\n]*", re.I)),
    ("torch_symm_mem", re.compile(r"(?:torch symm(?:etric)? ?mem\w* all-?reduce (?:is )?enabled)[^\n]*", re.I)),
    ("mscclpp", re.compile(r"(?:PyMscclpp|mscclpp)[^\n]*(?:enabled|is using)[^\n]*", re.I)),
)
_VETO = re.compile(r"Custom ?all-?reduce(?:V2)? is disabled[^\n]*", re.I)
_CUSTOM = re.compile(
    r"Registering \d+ cuda graph addresses[^\n]*|Custom ?all-?reduce(?:V2)? (?:is )?enabled[^\n]*", re.I
)
_DISABLED = re.compile(r"\bdisable_custom_all_reduce=True\b|--disable-custom-all-reduce\b")
_PYNCCL = re.compile(r"sglang is using nccl==[\w.+]+")
# At decode every layer reduces a few KiB to some 100 KiB: more all-reduces of such a size than any start-up makes by
# itself.
_DECODE_BYTES = (1024, 1 << 20)
_MANY = 16


def implementation(
    server_log: str, tuning: List[Mapping[str, Any]], server_args: Optional[Mapping[str, Any]] = None
) -> Dict[str, Any]:
    """``{allreduce, evidence: [..], custom: {engaged, why}, matters_at_decode}``.

    ``allreduce``: ``custom``, ``pcie_ipc``, ``flashinfer_fusion``, ``torch_symm_mem``, ``mscclpp``, ``pynccl`` or
    null (not to be told). ``tuning``: rows of NCCL's log of one rank. ``matters_at_decode``: whether NCCL serves
    decode (null if not to be told).
    """
    evidence: List[str] = []
    for name, pattern in _LINES:
        found = pattern.search(server_log)
        if found:
            return _result(name, [found.group().strip()], False, "another implementation serves decode")
    veto = _VETO.search(server_log)
    given = (server_args or {}).get("disable-custom-all-reduce")
    vetoed = bool(veto or given or _DISABLED.search(server_log))
    why = veto.group().strip() if veto else "switched off by --disable-custom-all-reduce" if vetoed else ""
    rows = [
        r for r in tuning if r["function"] in (None, "AllReduce") and _DECODE_BYTES[0] <= r["bytes"] <= _DECODE_BYTES[1]
    ]
    by_nccl = sum(r["count"] for r in rows)
    registered = _CUSTOM.search(server_log)
    if by_nccl >= _MANY:
        sizes = ", ".join(f"{r['bytes']} B x{r['count']}" for r in sorted(rows, key=lambda r: r["bytes"])[:6])
        evidence.append(f"NCCL's log shows {by_nccl} all-reduces of decode sizes ({sizes})")
        return _result("pynccl", [*evidence, *([why] if why else [])], False if vetoed else None, why)
    if registered and not vetoed:
        return _result("custom", [registered.group().strip()], True, "")
    if vetoed and _PYNCCL.search(server_log):
        return _result("pynccl", [why], False, why)
    return _result(
        None, ["neither the engine's log nor NCCL's says what reduces at decode"], False if vetoed else None, why
    )


def _result(name: Optional[str], evidence: List[str], engaged: Optional[bool], why: str) -> Dict[str, Any]:
    return {
        "allreduce": name,
        "evidence": evidence,
        "custom": {"engaged": engaged, "why": why},
        "matters_at_decode": None if name is None else name == "pynccl",
    }
