"""Output of nccl-tests (all_reduce_perf and its like), old and new, text and JSON (-J).

Formats: NVIDIA/nccl-tests ``src/util.cu``. The average bus bandwidth mixes all sizes and says nothing about one of
them.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional

_DEVICE = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([0-9a-fA-Fx:]+)\]\s+(.*)$"
)
_SETTINGS = re.compile(r"#\s*nThread (\d+) nGpus (\d+) .*?validation: (\d+)(?:\s+graph: (\d+))?")
_VALUE = r"(?:[\d.]+(?:e[+-]?\d+)?|inf|nan|N/A)"
_ROW = re.compile(
    rf"^\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(\w+)\s+(-?\d+)\s+({_VALUE}(?:\s+{_VALUE})*)\s*"
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)?\s*$"
)


def _number(text: Any) -> Optional[float]:
    if text is None or text in ("N/A", "nan"):
        return None
    value = float(text)
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def _half(cells: List[str]) -> Dict[str, Any]:
    """time, algbw, busbw and, if there, the number of wrong elements."""
    return {
        "us": _number(cells[0]),
        "algbw": _number(cells[1]),
        "busbw": _number(cells[2]),
        "wrong": _number(cells[3]) if len(cells) > 3 else None,
    }


def _row(found: re.Match[str]) -> Optional[Dict[str, Any]]:
    cells = found.group(6).split()
    # Both halves have the same width: 3 or 4 columns, 8 with per-iteration statistics; a trace replay prints one
    # half only.
    if len(cells) in (6, 8, 16):
        width = len(cells) // 2
        first, second = _half(cells[:width][:4]), _half(cells[width:][:4])
    elif len(cells) in (3, 4):
        first, second = _half(cells), None
    else:
        return None
    return {
        "bytes": int(found.group(1)),
        "count": int(found.group(2)),
        "type": found.group(3),
        "redop": found.group(4),
        "root": int(found.group(5)),
        **first,
        "in_place": second,
    }


def parse(text: str) -> Dict[str, Any]:
    """``{n: ranks, op, devices: [...], rows: [{bytes, count, type, redop, root, us, algbw, busbw, wrong, in_place}],
    validated, graph, out_of_bounds, avg_busbw, ok}``.

    Times in us, bandwidths in GB/s; ``us`` and its like are out of place, those of ``in_place`` in place. ``wrong``
    is null where data was not checked. ``ok``: all rows were checked and none was wrong; null if nothing was
    checked. Raises ValueError for anything else.
    """
    if text.lstrip().startswith("{"):
        return _parse_json(json.loads(text))
    devices, rows = [], []
    validated = graph = op = out_of_bounds = average = None
    concluded = False
    for line in text.replace("\r", "").split("\n"):
        found = _ROW.match(line)
        if found:
            row = _row(found)
            if row:
                rows.append(row)
            continue
        found = _DEVICE.match(line)
        if found:
            rank, group, pid, host, device, bus, name = found.groups()
            devices.append(
                {
                    "rank": int(rank),
                    "group": int(group or 0),
                    "pid": int(pid),
                    "host": host,
                    "device": int(device),
                    "bus": bus,
                    "name": name.strip(),
                }
            )
            continue
        found = _SETTINGS.match(line)
        if found:
            validated, graph = int(found.group(3)) > 0, int(found.group(4) or 0)
        found = re.match(r"#\s*Out of bounds values\s*:\s*(-?\d+)\s+(\w+)", line)
        if found:
            out_of_bounds = int(found.group(1))
        found = re.match(r"#\s*Avg bus bandwidth\s*:\s*([\d.e+-]+)", line)
        if found:
            average = float(found.group(1))
        found = re.match(r"#\s*Collective test (starting|concluded):\s*(\S+)", line)
        if found:
            op, concluded = found.group(2), concluded or found.group(1) == "concluded"
    if not rows and not devices:
        raise ValueError("no output of nccl-tests")
    return _result(devices, rows, op, validated, graph, out_of_bounds, average)


def _result(
    devices: List[Dict[str, Any]],
    rows: List[Dict[str, Any]],
    op: Optional[str],
    validated: Optional[bool],
    graph: Optional[int],
    out_of_bounds: Optional[int],
    average: Optional[float],
) -> Dict[str, Any]:
    wrong = [half["wrong"] for row in rows for half in (row, row["in_place"]) if half]
    ok: Optional[bool] = None
    if wrong and all(w is not None for w in wrong):
        ok = not any(wrong) and not out_of_bounds
    elif out_of_bounds or any(wrong):
        ok = False
    return {
        "n": len(devices),
        "op": op,
        "devices": devices,
        "rows": rows,
        "validated": validated,
        "graph": graph,
        "out_of_bounds": out_of_bounds,
        "avg_busbw": average,
        "ok": ok,
    }


def _parse_json(document: Dict[str, Any]) -> Dict[str, Any]:
    """The report of ``-J FILE``; keys of ``src/util.cu``."""
    config = document.get("config", {})
    rows = []
    for entry in document.get("results", []):
        halves = []
        for name in ("out_of_place", "in_place"):
            half = entry.get(name)
            halves.append(
                None
                if half is None
                else {
                    "us": _number(half.get("time", half.get("cpu_time"))),
                    "algbw": _number(half.get("alg_bw")),
                    "busbw": _number(half.get("bus_bw")),
                    "wrong": _number(half.get("nwrong")),
                }
            )
        first = halves[0] or {"us": None, "algbw": None, "busbw": None, "wrong": None}
        rows.append(
            {
                "bytes": int(entry["size"]),
                "count": int(entry["count"]),
                "type": entry.get("type"),
                "redop": entry.get("redop"),
                "root": int(str(entry.get("root", -1)).strip() or -1),
                **first,
                "in_place": halves[1],
            }
        )
    devices = [
        {
            "rank": d.get("rank"),
            "group": d.get("group"),
            "pid": d.get("pid"),
            "host": d.get("hostname"),
            "device": d.get("device"),
            "bus": d.get("device_hex"),
            "name": d.get("device_info"),
        }
        for d in document.get("devices", config.get("devices", []))
    ]
    if not rows and not devices:
        raise ValueError("a JSON document, but no report of nccl-tests")
    bounds = document.get("out_of_bounds", {})
    average = document.get("average_bus_bandwidth", {})
    return _result(
        devices,
        rows,
        document.get("program") or document.get("name"),
        bool(config.get("validation")),
        config.get("graph"),
        bounds.get("count") if isinstance(bounds, dict) else bounds,
        average.get("bandwidth") if isinstance(average, dict) else average,
    )


def row_of(document: Dict[str, Any], size: int) -> Optional[Dict[str, Any]]:
    """The row of a size in bytes: what is to be quoted in place of the average."""
    return next((row for row in document["rows"] if row["bytes"] == size), None)
