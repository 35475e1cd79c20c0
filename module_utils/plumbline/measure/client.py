"""A streaming load client for SGLang's native ``/generate``, in the standard library, on one thread.

One thread waits on all connections (`selectors`), so that a token's time stamp is taken when its bytes are there and no
other thread holds the interpreter. Figures of its cost are in docs/measuring.md.

Every way in which a request can end is a `Sample`: nothing that a server does raises here, and nothing can hang, since
each connection has an idle limit and the whole run a deadline.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from ..errors import PlumblineError
from .stream import Reply, Sample, ServerError, outcome

_RECEIVE = 65536
now = time.perf_counter


class _Slot:
    """A stream: a connection that carries one request after the other."""

    __slots__ = ("active", "again", "fresh", "number", "out", "reply", "request", "sample", "sock", "writing")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sock: Optional[socket.socket] = None
        self.sample: Optional[Sample] = None
        self.reply: Optional[Reply] = None
        self.request = b""
        self.out = b""  # what of the request is still to be sent
        self.writing = False
        self.active = 0.0  # when a byte came last
        self.fresh = True  # nothing was carried by this connection yet
        self.again = False  # the request is sent a second time


Waiting = List[Tuple[Sample, bytes]]


def _expected(body: Dict[str, Any]) -> Optional[int]:
    sampling = body.get("sampling_params") or {}
    return sampling.get("max_new_tokens") if sampling.get("ignore_eos") else None


class LoadClient:
    """Sends requests to one server, ``concurrency`` at a time, each stream its next when its last has ended.

    ``tick`` is called about every ``tick_s`` seconds with the time (`perf_counter`): for what must be done meanwhile.
    ``increments``: the server streams pieces of ``output_ids`` (``--incremental-streaming-output``), so that every
    event must be decoded. ``give_up_after``: failures in a row, without a success between, after which no more is
    sent."""

    def __init__(
        self,
        base_url: str,
        *,
        concurrency: int,
        idle_timeout_s: float = 120.0,
        connect_timeout_s: float = 5.0,
        deadline_s: Optional[float] = None,
        headers: Sequence[Tuple[str, str]] = (),
        increments: bool = False,
        give_up_after: int = 3,
        tick: Optional[Callable[[float], None]] = None,
        tick_s: float = 0.5,
    ) -> None:
        url = urlsplit(base_url)
        if url.scheme != "http" or not url.hostname:
            raise PlumblineError(
                "not the URL of a server", "base_url", base_url, "http://HOST:PORT", "give the server's own address"
            )
        self.address = (url.hostname, url.port or 80)
        self.prefix = url.path.rstrip("/")
        self.concurrency = concurrency
        self.idle_timeout_s, self.connect_timeout_s, self.deadline_s = idle_timeout_s, connect_timeout_s, deadline_s
        self.headers, self.increments, self.give_up_after = headers, increments, give_up_after
        self.tick, self.tick_s = tick, tick_s
        self._failures = 0
        self._limit = 0.0

    def run(self, bodies: Sequence[Dict[str, Any]]) -> List[Sample]:
        """Send every body to ``/generate`` and return their samples, in the order of the bodies."""
        samples = [Sample(i, _expected(body)) for i, body in enumerate(bodies)]
        waiting = [(sample, self._request(body)) for sample, body in zip(reversed(samples), reversed(bodies))]
        self._failures = 0
        self._limit = now() + self.deadline_s if self.deadline_s else float("inf")
        with selectors.DefaultSelector() as selector:
            slots = [_Slot(i) for i in range(min(self.concurrency, len(bodies)))]
            try:
                self._loop(selector, slots, waiting)
            finally:
                for slot in slots:
                    self._close(selector, slot)
        for sample, _ in waiting:
            sample.fail("not_sent", "given up after the failures before it", now())
        return samples

    def _request(self, body: Dict[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        lines = [
            f"POST {self.prefix}/generate HTTP/1.1",
            f"Host: {self.address[0]}:{self.address[1]}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
        ]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data

    def _loop(self, selector: selectors.BaseSelector, slots: List[_Slot], waiting: Waiting) -> None:
        running = sum(self._next(selector, slot, waiting) for slot in slots)
        due = now() + self.tick_s
        select, receive, writable = selector.select, _RECEIVE, selectors.EVENT_WRITE
        while running:
            for key, mask in select(self.tick_s):
                slot: _Slot = key.data
                if mask & writable:
                    self._push(selector, slot)
                    continue
                at = now()
                try:
                    data = slot.sock.recv(receive)  # type: ignore[union-attr]
                except BlockingIOError:
                    continue
                except OSError as error:
                    running -= self._broken(selector, slot, waiting, "connection_reset", str(error), at)
                    continue
                if not data:
                    running -= self._closed(selector, slot, waiting, at)
                    continue
                slot.active = at
                try:
                    complete = slot.reply.feed(data, at)  # type: ignore[union-attr]
                except ServerError as error:
                    running -= self._broken(selector, slot, waiting, "server_error", str(error), at)
                except ValueError as error:
                    running -= self._broken(selector, slot, waiting, "garbage", str(error), at)
                else:
                    if complete:
                        running -= self._complete(selector, slot, waiting, at)
            at = now()
            if at >= due:
                due = at + self.tick_s
                running -= self._overdue(selector, slots, waiting, at)
                if self.tick:
                    self.tick(at)

    def _next(self, selector: selectors.BaseSelector, slot: _Slot, waiting: Waiting) -> int:
        """Give the stream its next request: 1 if it has one, 0 if there is none left (or the run is given up)."""
        while waiting and self._failures < self.give_up_after and now() < self._limit:
            sample, request = waiting.pop()
            sample.slot = slot.number
            if self._send(selector, slot, sample, request):
                return 1
        self._close(selector, slot)
        return 0

    def _send(
        self, selector: selectors.BaseSelector, slot: _Slot, sample: Sample, request: bytes, again: bool = False
    ) -> bool:
        """Send a request on the stream's connection, made first if there is none. False if none could be made."""
        slot.sample, slot.request, slot.out, slot.again = sample, request, request, again
        slot.reply = Reply(sample, self.increments)
        sample.sent = slot.active = now()
        if slot.sock is None:
            try:
                sock = socket.create_connection(self.address, timeout=self.connect_timeout_s)
            except OSError as error:
                timed_out = isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT
                refused = isinstance(error, ConnectionRefusedError)
                kind = "connection_refused" if refused else "connect_timeout" if timed_out else "connection_reset"
                self._failed(slot, kind, f"{self.address[0]}:{self.address[1]}: {error}", now())
                return False
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            slot.sock, slot.fresh = sock, True
            selector.register(sock, selectors.EVENT_READ, slot)
        self._push(selector, slot)
        return True

    def _push(self, selector: selectors.BaseSelector, slot: _Slot) -> None:
        """Send what the socket takes; the rest when it is writable again."""
        assert slot.sock is not None
        try:
            sent = slot.sock.send(slot.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(slot.out)  # the read that follows tells what became of the connection
        waited, slot.out = slot.writing, slot.out[sent:]
        slot.writing = bool(slot.out)
        if waited != slot.writing:
            selector.modify(slot.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.writing else 0), slot)

    # Each of the following returns how many streams it leaves without work: 0 or 1.

    def _closed(self, selector: selectors.BaseSelector, slot: _Slot, waiting: Waiting, at: float) -> int:
        reply = slot.reply
        assert reply is not None
        if reply.head and not reply.chunked and reply.left is None:
            return self._complete(selector, slot, waiting, at)
        detail = "the server closed the connection before the reply's end"
        return self._broken(selector, slot, waiting, "closed_early", detail, at)

    def _broken(
        self, selector: selectors.BaseSelector, slot: _Slot, waiting: Waiting, error: str, detail: str, at: float
    ) -> int:
        """The stream's request failed: drop the connection and go on with the next request on a new one."""
        sample, reply, request = slot.sample, slot.reply, slot.request
        assert sample is not None and reply is not None
        gone = error in ("closed_early", "connection_reset")
        unanswered = not slot.fresh and not slot.again and not reply.head and not reply.buf
        self._close(selector, slot)
        if gone and unanswered:
            # A kept connection that the server closed while it was idle: no failure of this request, sent once more.
            if self._send(selector, slot, sample, request, again=True):
                return 0
        else:
            slot.sample = sample
            self._failed(slot, error, detail, at)
        return 1 - self._next(selector, slot, waiting)

    def _complete(self, selector: selectors.BaseSelector, slot: _Slot, waiting: Waiting, at: float) -> int:
        reply, sample = slot.reply, slot.sample
        assert reply is not None and sample is not None
        slot.fresh, sample.end = False, at
        error, detail = outcome(sample, reply)
        if error or reply.close:
            self._close(selector, slot)
        if error:
            slot.sample = sample
            self._failed(slot, error, detail, at)
        else:
            self._failures = 0
        return 1 - self._next(selector, slot, waiting)

    def _overdue(self, selector: selectors.BaseSelector, slots: List[_Slot], waiting: Waiting, at: float) -> int:
        ended = 0
        for slot in slots:
            if slot.sock is None or slot.sample is None:
                continue
            got = slot.sample.counts[-1] if slot.sample.counts else 0
            if at >= self._limit:
                detail = f"the run's limit of {self.deadline_s:g} s, after {got} tokens"
                ended += self._broken(selector, slot, waiting, "deadline", detail, at)
            elif at - slot.active >= self.idle_timeout_s:
                detail = f"no byte for {self.idle_timeout_s:g} s, after {got} tokens"
                ended += self._broken(selector, slot, waiting, "stalled", detail, at)
        return ended

    def _failed(self, slot: _Slot, error: str, detail: str, at: float) -> None:
        assert slot.sample is not None
        slot.sample.fail(error, detail, at)
        slot.sample = None
        self._failures += 1

    def _close(self, selector: selectors.BaseSelector, slot: _Slot) -> None:
        if slot.sock is not None:
            selector.unregister(slot.sock)
            slot.sock.close()
            slot.sock, slot.writing = None, False
        slot.sample = None
