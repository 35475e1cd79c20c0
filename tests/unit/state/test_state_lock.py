"""Locks: from a captured state and back, patches of edits, and every wrong lock refused before anything is done."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import state_builds
import yaml
from plumbline.analysis import lock as locks
from plumbline.analysis import schema
from plumbline.build import patch
from plumbline.errors import PlumblineError
from plumbline.state import document
from plumbline.state.values import Group

BUILD_LOCK = {
    "schema": "plumbline.build/1",
    "name": "tiny",
    "engine": "simulator",
    "python": ["3.11"],
    "platform": "linux-x86_64",
    "distributions": {
        n: {"version": v, "files": {f"{n}-{v}-py3-none-any.whl": h * 64}}
        for n, v, h in (("sglang", "0.5.23", "a"), ("tinydep", "1.0", "b"))
    },
}
FILE = f"{state_builds.SITE}/sglang/srt/managers/scheduler.py"


@pytest.fixture()
def models(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "models" / "tiny-llama"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return {"tiny-llama": str(folder)}


def observe(root: Path, models: dict[str, str]) -> tuple[dict, dict]:
    found = document.observe(
        root,
        model_paths=models,
        args={"tensor-parallel-size": 8},
        environment={"OMP_NUM_THREADS": "1"},
        evidence=True,
        host="h",
        profile={"profile": "pcie-ll-ring", "delivery": "env_file", "variables": {"NCCL_PROTO": "LL"}},
    )
    return found["state"], found["evidence"]


def write(folder: Path, lock: dict) -> Path:
    path = folder / f"{lock['name']}.yml"
    path.write_text(yaml.safe_dump(lock, sort_keys=False))
    return path


def test_a_captured_state_comes_back_from_its_lock_to_the_digest(
    root: Path, models: dict[str, str], tmp_path: Path
) -> None:
    state, _evidence = observe(root, models)
    lock, files, remarks = locks.make(state, name="known", build_lock=BUILD_LOCK)
    assert files == {} and remarks == []
    schema.validate("lock", lock, "lock")
    again = locks.read(write(tmp_path, lock))
    expected = locks.expected(again)
    known = {n: {i: v for i, v in g["identity"].items() if "unknown" not in str(v)} for n, g in state["groups"].items()}
    assert {
        n: {i: v for i, v in g["identity"].items() if "unknown" not in str(v)} for n, g in expected["groups"].items()
    } == known
    assert expected["digest"] == state["digest"]
    comparison = locks.compare_with(again, state)
    assert comparison["differences"] == []
    assert again["models"]["tiny-llama"]["files"]["config.json"] == hashlib.sha256(b"{}").hexdigest()
    assert again["nccl"] == {"profile": "pcie-ll-ring", "delivery": "env_file", "variables": {"NCCL_PROTO": "LL"}}
    assert again["server"]["args"] == {"tensor-parallel-size": 8} and again["kernel"]["sysctls"]["vm.swappiness"]


def test_what_came_and_what_went_since_the_capture_is_named(root: Path, models: dict[str, str]) -> None:
    state, _evidence = observe(root, models)
    lock, _files, _remarks = locks.make(state, name="known", build_lock=BUILD_LOCK)
    now = copy.deepcopy(state)
    identity = now["groups"]["os_packages"]["identity"]
    identity["package.intruder"] = {"version": "1"}
    gone = next(i for i in identity if i.startswith("package.lib"))
    del identity[gone]
    differences = {d["item"]: d for d in locks.compare_with(lock, now)["differences"]}
    assert set(differences) == {"package.intruder", gone}
    assert differences[gone]["now"] == {"absent": True} and differences["package.intruder"]["was"] == {"absent": True}


def test_an_edit_becomes_a_patch_that_makes_the_same_file(root: Path, models: dict[str, str], tmp_path: Path) -> None:
    site = root / "builds/current" / state_builds.SITE
    edited = state_builds.SCHEDULER.replace("+ 1", "+ 2") + "# no end of line"
    (site / "sglang/srt/managers/scheduler.py").write_text(edited)
    (site / "sitecustomize.py").write_text("import os\n\f\nx = 1")
    state, evidence = observe(root, models)
    lock, files, remarks = locks.make(state, name="Tuned.1", build_lock=BUILD_LOCK, evidence=evidence)
    assert remarks == [] and set(files) == {"Tuned.1.patch"}
    assert lock["build"]["patches"] == [
        {"file": "Tuned.1.patch", "sha256": hashlib.sha256(files["Tuned.1.patch"].encode()).hexdigest()}
    ]
    assert lock["build"]["name"] == "tuned.1"
    locks.read(write(tmp_path, lock))
    clean = state_builds.copy_root(root, tmp_path / "clean") / "builds/current" / state_builds.SITE
    (clean / "sglang/srt/managers/scheduler.py").write_text(state_builds.SCHEDULER)
    (clean / "sitecustomize.py").unlink()
    patch.apply(clean, files["Tuned.1.patch"], 1, "patch")
    assert (clean / "sglang/srt/managers/scheduler.py").read_text() == edited
    assert (clean / "sitecustomize.py").read_text() == "import os\n\f\nx = 1"
    rebuilt, _evidence = observe(tmp_path / "clean", models)
    assert [d for d in locks.compare_with(lock, rebuilt)["differences"] if d["group"] in ("build", "files")] == []


def test_edits_that_cannot_be_made_again_are_said(root: Path, models: dict[str, str]) -> None:
    site = root / "builds/current" / state_builds.SITE
    (site / "sglang/srt/managers/scheduler.py").write_text("key = 'hf_" + "aB3" * 11 + "'\n")
    (root / "builds/current/notes.txt").write_text("x\n")
    (site / "tinydep/data.txt").write_bytes(b"\xff\xfe")
    state, evidence = observe(root, models)
    lock, files, remarks = locks.make(state, name="known", build_lock=BUILD_LOCK, evidence=evidence)
    assert files == {} and len(remarks) == 3 and lock["captured"]["not_rebuilt"] == remarks
    assert (
        any("holds a secret" in r for r in remarks)
        and any("outside" in r for r in remarks)
        and any("not kept" in r for r in remarks)
    )
    assert locks.compare_with(lock, state)["differences"] == [], "they are compared all the same"


def test_a_build_of_no_known_lock_is_compared_only(root: Path, models: dict[str, str], tmp_path: Path) -> None:
    state, _evidence = observe(root, models)
    lock, _files, remarks = locks.make(state, name="known")
    assert lock["build"] is None and "no build lock" in remarks[0]
    locks.read(write(tmp_path, lock))


def test_a_lock_written_by_hand_counts_for_what_it_names(root: Path, models: dict[str, str], tmp_path: Path) -> None:
    by_hand = {
        "schema": "plumbline.lock/1",
        "name": "hand",
        "build": BUILD_LOCK,
        "kernel": {"sysctls": {"vm.swappiness": "11"}},
        "models": {"tiny-llama": {"files": {"config.json": hashlib.sha256(b"{}").hexdigest()}}},
    }
    lock = locks.read(write(tmp_path, by_hand))
    state, _evidence = observe(root, models)
    assert [(d["item"], d["was"]) for d in locks.compare_with(lock, state)["differences"]] == [
        ("sysctl.vm.swappiness", "11")
    ]
    (root / "builds/current" / FILE).write_text("x = 1\n")
    (Path(models["tiny-llama"]) / "extra.safetensors").write_text("x")
    state, _evidence = observe(root, models)
    assert {d["item"] for d in locks.compare_with(lock, state)["differences"]} == {
        "sysctl.vm.swappiness",
        FILE,
        "tiny-llama/extra.safetensors",
    }


def test_another_version_than_the_build_lock_says_is_a_difference(root: Path, models: dict[str, str]) -> None:
    lock = {"schema": locks.SCHEMA, "name": "x", "build": copy.deepcopy(BUILD_LOCK)}
    lock["build"]["distributions"]["tinydep"]["version"] = "2.0"  # type: ignore[index]
    state, _evidence = observe(root, models)
    (difference,) = locks.compare_with(lock, state)["differences"]
    assert difference["item"] == "distribution.tinydep" and difference["was"]["version"] == "2.0"


def test_a_build_lock_alone_is_a_state_of_its_build(tmp_path: Path) -> None:
    lock = locks.read(write(tmp_path, BUILD_LOCK))
    assert lock["build"]["name"] == "tiny" and set(lock) == {"schema", "name", "build"}


BASE: dict[str, Any] = {"schema": "plumbline.lock/1", "name": "x", "build": BUILD_LOCK}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "plumbline.lock/2"}, "a lock of another schema version"),
        ({"schema": "else"}, "not a lock of a state"),
        ({"modles": {}}, "unknown key.*modles.*did you mean.*models"),
        ({"models": {"m": {"files": {"a": None}}}}, "models.m.files.a"),
        ({"models": {"m": {"files": {"a": "abc"}}}}, "wrong value .pattern.*models.m.files.a"),
        ({"models": {"m": {"files": {}}}}, "models.m.files"),
        ({"build": {**BUILD_LOCK, "distributions": {"sglang": {"version": "1", "files": {}}}}}, "missing hash: sglang"),
        ({"build": {**BUILD_LOCK, "schema": "plumbline.build/9"}}, "a lock of another schema version.*key build"),
        ({"build": {**BUILD_LOCK, "pathces": []}}, "unknown key.*key build.*did you mean.*patches"),
        ({"nccl": {"profile": "p", "delivery": "magic"}}, "nccl.delivery.*env_file"),
        ({"packages": {"p": {"held": True}}}, "missing key.*packages.p.*version"),
        ({"observed": {"hardwear": {}}}, "observed"),
    ],
)
def test_wrong_locks_are_refused_with_the_key(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(PlumblineError, match=f"(?s){message}") as caught:
        locks.read(write(tmp_path, {**BASE, **change}))
    assert "x.yml" in str(caught.value), "the file is named"


def test_what_is_no_yaml_and_an_unknown_name(tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text("a: [")
    with pytest.raises(PlumblineError, match="not YAML"):
        locks.read(tmp_path / "bad.yml")
    write(tmp_path, {**BASE, "name": "kimi-2026"})
    with pytest.raises(PlumblineError, match=r"unknown state 'kimi-2025'.*did you mean 'kimi-2026'"):
        locks.find("kimi-2025", [tmp_path])


def test_a_lock_of_other_hardware_is_refused() -> None:
    def state(count: int, name: str) -> dict:
        return document.assemble(
            "h",
            [
                Group("hardware", {"gpu.count": count, "memory.gib": 1}),
                Group("driver", {"gpu.0.name": name}),
                Group("build", {}),
            ],
        )

    lock, _files, _remarks = locks.make(state(8, "RTX PRO 6000"), name="x")
    locks.check_hardware(lock, state(8, "RTX PRO 6000"))
    with pytest.raises(PlumblineError, match=r"other hardware.*gpu.count: 7.*gpu.count: 8"):
        locks.check_hardware(lock, state(7, "RTX PRO 6000"))
    with pytest.raises(PlumblineError, match="H200"):
        locks.check_hardware(lock, state(8, "H200"))
