"""One workload measured once on one boot: the requests, the server's log and counters of that window, what they say.

The result (docs/measuring.md shows a whole one) lies in the spool before it is returned. A server that dies, hangs or
answers garbage gives a result too: status ``failed`` with a class. Only bad input raises, and before anything is sent.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .. import digest, files, ids
from ..errors import PlumblineError
from ..gpu import samples as gpu_samples
from ..server import boots, lease, spool
from ..server.supervisor import process_start
from ..sglang import failures, loglines
from . import checks, cpu, endpoint, figures, flags, stages
from . import workload as work
from .client import LoadClient
from .stream import Sample

LOG_KEPT = 2_000_000


@dataclass(frozen=True)
class Task:
    """What is to be measured. ``lease`` the holder as `server.lease.acquire` took it, or None; ``sampler`` is called
    about twice a second in the window with the time, and its ``result()`` gives `flags.Surroundings.gpu`; ``context``
    is kept with the result as it is."""

    root: Path
    boot: str
    base_url: str
    id: str
    spec: Mapping[str, Any]
    prompts: Path
    engine: str
    workload: str = ""
    repeat: int = 1
    speculation: Optional[Mapping[str, Any]] = None
    log_path: Optional[Path] = None
    lease: Optional[Mapping[str, Any]] = None
    headers: Tuple[Tuple[str, str], ...] = ()
    sampler: Optional[Any] = None
    eos: Sequence[int] = field(default_factory=tuple)
    context: Mapping[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.log_path or boots.folder(self.root, self.boot) / "server.log"


class _FailedError(Exception):
    """The measurement failed: ``{class, detail}``."""

    def __init__(self, cls: str, detail: str) -> None:
        self.cls, self.detail = cls, detail
        super().__init__(f"{cls}: {detail}")


def spooled(root: Path, measurement: str) -> Optional[Dict[str, Any]]:
    """The measurement of that id that waits in the spool, or None."""
    found = boots.read_json(spool.folder(root) / f"{measurement}.json")
    return found if found and found.get("id") == measurement else None


def from_parameters(given: Mapping[str, Any]) -> Tuple[Dict[str, Any], bool]:
    """What the module does with its parameters: (the measurement, whether it was made now)."""
    if not ids.is_ulid(given["measurement"]):
        raise PlumblineError(
            "a measurement is named by a ULID", "measurement", given["measurement"], "26 characters, base 32"
        )
    task = Task(
        root=Path(given["root"]),
        boot=given["boot"],
        base_url=given["base_url"],
        id=given["measurement"],
        spec=given["workload"],
        prompts=Path(given["prompts"]),
        engine=given["engine"],
        workload=given.get("workload_name") or "",
        repeat=given.get("repeat") or 1,
        speculation=given.get("speculation"),
        log_path=Path(given["log_path"]) if given.get("log_path") else None,
        lease=given.get("lease"),
        context=given.get("context") or {},
        headers=(("Authorization", f"Bearer {given['api_key']}"),) if given.get("api_key") else (),
    )
    ready = spooled(task.root, task.id)
    if ready:
        return ready, False
    return measure(replace(task, sampler=_gpu_sampler(task))), True


def _gpu_sampler(task: Task) -> Optional[Any]:
    """What samples the GPUs in the window, with the build's own Python for NVML; None where no GPU computes."""
    spec = boots.read_json(boots.folder(task.root, task.boot) / "spec.json") or {}
    pids = boots.read_json(boots.folder(task.root, task.boot) / "pid.json") or {}
    return gpu_samples.for_engine(task.engine, python=(spec.get("argv") or [""])[0], server_pid=pids.get("server"))


def measure(task: Task) -> Dict[str, Any]:
    """Measure, put the result into the spool, return it. Raises PlumblineError for bad input only."""
    ready = spooled(task.root, task.id)
    if ready:
        return ready
    plan = work.check(task.spec, f"workload {task.workload or task.id}")
    requests = work.requests_of(plan, work.read_prompts(task.prompts, plan.sha256), str(task.prompts))
    result: Dict[str, Any] = {
        "id": task.id,
        "boot": task.boot,
        "workload": task.workload,
        "repeat": task.repeat,
        "engine": task.engine,
        "started_at": _utc(time.time()),
        "duration_s": 0.0,
        "status": "failed",
        "failure": None,
        "metrics": dict.fromkeys(figures.METRICS),
        "checks": [],
        "flags": [],
        "conditions": {},
        "samples": [],
        "log_window": "",
        "server_info": {},
        "context": dict(task.context),
    }
    with _marked(task):
        try:
            _measure(task, plan, requests, result)
        except _FailedError as failed:
            result.update(status="failed", failure={"class": failed.cls, "detail": failed.detail})
        except lease.LeaseLostError as error:
            result.update(status="failed", failure={"class": error.failure_class, "detail": str(error)})
        except Exception as error:
            # Whatever a server sends must end in a record, so that the matrix goes on; the type and the place tell
            # the rest.
            result.update(status="failed", failure={"class": "internal", "detail": _where(error)})
    spool.put(task.root, result)
    return result


