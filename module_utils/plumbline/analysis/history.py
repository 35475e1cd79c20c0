"""What earlier runs say of an arm's boot-to-boot scatter: used only if it is of the same host, state, model and load.

History must span days: a scale from one evening does not know what the host does on another day.
"""
from __future__ import annotations

import math
from typing import Iterable, Optional

from ..digest import digest
from . import stats, times
from .comparable import Boot, States, metric_of, unusable
from .ledger import Ledger
from .weigh import Scale

LEAST_BOOTS = 5
LEAST_SPAN_H = 24.0
FLOOR_SD = 0.005
OUTLIER_MADS = 5.0


def load_digest(spec: dict) -> str:
    """What tells one load from another: the digest of the workload's specification, its name left out."""
    return digest({k: v for k, v in spec.items() if k not in ("name", "description")})


def items(measurements: Iterable[dict], plan_entries: Iterable[dict], baselines: Iterable[dict] = ()) -> list[dict]:
    """Usable earlier results, one a measurement: {run, host, key, load, engine, boot, at_h, y, digest, groups}.

    ``baselines``: rows of `baselines/<host>.jsonl`, of any experiment. A boot that is in both counts once.
    """
    specs = {(e["run"], e["host"]): e["workloads"] for e in plan_entries if e["event"] == "planned"}
    out: dict[str, dict] = {}
    for record in measurements:
        spec = specs.get((record["run"], record["host"]), {}).get(record["workload"])
        if spec is None or unusable(record, metric_of(spec)):
            continue
        out[record["id"]] = _item(record, record["metrics"][metric_of(spec)], load_digest(spec), record["started_at"])
    for row in baselines:
        if row.get("kind") == "measured" and row.get("usable"):
            out.setdefault(row["measurement"], _item(row, row["tok_s"], row["load"], row["at"]))
    return [out[k] for k in sorted(out)]


def _item(record: dict, value: float, load: str, at: str) -> dict:
    state = record.get("state") or {}
    return {"run": record["run"], "host": record["host"], "load": load, "engine": record.get("engine"),
            "key": (record["variant"], record["nccl_profile"], record["build"]), "boot": record["boot"],
            "at_h": times.seconds(at) / 3600.0, "y": math.log(value), "digest": state.get("digest"),
            "groups": state.get("groups") or {}}


def scales(ledger: Ledger, boots: Iterable[Boot], workload: str, earlier: Iterable[dict],
           states: States) -> dict[str, Scale]:
    """{arm name: Scale} from `items` of other runs, for the arms of which there is usable history.

    ``boots``: this run's boots of the workload, which say what the host's state now is, arm by arm: an arm that has
    not been measured yet has no history either. Only runs older than this one count.
    """
    first: dict[str, Boot] = {}
    for boot in boots:
        first.setdefault(boot.arm, boot)
    load = load_digest(ledger.workloads[workload])
    by_key: dict[tuple, list[dict]] = {}
    for item in earlier:
        if item["host"] == ledger.host and item["load"] == load and item["run"] < ledger.run:
            by_key.setdefault(item["key"], []).append(item)
    out = {}
    for arm, boot in first.items():
        record = boot.records[0]
        mine = by_key.get((record["variant"], record["nccl_profile"], record["build"]), [])
        found = _scale([i for i in mine if i["engine"] == record.get("engine") and _same_state(i, boot, states)])
        if found:
            out[arm] = found
    return out


def _scale(found: list[dict]) -> Optional[Scale]:
    by_boot: dict[str, list[dict]] = {}
    for item in found:
        by_boot.setdefault(item["boot"], []).append(item)
    at = [item["at_h"] for item in found]
    if len(by_boot) < LEAST_BOOTS or max(at) - min(at) < LEAST_SPAN_H:
        return None
    return scale_of([stats.mean([i["y"] for i in boot]) for _, boot in sorted(by_boot.items())])


def scale_of(ys: list[float]) -> Scale:
    """A robust sd of log metrics: what lies beyond 5 MAD of the median is left out, and 0.5 % is the least."""
    centre, spread = stats.median(ys), max(stats.mad(ys), FLOOR_SD)
    kept = [y for y in ys if abs(y - centre) <= OUTLIER_MADS * spread]
    middle = stats.mean(kept)
    sd = math.sqrt(math.fsum((y - middle) ** 2 for y in kept) / max(1, len(kept) - 1))
    return Scale(max(sd, FLOOR_SD), float(len(kept) - 1))


def _same_state(item: dict, boot: Boot, states: States) -> bool:
    if item["digest"] is None or boot.state is None:
        return False
    rows = states.rows_of(item["digest"], boot.state, item["groups"], boot.groups)
    return not any(r["impact"] in ("invalidates", "performance") for r in rows)
