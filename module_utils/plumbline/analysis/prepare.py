"""Everything about an experiment on one host that can be checked before anything is touched.

`arms` joins the experiment with the host's variables, checks every server argument against the option list of the
pinned SGLang, every draft against its algorithm, and renders the argv of each arm.
"""
from __future__ import annotations

from typing import Any, Optional

from ..errors import PlumblineError, unknown_name
from ..sglang import arguments, speculation
from . import experiment as experiments


def catalogues(variables: dict[str, Any]) -> dict[str, dict]:
    """The catalogues by short name, each with the lab's own entries (`<name>_lab`) merged over the project's."""
    return {short: {**(variables.get(name) or {}), **(variables.get(f"{name}_lab") or {})}
            for short, name in (("variants", "plumbline_variants"), ("nccl_profiles", "plumbline_nccl_profiles"),
                                ("workloads", "plumbline_workloads"), ("models", "plumbline_models"))}


def arms(experiment: dict, books: dict[str, dict], host: dict, *, options: Optional[dict], version: str,
         model_paths: dict[str, str], model_configs: dict[str, dict]) -> list[dict]:
    """The experiment's arms on this host, each with `args` complete (paths included) and `argv`.

    ``host``: {name, target, drafts, server_args, address, port, nccl_profile, build}; ``options``: the option list of
    the SGLang ``version`` that will run, or None if it is not known; ``model_configs``: config.json by model name,
    as far as they can be read. Raises one PlumblineError that lists every fault.
    """
    workloads = [_entry("workload", w, books["workloads"]) for w in experiment["workloads"]]
    out, faults = [], []
    for arm in experiments.arms(experiment, books, host):
        where = f"experiment {experiment['name']}, arm {arm['name']}, host {host['name']}"
        args = dict(arm["args"])
        args["model-path"] = _path("sglang_server_target", host["target"], model_paths)
        args["served-model-name"] = host["target"]
        args["host"], args["port"] = host["address"], host["port"]
        draft = None
        if arm.get("draft"):
            draft = host["drafts"].get(arm["draft"], arm["draft"] if arm["draft"] in model_paths else None)
            if draft is None:
                faults.append(unknown_name("draft", arm["draft"], host["drafts"], f"{where}, sglang_server_drafts"))
                continue
            args["speculative-draft-model-path"] = _path(f"sglang_server_drafts.{arm['draft']}", draft, model_paths)
        if options is not None:
            faults += arguments.validate(args, options, where, version)
        faults += speculation.check(args, where=where, version=version, target=model_configs.get(host["target"]),
                                    draft=model_configs.get(draft) if draft else None, workloads=workloads)
        out.append({**arm, "args": args, "argv": arguments.render(args), "draft_model": draft})
    faults += arguments.check_alike([a["args"] for a in out], [a["name"] for a in out])
    if faults:
        raise faults[0] if len(faults) == 1 else PlumblineError("\n".join(str(f) for f in _distinct(faults)))
    return out


def _distinct(faults: list[PlumblineError]) -> list[PlumblineError]:
    return list({str(f): f for f in faults}.values())


def _entry(kind: str, name: str, book: dict) -> dict:
    if name not in book:
        raise unknown_name(kind, name, book, f"plumbline_{kind}s")
    return {"name": name, **book[name]}


def _path(where: str, name: str, paths: dict[str, str]) -> str:
    if name not in paths:
        raise unknown_name("model", name, paths, where)
    return paths[name]
