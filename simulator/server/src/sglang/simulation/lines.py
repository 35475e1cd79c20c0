"""Decode and prefill lines as the versions of SGLang write them."""

from __future__ import annotations

from typing import Any, Dict, Optional


def _key(version: str) -> tuple:
    return tuple(int(part) for part in version.split("."))


def decode_line(version: str, v: Dict[str, Any]) -> str:
    """A decode line. ``v``: iteration, running, tokens, usage, accept_length (None without speculation), correct,
    cycles, draft_tokens, graph, throughput, queue."""
    at = _key(version)
    if at < (0, 5, 4):
        head = "Decode batch. "
    elif at == (0, 5, 4):
        head = f"Decode batch [{v['iteration']}], "
    else:
        head = "Decode batch, "
    text = f"{head}#running-req: {v['running']}, #token: {v['tokens']}, token usage: {v['usage']:.2f}, "
    if v["accept_length"] is not None:
        text += f"accept len: {v['accept_length']:.2f}, "
        if at >= (0, 5, 4):
            text += f"accept rate: {accept_rate(version, v):.2f}, "
    if at >= (0, 5, 0):
        text += f"cuda graph: {v['graph']}, "
    text += f"gen throughput (token/s): {v['throughput']:.2f}, #queue-req: {v['queue']}"
    return text + (", " if (0, 5, 0) <= at < (0, 5, 9) else "")


def accept_rate(version: str, v: Dict[str, Any]) -> float:
    """Up to 0.5.10 the bonus token counts as accepted and as proposed; from 0.5.11 it does not."""
    if _key(version) <= (0, 5, 10):
        return (v["correct"] + v["cycles"]) / max(1, v["cycles"] * v["draft_tokens"])
    return v["correct"] / max(1, v["cycles"] * (v["draft_tokens"] - 1))


def prefill_line(version: str, v: Dict[str, Any]) -> str:
    """A prefill line. ``v``: iteration, sequences, tokens, cached, usage, running, queue, throughput, graph."""
    at = _key(version)
    head = (
        "Prefill batch. "
        if at < (0, 5, 4)
        else f"Prefill batch [{v['iteration']}], "
        if at == (0, 5, 4)
        else "Prefill batch, "
    )
    text = (
        f"{head}#new-seq: {v['sequences']}, #new-token: {v['tokens']}, #cached-token: {v['cached']}, "
        f"token usage: {v['usage']:.2f}, #running-req: {v['running']}, #queue-req: {v['queue']}"
    )
    speed, graph = f"input throughput (token/s): {v['throughput']:.2f}", f"cuda graph: {v['graph']}"
    if at < (0, 5, 9):
        return text + (", " if at >= (0, 5, 0) else "")
    if at == (0, 5, 9):
        return f"{text}, {speed}, {graph}"
    pending = "#pending-token: 0, " if at >= (0, 5, 11) else ""
    return f"{text}, {pending}{graph}, {speed}"


def watchdog_line(version: str, timeout: Optional[float]) -> str:
    """What a scheduler says when a forward batch takes longer than the watchdog allows."""
    if _key(version) < (0, 5, 6):
        return f"Watchdog timeout (self.watchdog_timeout={timeout})"
    return f"Scheduler watchdog timeout (self.watchdog_timeout={timeout}, self.soft=False)"
