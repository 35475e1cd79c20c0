"""Experiments: reading `experiments/NAME.yml`, and the arms that it makes on a host.

`load` gives the mapping of `schemas/experiment.schema.json` with every default filled in. `arms` multiplies the axes
out.
"""
from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Optional

import yaml

from ..errors import PlumblineError, nearest, unknown_name
from . import schema

SCHEMA = "plumbline.experiment/1"
DEFAULTS: dict[str, Any] = {
    "description": "", "axes": {}, "zip": [], "exclude": [], "blocks": {"min": 2, "max": 10},
    "budget": {}, "margin": 0.02, "confidence": 0.99, "seed": 1, "repeats": 1, "retries": 1, "warm_up": True,
    "tolerance": None, "family": "run",
}
# The order in which axes are multiplied out and named.
_FIRST_AXES = ("variant", "nccl_profile", "build", "draft")


def is_path(name: str) -> bool:
    """Whether an experiment is named by its file rather than by its name."""
    return Path(name).suffix in (".yml", ".yaml")


def load(path: Path) -> dict:
    """The experiment in the YAML file ``path``, validated and with defaults.

    Raises PlumblineError naming the file, the key, what was found and what is allowed there.
    """
    path = Path(path)
    if not path.is_file():
        names = sorted(p.stem for p in path.parent.glob("*.yml")) if path.parent.is_dir() else []
        raise unknown_name("experiment", path.stem, names, str(path.parent))
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise PlumblineError("not a YAML file", str(path), str(error).replace("\n", " "),
                             remedy="mend the YAML") from error
    return normalise(document, str(path))


def normalise(document: Any, where: str) -> dict:
    """The experiment ``document`` validated and with defaults; ``where`` is named in errors."""
    schema.validate("experiment", document, where)
    out = {**DEFAULTS, **{k: v for k, v in document.items() if v is not None}}
    if isinstance(out["blocks"], int):
        out["blocks"] = {"min": out["blocks"], "max": out["blocks"]}
    if out["blocks"]["min"] > out["blocks"]["max"]:
        raise PlumblineError("blocks.min is larger than blocks.max", f"{where}, key blocks", out["blocks"],
                             "min <= max", "swap them, or give one number")
    _check_axes(out, where)
    return out


def _check_axes(experiment: dict, where: str) -> None:
    axes = experiment["axes"]
    seen: set[str] = set()
    for group in experiment["zip"]:
        for axis in group:
            _known_axis(axis, axes, f"{where}, key zip")
            if axis in seen:
                raise PlumblineError(f"axis {axis!r} is zipped twice", f"{where}, key zip", group,
                                     "each axis once", "put the axes into one group")
            seen.add(axis)
        lengths = {axis: len(axes[axis]) for axis in group}
        if len(set(lengths.values())) > 1:
            raise PlumblineError("zipped axes have lists of different length", f"{where}, key zip", lengths,
                                 "equal lengths", "give each axis of the group as many values")
    for rule in experiment["exclude"]:
        for axis, value in rule.items():
            _known_axis(axis, axes, f"{where}, key exclude")
            if value not in axes[axis]:
                guess = nearest(str(value), [str(v) for v in axes[axis]])
                raise PlumblineError(f"exclude names a value that axis {axis!r} does not have", f"{where}, key exclude",
                                     value, axes[axis], f"did you mean {guess!r}?" if guess else "remove the rule")


def _known_axis(axis: str, axes: dict, where: str) -> None:
    if axis not in axes:
        raise unknown_name("axis", axis, axes, where)


def combinations(experiment: dict) -> list[dict]:
    """Every {axis: value} of the axes: product, zip and exclude applied, in a stable order."""
    axes = experiment["axes"]
    ordered = [a for a in _FIRST_AXES if a in axes] + sorted(a for a in axes if a not in _FIRST_AXES)
    zipped = {axis: group for group in experiment["zip"] for axis in group}
    factors: list[list[dict]] = []
    used: set[str] = set()
    for axis in ordered:
        if axis in used:
            continue
        group = zipped.get(axis, [axis])
        used.update(group)
        factors.append([dict(zip(group, values)) for values in zip(*(axes[a] for a in group))])
    out = []
    for parts in itertools.product(*factors):
        combination: dict = {}
        for part in parts:
            combination.update(part)
        if not any(all(combination.get(a) == v for a, v in rule.items()) for rule in experiment["exclude"]):
            out.append(combination)
    return out if axes else []


