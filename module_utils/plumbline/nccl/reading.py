"""What NCCL's log of one process says about one variable: taken, overridden, ignored, missing or not read.

NCCL reads variables lazily, so a missing line has several causes. When a variable is read was taken from NVIDIA/nccl
2.28.9 (``src/init.cc``, ``graph/tuning.cc``, ``graph/connect.cc``, ``graph/paths.cc``, ``transport/*.cc``,
``misc/param.cc``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Dict, List, Optional, Tuple

from ..errors import nearest
from . import known
from .profile import ENGINE_DEFAULTS, NOT_NCCL, expected

# Read at the init of every communicator of more than one rank: no line means that the variable was not there.
_ALWAYS = [
    "NCCL_PROTO",
    "NCCL_ALGO",
    "NCCL_NTHREADS",
    "NCCL_LL128_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NRINGS",
    "NCCL_MIN_NRINGS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_CUMEM_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_GRAPH_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
]
# The order of reading inside one init, to tell "not there" from "the start ended before".
_ORDER = [
    "NCCL_CUMEM_ENABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_TOPO_FILE",
    "NCCL_NVLS_ENABLE",
    "NCCL_GRAPH_FILE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_PROTO",
    "NCCL_ALGO",
]
_IB = re.compile(r"NCCL_(IB|GDR|NET_GDR|GIN)_")
_NET = re.compile(
    r"NCCL_(NET_SHARED|NCHANNELS_PER_NET|P2P_NET|PXN|P2P_PXN|CROSS_NIC|NSOCKS|SOCKET_NTHREADS|NETDEVS|MNNVL)"
)
# Never announced by NCCL, or no concern of a profile.
SILENT = re.compile(r"NCCL_(DEBUG|CONF_FILE)")

Verdict = Tuple[str, Dict[str, Any]]


def _env(process: Mapping[str, Any], name: str) -> List[Mapping[str, Any]]:
    return [entry for entry in process["env"] if entry["name"] == name]


def first_value(process: Mapping[str, Any], name: str) -> Optional[str]:
    """The value in force when the first communicator was made, or None."""
    early = [entry["value"] for entry in _env(process, name) if not entry["after_communicators"]]
    return early[-1] if early else None


def _kinds(process: Mapping[str, Any]) -> set:
    return {via.split("/")[0] for peers in process["transports"].values() for via in peers}


def _not_needed(name: str, value: str, process: Mapping[str, Any]) -> Optional[str]:
    """Why NCCL had no need to read the variable, or None."""
    p2p_off = first_value(process, "NCCL_P2P_DISABLE") == "1" or first_value(process, "NCCL_P2P_LEVEL") == "LOC"
    kinds, nodes = _kinds(process), [c["nodes"] for c in process["communicators"] if c["nodes"]]
    single = bool(nodes) and max(nodes) == 1
    if name == "NCCL_P2P_DISABLE" and value == "0":
        return "0 is NCCL's default and is never announced"
    if name == "NCCL_P2P_LEVEL" and p2p_off:
        return "NCCL_P2P_DISABLE=1 decides, so the level is not read"
    if name.startswith(("NCCL_P2P_READ", "NCCL_P2P_DIRECT", "NCCL_P2P_USE")) and (
        p2p_off or (kinds and "P2P" not in kinds)
    ):
        return "no pair of ranks talks peer to peer"
    if name.startswith("NCCL_SHM") and kinds and "SHM" not in kinds:
        return f"every pair of ranks talks by {', '.join(sorted(kinds))}, so shared memory is not tried"
    if name.startswith("NCCL_NVLS") and name != "NCCL_NVLS_ENABLE" and first_value(process, "NCCL_NVLS_ENABLE") == "0":
        return "NCCL_NVLS_ENABLE=0"
    if _IB.match(name) and name != "NCCL_IB_DISABLE" and first_value(process, "NCCL_IB_DISABLE") not in (None, "0"):
        return "NCCL_IB_DISABLE=1"
    if (_NET.match(name) or _IB.match(name)) and name != "NCCL_IB_DISABLE" and single:
        return "all ranks are on one host, so no network is used"
    if name == "NCCL_P2P_NVL_CHUNKSIZE" and (p2p_off or not _nvlink(process)):
        return "used only if all GPUs are joined by NVLink"
    if name == "NCCL_P2P_PCI_CHUNKSIZE" and _nvlink(process) and not p2p_off:
        return "used only if the GPUs are not joined by NVLink"
    return None


def _nvlink(process: Mapping[str, Any]) -> bool:
    return any(pattern["type_intra"] == "NVL" for pattern in process["patterns"])


def _refused(name: str, value: str, process: Mapping[str, Any]) -> Optional[str]:
    """NCCL's own words that it did not take the value."""
    for note in process["notes"]:
        if re.search(rf"\b{name}\b", note):
            return note
    if name.endswith("_NCHANNELS") and value.lstrip("-").isdigit():
        extreme = "minimum" if "MIN" in name else "maximum"
        for note in process["notes"]:
            if note.startswith(f"User asked for a {extreme} of {value} "):
                return note
    for warning in process["warnings"]:
        if "token" in warning["text"] and f'"{value}"' in warning["text"] and name in ("NCCL_ALGO", "NCCL_PROTO"):
            return f"the start ended: {warning['text']}"
    return None


def source_of(name: str, value: str, sources: List[Mapping[str, Any]]) -> Optional[str]:
    """Where a value comes from: the first of ``sources`` (in order of precedence, [{name, variables}]) that gives
    exactly this value.

    NCCL logs "set by environment" whatever the source, so it has to be concluded from what each source holds.
    """
    for source in sources:
        given = source.get("variables", {}).get(name)
        if given is not None and expected(name, str(given)) == value:
            return str(source["name"])
    return None


