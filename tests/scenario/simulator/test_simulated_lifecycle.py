"""From the start to the end: readiness, processes, environment, clock, exit."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plumbline.sglang import failures
from simulated_servers import PROFILE, Server, eagle


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


Start = Callable[..., Server]
Physics = Callable[..., dict[str, Any]]


def test_loads_then_binds_then_warms_up_then_is_ready(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=2, load_s={"mean": 240, "sd": 0}))
    seen: list[tuple[int, int, int]] = []
    until = time.monotonic() + 30
    while time.monotonic() < until and (not seen or seen[-1] != (200, 200, 200)):
        codes = (server.get("/v1/models")[0], server.get("/ready")[0], server.get("/health")[0])
        if not seen or seen[-1] != codes:
            seen.append(codes)
        time.sleep(0.02)
    assert seen[0] == (0, 0, 0), "while it loads nothing listens"
    assert seen[-1] == (200, 200, 200)
    assert (200, 503, 503) in seen, "while it warms up HTTP lives and readiness is 503"
    log = server.log
    order = [
        "server_args=ServerArgs(",
        "Init torch distributed begin.",
        "Load weight begin.",
        "Load weight end.",
        "KV Cache is allocated.",
        "Memory pool end.",
        "Capture decode CUDA graph begin.",
        "Capture decode CUDA graph end.",
        "max_total_num_tokens=",
        "Uvicorn running on",
        "The server is fired up and ready to roll!",
    ]
    places = [log.index(line) for line in order]
    assert places == sorted(places)


def test_the_load_passes_scaled_and_counts_unscaled(start: Start, physics: Physics) -> None:
    began = time.monotonic()
    server = start(physics("story-a", ranks=1, time_scale=100, load_s={"mean": 400, "sd": 0})).wait_ready()
    assert 4.0 < time.monotonic() - began < 20
    clock = json.loads((server.folder / "clock-sim-1.json").read_text())
    assert 400 <= clock["now"] - clock["origin"] < 401
    info = server.json("/server_info")["simulator"]
    assert info["scale"] == 100 and info["boot"] == 1 and info["host"] == "sim-1" and len(info["physics"]) == 64
    time.sleep(0.5)
    assert server.json("/server_info")["simulator"]["now"] == pytest.approx(info["now"], abs=1e-6), (
        "idle time stands still"
    )
    before = time.monotonic()
    server.generate("How long is a window?", 128)
    passed = time.monotonic() - before
    assert server.json("/server_info")["simulator"]["now"] - info["now"] == pytest.approx(passed, abs=0.3)


def test_ranks_are_processes_whose_environment_cannot_be_read(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=4)).wait_ready()
    ranks = server.ranks()
    assert set(ranks) == {f"sglang::scheduler_TP{rank}" for rank in range(4)} | {"sglang::detokenizer"}
    for pid in ranks.values():
        assert b"NCCL_PROTO" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert server.generate("Is the profile in force all the same?", 8)["meta_info"]["completion_tokens"] == 8


def test_spt_noenv_leaves_the_environment_readable(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=1), environment={"SPT_NOENV": "1"}).wait_ready()
    pid = server.ranks()["sglang::scheduler"]
    assert b"NCCL_PROTO=LL" in Path(f"/proc/{pid}/environ").read_bytes()


def test_sigterm_drains_and_leaves_nothing(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=2)).wait_ready()
    pids = list(server.ranks().values())
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_end() == 0
    assert "SIGTERM received." in server.log and "Gracefully exiting... Remaining number of requests 0." in server.log
    assert not any(lives(pid) for pid in pids)


def test_ranks_die_with_a_killed_server(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=2)).wait_ready()
    pids = list(server.ranks().values())
    server.process.kill()
    server.wait_end()
    until = time.monotonic() + 5
    while time.monotonic() < until and any(lives(pid) for pid in pids):
        time.sleep(0.05)
    assert not any(lives(pid) for pid in pids)


def test_a_killed_rank_ends_the_server(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=2)).wait_ready()
    os.kill(server.ranks()["sglang::scheduler_TP1"], signal.SIGKILL)
    assert server.wait_end() == -signal.SIGKILL
    assert "Subprocess scheduler_1 (pid=" in server.log and "crashed with exit code -9" in server.log
    assert failures.classify_exit(server.log, -9).cls == "scheduler_died"


def test_a_stopped_rank_stops_every_step(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=2)).wait_ready()
    rank = server.ranks()["sglang::scheduler_TP1"]
    os.kill(rank, signal.SIGSTOP)
    time.sleep(4.5)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        server.get(
            "/generate", method="POST", body={"text": "Does a collective wait?", "sampling_params": {}}, timeout=1
        )
    os.kill(rank, signal.SIGCONT)
    server.generate("And does it go on?", 8)
    assert time.monotonic() - began < 8


def test_a_taken_port_is_found_after_the_load(start: Start, physics: Physics) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        server = start(physics("story-a", ranks=1), port=holder.getsockname()[1])
        assert server.wait_end() == -signal.SIGKILL
    assert failures.classify_exit(server.log, -9).cls == "port_in_use"


@pytest.mark.parametrize(
    ("args", "needs"),
    [
        (["--cuda-graph-max-bs", "8"], "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode"),
        (["--enable-pcie-oneshot-allreduce"], "unrecognized arguments: --enable-pcie-oneshot-allreduce"),
        (["--attention-backend", "none"], "argument --attention-backend: invalid choice: 'none'"),
    ],
)
def test_wrong_arguments_are_refused_as_argparse_does(
    start: Start, physics: Physics, args: list[str], needs: str
) -> None:
    server = start(physics("story-a"), *args)
    assert server.wait_end() == 2
    assert needs in server.log
    assert failures.classify_exit(server.log, 2).cls == "bad_arguments"


def test_abbreviations_are_taken(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=2), "--tp", "2", "--speculative-algo", "EAGLE3", *eagle(2)[2:]).wait_ready()
    info = server.json("/server_info")
    assert (
        info["tp_size"] == 2 and info["speculative_algorithm"] == "EAGLE3" and info["speculative_num_draft_tokens"] == 3
    )


def test_what_the_physics_does_not_declare_does_not_start(start: Start, physics: Physics) -> None:
    server = start(physics("story-a", ranks=1), *eagle(5))
    assert server.wait_end() == 1
    assert "declares nothing for 5 steps; allowed: 1, 2, 3" in server.log


def test_two_boots_of_a_host_draw_anew_and_a_fresh_clock_repeats(start: Start, physics: Physics) -> None:
    document = physics("story-a", ranks=1, noise={"boot_sd": 0.2}, decode_ms=4)
    speeds = []
    for folder in ("one", "one", "two"):
        server = start(document, folder=folder).wait_ready()
        answer = server.generate("What is the speed of this boot?", 300)
        speeds.append(answer["meta_info"]["e2e_latency"])
        server.stop()
    assert speeds[0] == pytest.approx(speeds[2], rel=0.005), "same seed, host and boot number: the same draw"
    assert abs(speeds[0] / speeds[1] - 1) > 0.005, "the second boot has a draw of its own"


def test_two_servers_at_once_keep_their_figures(start: Start, physics: Physics) -> None:
    from test_simulated_figures import measure

    document = physics("story-a", prefill={})
    servers = [start(document, host=f"sim-{number}") for number in (1, 2)]
    for server in servers:
        server.wait_ready()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda server: measure(server, 1, False, 2)["decode_tok_s"], servers))
    assert found == [pytest.approx(88.74, rel=0.005)] * 2


def test_the_profile_counts_by_rank_and_by_delivery(start: Start, physics: Physics, tmp_path: Path) -> None:
    """Tuned: from the environment, from a conf file, from a sitecustomize; untuned: without, or on one rank without."""
    conf = tmp_path / "nccl.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in PROFILE.items()))
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import os\nos.environ.update({PROFILE!r})\n")
    quick = physics("story-a", ranks=4, decode_ms=4, prefill={}, build_factor={}, untuned_factor={"decode": 1.5})
    cases: list[tuple[str, dict[str, Any], dict[str, str], dict[str, str], float]] = [
        ("environment", {}, PROFILE, {}, 1.0),
        ("conf file", {}, {}, {"NCCL_CONF_FILE": str(conf)}, 1.0),
        ("sitecustomize", {}, {}, {"PYTHONPATH": str(site)}, 1.0),
        ("nothing", {}, {}, {}, 1.5),
        ("wrong case", {}, {**PROFILE, "NCCL_P2P_LEVEL": "sys"}, {}, 1.5),
        ("one rank without", {"rank_without_profile": 3}, PROFILE, {}, 1.5),
    ]
    for name, change, profile, environment, factor in cases:
        server = start({**quick, **change}, folder=name.replace(" ", "-"), profile=profile, environment=environment)
        server.wait_ready()
        answer = server.generate("Is the profile in force?", 200)
        step = answer["meta_info"]["e2e_latency"] / 199 * 1000
        assert step == pytest.approx(4 * factor, rel=0.03), name
        server.stop()
