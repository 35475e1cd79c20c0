"""Judge the newest run of an experiment and write its report. Documentation: library/plumbline_verdict.py."""
from __future__ import annotations

from plumbline.analysis import verdict as verdicts
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.report import write as write_report
from plumbline.analysis.report.text import table
from plumbline.analysis.store import Results
from plumbline.errors import PlumblineError


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
        store = results.experiment(arguments["experiment"])
        runs = store.runs()
        run = arguments["run"] or (runs[-1] if runs else "")
        if run not in runs:
            raise PlumblineError("nothing was measured", f"{store.folder}", run or "no run", ", ".join(runs) or "no run",
                                 "name an experiment that has measurements (-e experiment=NAME) and one of its runs")
        document = verdicts.build_from(results, store.name, run, margin=arguments["margin"],
                                       confidence=arguments["confidence"])
        with store.lock():
            store.write_verdict(document)
            written = write_report(results, store, document)
        return {"changed": True, "verdict": document, "table": table(document), "written": [str(p) for p in written]}
