"""Flags: what was seen in a measurement that a reader of its figures must know.

A flag is ``{name, detail, invalidates}``. An invalidating flag says that the figures are not those of this arm under
these conditions (so they are not compared); the others stand beside the figures as reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import figures as fig
from .checks import Evidence

LEAST_REQUESTS = 8
UNSTABLE = 0.10
CACHED = 0.10
CACHED_INVALID = 0.50
CONTRADICTION_INVALID = 0.10
QUEUED = 0.05
FOREIGN = 0.10
#: Reasons for which a GPU's clock is held down that say something is wrong (idle and set clocks do not).
THROTTLE_REASONS = (
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)


@dataclass(frozen=True)
class Surroundings:
    """What stood around the requests.

    ``repeated``: ids of prompts that were sent more than once; ``eos``: per sample, tokens before the first end
    token, or None; ``foreign``: share of the machine's CPU time that neither the server nor the client used (None:
    unknown); ``environment``: the server's; ``retractions``: lines of the log that tell of one; ``profiled``: did the
    server's profiler run; ``gpu``: None, or
    ``{event_reasons: {gpu: {reason: seconds in the window}}, links: {gpu: {width, width_max, gen, gen_max}}}``."""

    checks: Sequence[Mapping[str, Any]]
    repeated: Sequence[str] = ()
    eos: Sequence[Optional[int]] = ()
    foreign: Optional[float] = None
    environment: Mapping[str, str] = field(default_factory=dict)
    retractions: int = 0
    profiled: bool = False
    gpu: Optional[Mapping[str, Any]] = None


def flag(name: str, detail: str, invalidates: bool = False) -> Dict[str, Any]:
    return {"name": name, "detail": detail, "invalidates": invalidates}


def all_flags(evidence: Evidence, around: Surroundings) -> List[Dict[str, Any]]:
    """Every flag that this measurement earns."""
    found = [
        *_gpu(around.gpu),
        _profiled(around),
        _graph_off(evidence),
        _cached(evidence),
        _repeated(around),
        *_foreign(evidence, around),
        _accept_one(evidence),
        _queueing(evidence),
        _retracted(evidence, around),
        _errors(evidence),
        _few(evidence),
        _unstable(evidence),
        _past_eos(evidence, around),
        _contradiction(around),
        _simulated(evidence, around),
    ]
    return [one for one in found if one]


def _gpu(samples: Optional[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    out = []
    moved = [
        f"GPU {gpu}: {reason} for {seconds:.1f} s"
        for gpu, reasons in ((samples or {}).get("event_reasons") or {}).items()
        for reason, seconds in reasons.items()
        if reason in THROTTLE_REASONS and seconds > 0
    ]
    if moved:
        out.append(flag("throttled", "; ".join(moved), True))
    narrow = []
    for gpu, link in ((samples or {}).get("links") or {}).items():
        for key, unit in (("width", "lanes"), ("gen", "generation")):
            now, most = link.get(key), link.get(f"{key}_max")
            if now and most and now < most:
                narrow.append(f"GPU {gpu}: {unit} {now} of {most} under load")
    if narrow:
        out.append(flag("pcie_narrow", "; ".join(narrow), True))
    others = (samples or {}).get("foreign_processes") or []
    if others:
        named = "; ".join(f"GPU {p.get('gpu')}: pid {p.get('pid')} {p.get('name') or ''}".rstrip() for p in others[:8])
        out.append(flag("foreign_load", f"other processes than the server's compute on its GPUs: {named}", True))
    wedged = (samples or {}).get("wedged") or []
    if wedged:
        out.append(flag("foreign_load", "; ".join(w["detail"] for w in wedged), True))
    return out


def _profiled(around: Surroundings) -> Optional[Dict[str, Any]]:
    if not around.profiled:
        return None
    return flag("profiled", "the server's profiler ran: its figures are those of stages, not of speed", True)


def _graph_off(evidence: Evidence) -> Optional[Dict[str, Any]]:
    share = graph_share(evidence.rows)
    if share is None or share == 1.0:
        return None
    return flag("graph_off", f"{1 - share:.0%} of {len(evidence.rows)} decode lines ran without CUDA graph")


def graph_share(rows: Sequence[Mapping[str, Any]]) -> Optional[float]:
    """Share of the decode lines that replayed a graph. None where there are none, and on the CPU, which has no
    graphs."""
    labelled = [row for row in rows if row["graph"] is not None and row["graph_label"] != "cpu"]
    return sum(row["graph"] is True for row in labelled) / len(labelled) if labelled else None


def _cached(evidence: Evidence) -> Optional[Dict[str, Any]]:
    metas = [s.meta for s in evidence.samples if s.error is None]
    prompt = sum(meta.get("prompt_tokens") or 0 for meta in metas)
    cached = sum(meta.get("cached_tokens") or 0 for meta in metas)
    if not prompt or cached / prompt <= CACHED:
        return None
    share = cached / prompt
    return flag(
        "cached_tokens",
        f"{cached} of {prompt} prompt tokens ({share:.0%}) came from the prefix cache",
        share > CACHED_INVALID,
    )


def _repeated(around: Surroundings) -> Optional[Dict[str, Any]]:
    if not around.repeated:
        return None
    counted = Counter(around.repeated)
    return flag(
        "repeated_prompts",
        f"{len(around.repeated)} requests repeat a prompt that was sent before "
        f"({', '.join(sorted(counted)[:5])}): caches and n-gram drafters have seen it",
        True,
    )


def _foreign(evidence: Evidence, around: Surroundings) -> List[Dict[str, Any]]:
    """A busy machine is noise, which repeated references and intervals are there for; other requests on the server
    change the batch size, so that the figures are of another workload."""
    out = []
    if around.foreign is not None and around.foreign > FOREIGN:
        out.append(
            flag(
                "foreign_load",
                f"{around.foreign:.0%} of the machine's CPU time went to other processes than the "
                "server and the client",
            )
        )
    more = [row for row in evidence.rows if "first" not in row["why"] and (row["running"] or 0) > evidence.concurrency]
    if more:
        share = len(more) / len(evidence.rows)
        out.append(
            flag(
                "foreign_load",
                f"{len(more)} of {len(evidence.rows)} decode lines show more running requests than "
                f"the {evidence.concurrency} of this client: somebody else uses the server",
                share > QUEUED,
            )
        )
    return out


def _accept_one(evidence: Evidence) -> Optional[Dict[str, Any]]:
    accept = evidence.figures.accept_decode
    if not evidence.speculative or accept is None or accept >= 1.05:
        return None
    return flag(
        "accept_length_one",
        f"{accept:.3f} tokens a cycle without the prefill's: nothing that the draft proposes is "
        "accepted, as when it does not belong to the model or to the algorithm",
    )


def _queueing(evidence: Evidence) -> Optional[Dict[str, Any]]:
    queued = [row["queue"] for row in evidence.rows if row["queue"]]
    if not queued:
        return None
    share = len(queued) / len(evidence.rows)
    return flag(
        "queueing",
        f"{len(queued)} of {len(evidence.rows)} decode lines have waiting requests (up to {max(queued)}): "
        "fewer run at a time than the workload's concurrency",
        share > QUEUED,
    )


def _retracted(evidence: Evidence, around: Surroundings) -> Optional[Dict[str, Any]]:
    counted = sum(s.meta.get("num_retractions") or 0 for s in evidence.samples)
    if not counted and not around.retractions:
        return None
    return flag(
        "retracted",
        f"{max(counted, around.retractions)} retractions: the KV cache was full and requests were computed again",
        True,
    )


def _errors(evidence: Evidence) -> Optional[Dict[str, Any]]:
    failed = [s for s in evidence.samples if s.error]
    if not failed:
        return None
    counted = Counter(str(s.error) for s in failed)
    kinds = ", ".join(f"{number} {kind}" for kind, number in counted.most_common())
    return flag(
        "errors", f"{len(failed)} of {len(evidence.samples)} requests failed: {kinds}; {failed[0].detail}", True
    )


def _few(evidence: Evidence) -> Optional[Dict[str, Any]]:
    good = evidence.figures.metrics["requests"]
    if good >= LEAST_REQUESTS:
        return None
    return flag("few_samples", f"{good} requests, {LEAST_REQUESTS} are the least")


def _unstable(evidence: Evidence) -> Optional[Dict[str, Any]]:
    varied = fig.variation(evidence.figures.steps_ms)
    if varied is None or varied <= UNSTABLE:
        return None
    steps = evidence.figures.steps_ms
    return flag(
        "unstable",
        f"the step time varies by {varied:.1%} (CV) over {len(steps)} requests, "
        f"{min(steps):.2f} to {max(steps):.2f} ms",
    )


def _past_eos(evidence: Evidence, around: Surroundings) -> Optional[Dict[str, Any]]:
    past = before = 0
    chunks_before, tokens_before = 0, 0
    for sample, end in zip(evidence.samples, around.eos):
        if sample.error is not None or not sample.counts:
            continue
        total = sample.counts[-1]
        past += total - end if end is not None else 0
        before += end if end is not None else total
        upto = total if end is None else end
        reached = [count for count in sample.counts if count <= upto]
        if len(reached) > 1:
            chunks_before, tokens_before = chunks_before + len(reached) - 1, tokens_before + reached[-1] - reached[0]
    if not past:
        return None
    detail = f"{past} of {past + before} tokens lie past the end of a text ({past / (past + before):.0%})"
    if evidence.speculative and chunks_before:
        detail += f"; up to it a chunk brought {tokens_before / chunks_before:.2f} tokens"
    return flag("past_eos", detail)


def _contradiction(around: Surroundings) -> Optional[Dict[str, Any]]:
    differ = [check for check in around.checks if check["result"] == "differ"]
    if not differ:
        return None
    parts = [
        f"{c['name']}: {c['ours']:.4g} by the client, {c['theirs']:.4g} by {c['source']} ({c['difference']:+.1%})"
        for c in differ
    ]
    return flag("contradiction", "; ".join(parts), any(abs(c["difference"]) > CONTRADICTION_INVALID for c in differ))


def _simulated(evidence: Evidence, around: Surroundings) -> Optional[Dict[str, Any]]:
    for name, value in around.environment.items():
        if name in ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN") and evidence.speculative and _positive(value):
            return flag(
                "simulated_acceptance", f"{name}={value}: the accept length is imposed and the text is garbage", True
            )
    return None


def _positive(value: str) -> bool:
    try:
        return float(value) > 0
    except ValueError:
        return False
