"""Say what is to be started next on a host. Documentation: library/plumbline_next.py."""
from __future__ import annotations

from datetime import datetime, timezone

from plumbline.analysis import plan as plans
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
        experiment, run, host = arguments["experiment"], arguments["run"], arguments["host"]
        results = Results(arguments["results_root"])
        store = results.experiment(experiment["name"])
        entries = [e for e in store.plan() if e["run"] == run and e["host"] == host]
        measurements = [m for m in store.measurements(run) if m["host"] == host]
        answer = plans.next_boot(entries, measurements, results.baselines(host), experiment, host, run,
                                 now=datetime.now(timezone.utc), states=results.states())
        if answer.get("amend"):
            store.append_plan(answer["amend"])
        return {"boot": answer.get("boot"), "stop": answer.get("stop"), "kind": answer.get("kind"),
                "progress": plans.progress(entries, measurements), "changed": bool(answer.get("amend"))}
