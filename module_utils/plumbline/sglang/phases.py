"""How far a starting server is, read from its log.

SGLang binds its port only after the load, so "connection refused" says nothing; the log does. Phases, in the order in
which a server without a draft goes through them (with a draft, loading and capture come again for the draft, with
``draft`` set):

========================  ==================================================================================
``starting``              the process lives; imports, arguments
``distributed_init``      communicators are being made (`Init torch distributed begin`)
``weight_load``           `Load weight begin` ... `Load weight end`
``kv_pool``               the KV cache is being allocated
``graph_capture``         CUDA (or CPU, NPU) graphs are being captured
``warm_up``               HTTP is up, the server sends itself a request
``ready``                 `The server is fired up and ready to roll!`
``stopping``              SIGTERM was received
========================  ==================================================================================
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Dict, List, NamedTuple, Optional

from .loglines import clean, lines_of, stamp_of

PHASES = ("starting", "distributed_init", "weight_load", "kv_pool", "graph_capture", "warm_up", "ready", "stopping")
READY_LINE = "The server is fired up and ready to roll!"

_PHASE_LINES = (
    ("ready", re.compile(r"The server is fired up and ready to roll")),
    ("stopping", re.compile(r"\bSIGTERM received\b|Gracefully exiting\.\.\.")),
    (
        "warm_up",
        re.compile(
            r"Uvicorn running on|Application startup complete|Started server process|Start of (?:\w+ ){0,3}warmup"
        ),
    ),
    (
        "graph_capture",
        re.compile(r"Capture (?:[\w-]+ ){0,3}graphs? begin|Capturing batches|Capturing num tokens", re.I),
    ),
    (
        "kv_pool",
        re.compile(
            r"Load weight end\b|KV Cache is allocated|Memory pool end|Mamba Cache is allocated"
            r"|Use sliding window memory pool"
        ),
    ),
    ("weight_load", re.compile(r"Load weight begin\b|[Ll]oading .*(?:checkpoint )?shards:|Beginning to load weights")),
    ("distributed_init", re.compile(r"Init torch distributed begin\b|sglang is using nccl==")),
    ("starting", re.compile(r"server_args=(?:ServerArgs\()?|Attention backend not (?:specified|set|explicitly)")),
)
# Lines that end a phase without naming the next: whatever is done after them belongs to what they name.
_SAME_PHASE = re.compile(r"Capture (?:[\w-]+ ){0,3}graphs? end", re.I)
_PERCENT = re.compile(r"(\d{1,3})%(?: Completed)? ?\|")
_NCCL = re.compile(r"sglang is using nccl==([\w.+]+)")


class Event(NamedTuple):
    """A step forward: the phase entered (or gone on with), what the line says of it, and the line."""

    phase: str
    detail: str
    draft: bool
    at: Optional[float]
    line: str


def phase_of(line: str) -> Optional[str]:
    """The phase that a log line shows, or None if it shows none."""
    if _SAME_PHASE.search(line):
        return "graph_capture"
    for phase, pattern in _PHASE_LINES:
        if pattern.search(line):
            return phase
    return None


class PhaseReader:
    """Reads a growing log. Feed it pieces as they come; ``phase`` is where the server is, ``history`` how it got there.

    Pieces may end within a line; the rest is kept for the next piece. A progress bar's ``\\r`` counts as a line's end.
    """

    def __init__(self) -> None:
        self.phase: str = "starting"
        self.detail: str = ""
        self.draft: bool = False
        self.nccl: Optional[str] = None
        self.history: List[Event] = []
        self._rest = ""
        self._loads: Dict[str, int] = {}

    def feed(self, piece: str) -> List[Event]:
        """The events of the lines that ``piece`` completes. An event for each new phase, and for progress within
        one."""
        *whole, self._rest = re.split(r"[\r\n]", self._rest + piece)
        events = []
        for raw in whole:
            event = self._line(clean(raw))
            if event:
                events.append(event)
                if not self.history or (self.history[-1].phase, self.history[-1].draft) != (event.phase, event.draft):
                    self.history.append(event)
        return events

    def _line(self, line: str) -> Optional[Event]:
        nccl = _NCCL.search(line)
        if nccl:
            self.nccl = nccl.group(1)
        phase = phase_of(line)
        if phase is None:
            return None
        if "server_args=" in line:  # a new start in the same file: a journal that was not cut
            self._loads, self.draft = {}, False
        # One rank's second load is the draft model's; other ranks' first ones are not.
        begin = re.search(r"\b(TP\d+)?\]? ?Load weight begin", line)
        if begin:
            rank = begin.group(1) or "TP0"
            self._loads[rank] = self._loads.get(rank, 0) + 1
        self.draft = (
            bool(re.search(r"\bdraft\b", line) and phase == "graph_capture")
            if phase == "graph_capture"
            else (max(self._loads.values(), default=0) > 1 if phase in ("weight_load", "kv_pool") else False)
        )
        percent = _PERCENT.findall(line)
        self.phase, self.detail = phase, f"{percent[-1]} %" if percent else _short(line)
        return Event(phase, self.detail, self.draft, stamp_of(line), line)


def _short(line: str) -> str:
    """The line without its time stamp, at most 160 characters: `server_args=` alone is many kilobytes."""
    text = re.sub(r"^\[[^\]]*\] ", "", line)
    return text if len(text) <= 160 else text[:157] + "..."


def read_phases(text: str) -> List[Event]:
    """The phases that a whole log went through, each once in a row, in order."""
    reader = PhaseReader()
    reader.feed(text if text.endswith("\n") else text + "\n")
    return reader.history


def is_ready(text: str) -> bool:
    """Does the log say that the server became ready (and not, since then, that it is stopping or starts anew)?"""
    history = read_phases(text)
    return bool(history) and history[-1].phase == "ready"


def ready_reading(text: str) -> Optional[Dict[str, Any]]:
    """What the last start in the log shows: ``{ready_at, start_s, phases, nccl, warm_up_requests}``, or None if never
    ready.

    ``start_s`` is from the first stamped line of that start to the ready line, in the log's own resolution of a second.
    """
    lines = list(lines_of(text))
    ready = [i for i, line in enumerate(lines) if READY_LINE.rstrip("!") in line]
    if not ready:
        return None
    begin = max((i for i in range(ready[-1]) if "server_args=" in lines[i]), default=0)
    part = lines[begin : ready[-1] + 1]
    stamps = [at for at in map(stamp_of, part) if at is not None]
    reader = PhaseReader()
    reader.feed("\n".join(part) + "\n")
    return {
        "ready": True,
        "ready_at": stamps[-1] if stamps else None,
        "start_s": stamps[-1] - stamps[0] if stamps else None,
        "phases": [phase for phase, _ in itertools.groupby(event.phase for event in reader.history)],
        "nccl": reader.nccl,
        "warm_up_requests": sum(1 for line in part if re.search(r'"POST /generate HTTP', line)),
    }
