"""``nvidia-smi --query-gpu=... --format=csv``."""

from __future__ import annotations

import csv
import io
import re
from typing import Any, Dict, List

from .smi import number, reasons_of, text_or_none


def parse_csv(text: str) -> List[Dict[str, Any]]:
    """``--query-gpu=... --format=csv``, with or without units: one mapping a line, by the query's field names.

    Numbers are numbers; ``clocks_event_reasons.active`` (a bit field) also gives ``reasons``; fields that say Active
    or Not Active become true and false; what is not available is null. Lines of a log that holds several headers are
    read under the last one.
    """
    rows: List[Dict[str, Any]] = []
    header: List[str] = []
    for line in csv.reader(io.StringIO(text), skipinitialspace=True):
        cells = [cell.strip() for cell in line]
        if not any(cells):
            continue
        names = [re.sub(r"\s*\[[^\]]*\]$", "", cell) for cell in cells]
        if all(re.fullmatch(r"[a-z][\w.]*", name) for name in names) and (
            {"index", "timestamp", "name", "pci.bus_id"} & set(names)
        ):
            header = names
            continue
        if len(cells) != len(header):
            continue
        row: Dict[str, Any] = {}
        for name, cell in zip(header, cells):
            if text_or_none(cell) is None:
                row[name] = None
            elif re.fullmatch(r"0x[0-9a-fA-F]+", cell) and name.endswith("reasons.active"):
                row[name] = int(cell, 16)
                row["reasons"] = reasons_of(int(cell, 16))
            elif cell.lower() in ("active", "not active"):
                row[name] = cell.lower() == "active"
            elif re.fullmatch(r"-?\d+(?:\.\d+)?(?: ?(?:MHz|MiB|W|%|C|us|KB/s))?", cell):
                row[name] = number(cell)
            else:
                row[name] = cell
        rows.append(row)
    return rows
