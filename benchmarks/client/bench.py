#!/usr/bin/env python3
"""What a measuring client costs: CPU seconds per million tokens, start-up, peak memory. Prints Markdown.

    bench.py [--engine VENV --model DIR] [--streams 1,16,64] [--repeats 2] [--json FILE]

All clients are processes of their own, measured from outside by their resource usage (wait4), against the same
stand-in server (benchmarks/standin.py), which runs in a process of its own: at zero latency and paced at 10 ms a
step. The start-up is what a run of one request of two tokens costs; it is taken off before the rest is divided by the
tokens. The clients take turns, and the median over the repeats is given with the range.

With an engine's virtual environment, `sglang.bench_serving` and SGLang's Rust client run beside ours in the same turns;
``--model`` is a directory with a tokenizer for them. What cannot run is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
STANDIN = HERE.parent / "standin.py"
TOKENS = 256
MODES = {"zero latency": [], "10 ms a step": ["--step-ms", "10"]}
Arguments = Callable[[str, int, int, int], List[str]]


@dataclass
class Client:
    """One of the clients: its command for (url, streams, requests, tokens), and its environment."""

    name: str
    command: Arguments
    environment: Dict[str, str] = field(default_factory=dict)
    why_not: str = ""


@dataclass
class Use:
    cpu_s: float
    rss_mb: float
    wall_s: float


def run(client: Client, url: str, streams: int, requests: int, tokens: int) -> Use:
    """Run a client and read its use. Raises RuntimeError with its last words if it fails."""
    with tempfile.TemporaryFile() as out:
        began = os.times().elapsed
        child = subprocess.Popen(
            client.command(url, streams, requests, tokens),
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **client.environment},
            cwd=tempfile.gettempdir(),
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = os.times().elapsed - began
        if child.returncode:
            out.seek(0)
            words = out.read().decode(errors="replace").strip().split("\n")[-1]
            raise RuntimeError(f"exit {child.returncode}: {words[:200]}")
    return Use(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, wall)


def clients(engine: Optional[Path], model: Optional[Path]) -> List[Client]:
    found = [
        Client(
            "Plumbline (standard library, one thread)",
            lambda url, streams, requests, tokens: [
                sys.executable,
                str(HERE / "ours.py"),
                url,
                str(streams),
                str(requests),
                str(tokens),
            ],
        )
    ]
    if engine is None or model is None:
        return [
            *found,
            Client("sglang.bench_serving", list_nothing, why_not="no engine given (--engine, --model)"),
            Client("SGLang's Rust client", list_nothing, why_not="no engine given (--engine, --model)"),
        ]
    python = str(engine / "bin" / "python")
    environment = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(HERE / "stubs"),
        "OMP_NUM_THREADS": "1",
    }

    def command(module: str) -> Arguments:
        def arguments(url: str, streams: int, requests: int, tokens: int) -> List[str]:
            return [
                python,
                "-m",
                module,
                "--backend",
                "sglang",
                "--base-url",
                url,
                "--dataset-name",
                "random-ids",
                "--model",
                str(model),
                "--tokenizer",
                str(model),
                "--num-prompts",
                str(requests),
                "--random-input-len",
                "16",
                "--random-output-len",
                str(tokens),
                "--random-range-ratio",
                "1.0",
                "--max-concurrency",
                str(streams),
                "--seed",
                "1",
                "--disable-tqdm",
                "--warmup-requests",
                "0",
                "--output-file",
                os.devnull,
            ]

        return arguments

    return [
        *found,
        Client("sglang.bench_serving", command("sglang.bench_serving"), environment),
        Client("SGLang's Rust client", command("sglang.benchmark.rust_client"), environment),
    ]


def list_nothing(url: str, streams: int, requests: int, tokens: int) -> List[str]:
    raise NotImplementedError(f"{url} {streams} {requests} {tokens}")


class Server:
    """A stand-in in a process of its own."""

    def __init__(self, arguments: List[str], model: Optional[Path]) -> None:
        extra = ["--model", str(model)] if model else []
        self.process = subprocess.Popen(
            [sys.executable, str(STANDIN), *arguments, *extra], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().split()[2]}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def requests_for(mode: str, streams: int) -> int:
    """Enough for a steady figure, and not longer than some seconds: paced, a request takes 2.6 s."""
    return {1: 128, 16: 512, 64: 1024}.get(streams, 16 * streams) if mode == "zero latency" else 3 * streams


def measure(options: argparse.Namespace) -> Tuple[List[Client], Dict[str, Dict[str, List[float]]]]:
    """{client: {"start", "rss/N", "MODE/N": [a figure a repeat]}}; a client that fails is left out from then on."""
    every = clients(options.engine, options.model)
    found: Dict[str, Dict[str, List[float]]] = {c.name: {} for c in every}
    streams = [int(n) for n in options.streams.split(",")]
    servers = {mode: Server(arguments, options.model) for mode, arguments in MODES.items()}
    try:
        for turn in range(options.repeats):
            for client in every:
                if client.why_not:
                    continue
                try:
                    _measure_one(client, servers, streams, found[client.name])
                except RuntimeError as error:
                    client.why_not = str(error)
                if options.json:  # after each, so that a benchmark that is cut short leaves what it had
                    missing = {c.name: c.why_not for c in every if c.why_not}
                    options.json.write_text(json.dumps({"clients": found, "not_run": missing}, indent=1))
                print(
                    f"turn {turn + 1} of {options.repeats}: {client.name} {client.why_not}", file=sys.stderr, flush=True
                )
    finally:
        for server in servers.values():
            server.stop()
    return every, found


def _measure_one(client: Client, servers: Dict[str, Server], streams: List[int], into: Dict[str, List[float]]) -> None:
    start = run(client, servers["zero latency"].url, 1, 1, 4)
    into.setdefault("start", []).append(start.cpu_s)
    for mode, server in servers.items():
        for number in streams:
            requests = requests_for(mode, number)
            used = run(client, server.url, number, requests, TOKENS)
            tokens = requests * TOKENS
            into.setdefault(f"{mode}/{number}", []).append(max(0.0, used.cpu_s - start.cpu_s) / tokens * 1e6)
            into.setdefault(f"rss/{number}", []).append(used.rss_mb)


def table(every: List[Client], found: Dict[str, Dict[str, List[float]]], streams: List[int]) -> str:
    columns = [f"{mode}, {n}" for mode in MODES for n in streams]
    lines = [
        "| client | " + " | ".join(columns) + " | start-up CPU s | peak RSS MB |",
        "|---|" + "---|" * (len(columns) + 2),
    ]
    for client in every:
        figures = found[client.name]
        if client.why_not and not figures:
            lines.append(
                f"| {client.name} | " + " | ".join(["-"] * (len(columns) + 1)) + f" | not run: {client.why_not} |"
            )
            continue
        cells = [spread(figures.get(f"{mode}/{n}", [])) for mode in MODES for n in streams]
        memory = max((max(figures[key]) for key in figures if key.startswith("rss/")), default=0.0)
        lines.append(f"| {client.name} | " + " | ".join(cells) + f" | {spread(figures['start'], 2)} | {memory:.0f} |")
    return "\n".join(lines)


def spread(values: List[float], digits: int = 1) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def verdict(every: List[Client], found: Dict[str, Dict[str, List[float]]], streams: List[int]) -> List[str]:
    """How ours stands against the aims, where there is something to compare with."""
    ours, lines = found[every[0].name], []
    for other in every[1:]:
        theirs = found[other.name]
        ratios = {
            key: statistics.median(ours[key]) / statistics.median(theirs[key])
            for key in (f"{mode}/{n}" for mode in MODES for n in streams)
            if theirs.get(key) and ours.get(key)
        }
        if ratios:
            worst = max(ratios, key=lambda key: ratios[key])
            lines.append(
                f"- against {other.name}: {min(ratios.values()):.2f} to {ratios[worst]:.2f} of its CPU time "
                f"(the most at {worst.replace('/', ', ')} streams)"
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engine", type=Path, help="virtual environment with SGLang, for the peers")
    parser.add_argument("--model", type=Path, help="a directory with a tokenizer, for the peers")
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ended from outside, it ends its servers too
    streams = [int(n) for n in options.streams.split(",")]
    # The stand-in and 64 streams need more open files than some shells allow.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    load = os.getloadavg()[0]
    every, found = measure(options)
    print(
        f"CPU seconds per million tokens at 1, 16, ... streams, {TOKENS} tokens a request, median (range) of "
        f"{options.repeats}; load average before {load:.1f}, {os.cpu_count()} CPUs.\n"
    )
    print(table(every, found, streams))
    for line in ["", *verdict(every, found, streams)]:
        print(line)
    for client in every:
        if client.why_not and found[client.name]:
            print(f"- {client.name} stopped: {client.why_not}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
