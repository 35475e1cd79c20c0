"""What the endpoints answer: shapes, counters, and the same tokens whatever the speculation."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plumbline.measure import endpoint, stages
from plumbline.nccl import proof
from plumbline.sglang import loglines
from simulated_servers import PROFILE, Server, eagle, make_build

Start = Callable[..., Server]
Physics = Callable[..., dict[str, Any]]
PROMPT = "Which figures can be true at the same time?"


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A baseline server with short steps, for all that does not depend on its speed."""
    folder = tmp_path_factory.mktemp("fast")
    document = {"decode_ms": 2, "ranks": 2, "steps": {2: {"verify_ms": 3, "accept_length": 2.1}}}
    server = Server(make_build(folder, "0.5.23+sim.a"), folder, document).wait_ready()
    yield server
    server.stop()


def events(server: Server, path: str, body: dict[str, Any]) -> tuple[str, list[str]]:
    """(head, the data of every event) of a stream, chunk by chunk as it came."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode()
            + data
        )
        raw = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, rest = raw.partition(b"\r\n\r\n")
    found = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        if chunk:
            assert chunk.startswith(b"data: ") and chunk.endswith(b"\n\n"), "one event in one HTTP chunk"
            found.append(chunk[6:-2].decode())
    return head.decode(), found


def test_streamed_events_have_sglangs_shape(fast: Server) -> None:
    body = {
        "text": PROMPT,
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True},
    }
    head, found = events(fast, "/generate", body)
    assert "content-type: text/event-stream; charset=utf-8" in head and "Transfer-Encoding: chunked" in head
    assert found[-1] == "[DONE]" and len(found) == 13
    parsed = [json.loads(event) for event in found[:-1]]
    for count, event in enumerate(parsed, 1):
        assert list(event) == ["text", "output_ids", "meta_info"]
        assert len(event["output_ids"]) == count == event["meta_info"]["completion_tokens"]
        assert event["text"].startswith(parsed[0]["text"]), "text and ids are cumulative"
    first, last = parsed[0]["meta_info"], parsed[-1]["meta_info"]
    assert first["finish_reason"] is None and "e2e_latency" not in first and "weight_versions" not in first
    assert last["finish_reason"] == {"type": "length", "length": 12} and last["e2e_latency"] > 0
    assert last["weight_versions"] == [{"version": "default", "start": 0, "end": 12}]
    assert "spec_verify_ct" not in last
    plain = fast.generate(PROMPT, 12)
    assert plain["output_ids"] == parsed[-1]["output_ids"] and plain["text"] == parsed[-1]["text"]


def test_openai_forms(fast: Server) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": "any", "messages": messages, "max_tokens": 5, "temperature": 0}
    whole = fast.json("/v1/chat/completions", method="POST", body=body)
    assert whole["object"] == "chat.completion" and whole["usage"]["completion_tokens"] == 5
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    _, found = events(fast, "/v1/chat/completions", streamed)
    parsed = [json.loads(event) for event in found[:-1]]
    assert parsed[0]["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in parsed if event["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert parsed[-2]["choices"][0]["finish_reason"] == "length" and parsed[-1]["usage"]["completion_tokens"] == 5
    status, text = fast.get("/v1/chat/completions", method="POST", body={"model": "any"})
    assert status == 400 and "Field required" in text
    whole = fast.json("/v1/completions", method="POST", body={"prompt": PROMPT, "max_tokens": 4, "temperature": 0})
    assert whole["choices"][0]["text"] == fast.generate(PROMPT, 4)["text"]
    assert fast.json("/v1/models")["data"][0]["owned_by"] == "sglang"


@pytest.mark.parametrize(
    ("path", "method", "body", "status"),
    [
        ("/nowhere", "GET", None, 404),
        ("/generate", "GET", None, 405),
        ("/generate", "POST", {"sampling_params": {}}, 400),
        ("/generate", "POST", {"text": "a", "sampling_params": {"max_new_tokens": -1}}, 400),
        ("/generate", "POST", {"text": "a", "sampling_params": {"max_new_tokens": 10**6}}, 400),
        ("/generate", "POST", {"input_ids": ["a"]}, 400),
        ("/generate", "POST", {"text": "a", "sampling_params": []}, 200),
        ("/generate", "POST", {"text": "a", "sampling_params": [1]}, 400),
        ("/ping", "GET", None, 200),
        ("/ready", "GET", None, 200),
        ("/health_generate", "GET", None, 200),
    ],
)
def test_status_codes(fast: Server, path: str, method: str, body: Any, status: int) -> None:
    assert fast.get(path, method=method, body=body)[0] == status


def test_nonsense_does_not_end_the_server(fast: Server) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /generate HTTP/1.1\r\ncontent-length: -4\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", fast.port), timeout=5) as connection:
            connection.sendall(data + b"\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert fast.get("/ready")[0] == 200


def test_cache_counts_and_flush(fast: Server) -> None:
    prompt = "A prompt that nobody has sent before."
    assert fast.generate(prompt, 4)["meta_info"]["cached_tokens"] <= 1
    again = fast.generate(prompt, 4)["meta_info"]
    assert again["cached_tokens"] == again["prompt_tokens"] - 1
    assert fast.get("/flush_cache", method="POST")[0] == 200
    assert fast.generate(prompt, 4)["meta_info"]["cached_tokens"] == 0


def test_a_client_that_leaves_frees_its_place(fast: Server) -> None:
    body = json.dumps({"text": "Bye", "stream": True, "sampling_params": {"max_new_tokens": 20000}}).encode()
    with socket.create_connection(("127.0.0.1", fast.port)) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        connection.recv(200)
        assert fast.get("/flush_cache")[0] == 400, "a request runs"
    until = time.monotonic() + 5
    while fast.get("/flush_cache")[0] != 200 and time.monotonic() < until:
        time.sleep(0.05)
    assert fast.json("/v1/loads")["loads"][0]["num_running_reqs"] == 0


def test_counters_move_by_what_was_made(fast: Server) -> None:
    before = endpoint.read_metrics(fast.get("/metrics")[1])
    fast.generate("Count me.", 33)
    after = endpoint.read_metrics(fast.get("/metrics")[1])

    def moved(name: str) -> float:
        return after[name] - before[name]

    assert moved("sglang:generation_tokens_total") == 33 and moved("sglang:num_requests_total") == 1
    assert moved("sglang:cuda_graph_passes_total:decode_cuda_graph") == 32
    assert moved("sglang:realtime_tokens_total:decode") == 32
    assert moved("sglang:e2e_request_latency_seconds_count") == 1
    assert after["sglang:num_running_reqs"] == 0


def test_speculation_is_reported_everywhere_alike(start: Start, physics: Physics) -> None:
    document = physics("story-b", ranks=2, decode_ms=3, prefill={})
    document["steps"][3].update(verify_ms=4.4, draft_ms=0.2)
    plain = start(document, folder="plain").wait_ready().generate(PROMPT, 300)
    server = start(document, *eagle(3), environment={"SGLANG_RECORD_STEP_TIME": "1"}, build="sim-b").wait_ready()
    server.get("/flush_cache")
    answer = server.generate(PROMPT, 300)
    meta = answer["meta_info"]
    assert answer["output_ids"] == plain["output_ids"], "greedy output is the same"
    accepted = meta["completion_tokens"] / meta["spec_verify_ct"]
    assert accepted == pytest.approx(2.16, rel=0.01) and meta["spec_accept_length"] == accepted
    assert meta["spec_num_proposed_drafts"] == meta["spec_verify_ct"] * 3
    assert sum(meta["spec_correct_drafts_histogram"]) == meta["spec_verify_ct"]
    state = server.json("/server_info")["internal_states"][0]
    assert state["avg_spec_accept_length"] == pytest.approx(2.16, rel=0.02)
    steps = state["step_time_dict"]["1"]
    assert steps[1:] == [pytest.approx(0.005, rel=0.001)] * (len(steps) - 1) and len(steps) > 8
    rows = loglines.clean_rows(loglines.rows_of(loglines.read(server.log)))
    assert rows and all(row["cuda_graph"] is False for row in rows), "three steps have no graph in the story"
    assert rows[-1]["gen_throughput"] == pytest.approx(2.16 / 0.005, rel=0.06)


def test_a_draft_that_does_not_fit_is_silent(start: Start, physics: Physics) -> None:
    quick = physics("story-a", ranks=1, decode_ms=2)
    quick["steps"][2].update(verify_ms=3, draft_ms=0)
    cases = [
        ("declared by the draft", quick, eagle(2, "mismatched")),
        ("declared by the physics", {**quick, "draft_mismatch": True}, eagle(2)),
        ("EAGLE-3 draft run as EAGLE", quick, ["--speculative-algorithm", "EAGLE", *eagle(2)[2:]]),
    ]
    for name, document, args in cases:
        server = start(document, *args, folder=name.replace(" ", "-")).wait_ready()
        meta = server.generate(PROMPT, 60)["meta_info"]
        assert meta["spec_verify_ct"] == 59 and meta["spec_num_correct_drafts"] == 0, name
        server.stop()
    server = start(quick, *eagle(2), folder="imposed", environment={"SGLANG_SIMULATE_ACC_LEN": "9"}).wait_ready()
    meta = server.generate(PROMPT, 61)["meta_info"]
    assert meta["spec_verify_ct"] == 20, "imposed, and clamped to steps + 1"


def test_foreign_requests_are_seen_and_cost(start: Start, physics: Physics) -> None:
    document = physics(
        "story-a", ranks=1, decode_ms=4, prefill={}, build_factor={}, foreign_load={"share": 1.0, "cost": 0.2}
    )
    server = start(document).wait_ready()
    answer = server.generate(PROMPT, 101)
    assert answer["meta_info"]["e2e_latency"] == pytest.approx(0.1 * 4 / 0.8, rel=0.05)
    rows = loglines.rows_of(loglines.read(server.log))
    assert rows and all(row["running"] == 2 for row in rows)


def test_more_requests_than_places_queue(start: Start, physics: Physics) -> None:
    from concurrent.futures import ThreadPoolExecutor

    server = start(physics("story-a", ranks=1, decode_ms=4), "--max-running-requests", "2").wait_ready()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: server.generate(f"Request {number}", 100), range(4)))
    assert all(answer["meta_info"]["completion_tokens"] == 100 for answer in answers)
    rows = loglines.rows_of(loglines.read(server.log))
    assert max(row["running"] for row in rows) == 2 and max(row["queue"] for row in rows) == 2


def test_every_rank_proves_its_profile(start: Start, physics: Physics, tmp_path: Path) -> None:
    """The project's own proof, on files that eight real processes wrote; their environment shows nothing."""
    for without in (None, 5):
        logs = tmp_path / f"nccl-{without}"
        logs.mkdir()
        document = physics("story-a", rank_without_profile=without)
        server = start(document, folder=f"host-{without}", environment=proof.debug_environment(str(logs))).wait_ready()
        texts = [file.read_text() for file in sorted(logs.iterdir())]
        found = proof.prove(
            profile="pcie-ll-ring",
            asked=PROFILE,
            delivery="env_file",
            logs=texts,
            expected_ranks=8,
            nccl_version="2.30.7",
            environ=proof.read_environ(list(server.ranks().values()), PROFILE),
        )
        assert len(texts) == 8
        assert found["profile_in_force"] is (without is None), found["reasons"]
        if without is not None:
            assert any("rank 5 of 8" in reason for reason in found["reasons"])
        server.stop()


