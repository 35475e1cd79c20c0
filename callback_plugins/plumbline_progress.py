"""Shows a person what a run is doing and how long it will still take."""
from __future__ import annotations

import time
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: plumbline_progress
type: aggregate
short_description: what a Plumbline run is doing, and for how long still
description:
  - One line for each boot, each measurement and each long step, with an estimate of the time that is left.
  - It adds to the stdout callback and replaces nothing.
requirements:
  - enabled in ansible.cfg (callbacks_enabled)
"""

# Steps that can take more than a few seconds: said when they begin, since nothing else is shown meanwhile.
SLOW = {
    "plumbline_build": "sees to the SGLang environment (its first build takes minutes)",
    "plumbline_models": "places the models",
    "plumbline_nccl_sweep": "sweeps NCCL profiles",
}


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def describe(action: str, result: dict) -> str | None:
    """The line for a finished task, or None if it has nothing to say."""
    if action == "plumbline_next":
        return _next(result)
    if action == "plumbline_ready" and result.get("ready"):
        return f"  ready after {result['start_s']:.1f} s"
    if action == "plumbline_ready" and result.get("failure"):
        return f"  not ready: {result['failure']['class']}: {result['failure'].get('detail', '')}"
    if action == "plumbline_throughput" and result.get("measurement"):
        return _measurement(result["measurement"])
    if action == "plumbline_plan" and result.get("show"):
        return "\n".join(result["text"])
    if action == "plumbline_verdict" and "table" in result:
        return "\n\n".join(["verdict", result["table"], f"report: {result['report']}"]) + "\n"
    return None


def _next(result: dict) -> str | None:
    progress = result.get("progress") or {}
    boot = result.get("boot")
    if boot:
        left = progress.get("left_s")
        rest = f", about {duration(left)} left" if left else ""
        warm = ", with a warm-up load" if boot.get("warm_up") else ""
        number, planned = progress.get("boots_done", 0) + 1, progress.get("boots_planned", "?")
        return f"boot {number} of {planned}: {boot['arm']['name']} (block {boot['block']}{warm}){rest}"
    return f"done: {result['stop']}" if result.get("stop") else None


def _measurement(m: dict) -> str:
    workload = m["workload"]["name"] if isinstance(m["workload"], dict) else m["workload"]
    if m["status"] != "ok":
        return f"  {workload}: failed: {m['failure']['class']}: {m['failure'].get('detail', '')}"
    metrics = m["metrics"]
    # What is compared: the decode rate of a single stream, what all streams get where there are more.
    alone = m.get("conditions", {}).get("concurrency", 1) == 1
    parts = [f"{metrics['decode_tok_s' if alone else 'output_tok_s'] or 0:.1f} tok/s"]
    if metrics.get("accept_length") and metrics["accept_length"] != 1:
        parts.append(f"accept length {metrics['accept_length']:.2f}")
    if metrics.get("step_ms"):
        parts.append(f"step {metrics['step_ms']:.2f} ms")
    flags = [f["name"] for f in m.get("flags", []) if f.get("invalidates")]
    if flags:
        parts.append(f"not used: {', '.join(flags)}")
    return f"  {workload}: {', '.join(parts)}"


class CallbackModule(CallbackBase):
    """Prints the lines; everything that is worth a test is in the functions above."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "plumbline_progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._said: set[tuple[str, str]] = set()

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        name = _short(task.action)
        if name in SLOW and (host.get_name(), task._uuid) not in self._said:
            self._said.add((host.get_name(), task._uuid))
            self._say(host.get_name(), SLOW[name])

    def v2_runner_on_ok(self, result: Any) -> None:
        self._finished(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._finished(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._finished(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._finished(result)

    def _finished(self, result: Any) -> None:
        task = getattr(result, "task", None) or result._task
        host = getattr(result, "host", None) or result._host
        data = getattr(result, "result", None) or result._result
        if "results" in data:  # the items of a loop were said one by one
            return
        line = describe(_short(task.action), data)
        if line:
            self._say(host.get_name(), line)

    def _say(self, host: str, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._display.display(f"[{minutes:02d}:{seconds:02d}] {host}: {text}")


def _short(action: str) -> str:
    return action.rsplit(".", 1)[-1]
