"""Plan an experiment for one host. Documentation: library/plumbline_plan.py."""
from __future__ import annotations

from pathlib import Path

from plumbline.analysis import judge, prepare, project
from plumbline.analysis import plan as plans
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.store import Results
from plumbline.digest import digest
from plumbline.errors import PlumblineError


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "experiment": {"type": "dict", "required": True},
        "run": {"type": "str", "required": True},
        "results_root": {"type": "path", "required": True},
        "catalogues": {"type": "dict", "required": True},
        "host": {"type": "dict", "required": True},
        "manifests": {"type": "dict", "default": {}},
        "lock_folders": {"type": "list", "elements": "path", "default": []},
        "model_paths": {"type": "dict", "default": {}},
        "model_configs": {"type": "dict", "default": {}},
        "root": {"type": "path", "required": True},
        "write": {"type": "bool", "default": True},
        "show": {"type": "bool", "default": False},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        experiment, run, host = arguments["experiment"], arguments["run"], arguments["host"]
        paths, configs = prepare.model_places(arguments["catalogues"]["models"], arguments["root"], host["models_root"])
        builds = prepare.needed_builds(experiment, host, arguments["manifests"],
                                       [*map(Path, arguments["lock_folders"]), *project.BUILD_LOCKS])
        try:
            arms = prepare.arms(experiment, arguments["catalogues"], host, builds=builds,
                                model_paths={**paths, **arguments["model_paths"]},
                                model_configs={**configs, **arguments["model_configs"]})
        except PlumblineError as error:
            return {"failed": True, "refused": True, "msg": str(error), "error": error.as_dict()}
        workloads = {name: arguments["catalogues"]["workloads"][name] for name in experiment["workloads"]}
        fingerprint = digest({"experiment": experiment, "arms": arms, "workloads": workloads})
        store = Results(arguments["results_root"]).experiment(experiment["name"])
        for entry in store.plan():
            if (entry["run"], entry["host"], entry["event"]) == (run, host["name"], "planned"):
                if entry["fingerprint"] != fingerprint:
                    raise PlumblineError(
                        "what was planned has changed since the run began (experiment, catalogues or host's arguments)",
                        f"run {run}, host {host['name']}", fingerprint[:12], entry["fingerprint"][:12],
                        "put it back as it was, or measure it as a run of its own: -e run=new")
                return self._result(entry, arms, arguments, changed=False)
        entry = plans.first(experiment, host["name"], arms, workloads, run, experiment["seed"], judge.now_text())
        entry["fingerprint"] = fingerprint
        changed = arguments["write"] and not self._task.check_mode
        if changed:
            store.write_experiment(run, experiment)
            store.append_plan(entry)
        return self._result(entry, arms, arguments, changed)

    def _result(self, entry: dict, arms: list[dict], arguments: dict, changed: bool) -> dict:
        host = arguments["host"]
        return {"plan": entry, "arms": arms, "text": prepare.plan_text(entry, arms), "show": arguments["show"],
                "changed": changed,
                "builds": list(dict.fromkeys(arm["build"] for arm in arms)),
                "models": list(dict.fromkeys([host["target"], *(a["draft_model"] for a in arms if a["draft_model"])]))}
