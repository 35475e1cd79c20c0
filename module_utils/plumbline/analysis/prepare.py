"""Everything about an experiment on one host that can be checked before anything is touched.

`arms` joins the experiment with the host's variables, checks every server argument against the option list of the
SGLang that its build pins, every draft against its algorithm, and renders the argv of each arm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from ..errors import PlumblineError, unknown_name
from ..measure import workload as measuring
from ..models import catalogue as models
from ..models.place import place
from ..sglang import arguments, speculation
from ..state.redact import REDACTED, secret_name
from . import controller_models, project
from . import experiment as experiments
from .build import locks

OPTIONS = Path(__file__).parent / "data" / "sglang-options"


def known_build(manifest: dict) -> dict:
    """{version, options} of a build that is on the host."""
    return {"version": _public(manifest["sglang_version"]), "options": manifest["options"]}


def needed_builds(experiment: dict, host: dict, manifests: dict[str, dict], folders: list[Path]) -> dict[str, dict]:
    """{version, options} of every build of the experiment by name: by its manifest where it is on the host, else by its
    lock in ``folders``."""
    own, where = host["build"], f"experiment {experiment['name']}, key reference.build or axes.build"
    names = dict.fromkeys([experiment["reference"].get("build") or own, *experiment["axes"].get("build", [])])
    return {
        name: known_build(manifests[name])
        if name in manifests
        else locked_build(name, folders, f"sglang_build_lock of {host['name']}" if name == own else where)
        for name in names
    }


def locked_build(name: str, folders: Iterable[Path], where: str = "sglang_build_lock") -> dict:
    """{version, options} of a build known by its lock alone; options None where that version's list is not kept."""
    lock = locks.read(locks.find(name, folders, where))
    versions = [lock.get("distributions", {}).get("sglang", {}).get("version")]
    versions += [entry.get("version") for entry in lock.get("local", [])]
    version = _public(next((v for v in versions if v), "0"))
    path = OPTIONS / f"{version}.json"
    return {"version": version, "options": json.loads(path.read_text()) if path.exists() else None}


def _public(version: str) -> str:
    return version.split("+", 1)[0]


def arms(
    experiment: dict,
    books: dict[str, dict],
    host: dict,
    *,
    builds: dict[str, dict],
    model_paths: dict[str, str],
    model_configs: dict[str, dict],
) -> list[dict]:
    """The experiment's arms on this host, each with `args` complete (paths included) and `argv`.

    ``host``: {name, target, drafts, server_args, address, port, nccl_profile, build, environment, models_root (what
    models of the controller start from)}; ``builds``:
    {version, options} by name (`known_build`, `locked_build`); ``model_paths``: folder on the host by name;
    ``model_configs``: config.json by name, as far as it can be read. Raises one PlumblineError that lists every fault.
    """
    workloads = [
        _entry("workload", w, books["workloads"], f"experiment {experiment['name']}, key workloads")
        for w in experiment["workloads"]
    ]
    check_workloads(workloads, experiment["repeats"])
    out: list[dict] = []
    faults = arguments.check_reserved(host["server_args"], f"sglang_server_args of {host['name']}")
    for name in {v.split("[", 1)[0] for v in _variants(experiment)} & set(books["variants"]):
        faults += arguments.check_reserved(
            (books["variants"][name] or {}).get("args") or {}, f"plumbline_variants.{name}.args"
        )
    target = host["target"]
    for arm in experiments.arms(experiment, {**books, "builds": builds}, host):
        where = f"experiment {experiment['name']}, arm {arm['name']}, host {host['name']}"
        build = builds[arm["build"]]
        args = {
            **arm["args"],
            "model-path": _path(f"sglang_server_target of {host['name']}", target, model_paths),
            "served-model-name": target,
            "host": host["address"],
            "port": host["port"],
        }
        draft: Optional[str] = None
        if arm["draft"]:
            if arm["draft"] not in host["drafts"]:
                faults.append(unknown_name("draft", arm["draft"], host["drafts"], f"{where}, sglang_server_drafts"))
                continue
            draft = str(host["drafts"][arm["draft"]])
            args["speculative-draft-model-path"] = _path(f"sglang_server_drafts.{arm['draft']}", draft, model_paths)
        faults += _secrets(arm, where)
        if build["options"] is not None:
            faults += _argument_faults(arm, args, build, books["variants"], host, experiment["name"], where)
        faults += speculation.check(
            args,
            where=where,
            version=build["version"],
            target=model_configs.get(target),
            draft=model_configs.get(draft) if draft else None,
            workloads=workloads,
            environment={**host["environment"], **arm["environment"]},
        )
        out.append({**arm, "args": args, "argv": arguments.render(args), "draft_model": draft})
    faults += _missing_models([target, *(a["draft_model"] for a in out if a["draft_model"])], books["models"], host)
    faults += arguments.check_alike([a["args"] for a in out], [a["name"] for a in out])
    faults = _once(faults)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise PlumblineError("\n".join(map(str, faults)))
    return out


