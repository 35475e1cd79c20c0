#!/usr/bin/env python3
"""Switch PCI Access Control Services off on all bridges, and say on which ports.

    plumbline-acs-off            clear ACS Control where it is not clear; keep a report in /run/plumbline/acs.json
    plumbline-acs-off --report   say what the last call since the boot has changed, and what is on now

ACS Control is a 16-bit register at offset 6 of the extended capability 0x000D (PCI Express Base Specification, "Access
Control Services Extended Capability"). Its low seven bits switch validation and redirection on. Configuration space is
read and written below /sys, so that no setpci is needed. Only bridges (class 0x0604) are touched.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

FIRST_EXTENDED, ACS, CONTROL = 0x100, 0x000D, 6
BITS = ["SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans"]


def find(config: bytes) -> Optional[int]:
    """Offset of the ACS capability, or None. The list is followed at most once round."""
    at, seen = FIRST_EXTENDED, set()
    while FIRST_EXTENDED <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        (header,) = struct.unpack_from("<I", config, at)
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == ACS:
            return at
        at = header >> 20
    return None


def names(control: int) -> str:
    return "+".join(name for i, name in enumerate(BITS) if control >> i & 1) or "none"


def bridges(sysfs: Path) -> List[Tuple[Path, int, int]]:
    """[(configuration file, offset of the register, its value)] of bridges that have ACS."""
    out = []
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        try:
            if not (device / "class").read_text().startswith("0x0604"):
                continue
            config = (device / "config").read_bytes()
        except OSError:
            continue
        at = find(config)
        if at is not None:
            out.append((device / "config", at + CONTROL, struct.unpack_from("<H", config, at + CONTROL)[0]))
    return out


def switch_off(sysfs: Path) -> Dict[str, Any]:
    """``{ports: [{bdf, was, now}], already_off: n, failed: [{bdf, why}]}``; what is written is read again."""
    report: Dict[str, Any] = {"ports": [], "already_off": 0, "failed": []}
    for path, register, was in bridges(sysfs):
        if was & 0x7F == 0:
            report["already_off"] += 1
            continue
        bdf = path.parent.name
        try:
            with path.open("r+b", buffering=0) as f:
                f.seek(register)
                f.write(struct.pack("<H", was & ~0x7F))
                f.seek(register)
                (now,) = struct.unpack("<H", f.read(2))
        except OSError as error:
            report["failed"].append({"bdf": bdf, "why": error.strerror})
            continue
        report["ports"].append({"bdf": bdf, "was": names(was), "now": names(now)})
        if now & 0x7F:
            report["failed"].append({"bdf": bdf, "why": f"it stays at {names(now)}"})
    return report


def said(report: Dict[str, Any]) -> List[str]:
    lines = [f"{p['bdf']}: {p['was']} -> {p['now']}" for p in report["ports"]]
    lines += [f"{p['bdf']}: {p['why']}" for p in report["failed"]]
    return [*lines, f"{len(report['ports'])} changed, {report['already_off']} were off, {len(report['failed'])} failed"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Switch ACS off on all PCI bridges, and say on which ports.")
    parser.add_argument("--report", action="store_true", help="only say what was changed, and what is on now")
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"))
    parser.add_argument("--state", type=Path, default=Path("/run/plumbline/acs.json"))
    args = parser.parse_args()
    if args.report:
        report = json.loads(args.state.read_text()) if args.state.exists() else None
        on = [path.parent.name for path, _at, value in bridges(args.sysfs) if value & 0x7F]
        print("\n".join(said(report) if report else ["it has not run since the boot"]))
        print(f"on now: {', '.join(on) or 'none'}")
        return 0
    report = switch_off(args.sysfs)
    args.state.parent.mkdir(parents=True, exist_ok=True)
    args.state.write_text(json.dumps(report))
    print("\n".join(said(report)))
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
