"""Validation of an NCCL profile before anything starts.

A profile is ``{description, variables: {NAME: value}}``. NCCL itself checks little: unknown names and a wrongly cased
NCCL_P2P_LEVEL are ignored without a word, "8x" is read as 8, "010" as 8, and since 2.24 a wrong token in NCCL_ALGO or
NCCL_PROTO ends the start. So each variable is checked here against the NCCL of the pinned build.
Rules are those of NVIDIA/nccl (``src/graph/tuning.cc``, ``paths.cc``, ``connect.cc``, ``init.cc``, ``misc/param.cc``)
and, for the variables that the engine sets itself, of SGLang's ``entrypoints/engine.py`` (``_set_envs_and_config``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Dict, List, Optional

from ..errors import PlumblineError, nearest
from . import known, lists

DELIVERIES = ("env_file", "sitecustomize", "nccl_conf")
# Set by Plumbline for a proving start, or the means of delivery itself: never part of a profile.
OURS = (
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_TIMESTAMP_FORMAT",
    "NCCL_DEBUG_TIMESTAMP_LEVELS",
    "NCCL_CONF_FILE",
    "NCCL_ENV_PLUGIN",
    "NCCL_COMM_ID",
)
# SGLang puts these into its environment before workers start, unless they are there: a conf file comes too late.
ENGINE_DEFAULTS = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
NOT_NCCL = ("CUDA_DEVICE_MAX_CONNECTIONS",)
_BOOLEANS = (
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_PXN_DISABLE",
    "NCCL_NVB_DISABLE",
    "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_RAS_ENABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_GRAPH_REGISTER",
    "NCCL_LOCAL_REGISTER",
)
_POSITIVE = (
    "NCCL_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_P2P_PCI_CHUNKSIZE",
    "NCCL_P2P_NVL_CHUNKSIZE",
    "NCCL_WORK_FIFO_BYTES",
    "NCCL_NVLS_CHUNKSIZE",
)
_CHANNELS = (
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_MAX_NRINGS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_MAX_P2P_NCHANNELS",
)
_LEVELS = ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL")
_RANGES = {"NCCL_NVLS_ENABLE": (0, 2), "NCCL_CUMEM_ENABLE": (-2, 1), "NCCL_CUMEM_HOST_ENABLE": (-1, 1)}
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)")


def values(profile: Mapping[str, Any]) -> Dict[str, str]:
    """The profile's variables as NCCL would be given them. Numbers that YAML made integers become text.

    Raises PlumblineError if the profile or a value has no such form.
    """
    variables = profile.get("variables", {}) or {}
    if not isinstance(variables, Mapping):
        raise PlumblineError("a profile's variables are no mapping", "variables", variables, "NAME: value")
    out: Dict[str, str] = {}
    for name, value in variables.items():
        if isinstance(value, bool) or value is None or not isinstance(value, (str, int)):
            raise PlumblineError(
                f"the value of {name} is neither text nor a whole number",
                f"variables.{name}",
                repr(value),
                "text or a whole number",
                f'write it as text, in quotes: {name}: "..."',
            )
        out[str(name)] = str(value)
    return out


def expected(name: str, value: str) -> str:
    """The value that NCCL's own log line shows if it took ``value`` (numbers in decimal)."""
    if name not in known.TEXT_VARIABLES and _DECIMAL.fullmatch(value):
        return str(int(value))
    return value


def _error(name: str, what: str, found: object, allowed: object = None, remedy: str = "") -> PlumblineError:
    return PlumblineError(what, f"variables.{name}", found, allowed, remedy)


def _check_list(name: str, value: str, version: str, context: Mapping[str, Any]) -> List[PlumblineError]:
    words = known.algorithms(version) if name == "NCCL_ALGO" else known.PROTOCOLS
    enabled, wrong = lists.token_lists(value, words, version)
    per_function = known.lists_per_function(version)
    consequence = "NCCL ends the start with ncclInvalidUsage" if per_function else "NCCL skips it without a word"
    if wrong:
        return [
            _error(
                name,
                f"{name} is wrong: {'; '.join(wrong)}; {consequence}",
                value,
                f"{', '.join(words)}; a list a,b; ^a to leave out"
                + ("; function:list entries parted by `;`" if per_function else ""),
            )
        ]
    safe = context.get("interconnect") == "nvlink" or context.get("data_check_passed")
    if name == "NCCL_PROTO" and lists.switches_on(enabled, "LL128") and not safe:
        how = (
            ""
            if "128" in value and not value.startswith("^")
            else " (a list that excludes others forces what it leaves)"
        )
        why = f" ({context['data_check']})" if context.get("data_check") else ""
        return [
            _error(
                name,
                f"this NCCL_PROTO switches LL128 on{how}; NCCL leaves it off over PCIe: it can corrupt data, and no "
                f"data check of it has passed on this host{why}",
                value,
                "a list without LL128, such as LL or LL,Simple or ^LL128",
                "run the data-checked sweep of this profile here (playbooks/nccl.yml -e sweep=true)",
            )
        ]
    return []