def _argument_faults(
    arm: dict, args: dict, build: dict, variants: dict, host: dict, name: str, where: str
) -> list[PlumblineError]:
    """What is wrong with an arm's server arguments, told where a person gave them; else where they come together."""
    axes = [a[len("args.") :] for a in arm["differs_in"] if a.startswith("args.")]
    layers = {
        f"sglang_server_args of {host['name']}": host["server_args"],
        f"plumbline_variants.{arm['catalogue_variant']}.args": (variants[arm["catalogue_variant"]] or {}).get("args")
        or {},
        f"experiment {name}, key axes": {option: args[option] for option in axes},
    }
    version = f"SGLang {build['version']}"
    given = [
        fault
        for place, layer in layers.items()
        for fault in arguments.validate(layer, build["options"], place, version)
    ]
    told = {fault.what for fault in given}
    return given + [
        fault for fault in arguments.validate(args, build["options"], where, version) if fault.what not in told
    ]


def _once(faults: list[PlumblineError]) -> list[PlumblineError]:
    """Each fault once, with the first place where it was found and the number of others."""
    places: dict[tuple[str, str, str, str], dict[str, PlumblineError]] = {}
    for fault in faults:
        key = (fault.what, str(fault.found), str(fault.allowed), fault.remedy)
        places.setdefault(key, {}).setdefault(fault.where, fault)
    out = []
    for found in places.values():
        where, fault = next(iter(found.items()))
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        out.append(PlumblineError(fault.what, where + more, fault.found, fault.allowed, fault.remedy))
    return out


def _missing_models(names: list[str], catalogue: dict[str, dict], host: dict) -> list[PlumblineError]:
    """Models of the controller that are not there whole. (Digests are looked at when they are sent.)"""
    faults = []
    for model in models.select(names, catalogue):
        if model.source == "controller":
            try:
                controller_models.folder_of(model, Path(host["models_root"]))
            except PlumblineError as error:
                faults.append(error)
    return faults


def _secrets(arm: dict, where: str) -> list[PlumblineError]:
    """Secrets that would stand in the plan, which every reader of the results sees."""
    what, allowed = "a secret in what the plan records", "no secret"
    return [
        *(
            PlumblineError(
                what,
                f"{where}: argument {name}",
                REDACTED,
                allowed,
                f"leave {name} out; for the production server put it into the variant that "
                "sglang_server_unit_variant names",
            )
            for name, value in arm["args"].items()
            if isinstance(value, str) and value and secret_name(name)
        ),
        *(
            PlumblineError(
                what,
                f"{where}: variable {name}",
                REDACTED,
                allowed,
                f"set {name} in the host's sglang_server_environment, which no record holds",
            )
            for name, value in arm["environment"].items()
            if value and secret_name(name)
        ),
    ]


def _variants(experiment: dict) -> list[str]:
    return [experiment["reference"]["variant"], *experiment["axes"].get("variant", [])]


