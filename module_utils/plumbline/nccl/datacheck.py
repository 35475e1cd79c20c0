"""Whether a data-checked collective has passed with these NCCL settings on this host as it is now.

Settings that corrupt data do so without an error (LL128 over PCIe), and P2P that is advertised may hang. Neither is a
matter of belief: a sweep (``sweep.py``) or the short check before the first boot has compared every element, here, in
this state, or it has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

from ..files import read_lines
from . import collective

PathLike = Union[str, Path]
# Groups of a state that decide whether data arrive right. What a server is told, and what it serves, does not.
GROUPS = ("hardware", "firmware_and_kernel", "driver", "build", "container")
# Before the first boot: a decode size, one in between, and a prefill size. Enough to see that it works at all.
SHORT_SIZES = (16384, 262144, 8 << 20)
FULL_SIZES = (*collective.DECODE_SIZES, *collective.PREFILL_SIZES)


def of_state(groups: Optional[Mapping[str, str]]) -> Dict[str, str]:
    """Of the digests of a state's groups, those that a check is bound to."""
    given = groups or {}
    return {name: given[name] for name in GROUPS if name in given}


def settings(environment: Mapping[str, str]) -> Dict[str, str]:
    """The NCCL variables of an environment, debug output aside."""
    return {k: v for k, v in sorted(environment.items()) if k.startswith("NCCL_") and not k.startswith("NCCL_DEBUG")}


def records_of(root: PathLike) -> List[Dict[str, Any]]:
    """The records of all sweeps and checks that this host has made."""
    found: List[Dict[str, Any]] = []
    for path in sorted((Path(root) / "nccl" / "sweeps").glob("*/results.jsonl")):
        found += read_lines(path)
    return found


def outcome(
    records: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    groups: Optional[Mapping[str, str]],
    sizes: Sequence[int] = FULL_SIZES,
    backend: str = "nccl",
    graph: bool = True,
) -> Tuple[str, str]:
    """Whether each of ``sizes`` was checked with exactly these NCCL variables in this state, and nothing was wrong.

    ``(passed | failed | open, why)``: ``failed`` is wrong data, a hang or a crash, ``open`` is not checked.
    ``groups``: digests of the state's groups. Data that were wrong once count, however often they were right since;
    so does a hang, unless every size has passed after it. Without CUDA graph is unchecked (``graph``): that is how
    decode runs.
    """
    state, wanted = of_state(groups), settings(environment)
    if not state:
        return "open", "the state of the host is not known"
    same = [r for r in records if r.get("nccl_environment") == wanted and r["backend"] == backend]
    if not same:
        return "open", "no data-checked collective was ever run here with these NCCL variables"
    mine = [r for r in same if of_state((r.get("state") or {}).get("groups")) == state]
    if not mine:
        then = of_state((same[-1].get("state") or {}).get("groups"))
        changed = [name for name in state if then.get(name) != state[name]]
        return "open", f"the host has changed since it was checked: {', '.join(changed)}"
    return _verdict(mine, sizes, graph)


def _verdict(mine: Sequence[Mapping[str, Any]], sizes: Sequence[int], graph: bool) -> Tuple[str, str]:
    good: set = set()
    trouble = ""
    for record in mine:
        if record["status"] == "wrong_data":
            return "failed", f"wrong data at {record['bytes']} bytes on {record['at']}"
        if record["status"] in ("hang", "crash"):
            told = record["diagnosis"]
            good, trouble = set(), f"{record['status']} on {record['at']}: {told['what']}; {told['remedy']}"
        elif record["status"] == "ok" and (record["wrong_in_graph"] is not None or not graph):
            good.add(record["bytes"])
    missing = [size for size in sizes if size not in good]
    if trouble and missing:
        return "failed", trouble
    if missing:
        how = " in a CUDA graph" if graph else ""
        return "open", f"not checked{how} at {', '.join(map(str, missing))} bytes"
    world = max(r["world"] for r in mine)
    return "passed", f"{len(good)} sizes checked on {world} ranks, every element right, last on {mine[-1]['at']}"