def arms(experiment: dict, catalogues: dict, host_vars: dict) -> list[dict]:
    """The reference and the candidates of ``experiment`` on a host.

    ``catalogues``: {variants, nccl_profiles, workloads, builds?: names of known build locks}.
    ``host_vars``: {server_args, nccl_profile, build} of the host: what an arm has where the experiment says nothing.
    Returns [{name, role: baseline|candidate, variant, nccl_profile, build, args, draft, environment, differs_in}];
    ``args`` is the mapping before paths and ports, ``draft`` the role of a draft model or None, ``differs_in`` the
    axes in which the arm differs from the reference. Unknown names raise `errors.unknown_name`.
    """
    where = f"experiment {experiment['name']}"
    reference = experiment["reference"]
    base = {"variant": reference["variant"],
            "nccl_profile": reference.get("nccl_profile", host_vars.get("nccl_profile")),
            "build": reference.get("build", host_vars.get("build"))}
    out = [_arm(base, base, catalogues, host_vars, where, experiment["axes"])]
    for combination in combinations(experiment):
        arm = _arm({**base, **combination}, base, catalogues, host_vars, where, experiment["axes"])
        if not arm["differs_in"] or any(_same(arm, other) for other in out):
            continue
        out.append(arm)
    names = [a["name"] for a in out]
    for name in names:
        if names.count(name) > 1:
            raise PlumblineError("two arms have the same name", where, name, "distinct names",
                                 "name the variants differently")
    return out


def _same(a: dict, b: dict) -> bool:
    return all(a[k] == b[k] for k in ("nccl_profile", "build", "args", "draft", "environment", "catalogue_variant"))


def _arm(values: dict, base: dict, catalogues: dict, host_vars: dict, where: str, axes: dict) -> dict:
    variant_name = values["variant"]
    variants = catalogues["variants"]
    if variant_name not in variants:
        raise unknown_name("variant", variant_name, variants, f"{where}, key {_key('variant', values, base)}")
    profile, build = values["nccl_profile"], values["build"]
    if profile is not None and profile not in catalogues.get("nccl_profiles", {}):
        raise unknown_name("NCCL profile", profile, catalogues.get("nccl_profiles", {}),
                           f"{where}, key {_key('nccl_profile', values, base)}, else nccl_profile_name of the host")
    builds = catalogues.get("builds")
    if build is not None and builds is not None and build not in builds:
        raise unknown_name("build", build, builds,
                           f"{where}, key {_key('build', values, base)}, else sglang_build_lock of the host")
    variant = variants[variant_name] or {}
    args = {**(host_vars.get("server_args") or {}), **(variant.get("args") or {})}
    draft: Optional[str] = variant.get("draft")
    derived, differs = [], [a for a in ("variant", "nccl_profile", "build") if values[a] != base[a]]
    # A variant without a draft has nothing that the draft axis could change.
    if "draft" in values and draft is not None:
        if values["draft"] != draft:
            derived.append(f"draft={values['draft']}")
            differs.append("draft")
        draft = values["draft"]
    for axis in sorted(a for a in values if a.startswith("args.")):
        option, value = axis[len("args."):], values[axis]
        if args.get(option) != value:
            args[option] = value
            differs.append(axis)
        derived.append(f"{option}={_text(value)}")
    full = variant_name + (f"[{','.join(derived)}]" if derived else "")
    name = full
    if "nccl_profile" in axes or profile != base["nccl_profile"]:
        name += f"/{profile}"
    if "build" in axes or build != base["build"]:
        name += f"@{build}"
    return {"name": name, "role": "candidate" if differs else "baseline", "variant": full,
            "catalogue_variant": variant_name, "nccl_profile": profile, "build": build, "args": args, "draft": draft,
            "environment": dict(variant.get("environment") or {}), "differs_in": differs}


def _key(axis: str, values: dict, base: dict) -> str:
    """The key of an experiment that a value of an arm comes from."""
    return f"{'reference' if values[axis] == base[axis] else 'axes'}.{axis}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
