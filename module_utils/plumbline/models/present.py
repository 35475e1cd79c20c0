"""What the module ``plumbline_models`` does: every named model at its place, in one call."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..errors import PlumblineError
from . import hub, place
from .catalogue import Model


def present(root: str, models: Sequence[Model], *, reread: bool = False, check: bool = False,
            bundle: Optional[str] = None, python: str = "", endpoint: Optional[str] = None, token: Optional[str] = None,
            timeout_s: Optional[float] = None) -> Dict[str, Any]:
    """Place what is missing or damaged.

    Returns ``{changed, paths: {name: path}, models: {name: {path, digest, kind, changed, was, config}}, needs: [names],
    diff: {before, after}}``. ``needs`` names models that have to come from the controller and are not in ``bundle``;
    as long as there are any, nothing is changed. ``was`` is ``whole``, ``absent`` or the faults by file. ``check``
    changes nothing.
    """
    found = {m.name: place.standing(root, m, reread=reread) for m in models}
    todo = [m for m in models if not found[m.name].good]
    needs = [m.name for m in todo if m.source == "controller" and bundle is None]
    for model in todo:
        if model.source == "directory":
            place.check_directory(model)
    if todo and not check and not needs:
        with place.lock(root):
            for model in todo:
                # Somebody else may have placed it while this call waited for the lock.
                if place.standing(root, model).good:
                    continue
                place.install(root, model, _source(model, bundle, python, endpoint, token, timeout_s))
    described = {m.name: _describe(root, m, found[m.name], m in todo) for m in models}
    return {"changed": bool(todo), "paths": {m.name: str(place.place(root, m)) for m in models}, "models": described,
            "needs": needs, "diff": _diff(models, found)}


def _source(model: Model, bundle: Optional[str], python: str, endpoint: Optional[str], token: Optional[str],
            timeout_s: Optional[float]) -> Any:
    if model.source == "hub":
        return hub.from_hub(model, python=python, endpoint=endpoint, token=token, timeout_s=timeout_s)
    if model.source == "controller":
        if bundle is None:
            raise PlumblineError(f"model {model.name} comes from the controller, which sent nothing")
        return place.from_bundle(model, bundle)
    return place.from_directory(model)


def _describe(root: str, model: Model, was: place.Standing, changed: bool) -> Dict[str, Any]:
    path = place.place(root, model)
    return {"path": str(path), "digest": model.digest, "kind": model.kind, "changed": changed,
            "was": "whole" if was.good else was.faults if was.present else "absent", "config": config(path)}


def config(folder: Path) -> Optional[Dict[str, Any]]:
    """The model's config.json, None if it cannot be read."""
    try:
        found = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _diff(models: Sequence[Model], found: Mapping[str, place.Standing]) -> Dict[str, str]:
    """Digests of the files as they were and as they are to be, a line each."""
    before: List[str] = []
    after: List[str] = []
    for model in models:
        standing = found[model.name]
        wanted = dict(model.files) or standing.digests or {"*": f"{model.location} at {model.revision}"}
        after += [f"{model.folder}/{path}: {sha256}" for path, sha256 in sorted(wanted.items())]
        if standing.present:
            there = {**standing.digests, **{p: why for p, why in standing.faults.items() if p not in standing.digests}}
            before += [f"{model.folder}/{path}: {sha256}" for path, sha256 in sorted(there.items())]
    return {"before": "".join(f"{line}\n" for line in before), "after": "".join(f"{line}\n" for line in after)}
