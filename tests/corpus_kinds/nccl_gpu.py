"""NCCL's debug logs, nccl-tests, nvidia-smi, its topology tables, and lspci's ACS lines."""

from __future__ import annotations

import re
from typing import Any, Dict, List

from plumbline.gpu import acs, nccl_tests, query, smi, topology
from plumbline.nccl import log

from . import Kind


def is_nccl(text: str) -> bool:
    return bool(log.parse(text)["processes"])


def read_nccl(text: str) -> Dict[str, Any]:
    return log.summary(log.parse(text))


def is_nccl_tests(text: str) -> bool:
    try:
        nccl_tests.parse(text)
    except ValueError:
        return False
    return True


def is_topo_p2p(text: str) -> bool:
    if not re.search(r"\b(OK|CNS|GNS|TNS|NS|DR|U)\b", text):
        return False
    try:
        cells = topology.parse_p2p(text)["statuses"]
    except ValueError:
        return False
    return set(cells) <= {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}


def read_topo_p2p(text: str) -> Dict[str, Any]:
    found = topology.parse_p2p(text)
    return {**found, "n": len(found["gpus"])}


def is_topo(text: str) -> bool:
    try:
        topology.parse_matrix(text)
    except ValueError:
        return False
    return True


def read_topo(text: str) -> Dict[str, Any]:
    found = topology.parse_matrix(text)
    levels = {level.lower(): topology.pairs_within(found, level) for level in ("PIX", "PXB", "PHB", "SYS")}
    return {**found, "n": len(found["gpus"]), "p2p_pairs": levels}


def is_smi(text: str) -> bool:
    try:
        smi.parse_query(text)
    except ValueError:
        return False
    return True


def read_smi(text: str) -> Dict[str, Any]:
    document = smi.parse_query(text)
    return {**smi.summary(document), "rows": document["gpus"]}


def is_smi_csv(text: str) -> bool:
    return bool(query.parse_csv(text))


def read_smi_csv(text: str) -> Dict[str, Any]:
    return {"rows": query.parse_csv(text)}


def is_acs(text: str) -> bool:
    return "ACSCtl:" in text


def _reasons(expected: List[str], read: List[str]) -> bool:
    """HW Slowdown is the sum of the two kinds below it: where a kind is expected, the sum may stand beside it."""
    extra = set(read) - set(expected)
    return set(expected) <= set(read) and extra <= (
        {"hw_slowdown"} if any(e.startswith("hw_") for e in expected) else set()
    )


KINDS = [
    Kind("nccl_tests", 50, is_nccl_tests, nccl_tests.parse),
    Kind("nccl", 60, is_nccl, read_nccl),
    Kind("topo_p2p", 70, is_topo_p2p, read_topo_p2p),
    Kind("topo", 80, is_topo, read_topo),
    Kind("smi", 90, is_smi, read_smi, {"throttle": _reasons}),
    Kind("smi_csv", 95, is_smi_csv, read_smi_csv),
    Kind("acs", 100, is_acs, acs.parse),
]
