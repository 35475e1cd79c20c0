"""Workloads: what is sent, and what is refused before anything is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from plumbline.errors import PlumblineError
from plumbline.measure import workload

SPEC = {
    "concurrency": 2,
    "requests": 4,
    "output_tokens": 256,
    "warmup_requests": 2,
    "temperature": 0,
    "greedy_equal": True,
    "prompts": {"file": "tiny.jsonl", "skip": 3, "take": 6},
}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{i}", "text": f"text {i}"}) + "\n" for i in range(20)))
    return path


def test_warm_up_and_measurement_share_no_prompt(prompts: Path) -> None:
    made = workload.requests_of(workload.check(SPEC, "w"), workload.read_prompts(prompts), "w")
    assert [b["text"] for b in made.warm_up] == ["text 3", "text 4"]
    assert [b["text"] for b in made.measured] == ["text 5", "text 6", "text 7", "text 8"]
    assert made.prompts == ["p5", "p6", "p7", "p8"] and made.repeated == []
    assert made.measured[0] == {
        "text": "text 5",
        "stream": True,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 256, "ignore_eos": True},
    }
    assert made.warm_up[0]["sampling_params"]["max_new_tokens"] == 64


def test_prompts_that_come_again_are_told(prompts: Path) -> None:
    made = workload.requests_of(workload.check({**SPEC, "requests": 6}, "w"), workload.read_prompts(prompts), "w")
    assert made.prompts == ["p5", "p6", "p7", "p8", "p5", "p6"] and made.repeated == ["p5", "p6"]


def test_digest_of_the_prompt_file(prompts: Path) -> None:
    digest = hashlib.sha256(prompts.read_bytes()).hexdigest()
    assert len(workload.read_prompts(prompts, digest)) == len(workload.read_prompts(prompts, f"sha256:{digest}")) == 20
    with pytest.raises(PlumblineError, match="not what the workload says") as error:
        workload.read_prompts(prompts, "0" * 64)
    assert digest in str(error.value) and str(prompts) in str(error.value)


def test_plain_text_prompts(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n\ntwo\n")
    assert [(p.id, p.text) for p in workload.read_prompts(tmp_path / "p.txt")] == [("1", "one"), ("3", "two")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"concurency": 1}, ["concurency", "did you mean 'concurrency'"]),
        ({"concurrency": 0}, ["concurrency must be a whole number", "found: 0", "1 or more"]),
        ({"requests": "many"}, ["requests must be a whole number", "many"]),
        ({"requests": 1}, ["at least one request a stream", "found: 1", "2 (its concurrency) or more"]),
        ({"temperature": "hot"}, ["temperature must be a number", "hot"]),
        ({"prompts": {"takes": 3}}, ["takes", "did you mean 'take'"]),
        ({"prompts": {"take": 2}}, ["no prompt is left", "more than warmup_requests (2)"]),
        ({"output_tokens": True}, ["output_tokens", "True"]),
    ],
)
def test_a_wrong_workload_is_refused(change: dict[str, object], words: list[str]) -> None:
    with pytest.raises(PlumblineError) as error:
        workload.check({**SPEC, **change}, "workload w")
    assert all(word in str(error.value) for word in [*words, "workload w"])


def test_too_few_prompts(prompts: Path) -> None:
    with pytest.raises(PlumblineError, match=r"too few prompts.*found: 20"):
        workload.requests_of(
            workload.check({**SPEC, "prompts": {"skip": 15, "take": 6}}, "w"), workload.read_prompts(prompts), "w"
        )


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b'{"id": 1}\n', "without text"),
        (b"{no json\n", "line 1; found: {no json; .*remedy: mend the line"),
        (b"\n", "no prompt"),
        (b'"one"\n\xff\xfe', "no text; .*at byte 6"),
    ],
)
def test_a_prompt_file_of_another_form(tmp_path: Path, data: bytes, word: str) -> None:
    (tmp_path / "p.jsonl").write_bytes(data)
    with pytest.raises(PlumblineError, match=word):
        workload.read_prompts(tmp_path / "p.jsonl")


def test_no_prompt_file(tmp_path: Path) -> None:
    with pytest.raises(PlumblineError, match="no such prompt file"):
        workload.read_prompts(tmp_path / "none.jsonl")
