"""The results tree: choosing runs, appending records once, surviving torn writes."""
from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from plumbline.analysis import schema
from plumbline.analysis.store import Results
from plumbline.errors import PlumblineError
from plumbline.files import append_line, read_lines
from plumbline.ids import ulid


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schema, "validate", lambda *_: None)  # the records' content is not what is tested here
    return Results(tmp_path).experiment("demo")


def entry(run: str, host: str, event: str) -> dict:
    return {"run": run, "host": host, "event": event}


def test_first_run_is_new(store):
    run, resumed = store.choose_run()
    assert len(run) == 26
    assert not resumed


def test_incomplete_run_is_resumed_and_a_complete_one_opens_the_next(store):
    run = ulid(1)
    store.append_plan(entry(run, "a", "planned"))
    store.append_plan(entry(run, "b", "planned"))
    store.append_plan(entry(run, "a", "finished"))
    assert store.choose_run() == (run, True)
    assert store.choose_run("new")[0] != run
    store.append_plan(entry(run, "b", "finished"))
    assert store.choose_run()[1] is False
    with pytest.raises(PlumblineError, match="no incomplete run"):
        store.choose_run("resume")
    assert store.choose_run(run) == (run, True)


@pytest.mark.parametrize("wish", ["newest", "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
def test_a_run_that_does_not_exist_is_refused_with_what_is_allowed(store, wish):
    with pytest.raises(PlumblineError, match="run"):
        store.choose_run(wish)


def test_a_record_is_appended_once(store):
    record = {"id": ulid(), "run": "r"}
    assert store.append_measurement(record)
    assert not store.append_measurement({**record, "more": 1})
    assert store.measurements() == [record]


def append(path: str, first: int) -> None:
    for i in range(first, first + 50):
        append_line(path, {"i": i})


def test_lines_of_concurrent_writers_are_all_there(tmp_path):
    path = tmp_path / "x.jsonl"
    workers = [multiprocessing.Process(target=append, args=(str(path), n * 50)) for n in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert sorted(v["i"] for v in read_lines(path)) == list(range(200))


def test_a_torn_line_of_a_killed_writer_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "x.jsonl"
    append_line(path, {"i": 1})
    with path.open("a") as f:
        f.write('{"i": 2, "half')
    append_line(path, {"i": 3})
    assert [v["i"] for v in read_lines(path)] == [1, 3]
    assert json.loads(path.read_text().splitlines()[-1]) == {"i": 3}


@pytest.mark.parametrize("place", ["file", "file/below/it"])
def test_a_results_root_that_cannot_be_written_is_refused(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlumblineError, match=r"results cannot be written.*results_root=DIR.*file is not a folder"):
        Results(tmp_path / place).check_writable()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(PlumblineError, match=r"results cannot be written.*cannot be written by \w+"):
        Results(tmp_path / "results").check_writable()


def test_a_results_root_need_not_be_there(tmp_path: Path):
    Results(tmp_path / "a" / "b").check_writable()
    assert not list(tmp_path.iterdir())