def _measure(task: Task, plan: work.Workload, requests: work.Requests, result: Dict[str, Any]) -> None:
    server = endpoint.Endpoint(task.base_url, task.headers)
    renewer = lease.Renewer(task.root, task.lease)
    renewer.tick()
    info = server.server_info()
    if info is None:
        raise _dead(task, "no answer from /server_info") or _FailedError(
            "no_answer", f"{task.base_url}/server_info does not answer"
        )
    result["server_info"] = endpoint.kept(info)
    speculative = endpoint.speculative(info)
    if speculative is None:
        speculative = bool(task.speculation)
    client = LoadClient(
        task.base_url,
        concurrency=plan.concurrency,
        idle_timeout_s=plan.idle_timeout_s,
        deadline_s=plan.deadline_s,
        headers=task.headers,
        increments=_increments(info),
        tick=_ticker(renewer, task.sampler),
    )
    _warm_up(task, server, client, requests)
    if plan.profiled:
        refused = server.start_profile(_traces(task))
        if refused:
            raise _dead(task, refused) or _FailedError("profile_refused", f"/start_profile: {refused}")
    evidence, around, seconds = _window(task, plan, requests, server, client, speculative, result)
    samples = evidence.samples
    result["duration_s"] = seconds
    result["metrics"] = evidence.figures.metrics
    result["metrics"]["graph_share"] = flags.graph_share(evidence.rows)
    result["samples"] = [_sample(s, name, end) for s, name, end in zip(samples, requests.prompts, around.eos)]
    errors = [s for s in samples if s.error]
    dead = _dead(task, errors[0].detail) if errors else None
    if dead:
        raise dead
    if len(errors) == len(samples):
        raise _FailedError(str(errors[0].error), errors[0].detail)
    if plan.profiled:
        _stages(task, server, info, result)
    result["checks"] = checks.all_checks(evidence)
    result["flags"] = flags.all_flags(evidence, flags.Surroundings(**{**vars(around), "checks": result["checks"]}))
    result["status"] = "ok"


def _traces(task: Task) -> Path:
    return boots.folder(task.root, task.boot) / "profile" / task.id


def _stages(task: Task, server: endpoint.Endpoint, info: Mapping[str, Any], result: Dict[str, Any]) -> None:
    """What a cycle is made of, into the result. Raises _FailedError if the profiler left nothing that says it."""
    # The simulator writes the first rank's alone.
    ranks = 1 if task.engine == "simulator" else int(info.get("tp_size") or 1)
    traces = server.profiled(_traces(task), ranks)
    found = stages.summary(map(stages.stages, traces or ()), info.get("speculative_num_steps"))
    if found is None:
        raise _FailedError("profile_empty", f"no trace of {ranks} ranks with decode or verify steps in {_traces(task)}")
    result["conditions"]["stages"] = found
    result["metrics"].update(verify_ms=found["verify_ms"], draft_ms=found["draft_ms"])


def _warm_up(task: Task, server: endpoint.Endpoint, client: LoadClient, requests: work.Requests) -> None:
    """Requests that are not counted, then an empty cache. Raises _FailedError if none of them succeeds."""
    samples = client.run(requests.warm_up)
    if samples and all(s.error for s in samples):
        raise _dead(task, samples[0].detail) or _FailedError(
            str(samples[0].error), f"in the warm-up: {samples[0].detail}"
        )
    refused = server.flush_cache()
    if refused:
        raise _dead(task, refused) or _FailedError("flush_refused", f"/flush_cache: {refused}")


def _window(
    task: Task,
    plan: work.Workload,
    requests: work.Requests,
    server: endpoint.Endpoint,
    client: LoadClient,
    speculative: bool,
    result: Dict[str, Any],
) -> Tuple[checks.Evidence, flags.Surroundings, float]:
    before, info = server.counters(), server.server_info()
    processes = _processes(task)
    offset = task.log.stat().st_size if task.log.exists() else 0
    result["started_at"] = _utc(endpoint.simulated_now(info) or time.time())
    used = cpu.read(processes)
    began = time.perf_counter()
    samples = client.run(requests.measured)
    seconds = time.perf_counter() - began
    spent = cpu.shares(used, cpu.read(processes))
    after, end_info = server.counters(), server.server_info()
    window = _log_since(task.log, offset)
    rows = loglines.rows_of(loglines.read(window))
    batch_lines = [line for line in window.split("\n") if "batch" in line and loglines.parse(loglines.clean(line))]
    result["log_window"] = "\n".join(batch_lines)[:LOG_KEPT]
    eos = list(task.eos) or endpoint.eos_ids(info)
    evidence = checks.Evidence(
        figures=figures.compute(samples, plan.concurrency, speculative),
        samples=samples,
        rows=rows,
        before=before,
        after=after,
        state=endpoint.state_of(end_info),
        concurrency=plan.concurrency,
        speculative=speculative,
    )
    around = flags.Surroundings(
        checks=[],
        repeated=requests.repeated,
        eos=[_end_of_text(s, eos) for s in samples],
        # The simulator's time is declared: what else the machine does says nothing about its figures.
        foreign=None if task.engine == "simulator" else spent["foreign"],
        environment=_environment(task, info),
        retractions=window.count("Retract requests"),
        profiled=plan.profiled,
        gpu=task.sampler.result() if task.sampler else None,
    )
    result["conditions"] = {
        "concurrency": plan.concurrency,
        "cpu_share": spent,
        "load_average": list(os.getloadavg()),
        "memory_available_bytes": _memory(),
        "eos_ids": eos,
        "decode_lines": len(rows),
        "warm_up_requests": len(requests.warm_up),
        "gpu": around.gpu,
    }
    return evidence, around, seconds


