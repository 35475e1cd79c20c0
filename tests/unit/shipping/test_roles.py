"""Variables of roles: each default is specified, with the same value, and documented."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = sorted(p.parents[1] for p in (Path(__file__).parents[3] / "roles").glob("*/tasks/main.yml"))


def read(path: Path) -> dict[str, Any]:
    return (yaml.safe_load(path.read_text()) if path.exists() else None) or {}


def specified(role: Path) -> dict[str, dict]:
    out: dict[str, dict] = {}
    for entry in read(role / "meta" / "argument_specs.yml")["argument_specs"].values():
        out.update(entry.get("options") or {})
    return out


@pytest.mark.parametrize("role", ROLES, ids=[r.name for r in ROLES])
def test_defaults_are_specified_and_documented(role: Path) -> None:
    defaults, spec, readme = read(role / "defaults" / "main.yml"), specified(role), (role / "README.md").read_text()
    assert set(defaults) <= set(spec)
    computed = {name for name, value in defaults.items() if "{{" in str(value)}
    stated = {name for name in defaults if "default" in spec[name]} - computed
    assert {n: spec[n]["default"] for n in stated} == {n: defaults[n] for n in stated}
    unsaid = [name for name in defaults if name not in readme]
    assert not unsaid or "meta/argument_specs.yml" in readme, f"neither in the README nor by reference: {unsaid}"
    assert all(option.get("description") for option in spec.values())
