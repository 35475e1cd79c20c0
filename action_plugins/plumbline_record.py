"""Append measurement records, then let the target forget them. Documentation: library/plumbline_record.py."""
from __future__ import annotations

from plumbline.analysis import judge, records
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.store import ExperimentResults, Results


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "results_root": {"type": "path", "required": True},
        "root": {"type": "path", "required": True},
        "boot": {"type": "dict", "required": True},
        "engine": {"type": "str", "required": True},
        "state": {"type": "raw", "default": None},
        "server": {"type": "dict", "default": {}},
        "nccl": {"type": "dict", "default": {}},
        "measurements": {"type": "list", "elements": "dict", "default": []},
        "failure": {"type": "raw", "default": None},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        boot, state, failure = arguments["boot"], arguments["state"] or None, arguments["failure"] or None
        results = Results(arguments["results_root"])
        store = results.experiment(boot["experiment"])
        if state:
            results.write_state(state)
        common = {"engine": arguments["engine"], "state": state, "server": arguments["server"],
                  "nccl": arguments["nccl"]}
        appended = []
        for spooled in arguments["measurements"]:
            reference = _reference(store, boot, spooled)
            record = records.measurement(boot, spooled, reference=reference, **common)
            record["evidence"] = store.write_evidence(record["id"], records.evidence(spooled))
            if store.append_measurement(record):
                appended.append(record)
            spec = next(w["spec"] for w in boot["workloads"] if w["id"] == record["id"])
            judge.remember_baseline(results, record, spec)
        if failure:
            done = {m["id"] for m in store.measurements(boot["run"])}
            for record in records.failed_boot(boot, failure, measured=done, **common):
                record["evidence"] = store.write_evidence(record["id"], {"failure.json": failure})
                if store.append_measurement(record):
                    appended.append(record)
        confirmed = self._confirm([m["id"] for m in arguments["measurements"]], arguments["root"], task_vars)
        if confirmed.get("failed"):
            return confirmed
        return {"changed": bool(appended), "appended": [r["id"] for r in appended], "records": appended}

    def _confirm(self, ids: list[str], root: str, task_vars: dict) -> dict:
        if not ids:
            return {}
        return self._execute_module(module_name="plumbline_spool", task_vars=task_vars,
                                    module_args={"root": root, "state": "confirmed", "ids": ids})


def _reference(store: ExperimentResults, boot: dict, spooled: dict) -> list[dict] | None:
    """Samples of the run's first good baseline measurement of the same host and workload, if it is another one."""
    name = next(w["name"] for w in boot["workloads"] if w["id"] == spooled["id"])
    for m in store.measurements(boot["run"]):
        if (m["host"], m["workload"], m["role"], m["status"]) == (boot["host"], name, "baseline", "ok"):
            return store.samples(m["id"]) if m["id"] != spooled["id"] else None
    return None
