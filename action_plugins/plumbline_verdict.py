"""Judge a run of an experiment and write its report. Documentation: library/plumbline_verdict.py."""
from __future__ import annotations

from pathlib import Path

from plumbline.analysis import experiment as experiments
from plumbline.analysis import judge
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.report import write as write_report
from plumbline.analysis.report.text import table
from plumbline.analysis.store import Results


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "experiment": {"type": "str", "required": True},
        "results_root": {"type": "path", "required": True},
        "run": {"type": "str", "default": ""},
        "margin": {"type": "raw", "default": None},
        "confidence": {"type": "raw", "default": None},
        "accept": {"type": "bool", "default": False},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        results = Results(arguments["results_root"])
        name = arguments["experiment"]
        store = results.experiment(experiments.load(Path(name))["name"] if experiments.is_path(name) else name)
        document = judge.judge(results, store, arguments["run"], arguments["margin"], arguments["confidence"])
        if self._task.check_mode:
            return {"verdict": document, "table": table(document), "report": None, "written": [],
                    "accepted": []}
        accepted = judge.accept(results, store, document["run"], "accepted by the user") if arguments["accept"] else []
        with store.lock():
            before = store.verdict()
            paths = [store.write_verdict(document), *write_report(results, store, document)]
        return {"changed": document != before or bool(accepted), "verdict": document, "table": table(document),
                "report": str(store.folder / "report.html"), "written": [str(p) for p in paths], "accepted": accepted}
