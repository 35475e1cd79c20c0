"""Compare states and say what differs. Documentation: library/plumbline_compare.py."""

from __future__ import annotations

from pathlib import Path

from ansible.utils.display import Display
from plumbline.analysis import comparison, project
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.store import Results
from plumbline.state.table import render

display = Display()


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "was": {"type": "str", "required": True},
        "now": {"type": "str", "required": True},
        "results_root": {"type": "path", "required": True},
        "states_folders": {"type": "list", "elements": "path", "default": []},
        "strict": {"type": "bool", "default": False},
        "observed": {"type": "str", "default": "plumbline_state_observed"},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        results = Results(arguments["results_root"])
        refs = [arguments["was"], arguments["now"]]
        members = comparison.hosts_of(refs, task_vars.get("groups", {}))
        if all(ref.startswith("host:") for ref in refs) and not any(members.values()):
            return {"skipped": True, "comparisons": [], "table": "", "written": []}
        hosts = {}
        for name in {h for names in members.values() for h in names}:
            found = task_vars["hostvars"].get(name, {}).get(arguments["observed"]) or {}
            if found.get("state"):
                hosts[name] = found["state"]
        folders = [*map(Path, arguments["states_folders"]), project.STATES]
        was, now = (
            comparison.resolve(
                arguments[side], where=side, results=results, states_folders=folders, hosts=hosts, members=members
            )
            for side in ("was", "now")
        )
        documents, tables, written = [], [], []
        for a in was:
            for b in now:
                document = comparison.compare_sides(a, b)
                documents.append(document)
                tables.append(render(document, a.ref, b.ref))
                if not self._task.check_mode:
                    for side in (a, b):
                        if side.kind == "host" and side.state is not None:
                            results.write_state(side.state)
                    written.append(str(comparison.save(document, results)))
        table = "\n\n".join(tables)
        display.display(f"\n{table}\n")
        differing = [d for d in documents if d["result"] != "same"]
        out = {"changed": bool(written), "comparisons": documents, "table": table, "written": written}
        if arguments["strict"] and differing:
            out.update(failed=True, msg="; ".join(f"{d['was']} -> {d['now']}: {d['result']}" for d in differing))
        return out
