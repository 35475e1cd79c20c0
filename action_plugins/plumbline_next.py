"""Say what is to be started next on a host. Documentation: library/plumbline_next.py."""
from __future__ import annotations

from plumbline.analysis import judge
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.store import Results


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "experiment": {"type": "dict", "required": True},
        "run": {"type": "str", "required": True},
        "results_root": {"type": "path", "required": True},
        "host": {"type": "str", "required": True},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        results = Results(arguments["results_root"])
        store = results.experiment(arguments["experiment"]["name"])
        answer = judge.next_boot(results, store, arguments["experiment"], arguments["host"], arguments["run"])
        changed = bool(answer["amend"]) and not self._task.check_mode
        if changed:
            store.append_plan(answer["amend"])
        return {"boot": answer.get("boot"), "stop": answer.get("stop"), "kind": answer.get("kind"),
                "progress": answer["progress"], "changed": changed}
