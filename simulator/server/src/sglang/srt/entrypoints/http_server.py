"""A small HTTP/1.1 server: keep-alive, chunked bodies in and out, one write per event."""

from __future__ import annotations

import asyncio
import json
import socket
from email.utils import formatdate
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import parse_qs, urlsplit

from sglang.srt.utils.logs import log

REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    415: "Unsupported Media Type",
    422: "Unprocessable Entity",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
MOST_HEADER, MOST_BODY = 65536, 64 << 20


class Request:
    """One HTTP request."""

    def __init__(self, method: str, target: str, headers: Dict[str, str], body: bytes) -> None:
        parts = urlsplit(target)
        self.method, self.path, self.headers, self.body = method, parts.path, headers, body
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self.target = target


class Exchange:
    """Where the answer to one request goes. ``gone`` callbacks run if the client leaves before the end."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self.connection, self.request = connection, request
        self.open = True
        self.gone: List[Callable[[], None]] = []
        self._streaming = False

    def _head(self, status: int, content_type: Optional[str], extra: str) -> bytes:
        self.connection.say_access(self.request, status)
        kind = f"content-type: {content_type}\r\n" if content_type else ""
        close = "Connection: close\r\n" if self.connection.closing else ""
        return (
            f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}\r\ndate: {formatdate(usegmt=True)}\r\n"
            f"server: uvicorn\r\n{extra}{kind}{close}\r\n"
        ).encode()

    def answer(self, status: int, body: bytes = b"", content_type: Optional[str] = "application/json") -> None:
        """The whole answer."""
        if self.open:
            kind = content_type if body else None
            head = self._head(status, kind, f"content-length: {len(body)}\r\n")
            self._finish(head if self.request.method == "HEAD" else head + body)

    def json(self, status: int, value: Any) -> None:
        """The whole answer as JSON."""
        self.answer(status, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())

    def start_stream(self) -> None:
        """The head of an event stream."""
        if self.open:
            self._streaming = True
            self.connection.write(
                self._head(200, "text/event-stream; charset=utf-8", "")[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
            )

    def event(self, data: bytes, last: bool = False) -> None:
        """One server-sent event, one HTTP chunk, one write; ``last`` adds [DONE] and ends the stream."""
        if not self.open:
            return
        text = b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data)
        if last:
            self._finish(text + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            self.connection.write(text)

    def _finish(self, data: bytes) -> None:
        self.open = False
        self.gone.clear()
        self.connection.write(data)
        self.connection.next()

    def abandon(self) -> None:
        """The client left."""
        self.open = False
        for callback in self.gone:
            callback()
        self.gone.clear()


class Connection(asyncio.Protocol):
    """One client connection; requests are answered one after the other."""

    def __init__(self, handle: Callable[[Exchange], None], quiet: bool) -> None:
        self._handle, self._quiet = handle, quiet
        self._buffer = bytearray()
        self._exchange: Optional[Exchange] = None
        self._transport: Any = None
        self._continued = False
        self._peer = ""
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the client is there."""
        self._transport = transport
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername") or ("127.0.0.1", 0)
        self._peer = f"{peer[0]}:{peer[1]}"

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """asyncio: the client is gone."""
        if self._exchange is not None:
            self._exchange.abandon()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes from the client."""
        self._buffer += data
        self._pump()

    def write(self, data: bytes) -> None:
        """Send."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def next(self) -> None:
        """The answer is complete: close, or take the next request."""
        self._exchange = None
        if self.closing:
            self._transport.close()
        elif self._buffer:
            asyncio.get_running_loop().call_soon(self._pump)

    def say_access(self, request: Request, status: int) -> None:
        """uvicorn's access line."""
        if not self._quiet:
            log(
                f'INFO:     {self._peer} - "{request.method} {request.target} HTTP/1.1" '
                f"{status} {REASONS.get(status, '')}"
            )

    def _pump(self) -> None:
        if self._exchange is not None or self._transport.is_closing():
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MOST_HEADER:
                self._bad()
            return
        try:
            method, target, version, headers = _head(bytes(self._buffer[:end]))
            body, used = self._body(headers, end + 4)
        except (ValueError, UnicodeDecodeError):
            self._bad()
            return
        if body is None:
            return
        del self._buffer[:used]
        self._continued = False
        self.closing = headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
        self._exchange = Exchange(self, Request(method, target, headers, body))
        self._handle(self._exchange)

    def _body(self, headers: Dict[str, str], start: int) -> Tuple[Optional[bytes], int]:
        """The body and where it ends, or None while more is to come. Raises ValueError."""
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body, at = b"", start
            while True:
                line = self._buffer.find(b"\r\n", at)
                if line < 0:
                    return None, 0
                size = int(bytes(self._buffer[at:line]).split(b";")[0], 16)
                if len(body) + size > MOST_BODY:
                    raise ValueError("body too large")
                if len(self._buffer) < line + 2 + size + 2:
                    return None, 0
                body += self._buffer[line + 2 : line + 2 + size]
                at = line + 2 + size + 2
                if size == 0:
                    return body, at
        size = int(headers.get("content-length") or 0)
        if size > MOST_BODY or size < 0:
            raise ValueError("body too large")
        if len(self._buffer) < start + size:
            if headers.get("expect", "").lower() == "100-continue" and not self._continued:
                self._continued = True
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None, 0
        return bytes(self._buffer[start : start + size]), start + size

    def _bad(self) -> None:
        self.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
            b"Invalid HTTP request received."
        )
        self._transport.close()


def _head(raw: bytes) -> Tuple[str, str, str, Dict[str, str]]:
    lines = raw.decode("latin-1").split("\r\n")
    method, target, version = lines[0].split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(line)
        headers[name.strip().lower()] = value.strip()
    return method, target, version, headers
