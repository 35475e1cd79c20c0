"""A request on its way through the server."""

from __future__ import annotations

import math
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
        self.rate, self.accumulated = 1.0, 0.0
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

    def share_out(self, accept_length: float, most: int, carry: float) -> float:
        """Decide in how many cycles the request ends, so that over many requests the mean is ``accept_length``.

        A request ends with a whole cycle, so its own mean can only come near. ``carry`` is what earlier requests took
        too few cycles; returns what is left of it. ``most`` is how many tokens a cycle can accept.
        """
        limit = self.limit if self.ignore_eos or self.eos_after is None else min(self.limit, self.eos_after)
        needed = limit - 1
        if needed < 1:
            return carry
        wanted = needed / accept_length + carry
        cycles = max(1, -(-needed // most), min(needed, math.floor(wanted)))
        self.rate = needed / cycles
        return min(1.0, max(-1.0, wanted - cycles))

    def cycle(self, simulated: bool) -> int:
        """One verify cycle. Returns the tokens added."""
        # The small addition keeps the last of n equal parts from falling short of a whole number.
        before = int(self.accumulated + 1e-6)
        self.accumulated += self.rate
        accepted = max(1, int(self.accumulated + 1e-6) - before)
        self.verify_ct += 1
        self.correct += accepted - 1
        while len(self.histogram) < accepted:
            self.histogram.append(0)
        self.histogram[accepted - 1] += 1
        return self.take(accepted, simulated)
