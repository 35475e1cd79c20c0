"""Open a run of an experiment. Documentation: library/plumbline_experiment.py."""
from __future__ import annotations

from pathlib import Path

from plumbline.analysis import experiment as experiments
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.store import Results


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "experiment": {"type": "str", "required": True},
        "folder": {"type": "path", "required": True},
        "results_root": {"type": "path", "required": True},
        "run": {"type": "str", "default": ""},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        folder = Path(arguments["folder"]).resolve()
        name = arguments["experiment"]
        document = experiments.load(Path(name) if experiments.is_path(name) else folder / f"{name}.yml")
        results = Results(arguments["results_root"])
        results.check_writable()
        run, resumed = results.experiment(document["name"]).choose_run(arguments["run"])
        return {"experiment": document, "run": run, "resumed": resumed}
