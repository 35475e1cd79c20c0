"""Physics of the simulator, read and checked on the controller."""
from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError
from plumbline.analysis import project
from plumbline.errors import PlumblineError

PACKAGE = "plumbline_simulation"


def _simulation() -> ModuleType:
    """The simulator's own reader of physics: what it refuses is refused here, in the same words."""
    if PACKAGE not in sys.modules:
        folder = project.ROOT / "simulator" / "server" / "src" / "sglang" / "simulation"
        spec = importlib.util.spec_from_file_location(PACKAGE, folder / "__init__.py",
                                                      submodule_search_locations=[str(folder)])
        if spec is None or spec.loader is None:
            raise AnsibleFilterError(f"the simulator is not in {folder}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
    return importlib.import_module(f"{PACKAGE}.physics")


def plumbline_physics(name: str) -> str:
    """The physics file ``name`` as JSON with sorted keys. Raises AnsibleFilterError naming each key that is wrong."""
    try:
        path = project.physics_file(str(name))
    except PlumblineError as error:
        raise AnsibleFilterError(str(error)) from error
    simulation = _simulation()
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for host in ["", *(document.get("hosts") or {})] if isinstance(document, dict) else [""]:
            simulation.resolve(document, host, str(path))
    except yaml.YAMLError as error:
        raise AnsibleFilterError(f"physics file {path} is not YAML: {error}") from error
    except simulation.PhysicsError as error:
        raise AnsibleFilterError(f"physics file {error}") from error
    return json.dumps(_plain(document), sort_keys=True, indent=1) + "\n"


def _plain(value: Any) -> Any:
    """Keys as text: JSON has no others, and sorting wants one kind."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """The filters by name."""
        return {"plumbline_physics": plumbline_physics}
