"""``nvidia-smi topo -m`` and ``nvidia-smi topo -p2p``: how GPUs are joined, and what the driver says of peer to peer.

Both print tables with a header that is underlined by ANSI escapes even in a file. What the driver allows need not
work: only a data-checked collective shows that.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|(?<![\w])\[\d*m(?=\S|\s|$)")
_DEVICE = re.compile(r"(GPU|NIC|mlx\d+_|hns_|irdma|bnxt_re|DPU)\d+\Z", re.I)
# NCCL's distance of each class, nearest first. NODE (two host bridges of one NUMA node) counts as PHB.
_DISTANCE = {"NV": "NVL", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS", "C2C": "C2C"}
_ORDER = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")


def strip_ansi(text: str) -> str:
    return _ANSI.sub("", text)


def _cells(line: str) -> List[str]:
    """Cells of a row: by tabs if it has any, else by white space (a table that was pasted)."""
    parts = line.split("\t") if "\t" in line.strip() else re.split(r"\s+", line.strip())
    return [part.strip() for part in parts]


def _table(text: str) -> Tuple[List[str], List[Tuple[str, List[str]]]]:
    """The header's names and, by row name, the cells after it; the legend and anything else is left out."""
    header: List[str] = []
    rows: List[Tuple[str, List[str]]] = []
    for line in strip_ansi(text).replace("\r", "").split("\n"):
        cells = _cells(line)
        while cells and not cells[0]:
            cells = cells[1:]
        if not cells:
            if rows:
                break
            continue
        names = [c for c in cells if _DEVICE.match(c)]
        if not header and len(names) >= 1 and _DEVICE.match(cells[0]) and not any(c in ("X", "OK") for c in cells):
            header = cells if "\t" in line else _join_titles(cells)
        elif header and _DEVICE.match(cells[0]):
            rows.append((cells[0], cells[1:]))
    return header, rows


def _join_titles(cells: List[str]) -> List[str]:
    """Titles of several words, when a table without tabs was split at its spaces."""
    text = " ".join(cells)
    found = [title for title in ("CPU Affinity", "GPU NUMA ID", "NUMA Affinity") if title in text]
    return [c for c in cells if _DEVICE.match(c)] + sorted(found, key=text.index)


def parse_matrix(text: str) -> Dict[str, Any]:
    """``nvidia-smi topo -m``: ``{gpus, nics, classes: {class: pairs of GPUs}, matrix: {a: {b: class}}, cpu_affinity,
    numa}``.

    ``gpus`` and ``nics`` are names; ``cpu_affinity`` and ``numa`` are by GPU, null where the table does not say.
    Raises ValueError if there is no such table.
    """
    header, rows = _table(text)
    columns = [name for name in header if _DEVICE.match(name)]
    gpus = [name for name in columns if name.upper().startswith("GPU")]
    titles = header[len(columns) :]
    matrix: Dict[str, Dict[str, str]] = {}
    affinity: Dict[str, Optional[str]] = {}
    numa: Dict[str, Optional[int]] = {}
    for name, cells in rows:
        matrix[name] = {column: cell for column, cell in zip(columns, cells) if cell}
        rest = dict(zip(titles, cells[len(columns) :]))
        if name in gpus:
            affinity[name] = rest.get("CPU Affinity") or None
            node = rest.get("NUMA Affinity") or ""
            numa[name] = int(node) if node.isdigit() else None
    if not gpus or any(gpu not in matrix for gpu in gpus):
        raise ValueError("no table of nvidia-smi topo -m: a row for every GPU of the header is wanted")
    classes: Dict[str, int] = {}
    for i, first in enumerate(gpus):
        for second in gpus[i + 1 :]:
            cell = matrix[first].get(second) or matrix[second].get(first) or "?"
            classes[cell] = classes.get(cell, 0) + 1
    nics = [c for c in columns if c not in gpus]
    return {"gpus": gpus, "nics": nics, "classes": classes, "matrix": matrix, "cpu_affinity": affinity, "numa": numa}


def distance(cell: str) -> Optional[str]:
    """NCCL's word for a class of nvidia-smi's: NV18 -> NVL, NODE -> PHB; null for an unknown one."""
    return _DISTANCE.get("NV" if re.fullmatch(r"NV\d+", cell) else cell)


def pairs_within(matrix: Dict[str, Any], level: str) -> int:
    """How many pairs of GPUs are at most ``level`` (NCCL_P2P_LEVEL) apart, and so may talk peer to peer."""
    limit = _ORDER.index(level)
    return sum(
        count
        for cell, count in matrix["classes"].items()
        if distance(cell) is not None and _ORDER.index(str(distance(cell))) <= limit
    )


def parse_p2p(text: str) -> Dict[str, Any]:
    """``nvidia-smi topo -p2p r|w|n|a|p``: ``{gpus: [names], statuses: {status: pairs}, ok: pairs, status, matrix}``.

    A pair counts as the worse of its two directions. ``status`` is the one status that all pairs share, or ``mixed``
    (null with a single GPU). Raises ValueError if there is no such table.
    """
    header, rows = _table(text)
    gpus = [name for name in header if name.upper().startswith("GPU")]
    matrix = {name: {column: cell for column, cell in zip(gpus, cells) if cell} for name, cells in rows}
    if not gpus or any(gpu not in matrix for gpu in gpus):
        raise ValueError("no table of nvidia-smi topo -p2p: a row for every GPU of the header is wanted")
    statuses: Dict[str, int] = {}
    for i, first in enumerate(gpus):
        for second in gpus[i + 1 :]:
            both = [matrix[first].get(second, "?"), matrix[second].get(first, "?")]
            worse = next((cell for cell in both if cell != "OK"), "OK")
            statuses[worse] = statuses.get(worse, 0) + 1
    status = None if not statuses else next(iter(statuses)) if len(statuses) == 1 else "mixed"
    return {"gpus": gpus, "statuses": statuses, "ok": statuses.get("OK", 0), "status": status, "matrix": matrix}
