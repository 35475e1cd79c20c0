"""One rank: a spawned process that makes its communicator, loads, and dies with the server."""

from __future__ import annotations

import os
import signal
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Dict

from sglang.srt.distributed.device_communicators.pynccl import Communicator, in_force, read_environment
from sglang.srt.utils.logs import log, raw
from sglang.srt.utils.processes import die_with_parent, set_title

TOTAL_GB, WEIGHTS_GB, CACHE_GB = 94.29, 71.32, 12.46
GARBAGE_LINE = (
    "[2026-01-01 10:00:00 TP0] Decode batch, #running-req: , #token: nan, token usage: 1e999, "
    "gen throughput (token/s): "
)
OOM = """Capture cuda graph failed: CUDA out of memory. Tried to allocate 512.00 MiB. \
GPU {rank} has a total capacity of 95.00 GiB of which 200.00 MiB is free.
Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs to a smaller value (e.g., 16)
"""


def run_scheduler_process(pipe: Connection, plan: Dict[str, Any]) -> None:
    """Load as ``plan`` says, report through ``pipe``, then wait for orders or for the server's end.

    ``plan``: rank, ranks, tag, parent, nccl_version, profile, without_profile, deadlines (monotonic seconds by phase),
    fault (what goes wrong here while loading, or None), lines (extra progress lines by phase), what the lines say.
    """
    set_title(f"sglang::scheduler{'_TP' + str(plan['rank']) if plan['ranks'] > 1 else ''}")
    die_with_parent(plan["parent"])
    try:
        pipe.send({"status": "ready", **_load(plan)})
    except Exception:
        log(f"Scheduler hit an exception: {traceback.format_exc()}", plan["tag"])
        os.kill(plan["parent"], signal.SIGQUIT)
        time.sleep(3600)
    _serve(pipe, plan)


def run_detokenizer_process(pipe: Connection, parent: int) -> None:
    """The detokenizer: it only has to be there."""
    set_title("sglang::detokenizer")
    die_with_parent(parent)
    _serve(pipe, {"tag": "", "rank": 0})


def _wait(until: float) -> None:
    left = until - time.monotonic()
    if left > 0:
        time.sleep(left)


def _load(plan: Dict[str, Any]) -> Dict[str, Any]:
    tag, rank, at, lines = plan["tag"], plan["rank"], plan["deadlines"], plan["lines"]
    began = time.monotonic()
    log("Init torch distributed begin.", tag)
    environment = read_environment()
    if plan["without_profile"]:
        for name in plan["profile"]:
            os.environ.pop(name, None)
            environment.pop(name, None)
    if rank == 0 and plan["ranks"] > 1:
        log(f"sglang is using nccl=={plan['nccl_version']}", tag)
    if plan["ranks"] > 1:
        Communicator(rank, plan["ranks"], plan["nccl_version"], environment)
        if plan["ranks"] > 2 and not plan["custom_all_reduce_off"]:
            log(
                "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
                "To silence this warning, specify disable_custom_all_reduce=True explicitly.",
                tag,
            )
    _wait(at["distributed"])
    log(f"Init torch distributed ends. elapsed={time.monotonic() - began:.2f} s, mem usage=1.05 GB", tag)
    log(f"Load weight begin. avail mem={TOTAL_GB:.2f} GB", tag)
    _fail_while_loading(plan)
    _wait(at["weights"])
    left = TOTAL_GB - WEIGHTS_GB
    log(
        f"Load weight end. elapsed={plan['seconds']['weights']:.2f} s, type={plan['model_type']}, "
        f"avail mem={left:.2f} GB, mem usage={WEIGHTS_GB:.2f} GB.",
        tag,
    )
    for line in lines.get("weights", []):
        log(line, tag)
    _wait(at["pool"])
    log(
        f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {plan['tokens']}, K size: 6.23 GB, V size: 6.23 GB",
        tag,
    )
    log(f"Memory pool end. avail mem={left - CACHE_GB:.2f} GB", tag)
    _capture(plan, left - CACHE_GB)
    if rank == 0:
        log(
            f"max_total_num_tokens={plan['tokens']}, chunked_prefill_size={plan['chunk']}, max_prefill_tokens=16384, "
            f"max_running_requests={plan['max_running']}, context_len={plan['context']}, "
            f"available_gpu_mem={left - CACHE_GB - 0.5:.2f} GB",
            tag,
        )
    return {"tuned": in_force(environment, plan["profile"]), "pid": os.getpid()}


def _capture(plan: Dict[str, Any], left: float) -> None:
    tag, fault = plan["tag"], plan["fault"]
    if fault and fault["do"] == "oom":
        raise Exception(OOM.format(rank=plan["rank"]))
    for name in plan["captures"]:
        log(f"Capture {name} CUDA graph begin. backend=full, bs={plan['graph_batches']}, avail mem={left:.2f} GB", tag)
    if not plan["captures"]:
        log(
            "Disable decode CUDA graph because cuda_graph_config resolved decode.backend='disabled' "
            "(e.g. via --cuda-graph-backend-decode=disabled or auto-disable rules).",
            tag,
        )
    _wait(plan["deadlines"]["capture"])
    for name in plan["captures"]:
        log(
            f"Capture {name} CUDA graph end. elapsed={plan['seconds']['capture']:.2f} s, mem usage=0.50 GB, "
            f"avail mem={left - 0.5:.2f} GB.",
            tag,
        )


def _fail_while_loading(plan: Dict[str, Any]) -> None:
    fault = plan["fault"]
    if not fault:
        return
    if fault["do"] == "hang":
        # A rank that waits in a collective that never completes: no line, no exit.
        while True:
            time.sleep(3600)
    if fault["do"] == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault["do"] == "garbage":
        raw("\x00\udcff\udcfe\x1b[31m\x07" + "\udcf8" * 40)
        raw(GARBAGE_LINE)


def _serve(pipe: Connection, plan: Dict[str, Any]) -> None:
    """Answer pings; fail when told to; end when the server closes the pipe."""
    while True:
        try:
            order = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        if order == "ping":
            pipe.send("pong")
        elif order == "shutdown":
            os._exit(0)
        elif order == "crash":
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGABRT)
        elif order == "oom":
            try:
                raise MemoryError(
                    f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU {plan['rank']} has a total capacity of "
                    "95.00 GiB of which 200.00 MiB is free."
                )
            except MemoryError:
                text = traceback.format_exc().replace("MemoryError:", "torch.OutOfMemoryError:")
                log(f"Scheduler hit an exception: {text}", plan["tag"])
                os.kill(plan["parent"], signal.SIGQUIT)
