"""Decide what a rebuild does, and say how it ended. Documentation: library/plumbline_rebuild.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.utils.display import Display
from plumbline.analysis import comparison, project, rebuild
from plumbline.analysis import lock as locks
from plumbline.analysis.action import PlumblineAction
from plumbline.analysis.store import Results
from plumbline.errors import PlumblineError
from plumbline.state.table import render

display = Display()


def plain(value: Any) -> Any:
    """A value without the types by which Ansible marks it."""
    return json.loads(json.dumps(value))


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "step": {"type": "str", "required": True, "choices": ["read", "plan", "end", "proof"]},
        "name": {"type": "str", "default": ""},
        "states_folders": {"type": "list", "elements": "path", "default": []},
        "results_root": {"type": "path"},
        "read": {"type": "dict"},
        "state": {"type": "dict"},
        "host": {"type": "dict", "default": {}},
        "full": {"type": "bool", "default": False},
        "plans": {"type": "list", "elements": "dict", "default": []},
        "first": {"type": "dict"},
        "verdict": {"type": "dict"},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        here = str(task_vars.get("inventory_hostname", ""))
        return getattr(self, f"_{arguments['step']}")(arguments, plain(arguments["host"]), here)

    def _read(self, arguments: dict, host: dict, here: str) -> dict:
        if not arguments["name"]:
            raise PlumblineError(
                "no state was named",
                "-e state=NAME",
                "nothing",
                "the name of a lock in states/",
                "ansible-playbook playbooks/rebuild.yml -e state=NAME",
            )
        folders = [*map(Path, arguments["states_folders"]), project.STATES]
        search = [*map(Path, host.get("build_search") or []), *project.SOURCES]
        found = rebuild.read(arguments["name"], folders, search)
        lock = found.pop("lock")
        rebuild.check_models(lock, host.get("catalogue") or {}, project.ROOT)
        facts = {}
        if found["build_digest"]:
            lab = [Path(f) for f in host.get("build_lock_folders") or []]
            declared = rebuild.digest_of_build(str(host.get("build")), [*lab, *project.BUILD_LOCKS], search)
            if declared != found["build_digest"]:
                own = Path(found["file"])
                facts = {"sglang_build_lock": own.stem, "sglang_build_lock_folders": [str(own.parent), *map(str, lab)]}
        driver = lock.get("driver") or {}
        return {
            **found,
            "facts": facts,
            "driver_version": driver.get("version", ""),
            "kernel": lock.get("kernel") or {},
            "says": rebuild.of_lock(lock),
        }

    def _plan(self, arguments: dict, host: dict, here: str) -> dict:
        found, state = plain(arguments["read"]), plain(arguments["state"])
        lock = locks.read(Path(found["file"]))
        locks.check_hardware(lock, state)
        was = comparison.Side(f"state:{arguments['name']}", "state", lock=lock)
        now = comparison.Side(f"host:{here}", "host", state=state)
        document = comparison.compare_sides(was, now)
        known = rebuild.Host(
            name=here,
            catalogue=host.get("catalogue") or {},
            models=tuple(host.get("models") or ()),
            args=host.get("args") or {},
            environment=host.get("environment") or {},
            profiles=host.get("profiles") or {},
            build_digest=found["build_digest"],
            unit=str(host.get("unit") or ""),
            may_run=tuple(host["roles"]) if host.get("roles") is not None else rebuild.STEPS,
        )
        plan = rebuild.plan(lock, document, state, known, arguments["full"])
        again = bool(arguments["plans"])
        text = rebuild.lines(plan, done=again)
        if not again:
            display.display(f"\n{render(document, was.ref, now.ref)}\n")
        if text:
            display.display("\n".join(f"[{here}] {line}" for line in text) + "\n")
        if not self._task.check_mode and arguments["results_root"]:
            results = Results(arguments["results_root"])
            results.write_state(state)
            comparison.save(document, results)
        return {"plan": plan, "comparison": document, "lines": text, "changed": False}

    def _end(self, arguments: dict, host: dict, here: str) -> dict:
        plans = plain(arguments["plans"])
        ended = rebuild.settle(plain(arguments["first"]), plain(arguments["state"]), plans, arguments["full"])
        waiting = [d for d in ended["left"] if rebuild.needs_reboot(d)]
        stuck = [d for d in ended["left"] if not rebuild.needs_reboot(d)]
        said = [f"mended: {', '.join(ended['mended'])}"] if ended["mended"] else []
        said += [f"the roles changed what the comparison had not found: {i}" for i in ended["unexpected"]]
        said += [f"still to take effect, by a reboot: {d['group']}: {d['item']}" for d in waiting]
        display.display("\n".join(f"[{here}] {line}" for line in said) + ("\n" if said else ""))
        out = {**ended, "result": plans[-1]["result"], "changed": bool(ended["mended"])}
        if stuck:
            names = "; ".join(f"{d['group']}: {d['item']}" for d in stuck)
            error = PlumblineError(
                f"{here} is not yet as the lock says",
                f"state {arguments['name']}",
                names,
                None,
                "; ".join(dict.fromkeys(d["remedy"] for d in stuck)),
            )
            out.update(failed=True, msg=str(error), error=error.as_dict())
        return out

    def _proof(self, arguments: dict, host: dict, here: str) -> dict:
        rows = rebuild.came_back(plain(arguments["verdict"] or {}), here)
        said = [r["text"] for r in rows] or ["no baseline was measured: whether the number came back cannot be said"]
        display.display("\n".join(f"[{here}] {line}" for line in said) + "\n")
        return {"workloads": rows, "lines": said}
