"""Filter of playbooks/bisect.yml.

- ``plumbline_bisect_why_not_made``: why a test cannot be made, of a failed task's result and action; empty if what
  failed has nothing to do with the test.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plumbline.analysis import bisecting


def why_not_made(result: Mapping[str, Any], action: str) -> str:
    return bisecting.why_not_made(action, result)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"plumbline_bisect_why_not_made": why_not_made}
