"""The lines of the progress callback."""
from __future__ import annotations

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location(
    "plumbline_progress", Path(__file__).parents[3] / "callback_plugins" / "plumbline_progress.py")
progress = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(progress)


def test_a_boot_says_which_it_is_and_what_is_left():
    line = progress.describe("plumbline_next", {
        "boot": {"arm": {"name": "eagle3-2step"}, "block": 2, "warm_up": False},
        "progress": {"boots_done": 3, "boots_planned": 10, "left_s": 312}})
    assert line == "boot 4 of 10: eagle3-2step (block 2), about 5 min left"


def test_the_end_says_why():
    said = progress.describe("plumbline_next", {"boot": None, "stop": "every block was run"})
    assert said == "done: every block was run"


def test_a_measurement_shows_its_figures_and_what_invalidates_it():
    metrics = {"decode_tok_s": 158.24, "output_tok_s": 150.0, "accept_length": 2.84, "step_ms": 17.9}
    line = progress.describe("plumbline_throughput", {"measurement": {
        "workload": "one-stream", "status": "ok", "metrics": metrics,
        "flags": [{"name": "foreign_load", "invalidates": True}, {"name": "past_eos", "invalidates": False}]}})
    assert line == "  one-stream: 158.2 tok/s, accept length 2.84, step 17.90 ms, not used: foreign_load"


def test_many_streams_show_what_all_of_them_get():
    metrics = {"decode_tok_s": 33.0, "output_tok_s": 528.4, "accept_length": 1.0, "step_ms": 30.1}
    line = progress.describe("plumbline_throughput", {"measurement": {
        "workload": "sixteen-streams", "status": "ok", "metrics": metrics, "flags": [],
        "conditions": {"concurrency": 16}}})
    assert line == "  sixteen-streams: 528.4 tok/s, step 30.10 ms"


def test_a_failure_names_its_class():
    line = progress.describe("plumbline_ready", {"ready": False, "failure": {"class": "cuda_oom", "detail": "GPU 7"}})
    assert line == "  not ready: cuda_oom: GPU 7"


def test_other_tasks_say_nothing():
    assert progress.describe("ansible.builtin.copy", {"changed": True}) is None
