"""The load client: every token stamped, and every way to fail a class instead of a hang or a traceback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest
from plumbline.errors import PlumblineError
from plumbline.measure import workload
from plumbline.measure.client import LoadClient
from plumbline.measure.stream import ERROR_CLASSES, Reply, Sample


def bodies(*texts: str, tokens: int = 32) -> list[dict[str, object]]:
    return [workload.body(text, tokens, 0.0) for text in texts]


def test_every_token_of_every_stream_is_counted(url: str) -> None:
    samples = LoadClient(url, concurrency=5).run(bodies(*[f"p{i}" for i in range(13)], tokens=64))
    assert [s.index for s in samples] == list(range(13))
    assert {s.error for s in samples} == {None}
    assert [list(s.counts) for s in samples] == [list(range(1, 65))] * 13
    for s in samples:
        assert s.sent <= s.stamps[0] and list(s.stamps) == sorted(s.stamps) and s.stamps[-1] <= s.end
        assert s.output_ids == list(range(300, 364))
    assert {s.slot for s in samples} == set(range(5)), "each stream carried some"


def test_streams_are_in_flight_together(standin: Callable[..., str]) -> None:
    samples = LoadClient(standin("--step-ms", "5"), concurrency=4).run(bodies("a", "b", "c", "d", tokens=20))
    assert max(s.stamps[0] for s in samples) < min(s.stamps[-1] for s in samples)


@pytest.mark.parametrize("size", [1, 3, 17])
def test_chunks_cut_anywhere_read_the_same(standin: Callable[..., str], size: int) -> None:
    url = standin("--fragment", str(size), "--tokens", "16")
    sample = LoadClient(url, concurrency=1).run(bodies("a", tokens=16))[0]
    assert sample.error is None and list(sample.counts) == list(range(1, 17))


def test_two_events_in_one_chunk_and_crlf() -> None:
    """Framings that SGLang does not use today but HTTP and server-sent events allow."""

    def value(count: int, finish: str) -> bytes:
        return b'data: {"text":"a","output_ids":[1],"meta_info":{"completion_tokens":%d,"finish_reason":%s}}' % (
            count,
            finish.encode(),
        )

    first, second, third = value(1, "null"), value(2, "null"), value(3, '{"type":"length"}')
    events = first + b"\n\n" + second + b"\n\n"
    crlf = third + b"\r\n\r\n"
    data = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"%x;x=y\r\n" % len(events)
        + events
        + b"\r\n%x\r\n" % len(crlf)
        + crlf
        + b"\r\n0\r\n\r\n"
    )
    sample = Sample(0)
    assert Reply(sample, False).feed(data, 1.0)
    assert list(sample.counts) == [1, 2, 3]


def test_text_that_looks_like_the_field_is_not_taken_for_it() -> None:
    text = rb"say \"completion_tokens\": 99,"
    event = (
        b'data: {"text":"%s","output_ids":[1],"meta_info":{"finish_reason":null,"completion_tokens":7,"x":1}}\n\n'
        % text
    )
    sample = Sample(0)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    Reply(sample, False).feed(head + b"%x\r\n%s\r\n" % (len(event), event), 1.0)
    assert list(sample.counts) == [7]


def test_increments_are_put_together(standin: Callable[..., str]) -> None:
    sample = LoadClient(standin("--incremental", "--accept", "2,3"), concurrency=1, increments=True).run(bodies("a"))[0]
    assert sample.error is None and sample.output_ids == list(range(300, 332))


@pytest.mark.parametrize(
    ("fault", "error", "word"),
    [
        ("reset", "connection_reset", "reset"),
        ("close", "closed_early", "closed"),
        ("garbage", "garbage", "not a chunk"),
        ("notjson", "garbage", ""),
        ("notokens", "garbage", "completion_tokens"),
        ("stall", "stalled", "after 3 tokens"),
        ("error", "server_error", "longer than the context"),
        ("abort", "aborted", "no memory"),
        ("short", "short_output", "4 tokens where 32"),
        ("unfinished", "closed_early", "finish_reason"),
        ("http500", "http_error", "out of cheese"),
        ("nothttp", "garbage", "not an HTTP"),
        ("silent", "stalled", "after 0 tokens"),
    ],
)
def test_a_fault_fails_its_request_and_no_other(url: str, fault: str, error: str, word: str) -> None:
    client = LoadClient(url, concurrency=2, idle_timeout_s=0.6, tick_s=0.1)
    samples = client.run(bodies("a", f"b fault:{fault} x", "c", "d", "e"))
    assert [s.error for s in samples] == [None, error, None, None, None]
    assert word in samples[1].detail and error in ERROR_CLASSES


def test_nobody_listens() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        free = holder.getsockname()[1]
    began = time.monotonic()
    samples = LoadClient(f"http://127.0.0.1:{free}", concurrency=2).run(bodies(*"abcdefgh"))
    assert time.monotonic() - began < 2
    assert {s.error for s in samples} == {"connection_refused", "not_sent"}
    assert "refused" in next(s.detail for s in samples if s.error == "connection_refused")


def test_the_server_dies_under_load(standin: Callable[..., str]) -> None:
    url = standin("--step-ms", "2")
    samples = LoadClient(url, concurrency=4, idle_timeout_s=5).run(bodies("a", "b", "c fault:die x", "d", *"efghij"))
    assert all(s.error in ("connection_reset", "closed_early", "connection_refused", "not_sent") for s in samples)


def test_the_deadline_ends_everything(standin: Callable[..., str]) -> None:
    began = time.monotonic()
    client = LoadClient(standin("--step-ms", "50"), concurrency=2, deadline_s=0.5, tick_s=0.1)
    samples = client.run(bodies("a", "b", "c", tokens=200))
    assert time.monotonic() - began < 2
    assert [s.error for s in samples] == ["deadline", "deadline", "not_sent"]


def test_a_kept_connection_that_the_server_closed_is_no_failure() -> None:
    """Two requests on one connection; the server closes it after the first, as uvicorn does after some idle seconds."""
    event = (
        b'data: {"text":"a","output_ids":[1],"meta_info":{"completion_tokens":2,"finish_reason":{"type":"length"}}}\n\n'
    )
    answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event)
    )
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                    accepted.append(1)
                    # The first is closed with the client's next request already on its way or not: both happen.

        thread = threading.Thread(target=serve)
        thread.start()
        samples = LoadClient(f"http://127.0.0.1:{listener.getsockname()[1]}", concurrency=1).run(
            bodies("a", "b", tokens=2)
        )
        thread.join()
    assert [s.error for s in samples] == [None, None] and len(accepted) == 2


def test_a_prompt_larger_than_the_socket_takes(url: str) -> None:
    samples = LoadClient(url, concurrency=2).run(bodies("x" * 4_000_000, "y"))
    assert [s.error for s in samples] == [None, None]


def test_the_tick_is_called_while_it_runs(standin: Callable[..., str]) -> None:
    seen: list[float] = []
    LoadClient(standin("--step-ms", "20"), concurrency=1, tick=seen.append, tick_s=0.1).run(bodies("a"))
    assert len(seen) >= 4


@pytest.mark.parametrize("wrong", ["https://127.0.0.1:1", "127.0.0.1:3000", ""])
def test_an_address_that_is_none(wrong: str) -> None:
    with pytest.raises(PlumblineError, match="http://HOST:PORT"):
        LoadClient(wrong, concurrency=1)