def test_profiled_steps_are_those_of_the_physics(start: Start, physics: Physics, tmp_path: Path) -> None:
    document = physics("story-b", ranks=2, decode_ms=3, prefill={})
    document["steps"][3].update(verify_ms=4.4, draft_ms=0.2)
    for args, steps, verify, draft, decode in ((eagle(3), 3, 4.4, 0.2, None), ([], None, None, None, 3.0)):
        server = start(document, *args, folder=f"steps-{steps}", build="sim-b").wait_ready()
        folder = tmp_path / f"traces-{steps}"
        client = endpoint.Endpoint(server.url)
        assert client.start_profile(folder) is None
        assert "already in progress" in (client.start_profile(folder) or "")
        server.generate(PROMPT, 200)
        found = stages.summary(map(stages.stages, client.profiled(folder, 1) or ()), steps)
        assert found is not None and found["cycles"] == stages.CYCLES and found["batch"] == 1
        for name, value in (("verify_ms", verify), ("draft_ms", draft), ("decode_ms", decode)):
            assert found[name] == (None if value is None else pytest.approx(value, rel=0.02)), name
        # Fewer steps than asked for are ended by whoever asked.
        again = tmp_path / f"again-{steps}"
        assert client.start_profile(again) is None
        server.generate(PROMPT, 9)
        assert stages.summary(map(stages.stages, client.profiled(again, 1) or ()), steps)["cycles"] < stages.CYCLES
        server.stop()
