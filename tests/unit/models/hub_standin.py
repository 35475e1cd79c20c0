"""A small Hugging Face hub on loopback: model info and files at commits, as huggingface_hub asks for them."""
from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Dict, List, Optional, Type
from urllib.parse import unquote, urlsplit

Files = Dict[str, bytes]


def hub_python() -> str:
    """A Python with huggingface_hub: the one named, this one, or that of the build on this machine."""
    if "PLUMBLINE_HUB_PYTHON" in os.environ:
        return os.environ["PLUMBLINE_HUB_PYTHON"]
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    build = data / "plumbline/builds/current/venv/bin/python"
    return str(build) if find_spec("huggingface_hub") is None and build.exists() else sys.executable


class Hub:
    """``repositories[name][commit][path] -> bytes``. A repository with a token answers to that token alone.

    ``requests`` lists what was asked for; ``break_after`` cuts the connection of a file named there at that many
    bytes.
    """

    def __init__(self, repositories: Dict[str, Dict[str, Files]], tokens: Optional[Dict[str, str]] = None) -> None:
        self.repositories, self.tokens = repositories, tokens or {}
        self.requests: List[str] = []
        self.authorized: List[str] = []
        self.break_after: Dict[str, int] = {}
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        info = re.fullmatch(r"/api/models/(.+?)/(?:revision|tree)/([^/]+)", path)
        file = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        found = info or file
        if not found or found.group(1) not in self.hub.repositories:
            return self._error(404, "RepoNotFound", "Repository Not Found")
        repository, revision = found.group(1), found.group(2)
        token = self.hub.tokens.get(repository)
        if token:
            if self.headers.get("Authorization") != f"Bearer {token}":
                return self._error(401, "RepoNotFound", "Invalid credentials in Authorization header")
            self.hub.authorized.append(path)
        files = self.hub.repositories[repository].get(revision)
        if files is None:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if info:
            answer = _tree(files) if "/tree/" in path else _info(repository, revision, files)
            return self._send(json.dumps(answer).encode(), "application/json", body)
        assert file is not None
        if file.group(3) not in files:
            return self._error(404, "EntryNotFound", "Entry not found")
        return self._file(file.group(3), files[file.group(3)], revision, body)

    def _file(self, name: str, data: bytes, revision: str, body: bool) -> None:
        self.send_response(200)
        self.send_header("X-Repo-Commit", revision)
        self.send_header("ETag", f'"{_etag(name, data)}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        cut = self.hub.break_after.get(name)
        if cut is not None:
            self.wfile.write(data[:cut])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(data)

    def _send(self, data: bytes, kind: str, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _error(self, status: int, code: str, message: str) -> None:
        data = json.dumps({"error": message}).encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _large(name: str) -> bool:
    """Weights are kept in large-file storage, whose identifier is their SHA-256."""
    return name.endswith(".safetensors")


def _etag(name: str, data: bytes) -> str:
    if _large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def _tree(files: Files) -> List[dict]:
    found = []
    for name, data in files.items():
        entry: dict = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        if _large(name):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        found.append(entry)
    return found


def _info(repository: str, revision: str, files: Files) -> dict:
    siblings = []
    for name, data in files.items():
        sibling: dict = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
        if _large(name):
            sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        siblings.append(sibling)
    return {"_id": "0", "id": repository, "modelId": repository, "sha": revision, "private": False, "gated": False,
            "disabled": False, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}
