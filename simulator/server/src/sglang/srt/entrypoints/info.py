"""What the server says about itself."""

from __future__ import annotations

import gzip
import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List

from sglang.srt.managers import metrics as prometheus
from sglang.version import __version__

if TYPE_CHECKING:
    from sglang.srt.entrypoints.app import Application

HIDDEN = ("model_config", "draft_config", "custom_sigquit_handler", "help")
WEIGHT_GB, CACHE_GB, GRAPH_GB = 71.32, 12.46, 0.5


def models(app: Application) -> Dict[str, Any]:
    """/v1/models."""
    name = app.args.served_model_name
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "sglang",
                "root": name,
                "parent": None,
                "max_model_len": app.args.context_length,
            }
        ],
    }


def model(app: Application) -> Dict[str, Any]:
    """/model_info."""
    args = app.args
    return {
        "model_path": args.model_path,
        "served_model_name": args.served_model_name,
        "tokenizer_path": args.tokenizer_path,
        "is_generation": True,
        "preferred_sampling_params": args.preferred_sampling_params,
        "weight_version": args.weight_version,
        "load_format": args.load_format,
        "reasoning_parser": args.reasoning_parser,
        "tool_call_parser": args.tool_call_parser,
        "disaggregation_mode": args.disaggregation_mode or "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": args.model_config.get("model_type"),
        "architectures": args.model_config.get("architectures"),
    }


def _resolved(app: Application) -> Dict[str, Any]:
    return {key: value for key, value in app.args.as_dict().items() if key not in HIDDEN}


def server(app: Application) -> Dict[str, Any]:
    """/server_info: the resolved arguments, the state of rank 0, and what only a simulator has."""
    args, boot, scheduler = app.args, app.boot, app.scheduler
    stats = scheduler.stats
    state: Dict[str, Any] = {
        **_resolved(app),
        "world_size": boot.physics["ranks"],
        "effective_max_running_requests_per_dp": args.max_running_requests,
        "last_gen_throughput": stats.gen_throughput,
        "memory_usage": {
            "weight": WEIGHT_GB,
            "kvcache": CACHE_GB,
            "token_capacity": args.max_total_num_tokens,
            "graph": GRAPH_GB,
        },
    }
    if boot.speculation is not None and stats.cycles_total:
        state["avg_spec_accept_length"] = stats.accepted_total / stats.cycles_total
    if scheduler.settings["record_steps"]:
        state["step_time_dict"] = {str(batch): times for batch, times in scheduler.step_times.items()}
    return {
        **_resolved(app),
        "launch_command": " ".join(args.launch_command),
        "status": "ready",
        "max_total_num_tokens": args.max_total_num_tokens,
        "max_req_input_len": args.context_length - 6,
        "kv_events": None,
        "startup_time": {"total": sum(boot.seconds.values())},
        "internal_states": [state],
        "version": __version__,
        "frontend": "python",
        "simulator": {
            "now": boot.clock.now,
            "scale": boot.scale,
            "physics": boot.physics["digest"],
            "boot": boot.number,
            "host": boot.physics["host"],
        },
    }


def loads(app: Application) -> Dict[str, Any]:
    """/v1/loads."""
    scheduler, args = app.scheduler, app.args
    load: Dict[str, Any] = {
        "dp_rank": 0,
        "num_running_reqs": scheduler.shown(len(scheduler.running)),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_used_tokens": scheduler.tokens_in_use,
        "num_total_tokens": scheduler.tokens_in_use,
        "max_total_num_tokens": args.max_total_num_tokens,
        "max_running_requests": args.max_running_requests,
        "token_usage": scheduler.tokens_in_use / args.max_total_num_tokens,
        "gen_throughput": scheduler.stats.gen_throughput,
        "memory": {
            "weight_gb": WEIGHT_GB,
            "kv_cache_gb": CACHE_GB,
            "graph_gb": GRAPH_GB,
            "token_capacity": args.max_total_num_tokens,
        },
        "queues": {"waiting": len(scheduler.waiting), "grammar": 0, "paused": 0, "retracted": 0},
    }
    if app.boot.speculation is not None:
        load["speculative"] = {
            "accept_length": scheduler.stats.accept_length,
            "accept_rate": scheduler.stats.accept_rate,
        }
    return {"timestamp": datetime.now(timezone.utc).isoformat(), "version": __version__, "loads": [load]}


def metrics(app: Application) -> str:
    """/metrics."""
    scheduler, args = app.scheduler, app.args
    stats = scheduler.stats
    values: Dict[str, Any] = {
        "max_total_num_tokens": args.max_total_num_tokens,
        "page_size": args.page_size,
        "context_len": args.context_length,
        "num_running_reqs": scheduler.shown(len(scheduler.running)),
        "num_queue_reqs": len(scheduler.waiting),
        "num_used_tokens": scheduler.tokens_in_use,
        "token_usage": scheduler.tokens_in_use / args.max_total_num_tokens,
        "gen_throughput": stats.gen_throughput,
        "is_cuda_graph": float(stats.graph),
        "num_retracted_reqs": 0,
        "cache_hit_rate": stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0,
        "startup_time_seconds": sum(app.boot.seconds.values()),
        "weight_load_duration_seconds": app.boot.seconds["weights"],
        "prompt_tokens_total": stats.prompt_tokens,
        "generation_tokens_total": stats.generated_tokens,
        'cached_tokens_total{cache_source="device"}': stats.cached_tokens,
        "num_requests_total": stats.requests,
        "num_aborted_requests_total": stats.aborted,
        'realtime_tokens_total{mode="prefill_compute"}': stats.computed_tokens,
        'realtime_tokens_total{mode="prefill_cache"}': stats.reused_tokens,
        'realtime_tokens_total{mode="decode"}': stats.decoded_tokens,
        'cuda_graph_passes_total{mode="prefill_none"}': stats.prefill_passes,
        'cuda_graph_passes_total{mode="decode_cuda_graph"}': stats.graph_passes,
        'cuda_graph_passes_total{mode="decode_none"}': stats.eager_passes,
    }
    if app.boot.speculation is not None:
        values.update(
            {
                "spec_accept_length": stats.accept_length,
                "spec_accept_rate": stats.accept_rate,
                "spec_num_steps": app.boot.speculation.steps,
                "spec_num_draft_tokens": app.boot.speculation.draft_tokens,
                "spec_verify_calls_total": stats.verify_calls,
            }
        )
    return prometheus.text(values, app.latencies, args.served_model_name)


def write_trace(steps: List[Dict[str, Any]], folder: str, tag: str) -> Path:
    """A Chrome trace of the profiled steps, where and as SGLang's profiler names it."""
    path = Path(folder) / f"{time.time()}-{tag.replace('TP', 'TP-')}.trace.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": step["name"],
            "pid": 0,
            "tid": 0,
            "ts": step["at"] * 1e6,
            "dur": step["for"] * 1e6,
            "args": {"batch": step["batch"]},
        }
        for step in steps
    ]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"schemaVersion": 1, "traceEvents": events}, file)
    return path