def _check_number(name: str, value: str, version: str) -> List[PlumblineError]:
    if not _DECIMAL.fullmatch(value):
        readings = {"": "NCCL takes an empty value as not set"}
        stripped = value.strip()
        if re.fullmatch(r"-?0[0-7]+", stripped):
            reading = f"NCCL would read it as octal: {int(stripped, 8)}"
        elif re.fullmatch(r"-?0[xX][0-9a-fA-F]+", stripped):
            reading = f"NCCL would read it as hexadecimal: {int(stripped, 16)}"
        else:
            lead = re.match(r"\s*[-+]?[0-9]+", value)
            reading = readings.get(value, f"NCCL would silently read it as {int(lead.group()) if lead else 0}")
        return [
            _error(
                name,
                f"{name} is not a plain decimal number; {reading}",
                repr(value),
                "decimal digits without unit and without a zero in front",
            )
        ]
    number = int(value)
    if not -(2**63) <= number < 2**63:
        return [_error(name, f"{name} does not fit 64 bits: NCCL would use its default", value)]
    if name in ("NCCL_NTHREADS",) and (number % 32 or not 64 <= number <= 512):
        return [
            _error(
                name, "NCCL would replace this NCCL_NTHREADS by another one", value, "a multiple of 32 from 64 to 512"
            )
        ]
    if name == "NCCL_LL128_NTHREADS" and (number % 32 or not 160 <= number <= 640):
        return [
            _error(
                name,
                "NCCL would replace this NCCL_LL128_NTHREADS by another one",
                value,
                "a multiple of 32 from 160 to 640",
            )
        ]
    if name in _POSITIVE and not 0 < number < 2**31:
        return [
            _error(
                name,
                f"{name} is no number of bytes; NCCL does not check it (a negative one gives chunks of 0 bytes)",
                value,
                "1 to 2147483647",
            )
        ]
    if name in _CHANNELS and not 1 <= number <= known.max_channels(version):
        return [
            _error(
                name,
                f"{name} is out of range; NCCL would silently use another number",
                value,
                f"1 to {known.max_channels(version)}",
            )
        ]
    low, high = _RANGES.get(name, (0, 1) if name in _BOOLEANS else (None, None))
    if low is not None and high is not None and not low <= number <= high:
        return [_error(name, f"{name} is out of range", value, f"{low} to {high}")]
    return []


def _check_level(name: str, value: str, version: str) -> List[PlumblineError]:
    words = known.path_types(version)
    if value in words:
        return []
    if value[:1].isdigit():
        return [
            _error(
                name,
                f"{name} by number is refused: published tables of the digits contradict each other",
                value,
                ", ".join(words),
                "NCCL's own table: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and more SYS; write the word",
            )
        ]
    # What nvidia-smi calls NODE, NCCL counts as PHB.
    upper = value.upper().strip()
    guess = "PHB" if upper == "NODE" else upper if upper in words else nearest(upper, words)
    return [
        _error(
            name,
            f"{name} has no such level (words are case-sensitive); NCCL would ignore it without a line",
            value,
            ", ".join(words),
            f"did you mean {guess!r}?" if guess else "use one of the allowed words",
        )
    ]


def _check_text(name: str, value: str) -> List[PlumblineError]:
    if value != value.strip() or not value or any(c in value for c in "\n\r\0\"'"):
        return [
            _error(
                name,
                f"{name} is empty or has outer spaces, quotes or line breaks, which NCCL takes as part of the value",
                repr(value),
            )
        ]
    if name in ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE") and not value.startswith("/"):
        return [_error(name, f"{name} must be an absolute path: the server's working directory is not yours", value)]
    choices = {"NCCL_SOCKET_FAMILY": ("AF_INET", "AF_INET6"), "NCCL_LAUNCH_MODE": ("PARALLEL", "GROUP")}.get(name)
    if choices and value not in choices:
        return [_error(name, f"{name} has no such value", value, ", ".join(choices))]
    return []


def _check_name(name: str, version: str, names: frozenset) -> Optional[PlumblineError]:
    if name in names or name in NOT_NCCL:
        return None
    if not name.upper().startswith("NCCL"):
        return _error(
            name,
            "not an NCCL variable",
            name,
            "names that NCCL reads",
            "put it into the environment of the variant: the profile is what NCCL is to take",
        )
    with_it = known.releases_with(name)
    guess = nearest(name.upper().strip(), names)
    hints = [f"NCCL {with_it[0]} to {with_it[-1]} know it"] if with_it else []
    hints.append(f"did you mean {guess!r}?" if guess else "remove it")
    return _error(
        name,
        f"NCCL {version} does not know {name!r} and would ignore it without a word",
        name,
        f"the {len(names)} names of NCCL {known.variables(version)[0]}",
        "; ".join(hints),
    )


