"""Start the server: resolve, spawn the ranks, wait for the load, serve, and end as SGLang ends."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from importlib import metadata
from multiprocessing.connection import Connection, wait
from typing import Any, Dict, List, Optional

from sglang.simulation.clock import CLOCK_VARIABLE, Clock
from sglang.simulation.model import Speculation, StepModel, edited_files
from sglang.simulation.physics import PhysicsError, load
from sglang.srt.managers.tp_worker import run_detokenizer_process, run_scheduler_process
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.logs import log
from sglang.version import __version__

DEFAULT_NCCL = "2.30.7"
# Shares of the load by phase; the rest is the HTTP server and its warm-up.
SHARES = {"distributed": 0.06, "weights": 0.70, "pool": 0.02, "capture": 0.17, "warmup": 0.05}


def nccl_of_build() -> str:
    """The NCCL that the build says it has."""
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return DEFAULT_NCCL


class Boot:
    """One start of the server: what was drawn for it, its processes, and how it dies."""

    def __init__(self, args: ServerArgs, physics: Dict[str, Any], clock: Clock) -> None:
        self.args, self.physics, self.clock = args, physics, clock
        self.began = time.monotonic()
        self.number = clock.boot()
        self.scale = float(physics["time_scale"])
        self.names: List[str] = []
        self.processes: List[Any] = []
        self.pipes: List[Connection] = []
        self.reports: List[Dict[str, Any]] = []
        dice = random.Random(f"{physics['seed']}/{physics['host']}/load {self.number}")
        spread = physics["load_s"]["sd"]
        seconds = max(0.0, dice.gauss(physics["load_s"]["mean"], spread) if spread else physics["load_s"]["mean"])
        self.seconds = {phase: share * seconds for phase, share in SHARES.items()}
        for phase in ("load", "warmup"):
            slow = self.fault(phase, "slow")
            if slow:
                for name in ("warmup",) if phase == "warmup" else ("distributed", "weights", "pool", "capture"):
                    self.seconds[name] *= slow["factor"]

    def fault(self, when: str, what: str = "") -> Optional[Dict[str, Any]]:
        """The fault of this boot in that phase, if there is one."""
        for fault in self.physics["faults"]:
            due = self.number == fault["boot"] if "boot" in fault else self.number % fault["every"] == 0
            if due and fault["when"] == when and what in ("", fault["do"]):
                return dict(fault)
        return None

    @property
    def speculation(self) -> Optional[Speculation]:
        """What the server speculates with."""
        args = self.args
        if not args.speculative_algorithm:
            return None
        return Speculation(
            args.speculative_algorithm, args.speculative_num_steps or 0, args.speculative_num_draft_tokens
        )

    def check(self) -> None:
        """Refuse what the physics does not declare. Raises ValueError."""
        speculation = self.speculation
        if speculation is None:
            return
        if speculation.steps == 0 and self.physics["ngram"] is None:
            raise ValueError("ngram: the physics file declares no NGRAM speculation")
        if speculation.steps and str(speculation.steps) not in self.physics["steps"]:
            known = ", ".join(sorted(self.physics["steps"], key=int)) or "none"
            raise ValueError(
                f"steps: the physics file declares nothing for {speculation.steps} steps; allowed: {known}"
            )

    def simulated_accept_length(self) -> Optional[float]:
        """What SGLANG_SIMULATE_ACC_LEN imposes, clamped as SGLang does."""
        asked = float(os.environ.get("SGLANG_SIMULATE_ACC_LEN") or -1)
        speculation = self.speculation
        if asked <= 0 or speculation is None:
            return None
        return min(max(1.0, asked), float((speculation.steps or speculation.draft_tokens - 1) + 1))

    def accept_length(self) -> Optional[float]:
        """What replaces the physics' accept length: imposed acceptance, or a draft that does not fit; else None.

        A draft does not fit if the physics says so, if its config.json says so, or if an EAGLE-3 draft is run as EAGLE:
        SGLang takes it without a word, and accepts nothing.
        """
        imposed = self.simulated_accept_length()
        if imposed is not None:
            return imposed
        config = self.args.draft_config
        declared = config.get("plumbline_simulator", {}).get("accept_length")
        foreign = self.args.speculative_algorithm == "EAGLE" and "Eagle3" in "".join(config.get("architectures", []))
        if self.speculation is not None and self.speculation.steps and (self.physics["draft_mismatch"] or foreign):
            return 1.0
        return float(declared) if declared is not None else None

    # ------------------------------------------------------------------ processes
    def spawn(self) -> None:
        """Start the ranks and the detokenizer with multiprocessing's spawn, as SGLang does."""
        context = multiprocessing.get_context("spawn")
        ranks = self.physics["ranks"]
        for rank in range(ranks):
            here, there = context.Pipe()
            process = context.Process(target=run_scheduler_process, args=(there, self._plan(rank)), daemon=True)
            process.start()
            there.close()
            self.names.append(f"scheduler_{rank}")
            self.processes.append(process)
            self.pipes.append(here)
        here, there = context.Pipe()
        process = context.Process(target=run_detokenizer_process, args=(there, os.getpid()), daemon=True)
        process.start()
        there.close()
        self.names.append("detokenizer")
        self.processes.append(process)
        self.pipes.append(here)

    def _plan(self, rank: int) -> Dict[str, Any]:
        args, ranks, at = self.args, self.physics["ranks"], self.began
        deadlines = {}
        for phase in ("distributed", "weights", "pool", "capture"):
            at += self.seconds[phase] / self.scale
            deadlines[phase] = at
        fault = self.fault("load")
        captures: List[str] = []
        lines: Dict[str, List[str]] = {"weights": []}
        if args.graph_batch:
            captures = ["decode"]
        if self.speculation is not None:
            entry = (
                self.physics["ngram"]
                if self.speculation.steps == 0
                else self.physics["steps"][str(self.speculation.steps)]
            )
            if args.graph_batch:
                captures = ["target verify"] * bool(entry["cuda_graph"]) + ["draft decode"] * bool(
                    self.speculation.steps
                )
            if self.speculation.steps:
                kind = (args.draft_config.get("architectures") or ["LlamaForCausalLMEagle3"])[0]
                lines["weights"] = [
                    "Load weight begin. avail mem=22.97 GB",
                    f"Load weight end. elapsed=0.10 s, type={kind}, avail mem=22.46 GB, mem usage=0.51 GB.",
                ]
        return {
            "rank": rank,
            "ranks": ranks,
            "tag": f"TP{rank}" if ranks > 1 else "",
            "parent": os.getpid(),
            "nccl_version": self.physics["nccl_version"] or nccl_of_build(),
            "profile": self.physics["profile"],
            "without_profile": rank in self.physics["rank_without_profile"],
            "deadlines": deadlines,
            "seconds": self.seconds,
            "fault": fault if fault and fault["rank"] == rank else None,
            "lines": lines,
            "captures": captures,
            "graph_batches": args.cuda_graph_config["decode"]["bs"],
            "custom_all_reduce_off": args.disable_custom_all_reduce,
            "tokens": args.max_total_num_tokens,
            "model_type": (args.model_config.get("architectures") or ["LlamaForCausalLM"])[0],
            "chunk": args.chunked_prefill_size,
            "max_running": args.max_running_requests,
            "context": args.context_length,
        }

    def wait_for_ranks(self) -> None:
        """Return when every rank has loaded. Ends the process if one dies; waits as long as one hangs."""
        pending = dict(zip(self.pipes[:-1], range(len(self.pipes) - 1)))
        ended = {process.sentinel: place for place, process in enumerate(self.processes)}
        told = time.monotonic()
        while pending:
            for ready in wait([*pending, *ended], timeout=1.0):
                if ready in ended:
                    self._died_at_load(ended[ready])
                elif ready in pending:
                    try:
                        self.reports.append(ready.recv())
                    except EOFError:
                        self._died_at_load(pending[ready])
                    del pending[ready]
            # Time that passes in a load that hangs or is slow counts as the load's: the clock follows it.
            planned = self.began + (sum(self.seconds.values()) - self.seconds["warmup"]) / self.scale
            if pending and time.monotonic() > max(planned, told) + 1.0:
                since = max(planned, told)
                told = time.monotonic()
                self.clock.advance((told - since) * self.scale)
        self.clock.advance(sum(self.seconds.values()) - self.seconds["warmup"])

    def _died_at_load(self, place: int) -> None:
        process = self.processes[place]
        process.join(timeout=10)
        log("Initialization failed. Please see the error messages above.")
        self.kill_children()
        raise RuntimeError(
            f"Rank {place} scheduler died during initialization (exit code: {process.exitcode}). "
            "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
        )

    def kill_children(self) -> None:
        """SIGKILL every process of this boot, and see it gone."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(timeout=2)

    def kill_tree(self) -> None:
        """End as SGLang ends after a failure: everything by SIGKILL, itself last."""
        log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
        self.kill_children()
        os.kill(os.getpid(), signal.SIGKILL)

    @property
    def tuned(self) -> bool:
        """Whether every rank had the whole profile when its communicator was made."""
        return all(report["tuned"] for report in self.reports)

    def step_model(self) -> StepModel:
        """The step times of this boot."""
        return StepModel(
            self.physics,
            self.number,
            __version__,
            edited_files(),
            self.tuned,
            self.speculation,
            self.args.graph_batch,
            self.accept_length(),
        )


def set_environment(args: ServerArgs) -> None:
    """What SGLang puts into the environment before it starts its workers."""
    os.environ.setdefault("NCCL_CUMEM_ENABLE", str(int(args.enable_symm_mem)))
    os.environ.setdefault("NCCL_NVLS_ENABLE", str(int(args.enable_nccl_nvls)))
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    if args.enable_deterministic_inference and args.tp_size > 1:
        os.environ["NCCL_ALGO"] = "allreduce:tree"
        os.environ["NCCL_MIN_NCHANNELS"] = os.environ["NCCL_MAX_NCHANNELS"] = os.environ.get(
            "SGLANG_DETERMINISTIC_NCCL_NCHANNELS", "8"
        )
        args.disable_custom_all_reduce = True


def launch(args: ServerArgs) -> None:
    """Run the server until it is told to stop. Does not return."""
    try:
        physics = load()
    except PhysicsError as error:
        log(f"simulator: {error}")
        sys.exit(1)
    asked = args.as_dict()
    args.resolve(physics["ranks"])
    boot = Boot(args, physics, Clock(os.environ.get(CLOCK_VARIABLE)))
    boot.check()
    set_environment(args)
    log(
        "server_args=ServerArgs("
        + ", ".join(f"{key}={value!r}" for key, value in args.as_dict().items() if key in asked)
        + ")"
    )

    def sigquit(signum: int, frame: Any) -> None:
        del signum, frame
        log("Received sigquit from a child process. It usually means the child failed.")
        boot.kill_tree()

    signal.signal(signal.SIGQUIT, sigquit)
    boot.spawn()
    boot.wait_for_ranks()
    from sglang.srt.entrypoints.app import serve

    serve(boot)
