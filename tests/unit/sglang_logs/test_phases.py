"""How far a start is, from a log that grows in pieces."""

from __future__ import annotations

from plumbline.sglang import phases

LOG = """[2026-01-01 10:00:00] server_args=ServerArgs(model_path='/m')
[2026-01-01 10:00:05 TP0] Init torch distributed begin.
[2026-01-01 10:00:06 TP0] sglang is using nccl==2.28.9
[2026-01-01 10:00:07 TP0] Load weight begin. avail mem=94.00 GB
Loading shards:  50% Completed | 10/20 [01:00<01:00, 1.00it/s]\rLoading shards: 100% Completed | 20/20 [02:00<00:00]
[2026-01-01 10:02:07 TP0] Load weight end. elapsed=120 s, mem usage=60 GB.
[2026-01-01 10:02:08 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, K size: 1 GB, V size: 1 GB
[2026-01-01 10:02:10 TP0] Capture cuda graph begin. This can take up to several minutes.
[2026-01-01 10:02:40 TP0] Capture cuda graph end. Time elapsed: 30 s.
[2026-01-01 10:02:41] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)
[2026-01-01 10:02:45] The server is fired up and ready to roll!
"""
WAY = ["starting", "distributed_init", "weight_load", "kv_pool", "graph_capture", "warm_up", "ready"]


def test_a_whole_start() -> None:
    assert [e.phase for e in phases.read_phases(LOG)] == WAY
    reading = phases.ready_reading(LOG)
    assert (
        reading is not None and reading["start_s"] == 165 and reading["nccl"] == "2.28.9" and reading["phases"] == WAY
    )


def test_in_pieces_of_any_size_the_same() -> None:
    for size in (1, 7, 100):
        reader = phases.PhaseReader()
        for at in range(0, len(LOG), size):
            reader.feed(LOG[at : at + size])
        assert [e.phase for e in reader.history] == WAY and reader.phase == "ready"


def test_progress_within_a_phase() -> None:
    reader = phases.PhaseReader()
    events = reader.feed(LOG.split("Load weight end")[0])
    assert [e.detail for e in events if "shards" in e.line] == ["50 %", "100 %"]
    assert reader.phase == "weight_load"


def test_the_draft_is_told_from_the_target() -> None:
    log = (
        "[x TP0] Load weight begin.\n[x TP1] Load weight begin.\n[x TP0] Load weight end.\n"
        "[x TP0] Load weight begin.\n[x TP0] KV Cache is allocated.\n[x TP0] Capture draft decode CUDA graph begin.\n"
    )
    assert [(e.phase, e.draft) for e in phases.read_phases(log)] == [
        ("weight_load", False),
        ("kv_pool", False),
        ("weight_load", True),
        ("kv_pool", True),
        ("graph_capture", True),
    ]


def test_ready_is_not_for_ever() -> None:
    assert phases.is_ready(LOG)
    assert not phases.is_ready(
        LOG + "[2026-01-01 11:00:00] SIGTERM received. signum=None frame=None. Draining requests\n"
    )
    assert not phases.is_ready(LOG + "[2026-01-01 11:00:00] server_args=ServerArgs(model_path='/m')\n")
    assert not phases.is_ready("") and phases.ready_reading(LOG.replace("fired up", "")) is None
