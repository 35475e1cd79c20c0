"""PCIe Access Control Services from ``lspci -vvv``: a bridge with redirection on sends traffic between its GPUs
through the root complex.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List

_DEVICE = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) (.*)$", re.I)
_CONTROL = re.compile(r"^\s*ACSCtl:\s*(.*)$")
_REDIRECTS = ("ReqRedir", "CmpltRedir", "UpstreamFwd")


def parse(text: str) -> Dict[str, Any]:
    """``{devices: [{bdf, name, bridge, flags: {SrcValid: true, ...}, enabled, redirects}], enabled_bridges,
    disabled_bridges}``.

    Only devices with an ACSCtl line are listed. ``enabled``: any control is on; ``redirects``: one that sends peer
    traffic upwards is. Raises ValueError if the text has no ACS lines (lspci shows them only to root and with -vvv).
    """
    devices: List[Dict[str, Any]] = []
    current = ("", "")
    for line in text.replace("\r", "").split("\n"):
        found = _DEVICE.match(line)
        if found:
            current = (found.group(1), found.group(2).strip())
            continue
        control = _CONTROL.match(line)
        if control:
            flags = {name: sign == "+" for name, sign in re.findall(r"(\w+)([+-])", control.group(1))}
            bridge = "bridge" in current[1].lower() or "switch" in current[1].lower()
            devices.append(
                {
                    "bdf": current[0],
                    "name": current[1],
                    "bridge": bridge,
                    "flags": flags,
                    "enabled": any(flags.values()),
                    "redirects": any(flags.get(name) for name in _REDIRECTS),
                }
            )
    if not devices:
        raise ValueError("no ACSCtl line: lspci -vvv shows them to root only")
    bridges = [d for d in devices if d["bridge"]]
    return {
        "devices": devices,
        "enabled_bridges": sum(d["enabled"] for d in bridges),
        "disabled_bridges": sum(not d["enabled"] for d in bridges),
    }
