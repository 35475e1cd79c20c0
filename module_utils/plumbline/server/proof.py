"""The proof that a server is ready: it says so, it serves the expected model, and it really generates.

Endpoints by version: ``/ready`` since SGLang 0.5.20 (no side effect), before that ``/health_generate`` (one token);
``/model_info`` and ``/server_info`` since 0.5.6, before that ``/get_model_info`` and ``/get_server_info``. The newer
name is asked first and a 404 leads to the older one, so that no version has to be known.
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


class NotProvenError(Exception):
    """The server answers, but not as it must. ``cls`` is a failure class, ``lines`` what was answered."""

    def __init__(self, cls: str, detail: str, lines: List[str], remedy: str) -> None:
        super().__init__(detail)
        self.cls, self.detail, self.lines, self.remedy = cls, detail, lines, remedy


class Proof(threading.Thread):
    """Runs beside the loop that watches the process, since a request can hang; ``done``, ``error``, ``step`` tell."""

    def __init__(self, base_url: str, model: Optional[str], draft: Optional[str], timeout_s: float) -> None:
        super().__init__(name="plumbline-proof", daemon=True)
        self.base_url, self.model, self.draft, self.timeout_s = base_url, model, draft, timeout_s
        self.step = "not begun"
        self.done: Optional[Dict[str, Any]] = None
        self.error: Optional[NotProvenError] = None

    def run(self) -> None:
        try:
            self.done = prove(self)
        except NotProvenError as error:
            self.error = error


def prove(proof: Proof) -> Dict[str, Any]:
    """{probe, model_path, draft_path, version, generated_tokens, generate_s}; raises NotProvenError.

    Connections that break are tried again until the time is over: whether the server died is for the watcher to say."""
    end = time.monotonic() + proof.timeout_s
    proof.step = "waiting for the server's own readiness"
    path = "/ready"
    while True:
        status, body = _ask(proof, "GET", path, None, end)
        if status == 404 and path == "/ready":
            path = "/health_generate"
            continue
        if status == 200:
            break
        if time.monotonic() >= end:
            raise NotProvenError("not_ready", f"{path} did not answer 200 within {proof.timeout_s:g} s",
                                 [f"{path}: {status} {body[:200]!r}"], "read the server's log after its ready line")
        time.sleep(0.03)
    model_path = _check_model(proof, end)
    info = _info(proof, end)
    draft_path = _check_draft(proof, info)
    generated, seconds = _generate(proof, info, end)
    return {"probe": path, "model_path": model_path, "draft_path": draft_path, "version": info.get("version"),
            "generated_tokens": generated, "generate_s": round(seconds, 4)}


def _check_model(proof: Proof, end: float) -> Optional[str]:
    proof.step = "asking which model is served"
    _, value = _json(proof, ("/model_info", "/get_model_info"), end)
    served = value.get("model_path")
    if proof.model is not None and not _same_path(served, proof.model):
        raise NotProvenError("wrong_model", f"the server serves {served!r}, expected is {proof.model!r}",
                             [json.dumps(value)[:400]],
                             "another server may own the port: stop it, or give another sglang_server_port")
    return served


def _info(proof: Proof, end: float) -> Dict[str, Any]:
    proof.step = "asking for the resolved arguments"
    return _json(proof, ("/server_info", "/get_server_info"), end)[1]


def _check_draft(proof: Proof, info: Dict[str, Any]) -> Optional[str]:
    served = info.get("speculative_draft_model_path")
    if proof.draft is not None and not _same_path(served, proof.draft):
        raise NotProvenError("wrong_draft", f"the server drafts with {served!r}, expected is {proof.draft!r}",
                             [f"speculative_algorithm: {info.get('speculative_algorithm')}"],
                             "look at the server's resolved arguments: another default may have replaced the draft")
    return served


def _generate(proof: Proof, info: Dict[str, Any], end: float) -> Tuple[int, float]:
    proof.step = "generating"
    # Log probabilities show NaN logits, which as tokens look like any text. Not under speculation: there older versions
    # refuse them, some by an assertion that ends the server.
    logprobs = not info.get("speculative_algorithm")
    request: Dict[str, Any] = {"sampling_params": {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True},
                               "return_logprob": logprobs}
    request.update({"input_ids": [1, 2, 3]} if info.get("skip_tokenizer_init") else {"text": PROMPT})
    began = time.monotonic()
    status, body = _ask(proof, "POST", "/generate", request, end)
    seconds = time.monotonic() - began
    remedy = "the server is up but does not generate: read its log; a wrong build or damaged weights look like this"
    seen = [f"/generate: {status} {body[:300].decode(errors='replace')}"]
    if status != 200:
        raise NotProvenError("no_generation", f"a request for {TOKENS} tokens was answered with {status}", seen, remedy)
    try:
        value = json.loads(body)
        meta = value["meta_info"]
        count = int(meta["completion_tokens"])
    except (ValueError, KeyError, TypeError) as error:
        raise NotProvenError(
            "garbage", f"the answer to /generate is not what SGLang answers ({error!r})", seen, remedy) from None
    if count != TOKENS or len(value.get("output_ids") or [0] * TOKENS) != TOKENS:
        raise NotProvenError("garbage", f"asked for {TOKENS} tokens past any end of text, got {count}", seen, remedy)
    if logprobs:
        found = [entry[0] for entry in meta.get("output_token_logprobs") or []]
        if any(not isinstance(p, (int, float)) or not math.isfinite(p) for p in found):
            raise NotProvenError("garbage", "the log probabilities of the tokens are not finite", seen, remedy)
    return count, seconds


def _json(proof: Proof, paths: Tuple[str, ...], end: float) -> Tuple[str, Dict[str, Any]]:
    status, body = 0, b""
    for path in paths:
        status, body = _ask(proof, "GET", path, None, end)
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
    return path, value


def _ask(proof: Proof, method: str, path: str, value: Optional[Dict[str, Any]], end: float) -> Tuple[int, bytes]:
    """(status, body) of a request; status 0 if the connection was refused or broke, after trying until ``end``."""
    parts = urlsplit(proof.base_url)
    answer = (0, b"")
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return answer
        connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=max(0.1, left))
        try:
            connection.request(method, path, None if value is None else json.dumps(value).encode(),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            answer = (0, repr(error).encode())
        finally:
            connection.close()
        time.sleep(0.03)


def _same_path(one: Any, other: str) -> bool:
    return isinstance(one, str) and (one == other or os.path.realpath(one) == os.path.realpath(other))
