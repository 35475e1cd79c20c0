"""What each flag means to somebody who reads a report."""
from __future__ import annotations

from typing import Any

SHOWN = 12  # sightings of one flag that a report lists

MEANINGS = {
    "profiled": "the server's profiler ran: the stages of a cycle are true, its speed is not one to compare.",
    "throttled": "the GPU's clock event counters moved during the window: it was held back by heat or power, so the "
                 "figure is of a slower machine. Look at cooling and the power cap, then measure again.",
    "pcie_narrow": "a GPU's PCIe link ran narrower or slower under load than it can. Reseat the card, check the slot.",
    "graph_off": "part of the decode steps ran without a CUDA graph, which costs much more than the kernels do.",
    "cached_tokens": "part of the prompts came from the prefix cache, so TTFT is too good.",
    "repeated_prompts": "the same prompt was sent more than once; caches and n-gram drafters profit from it.",
    "foreign_load": "another process used the machine during the window.",
    "accept_length_one": "speculation accepts next to nothing: the draft does not match. SGLang does not warn.",
    "queueing": "requests waited for a place in the batch, so the concurrency asked for was not reached.",
    "retracted": "the server took requests out of the batch for want of KV memory and ran part of them twice.",
    "errors": "some requests failed.",
    "few_samples": "fewer than eight requests or windows: the figure is uncertain in itself.",
    "unstable": "the requests of the window differ more among themselves than a steady server's do.",
    "output_differs": "the tokens are not the baseline's for the same prompts at temperature 0.",
    "past_eos": "tokens past the natural end of the text are in the figures; they flatter the accept length.",
    "contradiction": "a figure by the client and the same by another source differ, so one of the two is wrong. Which, "
                     "and by how much:",
    "simulated_acceptance": "the engine was told which accept length to have: good for step times, not for a verdict.",
}


def flag_meaning(name: str) -> str:
    """A sentence or two on a flag; its name where there is none."""
    return MEANINGS.get(name, name.replace("_", " "))


def flags_seen(measurements: list[dict]) -> dict[str, list[dict[str, Any]]]:
    """Each flag's sightings by its name: ``{invalidates, says}``, where it was seen and what was found there."""
    seen: dict[str, list[dict[str, Any]]] = {}
    for m in measurements:
        for f in m["flags"]:
            says = f"{m['host']}, {m['arm']}, {m['workload']}: {f['detail']}"
            seen.setdefault(f["name"], []).append({"invalidates": f["invalidates"], "says": says})
    return dict(sorted(seen.items()))
