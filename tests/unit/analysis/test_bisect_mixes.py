"""What two states' locks make of a test: units, mixes, and locks that sglang_build takes."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from plumbline.analysis import bisect, bisecting, lock, mixes, schema
from plumbline.analysis.build import locks
from plumbline.analysis.store import Results
from plumbline.build import patch as patches
from plumbline.errors import PlumblineError
from plumbline.files import append_line, read_lines

PROJECT = Path(__file__).parents[3]
STATES, SOURCES = [PROJECT / "states"], [PROJECT]
CATALOGUES: dict[str, dict] = {
    "variants": {"baseline": {"args": {"decode-log-interval": 10}}}, "nccl_profiles": {}, "models": {},
    "workloads": {"one-stream": {"concurrency": 1, "requests": 8}}}


@pytest.fixture
def sides() -> tuple[mixes.Side, mixes.Side]:
    return mixes.read("sim-a", STATES, SOURCES), mixes.read("sim-b", STATES, SOURCES)


def with_sections(folder: Path, name: str, **sections: Any) -> mixes.Side:
    """The state sim-a with sections of its own."""
    document = yaml.safe_load((STATES[0] / "sim-a.yml").read_text())
    (folder / f"{name}.yml").write_text(yaml.safe_dump({**document, "name": name, **sections}))
    return mixes.read(name, [folder], SOURCES)


def test_the_storys_states_differ_in_a_build_and_two_files(sides: tuple[mixes.Side, mixes.Side]) -> None:
    can, cannot = mixes.units(*sides)
    assert [u["name"] for u in can] == ["build", "file:sglang/srt/entrypoints/engine.py",
                                        "file:sglang/srt/managers/scheduler.py"]
    assert cannot == []
    assert can[0] == {"name": "build", "was": "sim-a", "now": "sim-b"}


def test_the_storys_patch_fits_the_simulator(tmp_path: Path, sides: tuple[mixes.Side, mixes.Side]) -> None:
    """A patch that does not fit would only be found when a build is made of it."""
    shutil.copytree(PROJECT / "simulator/server/src/sglang", tmp_path / "sglang")
    changed = patches.apply(tmp_path, "".join(sides[1].files.values()), 1, "sim-b.patch")
    assert sorted(changed) == ["sglang/srt/entrypoints/engine.py", "sglang/srt/managers/scheduler.py"]
    for file, text in changed.items():
        compile(text or "", file, "exec")


def test_mixes_of_build_and_files(sides: tuple[mixes.Side, mixes.Side]) -> None:
    good, bad = sides
    every = [u["name"] for u in mixes.units(good, bad)[0]]
    nothing = mixes.mix(good, bad, [], every)
    assert nothing["build"]["lock"]["name"] == "sim-a"
    assert nothing["build"]["patch"] is None
    assert (nothing["nccl"], nothing["args"], nothing["environment"]) == (None, None, None)
    build = mixes.mix(good, bad, ["build"], every)["build"]
    assert build["lock"]["local"][0]["version"] == "0.5.23+sim.b"
    assert build["patch"] is None
    one = mixes.mix(good, bad, ["file:sglang/srt/managers/scheduler.py"], every)["build"]
    assert one["lock"]["local"][0]["version"] == "0.5.23+sim.a"
    (file,) = patches.parse(one["patch"], 1, "mix")
    assert file.new == "sglang/srt/managers/scheduler.py"
    both = mixes.mix(good, bad, every, every)["build"]
    assert [p.new for p in patches.parse(both["patch"], 1, "mix")] == sorted(bad.files)
    assert len({m["lock"]["name"] for m in (nothing["build"], build, one, both)}) == 4


def test_one_file_of_a_git_diff_is_taken_with_its_own_paths() -> None:
    text = ("diff --git a/python/x.py b/python/x.py\nindex 1..2 100644\n--- a/python/x.py\n+++ b/python/x.py\n"
            "@@ -1,2 +1,2 @@\n-a\n+b\n \ndiff --git a/python/n.py b/python/n.py\nnew file mode 100644\n"
            "--- /dev/null\n+++ b/python/n.py\n@@ -0,0 +1 @@\n+new\n\\ No newline at end of file\n")
    found = mixes.split(text, 2, "x.patch")
    assert found == {"x.py": "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-a\n+b\n \n",
                     "n.py": "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+new\n\\ No newline at end of file\n"}


def test_variables_and_arguments_are_units_and_the_machine_is_not(tmp_path: Path) -> None:
    good = with_sections(tmp_path, "good", nccl={"profile": "p", "delivery": "env_file",
                                                 "variables": {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}},
                         server={"args": {"schedule-policy": "lpm"}, "environment": {"A": "1"}},
                         driver={"version": "580.1", "flavour": "open"}, models={"m": {"files": {"x": "a" * 64}}})
    bad = with_sections(tmp_path, "bad", nccl={"profile": "q", "delivery": "env_file",
                                               "variables": {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"}},
                        server={"args": {"schedule-policy": "fcfs", "stream-interval": 4}, "environment": {}},
                        driver={"version": "590.1", "flavour": "open"}, models={"m": {"files": {"x": "b" * 64}}})
    can, cannot = mixes.units(good, bad)
    names = [u["name"] for u in can]
    assert names == ["nccl:NCCL_PROTO", "arg:schedule-policy", "arg:stream-interval", "environment:A"]
    assert sorted((c["group"], c["item"]) for c in cannot) == [("driver", "module"), ("models", "m/x")]
    assert "rebuild.yml" in next(c["why"] for c in cannot if c["group"] == "driver")
    mixed = mixes.mix(good, bad, ["nccl:NCCL_PROTO", "arg:stream-interval"], names)
    assert mixed == {"build": None, "nccl": {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"},
                     "args": {"schedule-policy": "lpm", "stream-interval": 4}, "environment": {"A": "1"}}


def search(results: Results, **more: Any) -> bisecting.Search:
    given = {"good": "sim-a", "bad": "sim-b", "host": "sim-1", "workload": "one-stream", "variant": "baseline",
             "catalogues": CATALOGUES, "blocks": 10, "margin": 0.02, "confidence": 0.99,
             "lock_folders": STATES, "source_folders": SOURCES, "build": "sim-a", "build_folders": ["/lab/builds"]}
    return bisecting.Search(results, **{**given, **more})


def test_a_test_is_an_experiment_whose_builds_can_be_made(tmp_path: Path) -> None:
    test = search(Results(tmp_path)).advance()["test"]
    assert test["experiment"]["reference"] == {"variant": "baseline", "build": "sim-a"}
    (build,) = test["experiment"]["axes"]["build"]
    assert test["lock_folders"][1] == "/lab/builds"
    written, _ = locks.load(build, test["lock_folders"], [])
    assert written["patches"][0]["sha256"]
    assert written["local"][0]["source"] == str(PROJECT / "simulator/server")
    for entry in read_lines(tmp_path / "bisect-sim-a-sim-b" / "bisect.jsonl"):
        schema.validate("bisect", entry, "entry")


def test_blocks_are_those_of_an_experiment(tmp_path: Path) -> None:
    for i, (given, blocks) in enumerate((("3", {"min": 3, "max": 3}), ({"min": 2, "max": "5"}, {"min": 2, "max": 5}))):
        test = search(Results(tmp_path / str(i)), blocks=given).advance()["test"]
        assert test["experiment"]["blocks"] == blocks


def test_asked_again_before_its_run_has_ended_it_is_the_same_test(tmp_path: Path) -> None:
    first, second = search(Results(tmp_path)).advance(), search(Results(tmp_path)).advance()
    assert first["test"] == second["test"]
    assert len(read_lines(tmp_path / "bisect-sim-a-sim-b" / "bisect.jsonl")) == 2


def test_another_question_begins_another_search(tmp_path: Path) -> None:
    run = search(Results(tmp_path)).advance()["test"]["run"]
    assert search(Results(tmp_path), margin=0.05).advance()["test"]["run"] != run


def test_searches_of_two_hosts_go_on_side_by_side(tmp_path: Path) -> None:
    def ask(host: str, **more: Any) -> dict:
        return search(Results(tmp_path), host=host).advance(**more)

    runs = {host: ask(host)["test"]["run"] for host in ("gpu-1", "gpu-2")}
    assert {host: ask(host)["test"]["run"] for host in runs} == runs
    ended = ask("gpu-1", failed="the patch does not apply")["found"]
    assert (ended["host"], ended["tests"][0]["run"]) == ("gpu-1", runs["gpu-1"])
    assert ask("gpu-2")["test"]["run"] == runs["gpu-2"]
    for entry in read_lines(tmp_path / "bisect-sim-a-sim-b" / "bisect.jsonl"):
        schema.validate("bisect", entry, "entry")


def test_a_test_under_way_keeps_its_experiment_whatever_is_asked_for_by_now(tmp_path: Path) -> None:
    results = Results(tmp_path)
    test = search(results, blocks=4).advance()["test"]
    store = results.experiment(test["experiment"]["name"])
    assert search(results, blocks=5).advance()["test"]["experiment"]["blocks"]["max"] == 5, "nothing is planned yet"
    store.write_experiment(test["run"], test["experiment"])
    append_line(store.folder / "plan.jsonl", {"run": test["run"], "host": "sim-1", "event": "planned", "blocks": []})
    again = search(results, blocks=5, confidence=0.95).advance()["test"]
    assert (again["run"], again["experiment"]) == (test["run"], test["experiment"])


@pytest.mark.parametrize(("action", "result", "why"), [
    ("plumbline_build", {"failed": True, "msg": "the patch does not fit"}, "the patch does not fit"),
    ("plumbline_build", {"failed": True, "module_stderr": "Traceback"}, "Traceback"),
    ("plumbline_build", {"failed": True}, "failed without a message"),
    ("plumbline_plan", {"failed": True, "refused": True, "msg": "no such argument"}, "no such argument"),
    ("plumbline_plan", {"failed": True, "msg": "what was planned has changed since the run began"}, ""),
    ("plumbline_lease", {"failed": True, "msg": "this host is held by another run"}, ""),
    ("ansible.builtin.fail", {"failed": True, "msg": "boot 01K was broken off"}, ""),
    ("plumbline_models", {"failed": True, "msg": "no space"}, ""),
])
def test_only_what_belongs_to_a_test_is_an_answer_to_it(action: str, result: dict, why: str) -> None:
    assert bisecting.why_not_made(action, result) == why


def test_a_first_test_that_cannot_be_made_ends_the_search_undecided(tmp_path: Path) -> None:
    search(Results(tmp_path)).advance()
    answer = search(Results(tmp_path)).advance(failed="the patch does not apply")
    assert answer["found"]["outcome"] == "unresolved"
    assert "the patch does not apply" in answer["found"]["text"]
    assert answer["found"]["tests"][0]["answer"]["result"] == bisect.UNRESOLVED


def test_arguments_and_variables_get_entries_of_their_own(tmp_path: Path) -> None:
    for name, policy in (("good", "lpm"), ("bad", "fcfs")):
        with_sections(tmp_path, name, server={"args": {"schedule-policy": policy}},
                      nccl={"profile": name, "delivery": "env_file", "variables": {"NCCL_PROTO": policy.upper()}})
    test = search(Results(tmp_path / "r"), good="good", bad="bad", lock_folders=[tmp_path]).advance()["test"]
    assert sorted(test["experiment"]["axes"]) == ["nccl_profile", "variant"]
    variants, profiles = test["catalogues"]["variants"], test["catalogues"]["nccl_profiles"]
    reference = test["experiment"]["reference"]
    assert variants[reference["variant"]]["args"] == {"decode-log-interval": 10, "schedule-policy": "lpm"}
    assert variants[test["experiment"]["axes"]["variant"][0]]["args"]["schedule-policy"] == "fcfs"
    assert profiles[reference["nccl_profile"]]["variables"] == {"NCCL_PROTO": "LPM"}
    assert "mix" not in "".join(CATALOGUES["variants"]), "the catalogue that was given stays as it was"
    assert test["build"] == "sim-a"


@pytest.mark.parametrize(("given", "words"), [
    ({"good": "sim-aa"}, "did you mean 'sim-a'"), ({"workload": "one-strem"}, "did you mean 'one-stream'"),
    ({"blocks": "some"}, "a number above 0, or {min, max}"),
    ({"margin": "2 %"}, "margin is not a fraction"), ({"variant": "basline"}, "did you mean 'baseline'"),
])
def test_what_is_not_known_is_refused(tmp_path: Path, given: dict, words: str) -> None:
    with pytest.raises(PlumblineError, match=words):
        search(Results(tmp_path), **given)


def test_the_states_are_locks_that_compare_as_the_story_says() -> None:
    for name in ("sim-a", "sim-b"):
        assert lock.read(STATES[0] / f"{name}.yml")["build"]["engine"] == "simulator"
