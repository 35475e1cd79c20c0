"""One reply of SGLang's ``/generate``, read from the bytes as they come: HTTP/1.1, chunks, server-sent events, tokens.

Each event of the stream repeats the whole answer so far, and decoding its JSON would cost four times what everything
else does. So the number of tokens is searched for in the bytes, and only the last event of a request is decoded."""

from __future__ import annotations

import json
from array import array
from typing import Any, Dict, List, Optional, Tuple

#: Why a request failed. `not_sent`: the run was given up before it was its turn.
ERROR_CLASSES = (
    "connection_refused",
    "connect_timeout",
    "connection_reset",
    "closed_early",
    "http_error",
    "garbage",
    "server_error",
    "aborted",
    "short_output",
    "stalled",
    "deadline",
    "not_sent",
)
_KEY = b'"completion_tokens":'
_BODY_KEPT = 2000


class Sample:
    """One request: when it was sent, when its chunks came, what it ended with.

    ``stamps`` seconds (`time.perf_counter`) of the chunks that brought tokens, ``counts`` the number of tokens so far
    at each; ``expected`` the number that must come (with ``ignore_eos``); ``final`` the last event, decoded;
    ``error`` one of `ERROR_CLASSES` with ``detail``, or None. ``slot`` is the stream (0 <= slot < concurrency) that
    carried it: a stream sends its next request when one has ended."""

    __slots__ = (
        "counts",
        "deltas",
        "detail",
        "end",
        "error",
        "expected",
        "final",
        "index",
        "sent",
        "slot",
        "stamps",
        "status",
    )

    def __init__(self, index: int, expected: Optional[int] = None) -> None:
        self.index = index
        self.expected = expected
        self.slot = -1
        self.sent = 0.0
        self.end = 0.0
        self.stamps = array("d")
        self.counts = array("l")
        self.final: Optional[Dict[str, Any]] = None
        self.deltas: List[int] = []
        self.status = 0
        self.error: Optional[str] = None
        self.detail = ""

    @property
    def meta(self) -> Dict[str, Any]:
        """SGLang's ``meta_info`` of the finished request ({} if it did not finish)."""
        meta = (self.final or {}).get("meta_info")
        return meta if isinstance(meta, dict) else {}

    @property
    def output_ids(self) -> Optional[List[int]]:
        """The generated tokens, or None where this SGLang version does not send them."""
        if self.deltas:
            return self.deltas
        ids = (self.final or {}).get("output_ids")
        return ids if isinstance(ids, list) else None

    def fail(self, error: str, detail: str, at: float) -> None:
        self.error, self.detail, self.end = error, detail, at


