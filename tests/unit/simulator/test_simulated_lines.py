"""Log lines: letter for letter those that SGLang's versions wrote, and read back by the project's parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from plumbline.sglang import loglines
from sglang.simulation import lines

CORPUS = Path(__file__).resolve().parents[2] / "corpus"


def corpus(name: str) -> list[str]:
    """The lines of a corpus file, without the time and rank tags."""
    file = next(CORPUS.glob(f"{name}_*.txt"))
    body = [line for line in file.read_text().splitlines() if line and not line.startswith("#@")]
    return [line.split("] ", 1)[1] for line in body]


DECODE = {"iteration": 0, "running": 1, "tokens": 640, "usage": 0.01, "graph": True, "queue": 0, "accept_length": None}


@pytest.mark.parametrize(
    ("name", "place", "version", "change"),
    [
        ("01", 0, "0.4.6", {"throughput": 97.18}),
        ("02", 0, "0.4.6", {"throughput": 169.06, "accept_length": 2.9}),
        ("03", 0, "0.5.0", {"throughput": 185.81, "accept_length": 2.1}),
        (
            "05",
            0,
            "0.5.6",
            {"throughput": 174.75, "accept_length": 2.2, "correct": 48, "cycles": 40, "draft_tokens": 4},
        ),
        (
            "06",
            0,
            "0.5.23",
            {"throughput": 172.95, "accept_length": 2.2, "correct": 48, "cycles": 40, "draft_tokens": 4},
        ),
        ("07", 0, "0.5.23", {"throughput": 1583.61, "running": 32, "tokens": 11000, "usage": 0.08}),
    ],
)
def test_decode_lines_are_those_of_the_corpus(name: str, place: int, version: str, change: dict) -> None:
    assert lines.decode_line(version, {**DECODE, **change}) == corpus(name)[place]


def test_prefill_lines_are_those_of_the_corpus() -> None:
    wanted = corpus("14")
    for version, line in zip(["0.4.6", "0.5.4", "0.5.6", "0.5.9", "0.5.10", "0.5.11"], wanted):
        speed = 2022.55 if version == "0.5.9" else 1989.31 if version == "0.5.10" else 2016.99
        values = {"iteration": 2, "sequences": 1, "tokens": 512, "cached": 128, "usage": 0.01, "running": 2, "queue": 0}
        assert lines.prefill_line(version, {**values, "throughput": speed, "graph": True}) == line


@pytest.mark.parametrize("version", ["0.4.6", "0.5.0", "0.5.4", "0.5.6", "0.5.9", "0.5.10", "0.5.11", "0.5.23"])
def test_every_version_is_read_back(version: str) -> None:
    values = {**DECODE, "throughput": 60.0, "accept_length": 2.16, "correct": 46, "cycles": 40, "draft_tokens": 4}
    text = f"[2026-01-01 10:00:00 TP0] {lines.decode_line(version, {**values, 'graph': False})}"
    row = loglines.row_of(loglines.parse(text)[0])
    assert row["gen_throughput"] == 60.0 and row["accept_len"] == 2.16 and row["running"] == 1
    assert row["cuda_graph"] is (None if version == "0.4.6" else False)
    if version >= "0.5.4":
        assert row["accept_rate"] == pytest.approx(
            86 / 160 if version in ("0.5.4", "0.5.6", "0.5.9", "0.5.10") else 46 / 120, abs=0.01
        )
