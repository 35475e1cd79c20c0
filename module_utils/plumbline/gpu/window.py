"""Samples of a window as figures, and GPUs that compute for nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Dict, List, Optional

# A GPU that computes for nobody: all of its time busy, no process, next to no memory (seen after a collective that
# hung).
WEDGED_UTIL, WEDGED_MIB, WEDGED_SAMPLES = 99, 1024, 3


def _spread(values: Sequence[Any]) -> Optional[Dict[str, float]]:
    known = [v for v in values if v is not None]
    return {"min": min(known), "median": median(known), "max": max(known)} if known else None


def summarise(
    rows: Sequence[Mapping[str, Any]],
    window_s: float,
    before: Optional[Mapping[str, Mapping[str, float]]],
    after: Optional[Mapping[str, Mapping[str, float]]],
    interval_s: float,
) -> Dict[str, Any]:
    """Samples of a window as figures.

    ``{window_s, samples, gpus: {index: {sm_mhz, mem_mhz, power_w, temperature_c, util, memory_mib: {min, median,
    max}}}, event_reasons: {index: {reason: seconds}}, event_source: counters|samples|null, links: {index: {gen,
    gen_max, width, width_max}}}``. Links are of samples under load (an idle GPU rests at generation 1). Counters are
    in us and only grow; without them the share of samples that showed a reason stands for its time.
    """
    by_gpu: Dict[str, List[Mapping[str, Any]]] = {}
    for row in rows:
        by_gpu.setdefault(str(row["index"]), []).append(row)
    gpus, links, reasons = {}, {}, {}
    for index, mine in by_gpu.items():
        gpus[index] = {
            name: _spread([r[name] for r in mine])
            for name in ("sm_mhz", "mem_mhz", "power_w", "temperature_c", "util", "memory_mib")
        }
        loaded = [r for r in mine if (r["util"] or 0) > 0]
        gens, widths = (
            [r["gen"] for r in loaded if r["gen"] is not None],
            [r["width"] for r in loaded if r["width"] is not None],
        )
        links[index] = {
            "gen": max(gens, default=None),
            "gen_max": _spread_max(mine, "gen_max"),
            "width": min(widths, default=None),
            "width_max": _spread_max(mine, "width_max"),
        }
        shown = [r["reasons"] for r in mine if r["reasons"] is not None]
        if shown:
            names = sorted({name for some in shown for name in some})
            reasons[index] = {
                name: round(window_s * sum(name in some for some in shown) / len(shown), 3) for name in names
            }
    event_source: Optional[str] = "samples" if reasons else None
    if before is not None and after is not None:
        event_source = "counters"
        reasons = {
            index: {
                name: round((value - before.get(index, {}).get(name, 0)) / 1e6, 6)
                for name, value in now.items()
                if value > before.get(index, {}).get(name, 0)
            }
            for index, now in after.items()
        }
    return {
        "window_s": round(window_s, 3),
        "interval_s": interval_s,
        "samples": len(rows),
        "gpus": gpus,
        "event_reasons": reasons,
        "event_source": event_source,
        "links": links,
    }


def _spread_max(rows: Sequence[Mapping[str, Any]], name: str) -> Optional[float]:
    return max((r[name] for r in rows if r[name] is not None), default=None)


def wedged(rows: Sequence[Mapping[str, Any]], running: Optional[Sequence[Mapping[str, Any]]]) -> List[Dict[str, Any]]:
    """GPUs that are fully busy for nobody: ``[{gpu, detail}]``. They need a GPU reset or a reboot; a restart of the
    server does not help.
    """
    found = []
    by_gpu: Dict[str, List[Mapping[str, Any]]] = {}
    for row in rows:
        by_gpu.setdefault(str(row["index"]), []).append(row)
    for index, mine in sorted(by_gpu.items()):
        utils, memory = [r["util"] for r in mine], [r["memory_mib"] for r in mine]
        pids = [r["pids"] for r in mine]
        nobody = (
            all(p is not None and not p for p in pids)
            if any(p is not None for p in pids)
            else (running is not None and not running)
        )
        busy = len(mine) >= WEDGED_SAMPLES and all(u is not None and u >= WEDGED_UTIL for u in utils)
        if busy and nobody and all(m is not None and m < WEDGED_MIB for m in memory):
            power = _spread([r["power_w"] for r in mine])
            found.append(
                {
                    "gpu": index,
                    "detail": f"GPU {index} is {min(utils)} % busy with no process and {max(memory)} MiB in use"
                    + (f" at {power['median']:.0f} W" if power else "")
                    + ": it needs a GPU reset or a reboot",
                }
            )
    return found