def _entry(kind: str, name: str, book: dict, where: str) -> dict[str, Any]:
    if name not in book:
        raise unknown_name(kind, name, book, where)
    return {"name": name, **(book[name] or {})}


def _path(where: str, name: str, paths: dict[str, str]) -> str:
    if name not in paths:
        raise unknown_name("model", name, paths, where)
    return paths[name]


def check_workloads(entries: list[dict], repeats: int = 1) -> None:
    """Refuse a faulty workload, prompts that are not what they are said to be or that two workloads share, and a
    profiled workload that is not alone on its boot.

    ``entries``: of the catalogue, with their names; ``repeats``: how often each is measured on a boot.
    """
    profiled = [entry["name"] for entry in entries if entry.get("profiled")]
    if profiled and (len(entries) > 1 or repeats > 1):
        raise PlumblineError(
            "a boot whose server is profiled is not measured, and not profiled twice",
            f"plumbline_workloads.{profiled[0]}.profiled",
            {"workloads": [entry["name"] for entry in entries], "repeats": repeats},
            "a profiled workload alone in its experiment, once a boot",
            "give it an experiment of its own, without repeats",
        )
    taken: dict[str, dict[str, str]] = {}
    for entry in entries:
        where = f"plumbline_workloads.{entry['name']}"
        workload = measuring.check({k: v for k, v in entry.items() if k != "name"}, where)
        path = _prompt_file(entry.get("prompts") or {}, f"plumbline_workloads.{entry['name']}.prompts")
        prompts = measuring.read_prompts(path, workload.sha256)
        measuring.requests_of(workload, prompts, str(path))
        users = taken.setdefault(str(path), {})
        end = None if workload.take is None else workload.skip + workload.take
        for prompt in prompts[workload.skip : end]:
            if users.setdefault(prompt.id, entry["name"]) != entry["name"]:
                raise PlumblineError(
                    f"workloads {users[prompt.id]} and {entry['name']} share a prompt",
                    where,
                    prompt.id,
                    "prompts of one workload alone, since caches remember them",
                    "give them other slices (prompts.skip and prompts.take)",
                )


def _prompt_file(prompts: dict[str, Any], where: str) -> Path:
    """The prompt file on the controller, from the project's root or absolute."""
    for key, what in (("file", "the path of a prompt file"), ("sha256", "the SHA-256 of the prompt file")):
        if not isinstance(prompts.get(key), str):
            raise PlumblineError(
                f"a workload without {key} of its prompts",
                f"{where}.{key}",
                prompts.get(key),
                what,
                f"add {key}: `sha256sum FILE` prints the digest",
            )
    path = project.ROOT / prompts["file"]
    if not path.is_file():
        raise PlumblineError(
            "no such prompt file on the controller",
            f"{where}.file",
            prompts["file"],
            "a path from the project's root, or an absolute one",
            f"mend the path: {path} is no file",
        )
    return path


def model_places(catalogue: dict[str, dict], root: str, controller_root: str) -> tuple[dict[str, str], dict[str, dict]]:
    """({name: folder on the host}, {name: config.json}) of a models catalogue, as far as it tells without the host."""
    paths, configs = {}, {}
    for model in models.select(list(catalogue), catalogue):
        paths[model.name] = str(place(root, model))
        config = Path(controller_root) / model.location / "config.json"
        if model.source == "controller" and config.exists():
            configs[model.name] = json.loads(config.read_text())
    return paths, configs


def plan_text(entry: dict, arms_: list[dict]) -> list[str]:
    """Lines that show a person what would run: the order of the boots, and the arguments of each."""
    boots = [p for block in entry["blocks"] for p in block if not p.get("shared")]
    lines = [
        f"{entry['reason']}; at most {len(boots)} boots",
        "order: " + ", ".join(p["arm"] for p in boots[:40]) + (" ..." if len(boots) > 40 else ""),
    ]
    for arm in arms_:
        lines.append(
            f"{arm['name']} (build {arm['build']}, NCCL profile {arm['nccl_profile']}): " + " ".join(arm["argv"])
        )
    return lines
