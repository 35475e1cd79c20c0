"""A request on its way through the server."""

from __future__ import annotations

import time
import uuid
from typing import Any, Callable, Dict, List, Optional

from sglang.simulation.tokens import Answer, decode

SIMULATED_TOKEN = 100


class Req:
    """One generation request.

    ``on_output(request)`` is called after each step that gave tokens, ``finish`` says why it ended (None before).
    ``text`` is the whole output so far; it needs no escaping in JSON. ``verify_ct`` counts cycles with speculation.
    """

    def __init__(
        self,
        prompt: List[int],
        limit: int,
        ignore_eos: bool,
        salt: str,
        eos_after: Optional[int],
        on_output: Callable[[Req], None],
        rid: str = "",
        quiet: bool = False,
    ) -> None:
        self.rid = rid or uuid.uuid4().hex
        self.prompt, self.limit, self.ignore_eos, self.eos_after = prompt, limit, ignore_eos, eos_after
        self.on_output, self.quiet = on_output, quiet
        self.answer = Answer(prompt, salt)
        self.ids: List[int] = []
        self.pieces: List[str] = []
        self.cached = 0
        self.verify_ct = 0
        self.correct = 0
        self.histogram: List[int] = []
        self.accumulated = self.answer.phase
        self.time_factor = 1.0
        self.finish: Optional[Dict[str, Any]] = None
        self.aborted = False
        self.created = time.time()
        self.arrived = time.monotonic()
        self.first_at: Optional[float] = None
        self.done_at: Optional[float] = None
        self.queue_s = 0.0

    @property
    def tokens(self) -> int:
        """Tokens in the cache: prompt and output."""
        return len(self.prompt) + len(self.ids)

    def take(self, count: int, simulated: bool = False) -> int:
        """Add up to ``count`` tokens; returns how many were added and sets ``finish`` at the end."""
        added = 0
        while added < count and self.finish is None:
            token = self.answer.next()
            if self.eos_after is not None and len(self.ids) + 1 == self.eos_after:
                token = 2
            elif simulated and added:
                token = SIMULATED_TOKEN
            self.ids.append(token)
            self.pieces.append(decode(token))
            added += 1
            if token == 2 and not self.ignore_eos:
                self.finish = {"type": "stop", "matched": token}
            elif len(self.ids) >= self.limit:
                self.finish = {"type": "length", "length": self.limit}
        return added

    def cycle(self, accept_length: float, simulated: bool) -> int:
        """One verify cycle; over many cycles the mean is ``accept_length``. Returns the tokens added."""
        before = int(self.accumulated)
        self.accumulated += accept_length
        accepted = int(self.accumulated) - before
        self.verify_ct += 1
        self.correct += accepted - 1
        while len(self.histogram) < accepted:
            self.histogram.append(0)
        self.histogram[accepted - 1] += 1
        return self.take(accepted, simulated)
