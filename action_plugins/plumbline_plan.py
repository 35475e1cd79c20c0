"""Plan an experiment for one host. Documentation: library/plumbline_plan.py."""
from __future__ import annotations

from datetime import datetime, timezone

from plumbline.analysis import plan as plans
from plumbline.analysis import prepare
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
        "version": {"type": "str", "required": True},
        "options": {"type": "raw", "default": None},
        "model_paths": {"type": "dict", "required": True},
        "model_configs": {"type": "dict", "default": {}},
        "write": {"type": "bool", "default": True},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        experiment, run, host = arguments["experiment"], arguments["run"], arguments["host"]
        arms = prepare.arms(experiment, arguments["catalogues"], host, options=arguments["options"] or None,
                            version=arguments["version"], model_paths=arguments["model_paths"],
                            model_configs=arguments["model_configs"])
        workloads = {name: arguments["catalogues"]["workloads"][name] for name in experiment["workloads"]}
        store = Results(arguments["results_root"]).experiment(experiment["name"])
        entries = [e for e in store.plan() if e["run"] == run and e["host"] == host["name"]]
        fingerprint = digest({"experiment": experiment, "arms": arms, "workloads": workloads})
        for entry in entries[:1]:
            if entry["fingerprint"] != fingerprint:
                raise PlumblineError("the experiment, its catalogues or the host's arguments changed since the run began",
                                     f"run {run}, host {host['name']}", fingerprint[:12], entry["fingerprint"][:12],
                                     "measure the new plan as a run of its own: run=new")
            return {"plan": entry, "arms": arms}
        now = datetime.now(timezone.utc)
        entry = plans.first(experiment, host["name"], arms, workloads, run, now=now)
        entry["fingerprint"] = fingerprint
        changed = arguments["write"] and not self._task.check_mode
        if changed:
            store.append_plan(entry)
        return {"plan": entry, "arms": arms, "changed": changed}
