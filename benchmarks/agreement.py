#!/usr/bin/env python3
"""Does the module measure what others measure? Against `sglang.bench_serving` and the server's own lines. Prints
Markdown.

    agreement.py --engine VENV --target DIR [--draft DIR] [--prompts FILE] [--streams 1,16] [--tokens 256] [--rounds
    3] [--json FILE]

One boot of the real CPU engine for each arm (the baseline; with ``--draft`` also EAGLE-3 with 3 steps). On it the
module and bench_serving take turns with the same prompts, the same output length and the same number of streams. From
the requests of each, both definitions are computed: bench_serving's (all tokens / the whole duration; mean time per
output token) and ours (docs/measuring.md), so that like is compared with like. Beside them stand the server's own
decode lines of each client's own window, so that a difference between two windows (another process on the machine) is
not taken for one between two clients."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "module_utils"))

from plumbline.ids import ulid
from plumbline.measure import checks, measurement
from plumbline.server.supervisor import machine_id, process_start
from plumbline.sglang import loglines

ATTENTION = [
    "--attention-backend",
    "torch_native",
    "--prefill-attention-backend",
    "intel_amx",
    "--decode-attention-backend",
    "intel_amx",
]
SPECULATION = [
    "--speculative-algorithm",
    "EAGLE3",
    "--speculative-num-steps",
    "3",
    "--speculative-eagle-topk",
    "1",
    "--speculative-num-draft-tokens",
    "4",
]
Figures = Dict[str, Optional[float]]
NAMES = {
    "output_tok_s": "tokens / whole duration, tok/s",
    "tpot_ms": "mean time per output token, ms",
    "ttft_ms": "mean TTFT, ms",
    "decode_tok_s": "speed of one stream (ours), tok/s",
    "itl_ms": "mean inter-token latency, ms",
    "accept_length": "accept length without the prefill's token",
}


class Server:
    """A CPU engine with its log, as a boot of a Plumbline root."""

    def __init__(self, root: Path, engine: Path, target: Path, draft: Optional[Path]) -> None:
        self.boot = ulid()
        folder = root / "boots" / self.boot
        folder.mkdir(parents=True)
        self.log = folder / "server.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        argv = [
            str(engine / "bin/python"),
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(target),
            "--served-model-name",
            "tiny",
            "--device",
            "cpu",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            *ATTENTION,
            "--dtype",
            "float32",
            "--max-total-tokens",
            "65536",
            "--max-running-requests",
            "16",
            "--sleep-on-idle",
            "--enable-metrics",
            "--decode-log-interval",
            "5",
        ]
        if draft:
            argv += [*SPECULATION, "--speculative-draft-model-path", str(draft)]
        environment = {
            **os.environ,
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment, start_new_session=True)
        start = process_start(self.process.pid)
        (folder / "pid.json").write_text(
            json.dumps(
                {
                    "supervisor": os.getpid(),
                    "supervisor_start": process_start(os.getpid()),
                    "server": self.process.pid,
                    "server_start": start,
                    "pgid": self.process.pid,
                    "machine": machine_id(),
                }
            )
        )
        (folder / "spec.json").write_text(json.dumps({"argv": argv, "environment": {}}))

    def ready(self, patience_s: float = 900) -> None:
        until = time.monotonic() + patience_s
        while "ready to roll" not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server did not start: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def module(
    root: Path, server: Server, prompts: Path, streams: int, requests: int, tokens: int
) -> Tuple[Figures, Figures]:
    """(figures, the server's lines of that window) of one measurement by the module's core."""
    digest = hashlib.sha256(prompts.read_bytes()).hexdigest()
    result = measurement.measure(
        measurement.Task(
            root=root,
            boot=server.boot,
            base_url=server.url,
            id=ulid(),
            prompts=prompts,
            engine="sglang-cpu",
            workload="agreement",
            spec={
                "concurrency": streams,
                "requests": requests,
                "output_tokens": tokens,
                "warmup_requests": 1,
                "prompts": {"sha256": digest, "take": requests + 1},
            },
        )
    )
    if result["status"] != "ok":
        raise SystemExit(f"the measurement failed: {result['failure']}")
    samples, metrics = result["samples"], result["metrics"]
    by_check = {c["name"]: c for c in result["checks"]}
    figures: Figures = {
        "output_tok_s": sum(s["completion_tokens"] for s in samples) / result["duration_s"],
        "tpot_ms": statistics.mean(s["decode_s"] / (s["completion_tokens"] - 1) for s in samples) * 1000,
        "ttft_ms": metrics["ttft_ms"]["mean"],
        "decode_tok_s": metrics["decode_tok_s"],
        "itl_ms": metrics["itl_ms"]["mean"],
        "accept_length": by_check["accept_length"]["ours"] if "accept_length" in by_check else None,
        "step_ms": metrics["step_ms"],
        "steady_tok_s": metrics["output_tok_s"],
    }
    return figures, lines(result["log_window"], streams)


def bench_serving(
    engine: Path, server: Server, target: Path, prompts: Path, streams: int, requests: int, tokens: int
) -> Tuple[Figures, Figures]:
    """The same by bench_serving, ours recomputed from the details of its requests."""
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "prompts.jsonl", Path(folder) / "out.jsonl"
        texts = [json.loads(line)["text"] for line in prompts.read_text().splitlines()][1 : requests + 1]
        data.write_text(
            "".join(json.dumps({"conversations": [{"content": t}, {"content": "."}]}) + "\n" for t in texts)
        )
        offset = server.log.stat().st_size
        command = [
            str(engine / "bin/python"),
            "-m",
            "sglang.bench_serving",
            "--backend",
            "sglang",
            "--base-url",
            server.url,
            "--dataset-name",
            "custom",
            "--dataset-path",
            str(data),
            "--model",
            str(target),
            "--tokenizer",
            str(target),
            "--num-prompts",
            str(requests),
            "--sharegpt-output-len",
            str(tokens),
            "--max-concurrency",
            str(streams),
            "--seed",
            "1",
            "--disable-tqdm",
            "--warmup-requests",
            "1",
            "--flush-cache",
            "--output-details",
            "--output-file",
            str(out),
        ]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HERE / "client" / "stubs"),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)
        if done.returncode or not out.exists():
            raise SystemExit(f"bench_serving failed: {done.stdout[-500:]} {done.stderr[-1500:]}")
        result = json.loads(out.read_text().splitlines()[-1])
        time.sleep(0.3)
        with open(server.log, "rb") as f:
            f.seek(offset)
            window = f.read().decode(errors="replace")
    if result["completed"] != requests:
        raise SystemExit(f"bench_serving completed {result['completed']} of {requests}")
    itls = result["itls"]
    # Its list of latencies has one for each token after the first chunk, and their sum is the time after it.
    figures: Figures = {
        "output_tok_s": result["output_throughput"],
        "tpot_ms": result["mean_tpot_ms"],
        "ttft_ms": result["mean_ttft_ms"],
        "decode_tok_s": sum(map(len, itls)) / sum(map(sum, itls)),
        "itl_ms": sum(map(sum, itls)) / sum(map(len, itls)) * 1000,
        "accept_length": result.get("accept_length"),
        "step_ms": None,
        "steady_tok_s": None,
    }
    return figures, lines(window, streams)


def lines(window: str, streams: int) -> Figures:
    """What the server's decode lines say of a window: step time and accept length where nothing but decoding ran."""
    rows = loglines.rows_of(loglines.read(window))
    full = [row for row in loglines.clean_rows(rows) if row["running"] == streams and row["gen_throughput"]]
    step = checks.line_step_ms(full)
    accept = checks.line_accept(full) or 1.0
    return {
        "intervals": float(len(full)),
        "step_ms": step,
        "accept_length": accept,
        "decode_tok_s": accept / step * 1000 if step else None,
    }


def compare(
    options: argparse.Namespace, root: Path, name: str, draft: Optional[Path], found: List[Dict[str, Any]]
) -> None:
    """Both clients in turns on one boot; adds {arm, streams, client, round, figures, lines} for each run to
    ``found``."""
    server = Server(root, options.engine, options.target, draft)
    try:
        server.ready()
        for streams in [int(n) for n in options.streams.split(",")]:
            requests = options.requests or max(12, 2 * streams)
            for turn in range(options.rounds):
                pairs = (
                    (
                        "module",
                        lambda s=streams, r=requests: module(root, server, options.prompts, s, r, options.tokens),
                    ),
                    (
                        "bench_serving",
                        lambda s=streams, r=requests: bench_serving(
                            options.engine, server, options.target, options.prompts, s, r, options.tokens
                        ),
                    ),
                )
                for client, run in pairs if turn % 2 == 0 else pairs[::-1]:
                    figures, own = run()
                    found.append(
                        {
                            "arm": name,
                            "streams": streams,
                            "client": client,
                            "round": turn,
                            "figures": figures,
                            "lines": own,
                        }
                    )
                    if options.json:
                        options.json.write_text(json.dumps(found, indent=1))
                    print(
                        f"{name}, {streams} streams, round {turn + 1}: {client} {figures['decode_tok_s']:.2f} tok/s",
                        file=sys.stderr,
                        flush=True,
                    )
    finally:
        server.stop()


def median(found: List[Dict[str, Any]], part: str, key: str) -> Optional[float]:
    values = [run[part][key] for run in found if run[part].get(key) is not None]
    return statistics.median(values) if values else None


def table(found: List[Dict[str, Any]]) -> str:
    out = ["| arm | streams | figure | module | bench_serving | difference |", "|---|---|---|---|---|---|"]
    for arm, streams in sorted({(run["arm"], run["streams"]) for run in found}):
        mine = [run for run in found if (run["arm"], run["streams"], run["client"]) == (arm, streams, "module")]
        theirs = [
            run for run in found if (run["arm"], run["streams"], run["client"]) == (arm, streams, "bench_serving")
        ]
        for key, words in NAMES.items():
            a, b = median(mine, "figures", key), median(theirs, "figures", key)
            if a is not None and b:
                out.append(f"| {arm} | {streams} | {words} | {a:.2f} | {b:.2f} | {a / b - 1:+.1%} |")
    out += [
        "",
        "Each client against the server's own decode lines of its own window (clean intervals), median of the rounds:",
        "",
        "| arm | streams | client | speed of one stream | by the lines | difference | intervals |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, streams, client in sorted({(run["arm"], run["streams"], run["client"]) for run in found}):
        runs = [run for run in found if (run["arm"], run["streams"], run["client"]) == (arm, streams, client)]
        pairs = [
            (pure_speed(run, client), run["lines"]["decode_tok_s"]) for run in runs if run["lines"]["decode_tok_s"]
        ]
        if pairs:
            ours, own = statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)
            difference = statistics.median(p[0] / p[1] - 1 for p in pairs)
            intervals = sum(int(run["lines"]["intervals"]) for run in runs)
            out.append(f"| {arm} | {streams} | {client} | {ours:.2f} | {own:.2f} | {difference:+.1%} | {intervals} |")
    return "\n".join(out)


def pure_speed(run: Dict[str, Any], client: str) -> float:
    """Tokens a second of one stream while nothing but decoding runs: the module knows it; of bench_serving's details
    only the whole decode time is known, which at several streams has the prefills of others in it."""
    figures = run["figures"]
    if client == "module" and figures["step_ms"]:
        return (figures["accept_length"] or 1.0) / figures["step_ms"] * 1000
    return float(figures["decode_tok_s"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engine", type=Path, required=True, help="virtual environment of the CPU engine")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="an EAGLE-3 draft: measures a second arm")
    parser.add_argument("--prompts", type=Path, default=HERE.parent / "models" / "prompts" / "tiny.jsonl")
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--requests", type=int, default=0, help="a measurement; default 12, or two for each stream")
    parser.add_argument("--tokens", type=int, default=256, help="a request")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Ended from outside, it ends its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    load = os.getloadavg()[0]
    found: List[Dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            compare(options, Path(folder), "baseline", None, found)
            if options.draft:
                compare(options, Path(folder), "eagle3-3step", options.draft, found)
    finally:
        report(options, found, load)
    return 0


def report(options: argparse.Namespace, found: List[Dict[str, Any]], load: float) -> None:
    """What there is, also if the benchmark was cut short."""
    if not found:
        return
    print(
        f"SGLang on the CPU, {options.tokens} tokens a request, both clients in turns on one boot of each arm, medians "
        f"of {options.rounds} rounds; load average before {load:.1f}, {os.cpu_count()} CPUs.\n"
    )
    print(table(found))


if __name__ == "__main__":
    sys.exit(main())
