"""The server's other endpoints: what it was resolved to, its counters, its cache."""

from __future__ import annotations

import http.client
import json
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from . import stages

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_RANK = re.compile(r'\b(?:tp|pp|moe_ep)_rank="(\d+)"')
_MODE = re.compile(r'\bmode="([^"]*)"')
# What of `server_info` a measurement keeps: all of it, except what repeats it or can hold a secret.
_SECRETS = re.compile(r"(?:api_key|password|token|secret|ssl_keyfile)(?!izer)", re.I)


class Endpoint:
    """One server. Every method gives None (or an error text) rather than raising: the caller judges what that means."""

    def __init__(self, base_url: str, headers: Tuple[Tuple[str, str], ...] = (), timeout_s: float = 20.0) -> None:
        url = urlsplit(base_url)
        self.host, self.port, self.prefix = url.hostname or "", url.port or 80, url.path.rstrip("/")
        self.headers, self.timeout_s = dict(headers), timeout_s

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Tuple[Optional[int], bytes]:
        """(status, body), or (None, what went wrong). ``body`` is sent as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            sent = None if body is None else json.dumps(body)
            headers = self.headers if body is None else {**self.headers, "Content-Type": "application/json"}
            connection.request(method, self.prefix + path, body=sent, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException) as error:
            return None, f"{type(error).__name__}: {error}".encode()
        finally:
            connection.close()

    def server_info(self) -> Optional[Dict[str, Any]]:
        """`/server_info` (`/get_server_info` before 0.5.6), or None."""
        for path in ("/server_info", "/get_server_info"):
            status, body = self.call("GET", path)
            if status is None:
                return None
            if status == 200:
                try:
                    value = json.loads(body)
                except ValueError:
                    return None
                return value if isinstance(value, dict) else None
        return None

    def counters(self) -> Optional[Dict[str, float]]:
        """Prometheus samples by name, summed over their labels (of rank 0), or None without ``--enable-metrics``."""
        status, body = self.call("GET", "/metrics")
        if status != 200:
            return None
        return read_metrics(body.decode("utf-8", "replace"))

    def flush_cache(self, patience_s: float = 10.0) -> Optional[str]:
        """Empty the prefix cache (which resets the accept counters). None, or why it could not be done.

        SGLang refuses while a request runs, and one may still be ending: tried again for ``patience_s``.
        """
        until = time.monotonic() + patience_s
        while True:
            status, body = self.call("POST", "/flush_cache")
            if status == 200:
                return None
            if status is None or status != 400 or time.monotonic() >= until:
                return _refusal(status, body)
            time.sleep(0.1)

    def start_profile(self, folder: Path) -> Optional[str]:
        """Have the next decode steps profiled into ``folder``. None, or why it could not be done."""
        status, body = self.call("POST", "/start_profile", stages.request(str(folder)))
        return None if status == 200 else _refusal(status, body)

    def profiled(self, folder: Path, ranks: int, patience_s: float = 60.0) -> Optional[List[Mapping[str, Any]]]:
        """The traces of that profile, one of each rank, or None if they do not come.

        Fewer steps than asked for end it here. A trace takes seconds to be written.
        """
        until = time.monotonic() + patience_s
        if not stages.traces(folder):
            self.call("POST", "/stop_profile")
        while True:
            try:
                found = [stages.read(path) for path in stages.traces(folder)]
            except (OSError, EOFError, ValueError):
                found = []
            if len(found) >= ranks:
                return found
            if time.monotonic() >= until:
                return None
            time.sleep(0.2)


def _refusal(status: Optional[int], body: bytes) -> str:
    return f"{status or 'no answer'}: {body[:200].decode('utf-8', 'replace').strip()}"


def read_metrics(text: str) -> Dict[str, float]:
    """Prometheus' text format as {name: value}, labels summed; samples of ranks other than 0 and NaN left out.

    Samples with a label ``mode`` stand under ``name:mode`` as well.
    """
    out: Dict[str, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if not found or line.startswith("#"):
            continue
        name, labels, number = found.groups()
        if any(rank != "0" for rank in _RANK.findall(labels or "")):
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        if value == value:
            mode = _MODE.search(labels or "")
            for key in (name, f"{name}:{mode.group(1)}") if mode else (name,):
                out[key] = out.get(key, 0.0) + value
    return out


def state_of(info: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """The scheduler's own figures within `server_info`: `internal_states[0]`, at top level in 0.4.6."""
    if not info:
        return {}
    states = info.get("internal_states")
    return dict(states[0]) if isinstance(states, list) and states and isinstance(states[0], dict) else dict(info)


def kept(info: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """`server_info` as a measurement keeps it: `internal_states` without the arguments that they repeat, no secrets."""
    if not info:
        return {}
    out = {key: value for key, value in info.items() if not (_SECRETS.search(key) and value)}
    states = out.get("internal_states")
    if isinstance(states, list):
        out["internal_states"] = [
            {key: value for key, value in state.items() if key not in info and not _SECRETS.search(key)}
            for state in states
            if isinstance(state, dict)
        ]
    return out


def speculative(info: Optional[Mapping[str, Any]]) -> Optional[bool]:
    """Does the server speculate? None if `server_info` does not say."""
    if not info or "speculative_algorithm" not in info:
        return None
    return info["speculative_algorithm"] not in (None, "", "None", "NONE")


def eos_ids(info: Optional[Mapping[str, Any]]) -> List[int]:
    """The tokens that end a text, from the model's `generation_config.json` or `config.json` on this host ([]:
    unknown)."""
    folder = Path(str((info or {}).get("model_path") or "/nonexistent"))
    for name in ("generation_config.json", "config.json"):
        try:
            config = json.loads((folder / name).read_text())
        except (OSError, ValueError):
            continue
        for part in (config, config.get("text_config") or {}):
            ids = part.get("eos_token_id")
            if isinstance(ids, int):
                return [ids]
            if isinstance(ids, list) and ids:
                return [i for i in ids if isinstance(i, int)]
    return []


def simulated_now(info: Optional[Mapping[str, Any]]) -> Optional[float]:
    """The simulator's clock (Unix seconds), or None for a real server."""
    simulator = (info or {}).get("simulator")
    now = simulator.get("now") if isinstance(simulator, dict) else None
    return float(now) if isinstance(now, (int, float)) else None
