"""Records: joining what was spooled with the boot, and comparing outputs."""
from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

from plumbline.analysis import records
from plumbline.analysis.report import explain
from plumbline.ids import ulid


def boot(**more) -> dict:
    spec = {"concurrency": 1, "greedy_equal": True}
    return {"id": "B", "run": "R", "experiment": "demo", "host": "h", "block": 1, "position": 2, "role": "candidate",
            "arm": {"name": "eagle3-2step", "variant": "eagle3-2step", "nccl_profile": "none", "build": "b"},
            "workloads": [{"id": "M1", "name": "one-stream", "repeat": 1, "spec": spec},
                          {"id": "M2", "name": "sixteen-streams", "repeat": 1, "spec": spec}], **more}


def sample(prompt: str, ids: list[int]) -> dict:
    return {"prompt": prompt, "output_ids": ids, "output_digest": str(ids)}


SPOOLED = {"id": "M1", "started_at": "2026-01-01T00:00:00Z", "duration_s": 3.0, "status": "ok", "failure": None,
           "metrics": {"decode_tok_s": 100.0, "unknown_metric": 1}, "checks": [], "flags": [], "samples": []}
SERVER = {"start_s": 20.0, "argv": [], "version": "0.5.23", "boot_id": "x"}


def build(spooled: dict, reference=None) -> dict:
    return records.measurement(boot(), spooled, engine="sglang-cpu", state={}, server=SERVER, nccl={},
                               reference=reference)


def test_record_names_its_boot_and_carries_exactly_the_metrics_of_the_contract():
    record = build(SPOOLED)
    assert (record["run"], record["host"], record["block"], record["arm"]) == ("R", "h", 1, "eagle3-2step")
    assert record["workload"] == "one-stream"
    assert set(record["metrics"]) == set(records.METRICS)
    assert record["metrics"]["decode_tok_s"] == 100.0


def test_equal_outputs_agree_without_a_flag():
    same = [sample("p1", [1, 2, 3]), sample("p2", [4, 5])]
    record = build({**SPOOLED, "samples": same}, reference=same)
    assert record["checks"][-1]["result"] == "agree"
    assert record["flags"] == []


def test_outputs_that_differ_early_invalidate_where_they_must_be_equal():
    record = build({**SPOOLED, "samples": [sample("p1", [1, 9, 9, 9])]}, reference=[sample("p1", [1, 2, 3, 4])])
    flag = record["flags"][0]
    assert flag["name"] == "output_differs"
    assert flag["invalidates"]
    assert "25.0%" in flag["detail"]


def test_a_late_difference_is_reported_and_does_not_invalidate():
    long = list(range(1000))
    record = build({**SPOOLED, "samples": [sample("p1", [*long[:-1], 7])]}, reference=[sample("p1", long)])
    assert record["flags"][0]["invalidates"] is False


def test_without_a_common_prompt_the_check_says_that_nothing_was_checked():
    record = build({**SPOOLED, "samples": [sample("p1", [1])]}, reference=[sample("p2", [1])])
    assert record["checks"][-1]["result"] == "unchecked"
    assert record["checks"][-1]["reason"]


def test_a_failed_boot_gives_one_record_for_each_workload_that_was_not_measured():
    failed = records.failed_boot(boot(), {"class": "cuda_oom", "detail": "out of memory"}, engine="sglang-cuda",
                                 state=None, server=SERVER, nccl={}, measured={"M1"})
    assert [(r["id"], r["status"], r["failure"]["class"]) for r in failed] == [("M2", "failed", "cuda_oom")]
    assert failed[0]["state"]["digest"] is None


def test_a_boot_on_which_nothing_was_measured_took_its_time_once():
    began = 1_700_000_000.0

    def durations(now_s: float, *measured: str) -> list[float]:
        failed = records.failed_boot(boot(id=ulid(began)), {"class": "hang"}, engine="sglang-cuda", state=None,
                                     server={}, nccl={}, measured=set(measured),
                                     now=datetime.fromtimestamp(now_s, timezone.utc))
        return [r["duration_s"] for r in failed]

    assert durations(began + 1800.5) == [1800.5, 0.0]
    assert durations(began + 1800.5, "M1") == [0.0], "the measurement's own record has the time"
    assert durations(began - 60) == [0.0, 0.0], "of a clock that was set back"


def test_every_flag_is_explained_and_no_other():
    """What the code can flag, by its text, is what the report has words for."""
    core = Path(records.__file__).parents[1]
    text = (core / "measure" / "flags.py").read_text() + (core / "analysis" / "records.py").read_text()
    raised = set(re.findall(r'flag\(\s*"(\w+)"', text)) | set(re.findall(r'\{"name": "(\w+)", "detail"', text))
    assert len(raised) > 10
    assert raised == set(explain.MEANINGS)
