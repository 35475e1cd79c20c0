"""The checker itself: right readings pass, every kind of wrong one does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[2]
GOOD = {
    "kind": "decode",
    "version": "0.5.23",
    "reading": "prose",
    "rows": [{"gen_throughput": 172.95, "accept_len": 2.2, "running": 1}],
}
TEXT = (
    "[2026-01-01 10:00:00 TP0] Decode batch, #running-req: 1, #token: 640, token usage: 0.01, accept len: 2.20, "
    "accept rate: 0.40, "
    "cuda graph: True, gen throughput (token/s): 172.95, #queue-req: 0\n"
)


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(TESTS / "corpus_check.py"), *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def put(folder: Path, expect: Any, text: str = TEXT, name: str = "a.txt") -> None:
    (folder / name).write_text(f"#@ source: x\n#@ expect: {json.dumps(expect)}\n#@ ----\n{text}")


def test_the_projects_own_corpus() -> None:
    status, out = run(str(TESTS / "corpus"))
    assert status == 0, out
    files = [p for p in (TESTS / "corpus").iterdir() if p.suffix == ".txt"]
    assert f"{len(files)} files, 0 wrong" in out and len(files) >= 65


def test_kinds_choose_files() -> None:
    status, out = run(str(TESTS / "corpus"), "--kinds", "ready", "prefill")
    assert status == 0 and "[ready]" in out and "[prefill]" in out and "[decode]" not in out
    assert run(str(TESTS / "corpus"), "--kinds", "ready,prefill") == (status, out)


def test_a_right_reading(tmp_path: Path) -> None:
    put(tmp_path, GOOD)
    assert run(str(tmp_path))[0] == 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"version": "0.5.6"}, "version"),
        ({"version": "0.5.10"}, "version"),
        ({"kind": "decoding"}, "unknown kind"),
        ({"kind": "prefill"}, "taken for 'decode'"),
        ({"rows": []}, "rows: expected 0, read 1"),
        ({"rows": 2}, "rows: expected 2"),
        ({"rows": [{"gen_throughput": 172.9}]}, "row 0 gen_throughput"),
        ({"rows": [{"accept_len": None}]}, "row 0 accept_len"),
        ({"rows": [{"running": True}]}, "row 0 running"),
        ({"rows": [{"no_such": 1}]}, "row 0 no_such"),
        ({"no_such": 1}, "no_such"),
        ({"gen_throughput": [1.0]}, "gen_throughput"),
    ],
)
def test_a_wrong_reading(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    put(tmp_path, {**GOOD, **change})
    put(tmp_path, GOOD, name="b.txt")
    status, out = run(str(tmp_path))
    assert status == 1 and word in out and out.count("\n") == 3 and "2 files, 1 wrong" in out


def test_a_wrong_class_and_fact(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"kind": "failure", "class": "cuda_oom", "gpu": 1},
        "torch.OutOfMemoryError: CUDA out of memory. GPU 7 has a total capacity of 95 GiB",
    )
    assert "gpu: expected 1, read 7" in run(str(tmp_path))[1]


def test_text_that_no_parser_knows(tmp_path: Path) -> None:
    put(tmp_path, GOOD, "hello\n")
    status, out = run(str(tmp_path))
    assert status == 1 and "no parser knows this text" in out


@pytest.mark.parametrize(
    "content",
    ["no header\n", "#@ expect: {bad\n#@ ----\nx", "#@ source: x\n#@ ----\nx", '#@ expect: {"a": 1}\n#@ ----\n', ""],
)
def test_a_file_that_is_none_of_the_corpus(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    status, out = run(str(tmp_path))
    assert status == 1 and "not a corpus file" in out


def test_nothing_to_read(tmp_path: Path) -> None:
    assert run(str(tmp_path))[0] == 2 and run(str(tmp_path / "none"))[0] == 2
