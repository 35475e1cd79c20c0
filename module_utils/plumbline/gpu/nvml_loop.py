"""Samples of all GPUs from NVML as JSON lines, until standard input ends. Runs alone, with a Python that has pynvml
(nvidia-ml-py).

    python nvml_loop.py INTERVAL_S

First line: ``{"nvml": driver version, "gpus": n}`` or ``{"error": text}`` (then it ends). Then one line a GPU and
interval: ``{"index", "sm_mhz", "mem_mhz", "power_w", "temperature_c", "util", "memory_mib", "gen", "gen_max",
"width", "width_max", "reasons": bits, "pids": {pid: MiB}}``; what this GPU or driver does not give is null.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any, Callable, Dict


def main(interval_s: float) -> int:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        version = nvml.nvmlSystemGetDriverVersion()
    except Exception as error:
        emit({"error": f"{type(error).__name__}: {error}"})
        return 1
    emit({"nvml": version.decode() if isinstance(version, bytes) else version, "gpus": count})
    due = time.monotonic()
    while True:
        for index, handle in enumerate(handles):
            emit(sample(nvml, index, handle))
        due = max(due + interval_s, time.monotonic())
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))
        if ready and not sys.stdin.read(1):
            return 0


def emit(value: Dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def sample(nvml: Any, index: int, handle: Any) -> Dict[str, Any]:
    def ask(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception:  # not supported by this GPU or driver
            return None

    reasons = (
        getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
    power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    running = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return {
        "index": index,
        "sm_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "mem_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "power_w": None if power is None else power / 1000.0,
        "temperature_c": ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "util": ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "memory_mib": None if memory is None else memory // (1 << 20),
        "gen": ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "gen_max": ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "width": ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "width_max": ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "reasons": ask(lambda: reasons(handle)),
        "pids": None if running is None else {str(p.pid): (p.usedGpuMemory or 0) // (1 << 20) for p in running},
    }


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.5))
