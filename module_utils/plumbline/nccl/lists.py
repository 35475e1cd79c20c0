"""NCCL_ALGO and NCCL_PROTO: lists of words, for all functions or for each (NCCL's parseList)."""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from ..errors import nearest
from . import known


def token_lists(value: str, words: Tuple[str, ...], version: str) -> Tuple[Dict[str, Set[str]], List[str]]:
    """NCCL's parseList: the words on for each function, and what is wrong with the text.

    ``value`` is like ``ring;allreduce:tree,ring`` or ``^LL128``; words and functions in any case.
    """
    wrong: List[str] = []
    by_lower = {word.lower(): word for word in words}
    functions = {f.lower(): f for f in known.FUNCTIONS}
    enabled = {f: set(words) for f in known.FUNCTIONS}
    per_function = known.lists_per_function(version)
    if not per_function and (";" in value or ":" in value):
        return enabled, ["lists per function (`;` and `:`) are not understood before NCCL 2.24"]
    for number, entry in enumerate(value.split(";")):
        prefix, colon, text = entry.rpartition(":") if ":" in entry else ("", "", entry)
        if number and not colon:
            wrong.append(f"{entry!r}: every entry but the first needs a function before it")
        if colon and prefix.lower() not in functions:
            wrong.append(f"{prefix!r} is no function (allowed: {', '.join(known.FUNCTIONS)})")
        exclude, text = text.startswith("^"), text[1:] if text.startswith("^") else text
        chosen: Set[str] = set()
        for token in text.split(","):
            if token.lower() in by_lower:
                chosen.add(by_lower[token.lower()])
            else:
                guess = nearest(token, words)
                wrong.append(f"{token!r} is unknown" + (f", did you mean {guess!r}?" if guess else ""))
        result = set(words) - chosen if exclude else chosen
        if not result:
            wrong.append(f"{entry!r} leaves nothing to choose from")
        for lower, function in functions.items():
            if not colon or prefix.lower() == lower:
                enabled[function] = result
    return enabled, wrong


def switches_on(enabled: Dict[str, Set[str]], word: str) -> List[str]:
    """The functions for which a list of NCCL's (``token_lists``) has this word on."""
    return sorted(function for function, on in enabled.items() if word in on)


def forces_ll128(value: str, nccl_version: str) -> bool:
    """Whether this NCCL_PROTO switches LL128 on for some function: over PCIe that needs a data check. Not a wrong
    list.
    """
    if not value or not nccl_version:
        return False
    version = ".".join(map(str, known.parse_version(nccl_version)))
    enabled, wrong = token_lists(value, known.PROTOCOLS, version)
    return not wrong and bool(switches_on(enabled, "LL128"))
