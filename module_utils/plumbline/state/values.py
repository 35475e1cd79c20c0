"""What an item of a state can be, and the builder of one group of items.

An item's value is any JSON value; two mappings are special: ``{"absent": true}`` for what this host does not have
(it equals itself) and ``{"unknown": "why"}`` for what could not be read (it never equals anything, and enters no
digest).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict

from ..digest import digest

ABSENT: Dict[str, bool] = {"absent": True}


def absent() -> Dict[str, bool]:
    """A new value for what does not exist on this host."""
    return dict(ABSENT)


def unknown(why: object) -> Dict[str, str]:
    """A new value for what could not be read; ``why`` is shown to people."""
    return {"unknown": str(why)}


def is_absent(value: Any) -> bool:
    return isinstance(value, dict) and value.get("absent") is True and len(value) == 1


def is_unknown(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("unknown"), str) and len(value) == 1


def known(items: Dict[str, Any]) -> Dict[str, Any]:
    """The items that could be read: what a digest is made over."""
    return {item: value for item, value in items.items() if not is_unknown(value)}


@dataclass
class Group:
    """One named group of a state: identity items enter its digest, condition items never do."""

    name: str
    identity: Dict[str, Any] = field(default_factory=dict)
    condition: Dict[str, Any] = field(default_factory=dict)

    def document(self) -> Dict[str, Any]:
        """``{digest, identity, condition}`` with sorted items, so that equal groups are equal bytes."""
        identity = dict(sorted(self.identity.items()))
        return {
            "digest": digest(known(identity)),
            "identity": identity,
            "condition": dict(sorted(self.condition.items())),
        }
