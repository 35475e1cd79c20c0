"""The proof that a server is ready: it says so, it serves the expected model, and it really generates.

Endpoints by version: ``/ready`` since SGLang 0.5.20 (no side effect), before that ``/health_generate`` (one token);
``/model_info`` and ``/server_info`` since 0.5.6, before that ``/get_model_info`` and ``/get_server_info``. The newer
name is asked first and a 404 leads to the older one, so that no version has to be known.

What the server serves it tells as soon as its port answers, while it still warms up: that is asked then, so that after
its ready line only its readiness and one generation are left.
"""
from __future__ import annotations

import http.client
import json
import math
import os
import threading
import time
from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import urlsplit

TOKENS = 4  # two verify cycles of a 3-step draft; 50 ms on a host that decodes 80 tok/s
PROMPT = "The quick brown fox"
RETRY_S = 0.02


class NotProvenError(Exception):
    """The server answers, but not as it must. ``cls`` is a failure class, ``lines`` what was answered."""

    def __init__(self, cls: str, detail: str, lines: List[str], remedy: str) -> None:
        super().__init__(detail)
        self.cls, self.detail, self.lines, self.remedy = cls, detail, lines, remedy


class Proof(threading.Thread):
    """Runs beside the loop that watches the process, since a request can hang.

    To be started when the port answers; ``fired`` is to be set when the log says that the server is ready. In the end
    ``done`` is {probe, model_path, draft_path, version, generated_tokens, generate_s}, or ``error`` is set. ``step``
    says what it is at. Connections that break are tried again: whether the server died is for the watcher to say.
    """

    def __init__(self, base_url: str, model: Optional[str], draft: Optional[str], timeout_s: float) -> None:
        super().__init__(name="plumbline-proof", daemon=True)
        parts = urlsplit(base_url)
        self.address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.model, self.draft, self.timeout_s = model, draft, timeout_s
        self.fired = threading.Event()
        self.end = float("inf")  # of the time for the proof, which begins with the ready line
        self.step = "not begun"
        self.done: Optional[Dict[str, Any]] = None
        self.error: Optional[NotProvenError] = None
        self.connection: Optional[http.client.HTTPConnection] = None

    def run(self) -> None:
        try:
            self.done = self._prove()
        except NotProvenError as error:
            self.error = error
        finally:
            self._close()

    def _prove(self) -> Dict[str, Any]:
        self.step = "asking which model is served"
        model_path = self._check_model()
        self.step = "asking for the resolved arguments"
        info = self._json("/server_info", "/get_server_info")
        draft_path = self._check_draft(info)
        self.step = "waiting for the ready line"
        self.fired.wait()
        self.end = time.monotonic() + self.timeout_s
        self.step = "waiting for the server's own readiness"
        probe = self._until_ready()
        self.step = "generating"
        generated, seconds = self._generate(info)
        return {"probe": probe, "model_path": model_path, "draft_path": draft_path, "version": info.get("version"),
                "generated_tokens": generated, "generate_s": round(seconds, 4)}

    def _until_ready(self) -> str:
        path = "/ready"
        while True:
            status, body = self._ask("GET", path)
            if status == 404 and path == "/ready":
                path = "/health_generate"
                continue
            if status == 200:
                return path
            if time.monotonic() >= self.end:
                raise NotProvenError("not_ready", f"{path} did not answer 200 within {self.timeout_s:g} s",
                                     [f"{path}: {status} {body[:200]!r}"], "read the server's log after its ready line")
            time.sleep(RETRY_S)

    def _check_model(self) -> Optional[str]:
        value = self._json("/model_info", "/get_model_info")
        served = value.get("model_path")
        if self.model is not None and not _same_path(served, self.model):
            raise NotProvenError("wrong_model", f"the server serves {served!r}, expected is {self.model!r}",
                                 [json.dumps(value)[:400]],
                                 "another server may own the port: stop it, or give another sglang_server_port")
        return served

    def _check_draft(self, info: Dict[str, Any]) -> Optional[str]:
        served = info.get("speculative_draft_model_path")
        if self.draft is not None and not _same_path(served, self.draft):
            raise NotProvenError("wrong_draft", f"the server drafts with {served!r}, expected is {self.draft!r}",
                                 [f"speculative_algorithm: {info.get('speculative_algorithm')}"],
                                 "look at the server's resolved arguments: a default may have replaced the draft")
        return served

    def _generate(self, info: Dict[str, Any]) -> Tuple[int, float]:
        # Log probabilities show NaN logits, which as tokens look like any text. Not under speculation: there older
        # versions refuse them, some by an assertion that ends the server.
        logprobs = not info.get("speculative_algorithm")
        request: Dict[str, Any] = {"return_logprob": logprobs, "sampling_params": {
            "max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}}
        request.update({"input_ids": [1, 2, 3]} if info.get("skip_tokenizer_init") else {"text": PROMPT})
        began = time.monotonic()
        status, body = self._ask("POST", "/generate", request)
        seconds = time.monotonic() - began
        remedy = "the server is up but does not generate: read its log; a wrong build or damaged weights look like this"
        seen = [f"/generate: {status} {body[:300].decode(errors='replace')}"]
        if status != 200:
            raise NotProvenError("no_generation", f"a request for {TOKENS} tokens got status {status}", seen, remedy)
        try:
            value = json.loads(body)
            meta = value["meta_info"]
            count = int(meta["completion_tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise NotProvenError(
                "garbage", f"the answer to /generate is not what SGLang answers ({error!r})", seen, remedy) from None
        if count != TOKENS or len(value.get("output_ids") or [0] * TOKENS) != TOKENS:
            raise NotProvenError("garbage", f"asked for {TOKENS} tokens, end of text or not, got {count}", seen, remedy)
        if logprobs:
            found = [entry[0] for entry in meta.get("output_token_logprobs") or []]
            if any(not isinstance(p, (int, float)) or not math.isfinite(p) for p in found):
                raise NotProvenError("garbage", "the log probabilities of the tokens are not finite", seen, remedy)
        return count, seconds

    def _json(self, *paths: str) -> Dict[str, Any]:
        """The answer under the first of the paths that the server knows."""
        path, status, body = "", 0, b""
        for path in paths:
            status, body = self._ask("GET", path)
            while status >= 500 and not self.fired.is_set():  # still starting
                time.sleep(RETRY_S)
                status, body = self._ask("GET", path)
            if status != 404:
                break
        try:
            value = json.loads(body) if status == 200 else None
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise NotProvenError("garbage", f"{path} is not answered with a JSON object",
                                 [f"{path}: {status} {body[:300].decode(errors='replace')}"],
                                 "another program may own the port: stop it, or give another sglang_server_port")
        return value

    def _ask(self, method: str, path: str, value: Optional[Dict[str, Any]] = None) -> Tuple[int, bytes]:
        """(status, body) of a request; status 0 if the connection was refused or broke, after trying until the end."""
        answer = (0, b"")
        while True:
            left = self.end - time.monotonic()
            if left <= 0:
                return answer
            try:
                if self.connection is None:
                    patience = max(0.1, min(left, self.timeout_s))
                    self.connection = http.client.HTTPConnection(*self.address, timeout=patience)
                self.connection.request(method, path, None if value is None else json.dumps(value).encode(),
                                        {"Content-Type": "application/json"})
                response = self.connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException) as error:
                answer = (0, repr(error).encode())
                self._close()
            time.sleep(RETRY_S)

    def _close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def _same_path(one: Any, other: str) -> bool:
    return isinstance(one, str) and (one == other or os.path.realpath(one) == os.path.realpath(other))
