"""Say which of the figures that somebody reports cannot all be true. Documentation: library/plumbline_claim.py."""
from __future__ import annotations

from typing import Any

from ansible.utils.display import Display
from plumbline.analysis import claim
from plumbline.analysis.action import PlumblineAction

display = Display()


class ActionModule(PlumblineAction):
    ARGUMENTS: dict[str, Any] = {
        **{name: {"type": "raw", "default": None} for name in claim.FIGURES},
        "strict": {"type": "bool", "default": False},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        figures = claim.figures({name: arguments[name] for name in claim.FIGURES})
        found = claim.check(**figures)
        text = claim.text(figures, found)
        display.display(f"\n{text}\n")
        out = {**found, "figures": figures, "text": text}
        if arguments["strict"] and not found["consistent"]:
            out.update(failed=True, msg="; ".join(f["says"] for f in found["findings"]
                                                  if f["kind"] == claim.CONTRADICTION))
        return out
