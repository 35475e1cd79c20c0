"""The running server: routes, readiness, faults while it runs, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Optional

from sglang.simulation.tokens import encode
from sglang.srt.entrypoints import info
from sglang.srt.entrypoints.engine import Boot
from sglang.srt.entrypoints.generate import BadRequestError, Generator, parse
from sglang.srt.entrypoints.http_server import Connection, Exchange
from sglang.srt.managers.metrics import Latencies
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.utils.logs import log, raw
from sglang.srt.utils.watchdog import Ranks, order, watch_steps

HEALTH_WAIT_S, HEALTH_LIMIT_S, WARMUP_LIMIT_S, DRAIN_EVERY_S = 1.0, 20.0, 600.0, 5.0
DEPRECATED = {"/get_model_info": "/model_info", "/get_server_info": "/server_info", "/get_load": "/v1/loads"}


class Application:
    """One running server."""

    def __init__(self, boot: Boot, loop: asyncio.AbstractEventLoop) -> None:
        self.boot, self.loop, self.args = boot, loop, boot.args
        self.version = boot.physics["log_version"]
        self.model = boot.step_model()
        self.latencies = Latencies()
        self.ready = self.stopping = self.healthy = False
        self.started_at = time.time()
        self._steps_since_ready = 0
        self._sampled = 0
        self._profile_to, self._profile_steps = "", 0
        self.ranks = Ranks(boot, loop, lambda: self.stopping, self.sigquit)
        self._tag = "TP0" if boot.physics["ranks"] > 1 else ""
        self._fault = boot.fault("decode")
        self.scheduler = Scheduler(
            loop,
            self.model,
            boot.clock,
            boot.number,
            {
                "max_running": self.args.max_running_requests,
                "log_interval": self.args.decode_log_interval,
                "log_version": self.version,
                "token_capacity": self.args.max_total_num_tokens,
                "radix_cache": not self.args.disable_radix_cache,
                "simulated": boot.simulated_accept_length() is not None
                and os.environ.get("SGLANG_SIMULATE_ACC_TOKEN_MODE", "fixed") == "fixed",
                "record_steps": os.environ.get("SGLANG_RECORD_STEP_TIME", "").lower() in ("1", "true", "yes"),
                "on_step": self._step,
                "can_step": self.ranks.answer,
                "on_close": self.latencies.finished,
            },
            lambda text: log(text, self._tag),
        )
        self.generator = Generator(
            self.scheduler.add,
            self.scheduler.abort,
            {
                "model": self.args.served_model_name,
                "weight_version": self.args.weight_version or "default",
                "context": self.args.context_length,
                "salt": self._salt,
                "eos_after": boot.physics["eos_after"],
                "metrics": self.args.enable_metrics,
                "draft_tokens": boot.speculation.draft_tokens if boot.speculation else None,
                "incremental": self.args.incremental_streaming_output,
                "stream_interval": self.args.stream_interval,
            },
        )
        self.routes: Dict[str, Callable[[Exchange], None]] = {
            "/generate": self._generate,
            "/v1/completions": lambda exchange: self._openai(exchange, False),
            "/v1/chat/completions": lambda exchange: self._openai(exchange, True),
            "/health": self._health,
            "/health_generate": self._health,
            "/ready": self._ready,
            "/ping": lambda exchange: exchange.answer(200),
            "/": lambda exchange: exchange.json(200, {"status": "ok"}),
            "/v1/models": lambda exchange: exchange.json(200, info.models(self)),
            "/model_info": lambda exchange: exchange.json(200, info.model(self)),
            "/get_model_info": lambda exchange: exchange.json(200, info.model(self)),
            "/server_info": lambda exchange: exchange.json(200, info.server(self)),
            "/get_server_info": lambda exchange: exchange.json(200, info.server(self)),
            "/v1/loads": lambda exchange: exchange.json(200, info.loads(self)),
            "/get_load": lambda exchange: exchange.json(200, info.loads(self)["loads"]),
            "/flush_cache": self._flush,
            "/start_profile": self._start_profile,
            "/stop_profile": self._stop_profile,
            "/freeze_gc": lambda exchange: exchange.answer(
                200, b"Garbage collection frozen.\n", "text/plain; charset=utf-8"
            ),
            "/abort_request": self._abort,
        }
        if self.args.enable_metrics:
            self.routes["/metrics"] = self._metrics

    # ------------------------------------------------------------------ requests
    def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        request = exchange.request
        route = self.routes.get(request.path)
        if route is None:
            if request.path.startswith("/v1/models/"):
                exchange.json(200, info.models(self)["data"][0])
                return
            exchange.json(404, {"detail": "Not Found"})
            return
        if (
            self.args.api_key
            and request.path not in ("/health", "/health_generate", "/ready", "/ping", "/metrics")
            and request.headers.get("authorization") != f"Bearer {self.args.api_key}"
        ):
            exchange.json(401, {"error": "Unauthorized"})
            return
        posts = request.path in ("/generate", "/v1/completions", "/v1/chat/completions", "/abort_request")
        if posts and request.method not in ("POST", "PUT"):
            exchange.json(405, {"detail": "Method Not Allowed"})
            return
        if request.path in DEPRECATED:
            log(
                f"Endpoint '{request.path}' is deprecated and will be removed in a future version. "
                f"Please use '{DEPRECATED[request.path]}' instead."
            )
        try:
            route(exchange)
        except BadRequestError as error:
            if request.path == "/generate":
                exchange.json(400, {"error": {"message": str(error)}})
            else:
                exchange.json(
                    400, {"object": "error", "message": str(error), "type": "Bad Request", "param": None, "code": 400}
                )

    def _generate(self, exchange: Exchange) -> None:
        self.generator.generate(exchange, parse(exchange.request.body))

    def _openai(self, exchange: Exchange, chat: bool) -> None:
        self.generator.openai(exchange, parse(exchange.request.body), chat)

    def _salt(self, sampling: Dict[str, Any]) -> str:
        """What makes an answer differ: nothing when greedy, the boot when the fault says garbage, else the draw."""
        if self._fault and self._fault["do"] == "garbage" and self._steps_since_ready >= self._fault["after_steps"]:
            return f"garbage {self.boot.number} {self._steps_since_ready}"
        temperature = sampling.get("temperature", 1.0)
        if temperature == 0 or sampling.get("top_k") == 1:
            return ""
        self._sampled += 1
        return f"sampled {self.args.random_seed} {self._sampled}"

    def internal_request(self, prompt: list, tokens: int, quiet: bool) -> asyncio.Future:
        """A request of the server's own; the future is done at its end."""
        future: asyncio.Future = self.loop.create_future()

        def output(request: Req) -> None:
            if request.finish is not None and not future.done():
                future.set_result(request)

        self.scheduler.add(Req(prompt, tokens, True, "", None, output, quiet=quiet))
        return future

    # ------------------------------------------------------------------ readiness
    def _ready(self, exchange: Exchange) -> None:
        exchange.answer(200 if self.ready and not self.stopping else 503)

    def _health(self, exchange: Exchange) -> None:
        if self.stopping:
            log("Health check request received during shutdown. Returning 503.")
        if self.stopping or not self.ready:
            exchange.answer(503)
            return
        if (
            os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() in ("0", "false")
            and exchange.request.path == "/health"
        ):
            exchange.answer(200)
            return
        self.loop.create_task(self._check_health(exchange))

    async def _check_health(self, exchange: Exchange) -> None:
        asked = self.loop.time()
        if not self.scheduler.busy:
            self.internal_request([0], 1, quiet=True)
        limit = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", HEALTH_LIMIT_S)) / self.boot.scale
        while self.loop.time() < asked + max(limit, 1.0):
            await asyncio.sleep(max(HEALTH_WAIT_S / self.boot.scale, 0.02))
            if self.scheduler.last_progress > asked:
                exchange.answer(200)
                return
        log(
            "Health check failed. Server couldn't get a response from detokenizer for last "
            f"{HEALTH_LIMIT_S:.0f} seconds."
        )
        exchange.answer(503)

    async def warm_up(self) -> None:
        """What happens between the bound port and readiness."""
        seconds = self.boot.seconds["warmup"]
        log(f"INFO:     Started server process [{os.getpid()}]")
        log("INFO:     Waiting for application startup.")
        log("INFO:     Application startup complete.")
        log(f"INFO:     Uvicorn running on http://{self.args.host}:{self.args.port} (Press CTRL+C to quit)")
        if not self.args.skip_server_warmup:
            fault = self.boot.fault("warmup")
            await self._warm_up_fault(fault)
            log('INFO:     127.0.0.1:40001 - "GET /model_info HTTP/1.1" 200 OK')
            await asyncio.sleep(seconds / self.boot.scale)
            self.boot.clock.advance(seconds)
            await self.internal_request(encode("The capital city of France is"), 8, quiet=True)
            log('INFO:     127.0.0.1:40002 - "POST /generate HTTP/1.1" 200 OK')
        self.ready = self.healthy = True
        self.scheduler.flush()
        log("The server is fired up and ready to roll!")

    async def _warm_up_fault(self, fault: Optional[Dict[str, Any]]) -> None:
        what = fault["do"] if fault else ""
        if fault is None or what == "slow":
            return
        if what == "hang":
            began = self.loop.time()
            while self.loop.time() - began < WARMUP_LIMIT_S / self.boot.scale:
                await asyncio.sleep(0.2)
                self.boot.clock.advance(0.2 * self.boot.scale)
            log(
                "Initialization failed. warmup error: Traceback (most recent call last):\n"
                f'  File "{__file__}", line 1, in _execute_server_warmup\n'
                f"requests.exceptions.ReadTimeout: HTTPConnectionPool(host='{self.args.host}', port={self.args.port}): "
                f"Read timed out. (read timeout={WARMUP_LIMIT_S:.0f})\n"
            )
            self.boot.kill_tree()
        elif what in ("crash", "oom"):
            self.boot.pipes[fault["rank"]].send(what)
            await asyncio.sleep(3600)
        else:
            raw("\udcff\udcfe\udc80" * 20)

    # ------------------------------------------------------------------ running
    def _step(self) -> None:
        if self.scheduler.profile is not None and self._profile_steps:
            self._profile_steps -= 1
            if not self._profile_steps:
                self._end_profile()
        if not self.ready or self._fault is None:
            return
        self._steps_since_ready += 1
        if self._steps_since_ready != max(1, self._fault["after_steps"]):
            return
        if self._fault["do"] == "hang":
            self.scheduler.halted = True
        elif self._fault["do"] in ("crash", "oom"):
            self.scheduler.halted = True
            self.boot.pipes[self._fault["rank"]].send(self._fault["do"])
        elif self._fault["do"] == "slow":
            self.scheduler.slow = self._fault["factor"]

    def sigquit(self) -> None:
        """A child failed, or the watchdog barked."""
        log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        self.boot.clock.window_closes()
        self.boot.clock.write()
        self.boot.kill_tree()

    # ------------------------------------------------------------------ control
    def _flush(self, exchange: Exchange) -> None:
        if self.scheduler.flush():
            log("Cache flushed successfully!", self._tag)
            text = (
                "Cache flushed.\nPlease check backend logs for more details. "
                "(When there are running or waiting requests, the operation will not be performed.)\n"
            )
            exchange.answer(200, text.encode(), "text/plain; charset=utf-8")
        else:
            exchange.answer(400, b"Flush cache failed.\n", "text/plain; charset=utf-8")

    def _abort(self, exchange: Exchange) -> None:
        body = parse(exchange.request.body)
        for request in self.scheduler.unfinished:
            if body.get("abort_all") or request.rid.startswith(str(body.get("rid") or "\0")):
                request.limit = max(1, len(request.ids) + 1)
        exchange.answer(200)

    def _start_profile(self, exchange: Exchange) -> None:
        if self.scheduler.profile is not None:
            exchange.answer(
                400, b"Profiling is already in progress. Call /stop_profile first.\n", "text/plain; charset=utf-8"
            )
            return
        body = parse(exchange.request.body) if exchange.request.body else {}
        self._profile_to = str(body.get("output_dir") or os.environ.get("SGLANG_TORCH_PROFILER_DIR") or "/tmp")
        # One of the steps is the prefill, which is no decode step here.
        self._profile_steps = int(body.get("num_steps") or 1) - 1
        self.scheduler.profile = []
        log("Profiling starts.", self._tag)
        exchange.answer(200, b"Start profiling.\n", "text/plain; charset=utf-8")

    def _stop_profile(self, exchange: Exchange) -> None:
        if self.scheduler.profile is None:
            exchange.answer(
                400, b"Profiling is not in progress. Call /start_profile first.\n", "text/plain; charset=utf-8"
            )
            return
        self._end_profile()
        exchange.answer(200, b"Stop profiling. This will take some time.\n", "text/plain; charset=utf-8")

    def _end_profile(self) -> None:
        info.write_trace(self.scheduler.profile or [], self._profile_to, self._tag or "TP0")
        self.scheduler.profile = None
        log(f"Profiling done. Traces are saved to: {self._profile_to}", self._tag)

    def _metrics(self, exchange: Exchange) -> None:
        exchange.answer(200, info.metrics(self).encode(), "text/plain; version=0.0.4; charset=utf-8")

    # ------------------------------------------------------------------ end
    def sigterm(self) -> None:
        """Drain, then end."""
        if not self.stopping:
            log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
            self.stopping = True
            self.loop.create_task(self._drain())

    async def _drain(self) -> None:
        fault = self.boot.fault("shutdown")
        wait = DRAIN_EVERY_S / self.boot.scale * (fault["factor"] if fault and fault["do"] == "slow" else 1.0)
        await asyncio.sleep(wait)
        while True:
            rids = [request.rid for request in self.scheduler.unfinished]
            log(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. "
                f"Remaining requests remaining_rids={rids}."
            )
            if not rids and not (fault and fault["do"] == "hang"):
                break
            await asyncio.sleep(max(wait, 0.05))
        if fault and fault["do"] in ("crash", "oom"):
            self.stopping = False
            self.boot.pipes[fault["rank"]].send(fault["do"])
            await asyncio.sleep(3600)
        if fault and fault["do"] == "garbage":
            raw("\udcff\udcfe\udc80" * 20)
        for pipe in self.boot.pipes:
            order(pipe, "shutdown")
        self.boot.clock.window_closes()
        self.boot.clock.write()
        log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}")
        await asyncio.sleep(0.05)
        self.boot.kill_children()
        sys.stderr.flush()
        os._exit(0)


def serve(boot: Boot) -> None:
    """Bind the port and serve for ever."""
    asyncio.run(_main(boot))


async def _main(boot: Boot) -> None:
    loop = asyncio.get_running_loop()
    boot.clock.write_in_background()
    app = Application(boot, loop)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    loop.add_signal_handler(signal.SIGQUIT, app.sigquit)
    loop.add_signal_handler(signal.SIGTERM, app.sigterm)
    quiet = (boot.args.log_level_http or boot.args.log_level).lower() in ("warning", "error", "critical")
    try:
        await loop.create_server(lambda: Connection(app.handle, quiet), boot.args.host, boot.args.port, backlog=2048)
    except OSError as error:
        log(f"INFO:     Started server process [{os.getpid()}]")
        log(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address "
            f"('{boot.args.host}', {boot.args.port}): address already in use"
        )
        log("INFO:     Waiting for application shutdown.")
        boot.kill_tree()
    watchers = [
        loop.create_task(app.ranks.watch()),
        loop.create_task(watch_steps(app.scheduler, boot.args.watchdog_timeout, boot, app.sigquit)),
    ]
    await app.warm_up()
    await asyncio.gather(*watchers)
