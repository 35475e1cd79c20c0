"""A small server in SGLang's shape: log lines, a port that is bound late, workers, and ways to fail. A real process.

    python standin.py --port N --model-path P [--load-s S] [--warm-up-s S] [--fail KIND] [--workers N] [--marks FILE]

``--fail``: none, arguments (argparse's exit 2), crash (a worker's traceback, then SIGKILL of itself as SGLang does),
exit (status 3), hang (asleep while loading), spin (computes for ever while loading), no-answer (a generation never
ends), garbage (not JSON), short (one token), nan, wrong-model, never-ready (/ready stays 503).
Workers: the first stays in the group, the second leaves session and group, the third also ignores SIGTERM and is an
orphan.
``--marks``: JSON lines {mark, at} of time.monotonic() at `fired` (the ready line is out) and `dying`.
``--old``: endpoints of SGLang before 0.5.6. ``--drain-s``: how long it goes on after SIGTERM.
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

A = argparse.Namespace()
READY = threading.Event()


def say(text: str, rank: str = "") -> None:
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] {text}", file=sys.stderr, flush=True)


def mark(name: str) -> None:
    if A.marks:
        with open(A.marks, "a") as f:
            f.write(json.dumps({"mark": name, "at": time.monotonic()}) + "\n")


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, status: int, value: Any = None) -> None:
        body = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        info = {"/model_info": False, "/get_model_info": True, "/server_info": False, "/get_server_info": True}
        if self.path in ("/health", "/health_generate" if A.old else "/ready"):
            self._send(200 if READY.is_set() and A.fail != "never-ready" else 503)
        elif self.path in info and info[self.path] == A.old:
            if self.path.endswith("model_info"):
                self._send(200, {"model_path": "/other/model" if A.fail == "wrong-model" else A.model_path})
            else:
                self._send(200, {"version": "0.5.23", "speculative_draft_model_path": A.draft,
                                 "speculative_algorithm": "EAGLE3" if A.draft else None})
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if A.fail == "no-answer":
            time.sleep(3600)
        if A.fail == "garbage":
            return self._send(200, b"<html>it works</html>")
        count = 1 if A.fail == "short" else request["sampling_params"]["max_new_tokens"]
        value = None if A.fail == "nan" else -0.5
        meta: dict[str, Any] = {"completion_tokens": count, "prompt_tokens": 4}
        if request.get("return_logprob"):
            meta["output_token_logprobs"] = [[value, 7, None]] * count
        return self._send(200, {"text": "a b c d", "output_ids": [7] * count, "meta_info": meta})


def worker(number: int) -> None:
    if number >= 2:
        os.setsid()
    if number >= 3:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            os._exit(0)  # the worker becomes an orphan
    while True:
        time.sleep(3600)


def fail(kind: str) -> None:
    if kind == "crash":
        say("Scheduler hit an exception: Traceback (most recent call last):", " TP1")
        print('  File "/opt/venv/sglang/srt/model_executor/cuda_graph_runner.py", line 269, in __init__\n'
              "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 512.00 MiB.",
              file=sys.stderr, flush=True)
        say("Received sigquit from a child process. It usually means the child failed.")
        mark("dying")
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        mark("dying")
        os._exit(3)
    while kind == "hang":
        time.sleep(3600)
    while kind == "spin":
        pass


def main() -> None:
    parser = argparse.ArgumentParser(prog="sglang serve")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--speculative-draft-model-path", dest="draft")
    parser.add_argument("--load-s", type=float, default=0.2)
    parser.add_argument("--warm-up-s", type=float, default=0.0)
    parser.add_argument("--drain-s", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--fail", default="none")
    parser.add_argument("--die-after-s", type=float)
    parser.add_argument("--marks")
    parser.add_argument("--old", action="store_true")
    parser.parse_args(namespace=A)
    if A.fail == "arguments":
        parser.error("unrecognized arguments: --cuda-graph-max-bs")
    for number in range(1, A.workers + 1):
        if os.fork() == 0:
            worker(number)

    def drain(*_: Any) -> None:
        say("SIGTERM received. Draining requests and shutting down...")
        time.sleep(A.drain_s)
        os.kill(os.getpid(), signal.SIGKILL)  # SGLang ends its own tree so

    signal.signal(signal.SIGTERM, drain)
    say(f"server_args=ServerArgs(model_path='{A.model_path}', port={A.port})")
    for line in ("Init torch distributed begin.", "Load weight begin. avail mem=90.00 GB", "Load weight end. type=X",
                 "KV Cache is allocated. #tokens: 65536, K size: 1.00 GB", "Capture cuda graph begin. bs [1, 2, 4]"):
        say(line, " TP0")
        if line.startswith("Load weight begin"):
            time.sleep(A.load_s)
        if line.startswith("Capture"):
            fail(A.fail)
    server = ThreadingHTTPServer((A.host, A.port), Handler)
    say("Application startup complete.")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.sleep(A.warm_up_s)
    READY.set()
    say("The server is fired up and ready to roll!")
    mark("fired")
    if A.die_after_s is not None:
        time.sleep(A.die_after_s)
        fail("crash")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    Path("standin.txt").write_text(str(Path.cwd()))  # shows the working folder
    main()
