"""The kinds of text that `tests/corpus_check.py` can read.

To add a kind, put a module into this package with a list ``KINDS`` of `Kind`: it is found by itself. ``recognise`` is
asked with the text alone (no header, no file name) and must say no to every other kind's text; kinds are asked by
ascending ``order``, so one whose text may contain another's comes first (a failing server's log has decode lines in
it as well). ``read`` returns a dictionary; it may hold more than a file expects, and should: each key of the header's
``expect`` is looked up in it. ``rows`` is a list of dictionaries. ``judges`` maps a key to a function (expected,
read) -> bool where equality is not the question (a version that must lie within a range)."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Callable, Dict, List, NamedTuple


class Kind(NamedTuple):
    name: str
    order: int
    recognise: Callable[[str], bool]
    read: Callable[[str], Dict[str, Any]]
    judges: Dict[str, Callable[[Any, Any], bool]] = {}


def all_kinds() -> List[Kind]:
    """Every registered kind, in the order in which they are asked."""
    found: List[Kind] = []
    for module in pkgutil.iter_modules(__path__):
        found += importlib.import_module(f"{__name__}.{module.name}").KINDS
    return sorted(found, key=lambda kind: (kind.order, kind.name))
