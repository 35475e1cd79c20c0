"""What verifying and drafting take of a cycle, from the traces of SGLang's own profiler.

SGLang marks its stages for torch's profiler: ``step[...]`` around each forward pass of a model, ``draft`` and
``draft_extend`` around what a drafter does in a cycle. On a GPU a stage lasts from the first to the last thing on the
device that was launched inside its mark (the host runs ahead, so the mark itself says nothing); without a GPU the mark
is the stage.
"""

from __future__ import annotations

import bisect
import gzip
import json
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

#: Cycles (decode steps) that one profile takes.
CYCLES = 20
_STEP = re.compile(r"^step\[(?:TARGET_)?(VERIFY|DECODE) bs=(\d+)")
_DRAFTING = ("draft", "draft_extend")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Stage:
    """A stage of one cycle: ``kind`` verify, decode or draft; ``batch`` 0 for a draft; times in ms of the trace."""

    kind: str
    batch: int
    start: float
    end: float


def request(folder: str) -> Dict[str, Any]:
    """The body of ``/start_profile``: the next request's prefill and CYCLES steps, without stacks, below ``folder``.

    Not by stage: that is a profile of the prefill and then one of decode, and torch's profiler, stopped again so soon,
    was seen to end a rank with a segmentation fault.
    """
    return {
        "output_dir": folder,
        "start_step": 1,
        "num_steps": CYCLES + 1,
        "activities": ["CPU", "GPU"],
        "with_stack": False,
        "record_shapes": False,
    }


def traces(folder: Path) -> List[Path]:
    """The traces in ``folder``, one a rank."""
    return sorted(folder.glob("*.trace.json.gz"))


def read(path: Path) -> Mapping[str, Any]:
    """One trace (Chrome's JSON, gzipped). Raises OSError, EOFError or ValueError while it is still being written."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        found = json.load(file)
    if not isinstance(found, Mapping):
        raise ValueError(f"{path}: no trace")
    return found


def stages(trace: Mapping[str, Any]) -> Tuple[List[Stage], str]:
    """The stages of a trace by their start, and where they were timed: ``gpu`` or ``cpu``."""
    marks: List[Mapping[str, Any]] = []
    launches: Dict[Any, List[Tuple[float, Any]]] = {}
    device: Dict[Any, List[Tuple[float, float]]] = {}
    for event in trace.get("traceEvents") or ():
        category, arguments = event.get("cat"), event.get("args") or {}
        if category == "user_annotation":
            marks.append(event)
        elif category in _LAUNCHES and "correlation" in arguments:
            launches.setdefault(event.get("tid"), []).append((event["ts"], arguments["correlation"]))
        elif category in _ON_DEVICE and "correlation" in arguments:
            device.setdefault(arguments["correlation"], []).append((event["ts"], event["ts"] + event.get("dur", 0.0)))
    for found in launches.values():
        found.sort(key=lambda launch: launch[0])
    drafting = [mark for mark in marks if mark["name"] in _DRAFTING]
    out = []
    for mark in marks:
        step = _STEP.match(mark["name"])
        # A drafter's own forward passes carry the marks of steps, too.
        if mark["name"] not in _DRAFTING and (not step or any(_inside(mark, other) for other in drafting)):
            continue
        extent = _extent(mark, launches.get(mark.get("tid"), ()), device) if device else _of(mark)
        if extent:
            kind, batch = (step.group(1).lower(), int(step.group(2))) if step else ("draft", 0)
            out.append(Stage(kind, batch, extent[0] / 1000, extent[1] / 1000))
    return sorted(out, key=lambda stage: stage.start), "gpu" if device else "cpu"


def _of(mark: Mapping[str, Any]) -> Tuple[float, float]:
    return mark["ts"], mark["ts"] + mark.get("dur", 0.0)


def _inside(mark: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    (start, end), (first, last) = _of(mark), _of(other)
    return mark.get("tid") == other.get("tid") and first <= start and end <= last


def _extent(
    mark: Mapping[str, Any], launches: Sequence[Tuple[float, Any]], device: Mapping[Any, Sequence[Tuple[float, float]]]
) -> Optional[Tuple[float, float]]:
    """From the first to the last on the device that was launched inside a mark; a graph's kernels share its launch."""
    start, end = _of(mark)
    first, last = bisect.bisect_left(launches, (start,)), bisect.bisect_right(launches, (end, float("inf")))
    spans = [span for _, correlation in launches[first:last] for span in device.get(correlation, ())]
    return (min(s for s, _ in spans), max(e for _, e in spans)) if spans else None


def summary(ranks: Iterable[Tuple[Sequence[Stage], str]], steps: Optional[int]) -> Optional[Dict[str, Any]]:
    """What the ranks' stages say, times in ms (median, and 10th to 90th percentile under ``spread``).

    {timed_on, ranks, batch, cycles, verify_ms, decode_ms, drafting_ms: a whole cycle's, draft_ms: drafting_ms a step of
    ``steps``, cycle_ms: from one verify (without speculation: decode) step to the next, spread: {name: [low, high]}}.
    Only cycles of the commonest batch size count. None if no rank has a verify or decode step.
    """
    times: Dict[str, List[float]] = {"verify_ms": [], "decode_ms": [], "drafting_ms": [], "cycle_ms": []}
    batches: Counter = Counter()
    every = [(list(found), timed) for found, timed in ranks]
    for found, _ in every:
        batches.update(stage.batch for stage in _main(found))
    if not batches:
        return None
    batch = batches.most_common(1)[0][0]
    for found, _ in every:
        main = _main(found)
        for stage, following in zip(main, [*main[1:], None]):
            if stage.batch != batch:
                continue
            times[f"{stage.kind}_ms"].append(stage.end - stage.start)
            if following is not None:
                times["cycle_ms"].append(following.start - stage.start)
                drafts = [d for d in found if d.kind == "draft" and stage.start <= d.start < following.start]
                if drafts:
                    times["drafting_ms"].append(sum(d.end - d.start for d in drafts))
    median = {name: statistics.median(values) if values else None for name, values in times.items()}
    drafting = median["drafting_ms"]
    return {
        "timed_on": every[0][1],
        "ranks": len(every),
        "batch": batch,
        "cycles": len(times["verify_ms"]) or len(times["decode_ms"]),
        **median,
        "draft_ms": drafting / steps if drafting is not None and steps else None,
        "spread": {name: _spread(values) for name, values in times.items() if values},
    }


def _main(found: Iterable[Stage]) -> List[Stage]:
    """The verify steps; where there are none, the decode steps."""
    found = list(found)
    verify = [stage for stage in found if stage.kind == "verify"]
    return verify or [stage for stage in found if stage.kind == "decode"]


def _spread(values: Sequence[float]) -> List[float]:
    ordered = sorted(values)
    return [ordered[int(share * (len(ordered) - 1) + 0.5)] for share in (0.1, 0.9)]
