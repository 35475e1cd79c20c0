"""The classifier: the most specific cause anywhere in the log, and nothing in a healthy one."""

from __future__ import annotations

from pathlib import Path

import pytest
from plumbline.sglang import failures
from plumbline.sglang.failure_rules import RULES, WEAK

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
SIGQUIT = "[2026-01-01 10:00:09] Received sigquit from a child process. It usually means the child failed.\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def classified(text: str) -> str | None:
    found = failures.classify(text)
    return found.cls if found else None


def test_rank_not_place_decides() -> None:
    for text in (
        OOM + SIGQUIT,
        SIGQUIT + OOM,
        f"RuntimeError: NCCL error: x\n{OOM}",
        OOM * 2 + "scheduler died during initialization",
    ):
        assert classified(text) == "cuda_oom"


def test_secondary_only_if_nothing_else() -> None:
    assert classified(SIGQUIT) == "secondary"
    assert classified(SIGQUIT + "Traceback (most recent call last):\nValueError: no such thing\n") == "exception"


def test_a_traceback_that_no_rule_knows() -> None:
    found = failures.classify(
        "[2026-01-01 10:00:00 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/v/sglang/srt/model_executor/model_runner.py", line 1, in load_model\n    x()\n'
        "my.own.StrangeError: it is Tuesday\n" + SIGQUIT
    )
    assert found is not None and found.cls == "exception" and found.detail == "my.own.StrangeError: it is Tuesday"
    assert found.phase == "weight_load" and found.facts == {"exception": "StrangeError"}


@pytest.mark.parametrize("consequence", ["EOFError", "ConnectionResetError: [Errno 104]", "KeyboardInterrupt"])
def test_exceptions_that_only_tell_of_another_process(consequence: str) -> None:
    assert classified(f"Traceback (most recent call last):\n  File x\n{consequence}\n") is None


@pytest.mark.parametrize(
    "harmless",
    [
        "Failed to load generation config: /m does not appear to have a file named generation_config.json. Proceeding",
        "[x TP0] Ignore import error when loading sglang.srt.models.kimi_k25: No module named 'cutlass'",
        "OpenAI Responses API disabled: init failed (ModuleNotFoundError: No module named 'openai_harmony')",
        "[x] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds",
        '    raise RuntimeError(f"something")',
    ],
)
def test_harmless_lines(harmless: str) -> None:
    assert classified(harmless) is None


def test_three_failed_health_checks_are_a_hang() -> None:
    assert (
        classified("[x] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds\n" * 3)
        == "health_check_failed"
    )


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("d*_real*")) + sorted(CORPUS.glob("[0-9]*_decode*")), ids=lambda p: p.name
)
def test_healthy_logs_show_no_failure(path: Path) -> None:
    assert classified(path.read_text().split("#@ ----\n")[1]) is None


def test_the_last_start_of_a_journal_counts() -> None:
    start = "[2026-01-01 10:00:00] server_args=ServerArgs(model_path='/m')\n"
    ready = "[2026-01-01 10:00:09] The server is fired up and ready to roll!\n"
    assert classified(start + OOM + start + ready) is None
    assert classified(start + ready + start + OOM) == "cuda_oom"
    assert classified(start + OOM + start + "RuntimeError: NCCL error: x\n") == "nccl_error"
    assert (
        failures.classify(start + ready + "[x TP0] Scheduler watchdog timeout (self.watchdog_timeout=300)\n")
        is not None
    )


def test_evidence_is_short_and_says_each_thing_once() -> None:
    found = failures.classify(
        (OOM + "x" * 50_000 + "\n") * 500 + "y" * 9000 + " CUDA out of memory " + "z" * 9000 + "\n"
    )
    assert found is not None and len(found.lines) == 2 and all(len(line) <= 400 for line in found.lines)


def test_every_class_has_its_own_name_and_says_what_to_do() -> None:
    rules = [*RULES, *WEAK]
    assert len({rule.cls for rule in rules}) == len(rules) and all(rule.detail and rule.remedy for rule in rules)


@pytest.mark.parametrize(
    ("status", "cls", "word"),
    [(-9, "killed", "signal 9"), (137, "killed", "signal 9"), (1, "unknown", "status 1"), (None, "unknown", "nobody")],
)
def test_an_end_without_a_cause(status: int | None, cls: str, word: str) -> None:
    found = failures.classify_exit("[2026-01-01 10:00:00 TP0] Load weight begin.\nlast words\n", status)
    assert (found.cls, found.phase, found.exit_code) == (cls, "weight_load", status) and word in found.detail
    assert found.lines[-1] == "last words"


def test_an_end_with_a_cause_keeps_the_cause() -> None:
    found = failures.classify_exit(OOM, -9)
    assert found.cls == "cuda_oom" and found.exit_code == -9 and found.as_dict()["class"] == "cuda_oom"