def judge(
    name: str,
    value: str,
    process: Mapping[str, Any],
    version: str,
    sources: List[Mapping[str, Any]],
    engine: Mapping[str, str],
) -> Verdict:
    """The verdict on one asked variable in one process and its particulars.

    Verdicts: ``taken`` {name, value, source}, ``overridden`` {name, asked, in_force, by}, ``ignored`` {name, value,
    why} (NCCL does not use it), ``missing`` {name, value, why} (it never reached this process in time), ``not_read``
    {name, value, why, certain}.
    """
    if name in NOT_NCCL:
        forced = engine.get(name, value)
        if forced != value:
            why = f"profile asks {value}, engine set {forced}"
            return "overridden", {"name": name, "asked": value, "in_force": forced, "by": "engine", "why": why}
        return "not_read", {"name": name, "value": value, "why": "read by CUDA, which logs nothing", "certain": True}
    lines = _env(process, name)
    wanted, seen = expected(name, value), first_value(process, name)
    if seen is not None and seen == wanted:
        refused = _refused(name, value, process)
        if refused:
            return "ignored", {"name": name, "value": value, "why": refused}
        used = _limited(name, value, process, version)
        if used:
            return "overridden", {"name": name, "asked": value, **used}
        return "taken", {"name": name, "value": seen, "source": source_of(name, seen, sources)}
    if seen is not None:
        by = source_of(name, seen, sources)
        if by is None and ENGINE_DEFAULTS.get(name) == seen:
            by = "engine"
        return "overridden", {
            "name": name,
            "asked": value,
            "in_force": seen,
            "by": by,
            "why": f"the profile asks {value}, {by or 'an unknown source'} set {seen} first",
        }
    if lines:
        return "missing", {
            "name": name,
            "value": value,
            "why": "first read by a later communicator: it was set after the first "
            "communicator was made, which runs without it",
        }
    return _no_line(name, value, process, version)


def _limited(name: str, value: str, process: Mapping[str, Any], version: str) -> Optional[Dict[str, Any]]:
    """A number of channels that NCCL logged and then replaced without a word."""
    if name not in ("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS") or not value.isdigit():
        return None
    limit = known.max_channels(version)
    if int(value) > limit:
        return {"in_force": str(limit), "by": "NCCL", "why": f"NCCL caps the number of channels at {limit}"}
    used = max([c["channels"]["coll"] for c in process["communicators"] if c["channels"]], default=None)
    if name == "NCCL_MAX_NCHANNELS" and used is not None and used > int(value):
        least = first_value(process, "NCCL_MIN_NCHANNELS")
        by = f"NCCL_MIN_NCHANNELS={least}" if least else "NCCL"
        return {
            "in_force": str(used),
            "by": by,
            "why": f"{used} channels are in use, {value} were the maximum ({by})",
        }
    return None


def _ended_before(name: str, process: Mapping[str, Any]) -> bool:
    """Whether the init broke off before NCCL reads this variable."""
    many = [c for c in process["communicators"] if c["nranks"] > 1]
    if not many or any(c["complete"] for c in many) or name not in _ORDER:
        return False
    reached = [_ORDER.index(entry["name"]) for entry in process["env"] if entry["name"] in _ORDER]
    if process["p2p_chunk_bytes"] is not None:
        reached.append(_ORDER.index("NCCL_BUFFSIZE"))
    return _ORDER.index(name) > max(reached, default=-1)


def _no_line(name: str, value: str, process: Mapping[str, Any], version: str) -> Verdict:
    entry = {"name": name, "value": value}
    names = known.variables(version)[1]
    if name not in names:
        guess = nearest(name.upper(), names)
        return "ignored", {
            **entry,
            "why": f"NCCL {version} does not know this name" + (f"; did you mean {guess}?" if guess else ""),
        }
    if (
        name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL")
        and value not in known.path_types(version)
        and not value[:1].isdigit()
    ):
        words = known.path_types(version)
        hint = f"; did you mean {value.upper()}?" if value.upper() in words else ""
        return "ignored", {**entry, "why": f"no such level (words are case-sensitive: {', '.join(words)}){hint}"}
    reason = _not_needed(name, value, process)
    if reason:
        return "not_read", {**entry, "why": reason, "certain": True}
    if _ended_before(name, process):
        return "not_read", {**entry, "why": "the start broke off before NCCL reads it", "certain": False}
    if name in _ALWAYS or name == "NCCL_IB_DISABLE":
        return "missing", {
            **entry,
            "why": "NCCL reads this variable in every start and found nothing: it did not reach this process",
        }
    return "not_read", {
        **entry,
        "why": "no line, and when NCCL reads this variable is not known here: it cannot be told from ignored",
        "certain": False,
    }


def additional(
    process: Mapping[str, Any], asked: Mapping[str, str], sources: List[Mapping[str, Any]]
) -> List[Dict[str, Any]]:
    """Variables that NCCL took although the profile does not ask for them; the engine's own two at their defaults
    are left out.
    """
    found = []
    for name in dict.fromkeys(entry["name"] for entry in process["env"]):
        value = first_value(process, name)
        if name in asked or SILENT.match(name) or not name.startswith("NCCL_") or ENGINE_DEFAULTS.get(name) == value:
            continue
        late = [entry["value"] for entry in _env(process, name)][-1]
        shown = value if value is not None else late
        found.append({"name": name, "value": shown, "source": source_of(name, shown, sources)})
    return found
