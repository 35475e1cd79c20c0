"""The plan of one run on one host, read back from its append-only entries, and what the records say was done of it.

`Ledger` folds the `planned` entry and its amendments; measurement ids are derived from the plan, so that every
measurement can be made once only and a record tells which planned place it fills.
"""
from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Iterable, Optional

from ..errors import PlumblineError
from ..ids import ulid
from . import times


@dataclass
class Position:
    """One planned boot. ``block`` is the block that it closes or, for a first reference, opens."""

    number: int
    arm: str
    role: str
    block: int
    remeasure_of: Optional[int] = None


@dataclass
class Ledger:
    """A run on a host: blocks (lists of positions, references shared by number), and what was amended."""

    run: str
    host: str
    planned: dict
    blocks: list[list[Position]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    hopeless: set[str] = field(default_factory=set)  # those of the dropped whose verdict is out of reach
    given_up: dict[str, str] = field(default_factory=dict)
    void_blocks: dict[int, str] = field(default_factory=dict)
    finished: Optional[dict] = None
    changes: list[dict] = field(default_factory=list)

    @property
    def arms(self) -> dict[str, dict]:
        return self.planned["arms"]

    @property
    def reference(self) -> str:
        return next(name for name, arm in self.arms.items() if arm["role"] == "baseline")

    @property
    def candidates(self) -> list[str]:
        return [name for name, arm in self.arms.items() if arm["role"] == "candidate"]

    @property
    def workloads(self) -> dict[str, dict]:
        return self.planned["workloads"]

    @property
    def pairs(self) -> list[tuple[str, int]]:
        """(workload, repeat) that each boot measures."""
        return [(w, r) for r in range(1, self.planned["repeats"] + 1) for w in self.workloads]

    def positions(self) -> list[Position]:
        """All planned boots in the order in which they run."""
        seen: dict[int, Position] = {}
        for block in self.blocks:
            for position in block:
                seen.setdefault(position.number, position)
        return list(seen.values())

    def wanted(self) -> list[Position]:
        """The planned boots of arms that are still in, in order, without those of blocks that a restart voided."""
        void = {p.number for n in self.void_blocks for p in self.blocks[n - 1]}
        void -= {p.number for n, b in enumerate(self.blocks, start=1) if n not in self.void_blocks for p in b}
        return [p for p in self.positions() if self.active(p.arm) and p.number not in void]

    def since_restart(self) -> list[Position]:
        """The positions of the blocks after the last change of state."""
        last = max(self.void_blocks, default=0)
        return list({p.number: p for b in self.blocks[last:] for p in b}.values())

    def blocks_since_restart(self, count: int) -> int:
        """How many of the first ``count`` blocks came after the last change of state."""
        return count - max(self.void_blocks, default=0)

    def next_number(self) -> int:
        return 1 + max((p.number for block in self.blocks for p in block), default=-1)

    def active(self, arm: str) -> bool:
        return arm not in self.dropped and arm not in self.given_up


def fold(entries: Iterable[dict], host: str, run: str) -> Ledger:
    """The ledger of ``run`` on ``host``. Raises PlumblineError if the run was not planned for that host."""
    ledger: Optional[Ledger] = None
    for entry in entries:
        if entry["run"] != run or entry["host"] != host:
            continue
        if entry["event"] == "planned":
            ledger = Ledger(run, host, entry)
            ledger.blocks = [_block(i + 1, raw) for i, raw in enumerate(entry["blocks"])]
        elif ledger is not None:
            for change in entry.get("changes", []):
                apply(ledger, change)
            if entry["event"] == "finished":
                ledger.finished = entry
    if ledger is None:
        raise PlumblineError("this run was not planned for this host", f"run {run}, host {host}",
                             remedy="plan the run first: playbooks/matrix.yml does so")
    return ledger


def _block(number: int, raw: list[dict]) -> list[Position]:
    return [Position(p["position"], p["arm"], p["role"], p.get("block", number), p.get("remeasure_of")) for p in raw]


def apply(ledger: Ledger, change: dict) -> None:
    """Amend the ledger by one change of an entry: drop, reactivate, give_up, remeasure or restart."""
    kind = change["change"]
    ledger.changes.append(change)
    if kind == "drop":
        ledger.dropped[change["arm"]] = change["reason"]
        if change.get("hopeless"):
            ledger.hopeless.add(change["arm"])
    elif kind == "reactivate":
        ledger.dropped.pop(change["arm"], None)
        ledger.hopeless.discard(change["arm"])
    elif kind == "give_up":
        ledger.given_up[change["arm"]] = change["reason"]
    elif kind == "remeasure":
        for i, block in enumerate(ledger.blocks):
            if block and block[-1].number == change["of"]:
                extra = Position(change["position"], ledger.reference, "baseline", i + 1, change["of"])
                block.append(extra)
                if i + 1 < len(ledger.blocks):
                    ledger.blocks[i + 1][0] = extra
                break
    elif kind == "restart":
        kept = ledger.blocks[:change["block"] - 1]
        old = ledger.blocks[change["block"] - 1]
        ledger.void_blocks[change["block"]] = change["reason"]
        fresh = [_block(change["block"] + 1 + i, raw) for i, raw in enumerate(change["blocks"])]
        known = {p.number: p for b in ledger.blocks for p in b}
        fresh = [[known.get(p.number, p) for p in b] for b in fresh]
        done = set(change["done"])
        ledger.blocks = [*kept, [p for p in old if p.number in done], *fresh]


def draw_blocks(reference: str, candidates: list[str], count: int, seed: str, first_number: int = 0,
                first_block: int = 1, opening: Optional[int] = None) -> list[list[dict]]:
    """``count`` blocks: the reference, the candidates in random order, the reference again, shared by neighbours.

    ``opening``: number of a reference boot, already made, that opens the first block. Without candidates a block is one
    boot of the reference. The order is drawn from ``seed`` (any text), alike on every machine.
    """
    rng = random.Random(hashlib.sha256(seed.encode()).digest())
    number = first_number
    out: list[list[dict]] = []

    def boot(arm: str, role: str, block: int) -> dict:
        nonlocal number
        number += 1
        return {"position": number - 1, "arm": arm, "role": role, "block": block}

    if not candidates:
        return [[boot(reference, "baseline", first_block + i)] for i in range(count)]
    left = {"position": opening, "arm": reference, "role": "baseline", "block": first_block, "shared": True} \
        if opening is not None else boot(reference, "baseline", first_block)
    for i in range(count):
        order = list(candidates)
        rng.shuffle(order)
        block = [left, *(boot(arm, "candidate", first_block + i) for arm in order)]
        right = boot(reference, "baseline", first_block + i)
        out.append([*block, right])
        left = {**right, "shared": True}
    return out


def measurement_id(planned: dict, position: int, attempt: int, workload: str, repeat: int) -> str:
    """The id of one planned measurement: a ULID of the plan's time and a hash of its place in the plan."""
    return _place_id(planned["at"], f"{planned['run']}|{planned['host']}|{position}|{attempt}|{workload}|{repeat}")


@lru_cache(maxsize=65536)
def _place_id(at: str, place: str) -> str:
    return ulid(times.seconds(at), hashlib.sha256(place.encode()).digest()[:10])


@dataclass
class Progress:
    """What the records say about one position. ``failures``: one record for each try that failed; ``failed``: all
    failed records, of which a try leaves one for each workload that it did not measure."""

    attempt: int
    done: dict[tuple[str, int], dict]
    failures: list[dict]
    failed: list[dict]
    missing: list[tuple[str, int]]

    @property
    def started(self) -> bool:
        return bool(self.done or self.failures)


class Records:
    """The measurements of one run and host, by id."""

    def __init__(self, ledger: Ledger, measurements: Iterable[dict]) -> None:
        self.ledger = ledger
        self.by_id = {m["id"]: m for m in measurements if m["run"] == ledger.run and m["host"] == ledger.host}
        self._progress: dict[int, Progress] = {}

    def progress(self, number: int) -> Progress:
        """What is measured and what is missing at position ``number``."""
        if number not in self._progress:
            self._progress[number] = self._look(number)
        return self._progress[number]

    def _look(self, number: int) -> Progress:
        done: dict[tuple[str, int], dict] = {}
        failures: list[dict] = []
        failed: list[dict] = []
        attempt = 1
        while True:
            failed_here = []
            for workload, repeat in self.ledger.pairs:
                record = self.by_id.get(measurement_id(self.ledger.planned, number, attempt, workload, repeat))
                if record is None:
                    continue
                if record["status"] == "ok":
                    done.setdefault((workload, repeat), record)
                else:
                    failed_here.append(record)
            if not failed_here:
                break
            failures.append(failed_here[0])
            failed.extend(failed_here)
            attempt += 1
        return Progress(attempt, done, failures, failed, [p for p in self.ledger.pairs if p not in done])

    def first_open(self) -> Optional[Position]:
        """The first planned boot that lacks a record, or None.

        A boot that was passed over, because its arm was out at that time, stays passed over.
        """
        wanted = self.ledger.wanted()
        last = max((i for i, p in enumerate(wanted) if self.progress(p.number).started), default=-1)
        for i, position in enumerate(wanted):
            progress = self.progress(position.number)
            if progress.missing and (i > last or progress.started):
                return position
        return None

    def boots(self) -> dict[str, list[dict]]:
        """The records of each boot, in order of time."""
        out: dict[str, list[dict]] = {}
        for record in sorted(self.by_id.values(), key=lambda r: (times.seconds(r["started_at"]), r["id"])):
            out.setdefault(record["boot"], []).append(record)
        return out

    def spent_s(self) -> float:
        """Seconds of starting and measuring, over all boots that left a record."""
        total = 0.0
        for records in self.boots().values():
            start: Any = (records[0].get("server") or {}).get("start_s") or 0.0
            total += float(start) + sum(float(r["duration_s"]) for r in records)
        return total