def _contradictions(given: Mapping[str, str]) -> List[PlumblineError]:
    errors = []
    for what in ("NCHANNELS", "CTAS", "NRINGS", "P2P_NCHANNELS"):
        low, high = f"NCCL_MIN_{what}", f"NCCL_MAX_{what}"
        if all(_DECIMAL.fullmatch(given.get(n, "")) for n in (low, high)) and int(given[low]) > int(given[high]):
            errors.append(
                _error(
                    low,
                    f"{low} is larger than {high}; NCCL would follow the minimum",
                    f"{low}={given[low]} {high}={given[high]}",
                    remedy="raise the maximum or lower the minimum",
                )
            )
    for old, new in (("NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS"), ("NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS")):
        if old in given and new in given:
            errors.append(
                _error(
                    old,
                    f"{old} is the old name of {new}, which wins",
                    f"{old}={given[old]} {new}={given[new]}",
                    remedy=f"remove {old}",
                )
            )
    return errors


def validate(
    profile: Mapping[str, Any], nccl_version: str, context: Optional[Mapping[str, Any]] = None
) -> List[PlumblineError]:
    """Everything for which this profile must not be started; [] if it may.

    ``context`` (all optional): ``delivery`` (one of DELIVERIES), ``server_args`` (SGLang's long option names),
    ``interconnect`` (``pcie``, ``nvlink``; not given counts as pcie), ``data_check_passed`` (a data-checked sweep of
    this very profile has passed on this host), ``data_check`` (why it has not). ``nccl_version`` is empty for a build
    without NCCL.
    """
    context = context or {}
    delivery = context.get("delivery")
    errors: List[PlumblineError] = []
    if delivery is not None and delivery not in DELIVERIES:
        return [PlumblineError("unknown delivery", "delivery", delivery, ", ".join(DELIVERIES), "")]
    try:
        given = values(profile)
        if given and not nccl_version:
            raise PlumblineError(
                "this build has no NCCL, so nothing would read the profile",
                "nccl_version",
                sorted(given),
                "no profile (`none`)",
                "take a CUDA build, or the profile `none`",
            )
        version = ".".join(map(str, known.parse_version(nccl_version))) if given else ""
    except PlumblineError as error:
        return [error]
    if not given:
        return []
    names = known.variables(version)[1]
    if delivery == "nccl_conf" and not known.conf_file_supported(version):
        errors.append(
            PlumblineError(
                f"NCCL {version} does not read NCCL_CONF_FILE",
                "delivery",
                delivery,
                "env_file, sitecustomize",
                "it exists since NCCL 2.23",
            )
        )
    if (context.get("server_args") or {}).get("enable-deterministic-inference"):
        errors.append(
            PlumblineError(
                "deterministic inference overwrites the profile: it sets NCCL_ALGO=allreduce:tree and the channels",
                "enable-deterministic-inference",
                sorted(given),
                "no profile (`none`)",
                "take either the profile or deterministic inference",
            )
        )
    for name, value in given.items():
        wrong = _check_name(name, version, names)
        if wrong:
            errors.append(wrong)
            continue
        if name in OURS:
            errors.append(
                _error(name, f"{name} is set by Plumbline itself where it is needed", value, remedy="remove it")
            )
        elif delivery == "nccl_conf" and (name in ENGINE_DEFAULTS or name in NOT_NCCL):
            why = (
                "NCCL does not read it"
                if name in NOT_NCCL
                else "SGLang puts it into the environment first, and that wins"
            )
            errors.append(
                _error(
                    name,
                    f"{name} cannot be set by a conf file: {why}",
                    value,
                    "env_file, sitecustomize",
                    "choose another delivery",
                )
            )
        elif name in ("NCCL_ALGO", "NCCL_PROTO"):
            errors += _check_list(name, value, version, context)
        elif name in _LEVELS:
            errors += _check_level(name, value, version)
        elif name in known.TEXT_VARIABLES:
            errors += _check_text(name, value)
        else:
            errors += _check_number(name, value, version)
    return errors + _contradictions(given)


def engine_overrides(sglang_version: str) -> Dict[str, str]:
    """Variables whose value the engine always replaces, by SGLang's version (its ``_set_envs_and_config``)."""
    numbers = tuple(int(n) for n in re.findall(r"\d+", sglang_version)[:3]) or (0,)
    if numbers < (0, 5, 0):
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "4", "NCCL_CUMEM_ENABLE": "0"}
    overrides = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    if numbers < (0, 5, 6):
        overrides["NCCL_CUMEM_ENABLE"] = "0"
    return overrides


def remarks(profile: Mapping[str, Any], sglang_version: str) -> List[Dict[str, str]]:
    """What does not stop a start but must be said: ``[{name, asked, in_force, detail}]``."""
    found = []
    given = values(profile)
    if given.get("NCCL_P2P_DISABLE") == "1" and given.get("NCCL_P2P_LEVEL", "LOC") != "LOC":
        found.append(
            {
                "name": "NCCL_P2P_LEVEL",
                "asked": given["NCCL_P2P_LEVEL"],
                "in_force": "LOC",
                "detail": "NCCL_P2P_DISABLE=1 wins over NCCL_P2P_LEVEL, which is then not even read",
            }
        )
    for name, value in given.items():
        forced = engine_overrides(sglang_version).get(name)
        if forced is not None:
            found.append(
                {
                    "name": name,
                    "asked": value,
                    "in_force": forced,
                    "detail": f"profile asks {value}, engine set {forced}: SGLang always replaces {name}",
                }
            )
    return found
