"""What each NCCL version knows: names of variables, legal values, and where it reads them from.

The differences between versions were read in NVIDIA/nccl at the release tags 2.20.3 to 2.30.7: ``src/misc/param.cc``
(conf files), ``src/graph/tuning.cc`` (parseList), ``src/graph/topo.cc`` (topoPathTypeStr), MAXCHANNELS.
"""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, List, Tuple, Union

from ..errors import PlumblineError
from .known_data import RELEASES

Version = Tuple[int, ...]

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
PROTOCOLS = ("LL", "LL128", "Simple")
# Read by ncclGetEnv as text; every other variable is a number (NCCL_PARAM).
TEXT_VARIABLES = frozenset(
    re.split(
        r"\s+",
        """
NCCL_ALGO NCCL_PROTO NCCL_P2P_LEVEL NCCL_NET_GDR_LEVEL NCCL_NET_MERGE_LEVEL NCCL_NET_FORCE_MERGE NCCL_CONF_FILE
NCCL_COMM_ID NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS
NCCL_ENV_PLUGIN NCCL_GRAPH_FILE NCCL_GRAPH_DUMP_FILE NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE NCCL_HOSTID
NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_HCA NCCL_LAUNCH_MODE NCCL_NET NCCL_NETDEVS_POLICY NCCL_NET_PLUGIN
NCCL_NO_CACHE NCCL_OOB_NET_IFNAME NCCL_PROFILER_PLUGIN NCCL_PROXY_CPUSET NCCL_RAS_ADDR NCCL_SOCKET_FAMILY
NCCL_SOCKET_IFNAME NCCL_SYM_KERNEL NCCL_THREAD_THRESHOLDS NCCL_TUNER_PLUGIN NCCL_MNNVL_UUID NCCL_COLLNET_ENABLE
NCCL_PROXY_PROFILE NCCL_WARN_ENABLE_DEBUG_INFO NCCL_CHECK_MODE NCCL_CTA_POLICY NCCL_IBVERBS_LIB NCCL_NET_MERGE_POLICY
NCCL_SOCKET_MAGIC NCCL_PARAM_DUMP_ALL NCCL_SET_THREAD_NAME
""".strip(),
    )
)


def parse_version(version: Union[str, int]) -> Version:
    """(2, 28, 9) from ``2.28.9``, ``2.28.9+cuda13.0``, ``v2.28.9-1`` or NCCL's own number 22809 (below 2.9: 2804).

    Raises PlumblineError for anything else.
    """
    text = str(version).strip()
    if re.fullmatch(r"\d{4,6}", text):
        code = int(text)
        base = 10000 if code >= 10000 else 1000
        return code // base, code % base // 100, code % 100
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?![\d.])", text)
    if not found:
        raise PlumblineError(
            "not an NCCL version",
            "nccl_version",
            version,
            "like 2.28.9 or 2.28.9+cuda13.0",
            "take it from the build's manifest (nccl_version)",
        )
    return tuple(int(part or 0) for part in found.groups())


def _lists() -> List[Tuple[Version, FrozenSet[str]]]:
    lists, names = [], frozenset()  # type: ignore[var-annotated]
    for version, added, removed in RELEASES:
        names = (names | frozenset(added.split())) - frozenset(removed.split())
        lists.append((version, names))
    return lists


KNOWN: List[Tuple[Version, FrozenSet[str]]] = _lists()


def variables(version: Union[str, int]) -> Tuple[str, FrozenSet[str]]:
    """The version whose list is used (the nearest one not newer; the oldest list for anything older) and its
    names.
    """
    wanted = parse_version(version)
    chosen = KNOWN[0]
    for entry in KNOWN:
        if entry[0] <= wanted:
            chosen = entry
    names = set(chosen[1])
    if wanted >= (2, 23):
        names.add("NCCL_CONF_FILE")
    return ".".join(map(str, chosen[0])), frozenset(names)


def releases_with(name: str) -> List[str]:
    """The listed releases that know ``name``, oldest first: to say that a name is of another version."""
    return [".".join(map(str, version)) for version, names in KNOWN if name in names]


def path_types(version: Union[str, int]) -> Tuple[str, ...]:
    """Legal words of NCCL_P2P_LEVEL and its like, nearest first, case-sensitive. Others are ignored without a
    line.
    """
    v = parse_version(version)
    names = ["LOC", "NVL", "NVB"]
    if v >= (2, 26):
        names.append("C2C")
    names += ["PIX", "PXB"]
    if v >= (2, 27, 5):
        names += ["P2C", "PXN"]
    elif v >= (2, 27):
        names += ["PXN", "P2C"]
    else:
        names.append("PXN")
    return (*names, "PHB", "SYS")


def algorithms(version: Union[str, int]) -> Tuple[str, ...]:
    """Legal words of NCCL_ALGO (compared without regard to case)."""
    base = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree")
    return (*base, "PAT") if parse_version(version) >= (2, 23) else base


def max_channels(version: Union[str, int]) -> int:
    """NCCL's MAXCHANNELS: larger values of MIN/MAX_NCHANNELS are capped."""
    return 64 if parse_version(version) >= (2, 25) else 32


def lists_per_function(version: Union[str, int]) -> bool:
    """Whether ``ring;allreduce:tree`` is understood; then an unknown token ends the start, before it was skipped."""
    return parse_version(version) >= (2, 24)


def conf_file_supported(version: Union[str, int]) -> bool:
    """Whether NCCL_CONF_FILE is read (and then replaces ~/.nccl.conf); since 2.23."""
    return parse_version(version) >= (2, 23)


def comments_supported(version: Union[str, int]) -> bool:
    """Whether a conf file's ``#`` lines are skipped; before 2.26 ``#A=1`` defines a variable ``#A``."""
    return parse_version(version) >= (2, 26)


def user_conf_from_home(version: Union[str, int]) -> bool:
    """Whether ~ of ~/.nccl.conf is $HOME (since 2.30) rather than the home directory of the passwd entry."""
    return parse_version(version) >= (2, 30)


def parse_conf(text: str, comments: bool = True) -> Dict[str, str]:
    """A conf file as NCCL reads it: KEY=VALUE, nothing trimmed, ``#`` at column 0, the first of equal keys wins."""
    values: Dict[str, str] = {}
    for line in text.split("\n"):
        line = line.rstrip("\r") if line.endswith("\r") else line
        if (comments and line.startswith("#")) or "=" not in line:
            continue
        key, value = line.split("=", 1)
        values.setdefault(key[:1023], value[:1023])
    return values
