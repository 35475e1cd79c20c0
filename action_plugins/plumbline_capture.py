"""Turn an observed state into a lock, ``states/NAME.yml``. Documentation: library/plumbline_capture.py."""

from __future__ import annotations

from pathlib import Path

from plumbline.analysis import capture, project
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.store import Results


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "name": {"type": "str", "required": True},
        "state": {"type": "dict", "required": True},
        "evidence": {"type": "dict", "default": {}},
        "results_root": {"type": "path", "required": True},
        "states_folder": {"type": "path"},
        "lock_folders": {"type": "list", "elements": "path", "default": []},
        "search": {"type": "list", "elements": "path", "default": []},
        "description": {"type": "str", "default": ""},
        "overwrite": {"type": "bool", "default": False},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        made = capture.prepare(
            arguments["state"],
            arguments["evidence"],
            name=arguments["name"],
            description=arguments["description"],
            states_folder=Path(arguments["states_folder"] or project.STATES),
            overwrite=arguments["overwrite"],
            lock_folders=[*map(Path, arguments["lock_folders"]), *project.BUILD_LOCKS],
            search=[*map(Path, arguments["search"]), *project.SOURCES],
        )
        if not self._task.check_mode:
            capture.write(made, Results(arguments["results_root"]), arguments["state"], arguments["evidence"])
        return {
            "changed": made["changed"],
            "lock": str(made["path"]),
            "remarks": made["remarks"],
            "digest": arguments["state"]["digest"],
            "diff": made["diff"],
        }
