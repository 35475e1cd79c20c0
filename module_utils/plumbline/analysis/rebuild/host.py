"""What a plan must know of a host beside its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from .steps import STEPS


@dataclass
class Host:
    """Variables of a host's inventory, and what may be run on it. ``unit``: the unit of its production server, "" where
    there is none."""

    name: str
    catalogue: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Any] = field(default_factory=dict)
    build_digest: Optional[str] = None
    may_run: tuple[str, ...] = STEPS
    unit: str = ""


def kind_of(state: Mapping[str, Any]) -> str:
    """``bare``, or the kind of container that the state was observed in."""
    return str((state["groups"].get("container") or {}).get("identity", {}).get("kind", "bare"))