def _sample(sample: Sample, prompt: str, eos_at: Optional[int]) -> Dict[str, Any]:
    tokens = sample.output_ids
    text = (sample.final or {}).get("text")
    counts, stamps = sample.counts, sample.stamps
    return {
        "prompt": prompt,
        "output_digest": digest.digest(tokens if tokens is not None else text) if sample.final else None,
        "output_ids": tokens,
        "ttft_ms": (stamps[0] - sample.sent) * 1000 if stamps else None,
        "decode_tokens": counts[-1] - counts[0] if counts else 0,
        "decode_s": stamps[-1] - stamps[0] if stamps else 0.0,
        "completion_tokens": counts[-1] if counts else 0,
        "prompt_tokens": sample.meta.get("prompt_tokens"),
        "verify_ct": figures.verify_ct(sample) or None,
        "cached_tokens": sample.meta.get("cached_tokens"),
        "eos_at": eos_at,
        "chunks": len(counts),
        "error": {"class": sample.error, "detail": sample.detail} if sample.error else None,
    }


def _end_of_text(sample: Sample, eos: Sequence[int]) -> Optional[int]:
    """Tokens before the first that ends a text, None if none does (or the tokens are not known)."""
    wanted = set(eos)
    return next((i for i, token in enumerate(sample.output_ids or ()) if token in wanted), None)


def _ticker(renewer: lease.Renewer, sampler: Optional[Any]) -> Callable[[float], None]:
    def tick(at: float) -> None:
        renewer.tick()
        if sampler:
            sampler.tick(at)

    return tick


def _increments(info: Mapping[str, Any]) -> bool:
    """Does the server stream pieces of the output instead of all of it so far?"""
    return any(bool(info.get(name)) for name in ("incremental_streaming_output", "stream_output"))


def _dead(task: Task, detail: str) -> Optional[_FailedError]:
    """The failure of a server that has ended, classified by its log; None if it lives or is none of ours."""
    for _ in range(20):  # a dying server resets its connections a moment before it is gone
        status = boots.status(task.root, task.boot)
        if status["state"] != "running" or not _lives(status["pids"]):
            break
        time.sleep(0.05)
    else:
        return None
    if status["state"] == "absent":
        return None
    for _ in range(20):  # the supervisor writes why a moment later
        if status["exit"]:
            break
        time.sleep(0.05)
        status = boots.status(task.root, task.boot)
    ended = status["exit"] or {}
    if ended.get("reason") in boots.INTERRUPTED:
        return _FailedError(ended["reason"], f"{ended['detail']} ({detail})")
    text = task.log.read_text(errors="replace")[-4_000_000:] if task.log.exists() else ""
    code = ended.get("code") if ended.get("signal") is None else -int(ended["signal"])
    failure = failures.classify_exit(text, code)
    return _FailedError("server_died", f"{failure.cls}: {failure.detail} ({detail}); {' | '.join(failure.lines[:2])}")


def _lives(pids: Optional[Mapping[str, Any]]) -> bool:
    return bool(pids) and process_start(int((pids or {}).get("server") or 0)) is not None


def _processes(task: Task) -> List[int]:
    pids = boots.read_json(boots.folder(task.root, task.boot) / "pid.json")
    try:
        return boots.tree(pids) if pids else []
    except (KeyError, OSError):
        return []


def _environment(task: Task, info: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    """The server's environment, as it was started with and as far as it tells it."""
    spec = boots.read_json(boots.folder(task.root, task.boot) / "spec.json") or {}
    told = (info or {}).get("env_vars")
    return {
        str(k): str(v) for part in (spec.get("environment"), told) if isinstance(part, Mapping) for k, v in part.items()
    }


def _log_since(path: Path, offset: int) -> str:
    """What the server wrote from ``offset`` on. Its last lines may be a moment behind its answers."""
    time.sleep(0.2)
    try:
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read().decode("utf-8", "replace")
    except OSError:
        return ""


@contextlib.contextmanager
def _marked(task: Task) -> Iterator[None]:
    """boots/<boot>/measuring.json while it lasts: who ends a run must end its measuring process too."""
    folder = boots.folder(task.root, task.boot)
    if not folder.is_dir():
        yield
        return
    path = folder / "measuring.json"
    files.write_json(path, {"pid": os.getpid(), "start": process_start(os.getpid()), "measurement": task.id})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _memory() -> Optional[int]:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}: {error}{place}"


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
