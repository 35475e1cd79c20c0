"""Fetches a repository's files at one commit. Run by a Python that has huggingface_hub; its source is sent there.

Reads one JSON object from standard input (so that a token stands on no command line):
``{repository, revision, folder, files: [..]|null, endpoint: str|null, token: str|null}``. Prints one JSON object as its
last line: ``{ok: true, commit, digests: {path: sha256}, version}``, where digests are those that the hub states for its
large files, or ``{ok: false, class, detail}``.
"""
from __future__ import annotations

import json
import os
import sys


def fetch(request: dict) -> dict:
    """Download into ``request["folder"]``; what is there already and whole is not fetched again."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.pop(name, None)
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if request.get("endpoint"):
        os.environ["HF_ENDPOINT"] = request["endpoint"]
    # The endpoint is read when the library is imported.
    import huggingface_hub

    access = {"repo_id": request["repository"], "revision": request["revision"], "token": request.get("token") or None}
    info = huggingface_hub.HfApi().model_info(files_metadata=True, **access)
    huggingface_hub.snapshot_download(local_dir=request["folder"], allow_patterns=request.get("files"), **access)
    digests = {s.rfilename: s.lfs.sha256 for s in info.siblings or [] if s.lfs is not None}
    return {"ok": True, "commit": info.sha, "digests": digests, "version": huggingface_hub.__version__}


def main() -> None:
    request = json.load(sys.stdin)
    try:
        answer = fetch(request)
    except Exception as error:
        answer = {"ok": False, "class": type(error).__name__, "detail": str(error)}
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
