"""Continuous batching against absolute deadlines.

A step that begins when the last one ended ends at that time plus its length, whenever the event loop gets round to it:
a late wake-up delays one delivery and never the steps after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from sglang.simulation.clock import Clock
from sglang.simulation.lines import accept_rate, decode_line, prefill_line
from sglang.simulation.model import StepModel
from sglang.simulation.tokens import PrefixCache
from sglang.srt.managers.schedule_batch import Req

CLOCK_WRITE_S = 2.0
RECORDED_STEPS = 4096
# An idle server waits this long after a first request: what a client sends at once shall be prefilled at once.
GATHER_S = 0.002


class Stats:
    """Counters since the start; those of acceptance since the last flush."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generated_tokens = self.cached_tokens = self.requests = self.aborted = 0
        self.verify_calls = self.decoded_tokens = self.computed_tokens = self.reused_tokens = 0
        self.prefill_passes = self.graph_passes = self.eager_passes = 0
        self.accepted_total = self.cycles_total = 0
        self.gen_throughput = self.accept_length = self.accept_rate = 0.0
        self.graph = False


class Scheduler:
    """The batch of one server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        model: StepModel,
        clock: Clock,
        boot: int,
        settings: Dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """``settings``: max_running, log_interval, log_version, token_capacity, radix_cache, simulated (acceptance),
        record_steps, on_step() after each decode step, can_step() before a step ends, on_close(request)."""
        self.loop, self.model, self.clock, self.boot, self.settings, self.say = loop, model, clock, boot, settings, say
        self.waiting: Deque[Req] = deque()
        self.running: List[Req] = []
        self.cache = PrefixCache()
        self.stats = Stats()
        self.step_times: Dict[int, List[float]] = {}
        self.profile: Optional[List[Dict[str, Any]]] = None
        self.halted = False
        self.slow = 1.0
        self.last_progress = self.fed_at = loop.time()
        self._busy = False
        self._batch: List[Req] = []
        self._prefill = False
        self._began = self._ends = 0.0
        self._clock_due = 0.0
        self._number = 0
        self._carry = 0.5
        self._iteration = self._decode_steps = 0
        self._logged_at = loop.time()
        self._prefill_at = loop.time()
        self._tokens = self._cycles = self._accepted = self._correct = 0

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return self._busy

    @property
    def unfinished(self) -> List[Req]:
        """Requests that are running or waiting."""
        return [*self.running, *self.waiting]

    def add(self, request: Req) -> None:
        """Queue a request. Requests that arrive together are prefilled together."""
        request.time_factor = self.model.request_factor(self.boot, self._number)
        self._number += 1
        self.waiting.append(request)
        if not self._busy:
            self._busy = True
            self.fed_at = self.loop.time()
            self.clock.window_opens()
            self._clock_due = self.loop.time() + CLOCK_WRITE_S
            self.loop.call_later(GATHER_S, self._begin, self.loop.time() + GATHER_S)

    def abort(self, request: Req) -> None:
        """The client is gone."""
        if request.finish is None:
            request.aborted = True
            request.finish = {"type": "abort", "message": "Aborted"}
            self.stats.aborted += 1

    def flush(self) -> bool:
        """Empty the prefix cache and the acceptance counters; False while requests run."""
        if self.unfinished:
            return False
        self.cache.clear()
        self.stats.accepted_total = self.stats.cycles_total = 0
        self._tokens = self._cycles = self._accepted = self._correct = 0
        self._decode_steps = 0
        return True

    @property
    def tokens_in_use(self) -> int:
        """Tokens that running requests hold."""
        return sum(request.tokens for request in self.running)

    # ------------------------------------------------------------------ steps
    def _begin(self, start: float) -> None:
        self.running = [request for request in self.running if request.finish is None]
        self.waiting = deque(request for request in self.waiting if request.finish is None)
        room = self.settings["max_running"] - len(self.running)
        if not self.running and not self.waiting:
            self._busy = False
            self.clock.window_closes()
            return
        now, hours = self.clock.now, self.clock.hours
        if self.waiting and room > 0:
            self._prefill = True
            self._batch = [self.waiting.popleft() for _ in range(min(room, len(self.waiting)))]
            new = 0
            for request in self._batch:
                request.cached = self.cache.match(request.prompt) if self.settings["radix_cache"] else 0
                request.queue_s = max(0.0, start - request.arrived)
                new += len(request.prompt) - request.cached
            length = self.model.prefill_s(new, now, hours)
            self._log_prefill(new, start)
        else:
            self._prefill = False
            self._batch = list(self.running)
            factor = sum(request.time_factor for request in self._batch) / len(self._batch)
            length = self.model.cycle_s(len(self._batch), factor, now, hours)
        self._began = start
        self._ends = start + length * self.slow
        self.loop.call_at(self._ends, self._end)

    def _end(self) -> None:
        if self.halted or not self.settings["can_step"]():
            # A rank does not answer: the step never completes, or completes as late as the rank.
            self.loop.call_later(0.05, self._end)
            self._ends = max(self._ends, self.loop.time())
            return
        self.last_progress = self.fed_at = self.loop.time()
        self._iteration += 1
        if self._prefill:
            self._end_prefill()
        else:
            self._end_decode()
        for request in self._batch:
            if request.finish is not None and not request.aborted:
                self._close(request)
            if not request.aborted:
                request.on_output(request)
        if self._ends >= self._clock_due:
            self.clock.window_closes(going_on=True)
            self._clock_due = self._ends + CLOCK_WRITE_S
        self._begin(self._ends)

    def _end_prefill(self) -> None:
        self.stats.prefill_passes += 1
        for request in self._batch:
            if request.finish is not None:
                continue
            request.first_at = self._ends
            self.stats.computed_tokens += len(request.prompt) - request.cached
            self.stats.reused_tokens += request.cached
            if self.model.speculation is not None:
                most = (self.model.speculation.steps or self.model.speculation.draft_tokens - 1) + 1
                self._carry = request.share_out(self.model.accept_length, most, self._carry)
            request.take(1)
            if self.settings["radix_cache"] and not request.quiet:
                self.cache.insert(request.prompt)
            self.running.append(request)

    def _end_decode(self) -> None:
        batch, stats = [request for request in self._batch if request.finish is None], self.stats
        speculative = self.model.entry is not None
        for request in batch:
            if speculative:
                before = request.correct
                added = request.cycle(self.settings["simulated"])
                self._cycles += 1
                self._accepted += request.correct - before + 1
                self._correct += request.correct - before
            else:
                added = request.take(1)
            self._tokens += added
            stats.decoded_tokens += added
        self._decode_steps += 1
        if self.model.has_graph(len(self._batch)):
            stats.graph_passes += 1
        else:
            stats.eager_passes += 1
        if self.profile is not None:
            self._record_profile(len(batch))
        if self._decode_steps % self.settings["log_interval"] == 0:
            self._log_decode(len(self._batch))
        self.settings["on_step"]()

    def _close(self, request: Req) -> None:
        if request.done_at is None:
            request.done_at = self._ends
            if not request.quiet:
                self.stats.requests += 1
                self.stats.prompt_tokens += len(request.prompt)
                self.stats.cached_tokens += request.cached
                self.stats.generated_tokens += len(request.ids)
                self.stats.verify_calls += request.verify_ct
                self.settings["on_close"](request)
            if self.settings["radix_cache"] and not request.quiet:
                self.cache.insert(request.prompt + request.ids)

    # ------------------------------------------------------------------ reports
    def _record_profile(self, batch: int) -> None:
        parts = self.model.parts(batch)
        share = (self._ends - self._began) / max(1e-9, sum(parts.values()))
        at = self._began
        # As SGLang marks its stages for the profiler.
        names = {"draft": "draft", "verify": f"step[VERIFY bs={batch}]", "decode": f"step[DECODE bs={batch}]"}
        for part in names:
            if part in parts and self.profile is not None:
                self.profile.append({"name": names[part], "at": at, "for": parts[part] * share, "batch": batch})
                at += parts[part] * share

    def _log_prefill(self, new: int, start: float) -> None:
        gap, self._prefill_at = max(1e-6, start - self._prefill_at), start
        self.say(
            prefill_line(
                self.settings["log_version"],
                {
                    "iteration": self._iteration,
                    "sequences": len(self._batch),
                    "tokens": new,
                    "cached": sum(request.cached for request in self._batch),
                    "usage": self.tokens_in_use / self.settings["token_capacity"],
                    "running": self.shown(len(self.running)),
                    "queue": len(self.waiting),
                    "throughput": new / gap,
                    "graph": False,
                },
            )
        )

    def shown(self, running: int) -> int:
        """Running requests as the server sees them: somebody else's are among them."""
        return running + (1 if self.model.foreign(self.clock.now) else 0)

    def _log_decode(self, batch: int) -> None:
        stats, interval = self.stats, self.settings["log_interval"]
        passed = max(1e-9, self._ends - self._logged_at)
        self._logged_at = self._ends
        stats.gen_throughput = self._tokens / passed
        stats.graph = self.model.has_graph(batch)
        if self.settings["record_steps"]:
            steps = self.step_times.setdefault(batch, [])
            steps.append(passed / interval)
            del steps[:-RECORDED_STEPS]
        values: Dict[str, Any] = {
            "iteration": self._iteration,
            "running": self.shown(batch),
            "tokens": self.tokens_in_use,
            "usage": self.tokens_in_use / self.settings["token_capacity"],
            "accept_length": None,
            "graph": stats.graph,
            "throughput": stats.gen_throughput,
            "queue": len(self.waiting),
        }
        if self.model.speculation is not None and self._cycles:
            values.update(
                accept_length=self._accepted / self._cycles,
                correct=self._correct,
                cycles=self._cycles,
                draft_tokens=self.model.speculation.draft_tokens,
            )
            stats.accept_length = values["accept_length"]
            stats.accept_rate = accept_rate(self.settings["log_version"], values)
            stats.accepted_total += self._accepted
            stats.cycles_total += self._cycles
        self._tokens = self._cycles = self._accepted = self._correct = 0
        self.say(decode_line(self.settings["log_version"], values))
