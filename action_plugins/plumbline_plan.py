"""Plan an experiment for one host. Documentation: library/plumbline_plan.py."""
from __future__ import annotations

from plumbline.analysis import judge, prepare
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
        fingerprint = digest({"experiment": experiment, "arms": arms, "workloads": workloads})
        store = Results(arguments["results_root"]).experiment(experiment["name"])
        for entry in store.plan():
            if (entry["run"], entry["host"], entry["event"]) == (run, host["name"], "planned"):
                if entry["fingerprint"] != fingerprint:
                    raise PlumblineError("what was planned has changed since the run began (the experiment, a catalogue, "
                                         "or the host's arguments)", f"run {run}, host {host['name']}",
                                         fingerprint[:12], entry["fingerprint"][:12],
                                         "measure it as a run of its own: -e run=new")
                return {"plan": entry, "arms": arms}
        entry = plans.first(experiment, host["name"], arms, workloads, run, experiment["seed"], judge.now_text())
        entry["fingerprint"] = fingerprint
        changed = arguments["write"] and not self._task.check_mode
        if changed:
            store.write_experiment(run, experiment)
            store.append_plan(entry)
        return {"plan": entry, "arms": arms, "changed": changed}
