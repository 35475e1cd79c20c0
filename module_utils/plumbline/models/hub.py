"""Models from a Hugging Face hub, through the ``huggingface_hub`` of a build's Python."""
from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from ..errors import PlumblineError
from . import hub_script
from .catalogue import Model

# What huggingface_hub's exceptions mean to the reader: (what, remedy).
_MEANING = {
    "RepositoryNotFoundError": ("the hub has no such repository, or the token may not see it",
                                "check the name; set sglang_models_hub_token for a private repository"),
    "GatedRepoError": ("the repository is gated and the token has no access",
                       "ask for access on the repository's page and set sglang_models_hub_token"),
    "RevisionNotFoundError": ("the repository has no such revision", "take a commit from its history page"),
    "ModuleNotFoundError": ("this Python has no huggingface_hub", "set sglang_models_hub_python to a build's Python"),
}
_UNREACHABLE = ("the hub cannot be reached", "check the endpoint and the host's network, then run again: "
                "what has been fetched is kept")


def from_hub(model: Model, *, python: str, endpoint: Optional[str] = None, token: Optional[str] = None,
             timeout_s: Optional[float] = None) -> Callable[[Path], Any]:
    """Downloads a model's files at its commit, with ``python``. ``timeout_s`` bounds the whole download."""
    def fill(folder: Path) -> Dict[str, Any]:
        answer = _ask(model, folder, python, endpoint, token, timeout_s)
        # Notes of the download; they say nothing that the manifest does not.
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        return {"hub": model.location, "revision": answer["commit"], "hub_digests": answer["digests"]}

    return fill


def _ask(model: Model, folder: Path, python: str, endpoint: Optional[str], token: Optional[str],
         timeout_s: Optional[float]) -> Dict[str, Any]:
    where = f"plumbline_models.{model.name}.source"
    request = {"repository": model.location, "revision": model.revision, "folder": str(folder),
               "files": sorted(model.files) or None, "endpoint": endpoint or None, "token": token or None}
    try:
        done = subprocess.run([python, "-c", inspect.getsource(hub_script)], input=json.dumps(request), text=True,
                              capture_output=True, check=False, timeout=timeout_s, env=dict(os.environ))
    except FileNotFoundError as e:
        raise PlumblineError("no such Python for the download", "sglang_models_hub_python", python,
                             "a Python that has huggingface_hub", "build SGLang first (role sglang_build)") from e
    except subprocess.TimeoutExpired as e:
        raise PlumblineError("the download took too long", where, f"over {timeout_s:.0f} s", None,
                             "run again: what has been fetched is kept") from e
    answer = _last_json(done.stdout)
    if answer is None:
        raise PlumblineError("the download ended without an answer", where,
                             _hide(done.stderr[-600:].strip() or f"exit status {done.returncode}", token))
    if not answer["ok"]:
        what, remedy = _MEANING.get(answer["class"], _UNREACHABLE)
        found = _hide(f"{model.revision}; {answer['class']}: {answer['detail']}", token)
        raise PlumblineError(f"{what}: {model.location}", where, found[:600], None, remedy)
    return answer


def _last_json(text: str) -> Optional[Dict[str, Any]]:
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "ok" in found:
            return found
    return None


def _hide(text: str, token: Optional[str]) -> str:
    return text.replace(token, "********") if token else text
