"""Decode and prefill lines: split by name, told apart by version, judged for use."""

from __future__ import annotations

import pytest
from plumbline.sglang import loglines

LINE = (
    "[2026-01-01 10:00:0{s} TP0] Decode batch, #running-req: {r}, #token: 640, token usage: 0.01, accept len: 2.20, "
    "accept rate: 0.40, cuda graph: {g}, gen throughput (token/s): {t:.2f}, #queue-req: 0"
)
PREFILL = (
    "[2026-01-01 10:00:0{s} TP0] Prefill batch, #new-seq: 1, #new-token: 31, #cached-token: 0, token usage: 0.00, "
    "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 2.00"
)


def line(s: int = 0, r: int = 1, g: bool = True, t: float = 100.0) -> str:
    return LINE.format(s=s, r=r, g=g, t=t)


def rows(*lines: str) -> list[dict[str, object]]:
    return loglines.rows_of(loglines.read("\n".join(lines)))


def test_fields_by_name_whatever_their_order() -> None:
    text = "Decode batch, gen throughput (token/s): 5.5, new thing: 7, #queue-req: 2, "
    text += "cuda graph: True, #running-req: 3, #token: 9"
    row = loglines.row_of(loglines.read(text)[0])
    assert (row["gen_throughput"], row["new_thing"], row["queue"], row["running"], row["token"]) == (5.5, 7, 2, 3, 9)
    assert row["cuda_graph"] is True and row["accept_len"] is None


def test_nothing_else_is_taken_for_a_line() -> None:
    for other in (
        "Decode batch size is 4",
        "max decode batch: 5",
        "[x] Prefill batches carry lengths",
        "Decode batch, nothing here",
        "",
    ):
        assert loglines.read(other) == []


def test_stamps_and_tags() -> None:
    made = loglines.read("[2026-01-01 10:00:00.250 DP1 TP3 PP0] Decode batch, #running-req: 1, #token: 1")[0]
    assert made.tags == (("DP", 1), ("TP", 3), ("PP", 0))
    later = loglines.read("[2026-01-01 10:00:02,750] Decode batch, #running-req: 1, #token: 1")[0]
    assert made.at is not None and later.at is not None and later.at - made.at == pytest.approx(2.5)
    assert loglines.stamp_of("[01-01 10:00:00] x") is not None and loglines.stamp_of("[99-99 10:00:00] x") is None


def test_use_and_why() -> None:
    got = rows(
        line(0), line(1), PREFILL.format(s=1), line(2), line(3), line(4, r=2), line(5, r=2), line(6, r=2, g=False)
    )
    assert [row["why"] for row in got] == [["first"], [], ["prefill"], [], ["running_changed"], [], ["eager"]]
    assert [row["use"] for row in got] == [False, True, False, True, False, True, False]
    assert len(loglines.clean_rows(got)) == 4, "an eager line tells truly how fast that server decoded"


def test_stamps_of_a_second_make_no_pause() -> None:
    slow = [
        f"[2026-01-01 10:{m:02d}:00] Decode batch, #running-req: 1, #token: 1, gen throughput (token/s): 0.5"
        for m in range(5)
    ]
    assert [row["why"] for row in rows(*slow)] == [["first"], [], [], [], []], "one line a minute, always"


@pytest.mark.parametrize(
    ("accept", "rate", "definition"),
    [
        (2.20, 0.55, "old"),
        (2.20, 0.40, "new"),
        (2.83, 0.61, "new"),
        (1.00, 0.25, "old"),
        (None, 0.4, None),
        (1.0, 0.0, None),
    ],
)
def test_which_definition_of_the_rate(accept: float | None, rate: float, definition: str | None) -> None:
    assert loglines.rate_definition(accept, rate) == definition


def test_versions_sort() -> None:
    ordered = [
        "0.4.6",
        "0.4.6.post5",
        "0.5.0rc2",
        "0.5.0",
        "0.5.3.post3",
        "0.5.9",
        "0.5.10",
        "0.5.10.post1",
        "0.5.23",
        "1.0",
    ]
    assert sorted(ordered[4:] + ordered[:4], key=loglines.version_key) == ordered
    assert loglines.in_range("0.5.10.post1", ("0.5.9", "0.5.10.post1")) and not loglines.in_range(
        "0.5.11", ("0.5.9", "0.5.10.post1")
    )
    assert loglines.in_range("0.6.0", ("0.5.11", None))


def test_lines_of_two_versions_have_none_in_common() -> None:
    old = "Decode batch. #running-req: 1, #token: 1, token usage: 0.01, gen throughput (token/s): 1.00, #queue-req: 0"
    assert loglines.common_range(loglines.read(f"{old}\n{line()}")) is None
    assert loglines.common_range(loglines.read(old)) == ("0.4.4", "0.4.6.post4")


@pytest.mark.parametrize(
    "wrapped",
    [
        "Nov 29 10:00:00 host sglang[12]: {}",
        "2026-11-29T10:00:00+0000 host python3[1]: {}",
        "sglang-1  | {}",
        "2026-11-29T10:00:00.123456789Z stdout F {}",
        "2026-11-29T10:00:00Z {}",
        "\x1b[32m{}\x1b[0m",
        "worker-0 INFO >>> {}",
    ],
)
def test_what_collectors_put_before_a_line(wrapped: str) -> None:
    made = loglines.read(wrapped.format(line(3)))
    assert len(made) == 1 and made[0].fields["gen throughput (token/s)"] == 100.0 and made[0].tags == (("TP", 0),)