class Reply:
    """Reads one HTTP/1.1 reply with a chunked event stream, piece by piece. `feed` is true when the reply is
    complete."""

    __slots__ = ("body", "buf", "chunked", "close", "head", "last", "left", "raw", "sample", "sse", "whole")

    def __init__(self, sample: Sample, whole: bool) -> None:
        self.sample = sample
        self.whole = whole  # decode every event: the server streams increments of output_ids
        self.buf = b""
        self.sse = b""
        self.body = b""
        self.head = False
        self.chunked = False
        self.close = False
        self.left: Optional[int] = None
        self.raw = False  # a reply that is no event stream
        self.last = b""

    def feed(self, data: bytes, at: float) -> bool:
        """Take a piece. Raises ValueError with what is wrong if this is not what a server sends."""
        b = self.buf + data if self.buf else data
        pos = 0
        if not self.head:
            pos = self._headers(b)
            if pos < 0:
                self.buf = b
                return False
        if not self.chunked:
            return self._plain(b[pos:])
        n = len(b)
        find, sse, plain = b.find, self.sse, not self.raw and not self.whole
        stamp, counted = self.sample.stamps.append, self.sample.counts.append
        last = self.sample.counts[-1] if self.sample.counts else 0
        while True:
            e = find(b"\r\n", pos, pos + 20)
            if e < 0:
                if n - pos >= 20:
                    raise ValueError(f"not a chunk: {b[pos : pos + 40]!r}")
                break
            size = int(b[pos:e].partition(b";")[0], 16)
            if size < 0:
                raise ValueError(f"not a chunk: {b[pos : pos + 40]!r}")
            s = e + 2
            q = s + size
            if n < q + 2:
                break
            pos = q + 2
            if not size:
                self.buf = b[pos:]
                return True
            # The common case is one whole event a chunk. A newline ends it, since JSON has none; looking for one byte
            # costs a tenth of looking for two.
            if plain and not sse and b.startswith(b"data: {", s) and find(b"\n", s, q) == q - 2:
                # Searched from the end: the generated text stands before the field and cannot be taken for it.
                k = b.rfind(_KEY, s, q) + 20
                try:
                    count = int(b[k : find(b",", k, q)]) if k > 20 else -1
                except ValueError:
                    count = -1
                if count >= 0:
                    if count != last:
                        stamp(at)
                        counted(count)
                        last = count
                    self.last = b[s + 6 : q - 2]
                    continue
                self._event(b[s : q - 2], at)
                last = self.sample.counts[-1] if self.sample.counts else 0
            elif self.raw:
                self.body = (self.body + b[s:q])[:_BODY_KEPT]
            else:
                *events, sse = (sse + b[s:q]).replace(b"\r\n", b"\n").split(b"\n\n")
                for event in events:
                    self._event(event, at)
        self.sse = sse
        self.buf = b[pos:] if pos else b
        return False

    def _headers(self, b: bytes) -> int:
        end = b.find(b"\r\n\r\n")
        if end < 0:
            if len(b) > 65536 or (len(b) >= 5 and not b.startswith(b"HTTP/")):
                raise ValueError(f"not an HTTP reply: {b[:60]!r}")
            return -1
        first, *lines = b[:end].decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if not parts[0].startswith("HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
            raise ValueError(f"not an HTTP reply: {first[:60]!r}")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.sample.status = int(parts[1])
        self.head = True
        self.close = "close" in fields.get("connection", "").lower() or parts[0] == "HTTP/1.0"
        self.chunked = "chunked" in fields.get("transfer-encoding", "").lower()
        self.raw = self.sample.status != 200 or "event-stream" not in fields.get("content-type", "")
        if fields.get("content-length", "").isdigit():
            self.left = int(fields["content-length"])
        return end + 4

    def _plain(self, b: bytes) -> bool:
        self.raw = True
        self.buf = b""
        self.body = (self.body + b)[:_BODY_KEPT]
        if self.left is None:
            return False  # until the server closes
        self.left -= len(b)
        return self.left <= 0

    def _event(self, event: bytes, at: float) -> None:
        """An event that is not the common case: decoded whole."""
        for line in event.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]" or not payload:
                continue
            value = json.loads(payload)
            if not isinstance(value, dict):
                raise ValueError(f"an event that is no object: {payload[:60]!r}")
            if "error" in value:
                error = value["error"]
                raise ServerError(str(error.get("message", error) if isinstance(error, dict) else error))
            meta = value.get("meta_info")
            if not isinstance(meta, dict) or not isinstance(meta.get("completion_tokens"), int):
                raise ValueError(f"an event without meta_info.completion_tokens: {payload[:60]!r}")
            sample, count = self.sample, meta["completion_tokens"]
            before = sample.counts[-1] if sample.counts else 0
            ids = value.get("output_ids")
            if self.whole and isinstance(ids, list):
                sample.deltas += ids if len(ids) <= count - before else ids[before - count :]
            if count > before:
                sample.stamps.append(at)
                sample.counts.append(count)
            self.last = payload


class ServerError(Exception):
    """The server sent an error event."""


def outcome(sample: Sample, reply: Reply) -> Tuple[Optional[str], str]:
    """What a complete reply is worth: (None, "") or (error class, detail). Decodes the last event."""
    if sample.status != 200:
        return "http_error", f"HTTP {sample.status}: {reply.body.decode('utf-8', 'replace').strip()[:300]}"
    if reply.raw:
        return "garbage", f"no event stream: {reply.body[:120]!r}"
    if not reply.last:
        return "garbage", "an event stream without an event"
    try:
        final = json.loads(reply.last)
        meta = final["meta_info"]
        tokens, finish = meta["completion_tokens"], meta.get("finish_reason")
    except (ValueError, KeyError, TypeError) as error:
        return "garbage", f"the last event: {error}: {reply.last[:120]!r}"
    sample.final = final
    kind = finish.get("type") if isinstance(finish, dict) else finish
    if kind is None:
        return "closed_early", f"the stream ended after {tokens} tokens without a finish_reason"
    if kind == "abort":
        return "aborted", f"the server aborted the request: {finish}"
    if not isinstance(tokens, int) or not sample.counts or tokens != sample.counts[-1]:
        return "garbage", f"the last event counts {tokens!r} tokens"
    if sample.expected and tokens != sample.expected:
        return "short_output", f"{tokens} tokens where {sample.expected} were asked for ({finish})"
    return None, ""
