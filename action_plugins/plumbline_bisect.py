"""Say which test a bisect makes next, or what it has found. Documentation: library/plumbline_bisect.py."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.utils.display import Display
from plumbline.analysis import bisecting, project
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.store import Results

display = Display()


class ActionModule(PlumblineAction):
    ARGUMENTS: dict[str, Any] = {
        "good": {"type": "str", "required": True},
        "bad": {"type": "str", "required": True},
        "host": {"type": "str", "required": True},
        "results_root": {"type": "path", "required": True},
        "workload": {"type": "str", "required": True},
        "variant": {"type": "str", "default": "baseline"},
        "catalogues": {"type": "dict", "required": True},
        "states_folders": {"type": "list", "elements": "path", "default": []},
        "build": {"type": "str", "default": ""},
        "build_folders": {"type": "list", "elements": "path", "default": []},
        "search": {"type": "list", "elements": "path", "default": []},
        "blocks": {"type": "raw", "default": {"min": 2, "max": 10}},
        "margin": {"type": "raw", "default": 0.02},
        "confidence": {"type": "raw", "default": 0.99},
        "failed": {"type": "str", "default": ""},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        results = Results(arguments["results_root"])
        search = bisecting.Search(
            results, good=arguments["good"], bad=arguments["bad"], host=arguments["host"],
            workload=arguments["workload"], variant=arguments["variant"], catalogues=arguments["catalogues"],
            blocks=arguments["blocks"], margin=arguments["margin"], confidence=arguments["confidence"],
            build=arguments["build"], build_folders=arguments["build_folders"],
            lock_folders=[*map(Path, [*arguments["states_folders"], *arguments["build_folders"]]), project.STATES,
                          *project.BUILD_LOCKS],
            source_folders=[*map(Path, arguments["search"]), *project.SOURCES])
        if self._task.check_mode:
            return {"test": None, "found": None, "units": search.units, "cannot_change": search.cannot}
        before = search.count
        answer = search.advance(arguments["failed"])
        for line in answer.pop("said"):
            display.display(line)
        found = answer["found"]
        if found and found["outcome"] == "unresolved":
            return {**answer, "failed": True, "msg": f"the bisect could not be decided: {found['text']}"}
        return {**answer, "units": search.units, "cannot_change": search.cannot, "changed": search.count != before}
