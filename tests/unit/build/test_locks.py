"""Locks: what is refused before anything starts, and what the digest covers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plumbline.analysis.build import locks
from plumbline.build.lock import alternatives, build_digest, file_serves, lock_digest, requirements, wheel_parts
from plumbline.errors import PlumblineError

from tests.unit.build.builds import PROJECT, lock, sglang_tree, write_lock

FILES = PROJECT / "roles" / "sglang_build" / "files"
A, B = "a" * 64, "b" * 64


def one(**more: Any) -> dict[str, Any]:
    entry = {"version": "1.0", "files": {"thing-1.0-py3-none-any.whl": A}, **more}
    return lock(distributions={"thing": entry})


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {**one(), "schema": "plumbline.build/2"},
            ["another schema version", "plumbline.build/2", "plumbline.build/1"],
        ),
        ({**one(), "enviroment": {}}, ["unknown key", "enviroment", "did you mean", "environment"]),
        (one(hash=A), ["unknown key", "distributions.thing", "hash"]),
        (one(files={}), ["missing hash", "thing 1.0", "distributions.thing.files"]),
        (one(files={"thing-1.0-py3-none-any.whl": "abc"}), ["wrong value", "thing-1.0-py3-none-any.whl", "abc"]),
        (
            one(files={"thing-1.0-cp310-cp310-manylinux_2_17_x86_64.whl": A}),
            ["missing hash", "no file of thing 1.0 serves Python 3.11"],
        ),
        (one(files={"thing-1.0-cp311-cp311-manylinux_2_17_aarch64.whl": A}), ["missing hash", "linux-x86_64"]),
        (one(files={"thing-1.1-py3-none-any.whl": A}), ["another distribution or version", "thing-1.1"]),
        ({k: v for k, v in one().items() if k != "engine"}, ["missing key", "engine"]),
        ({**one(), "engine": "sglang-gpu"}, ["engine", "sglang-gpu", "sglang-cuda"]),
        ({**one(), "git": [{"name": "sglang", "url": "file:///x", "commit": "main"}]}, ["git.0.commit", "main"]),
        ({**one(), "overrides": [{"name": "torch", "wanted": "2.14", "chosen": "2.13"}]}, ["overrides.0", "why"]),
        ([1], ["not a build lock", "list"]),
    ],
)
def test_bad_lock_is_refused_naming_file_key_found_and_allowed(tmp_path: Path, document: Any, says: list[str]) -> None:
    if isinstance(document, dict):
        document = {**document, "python": ["3.11"]}
        path = write_lock(tmp_path, document)
    else:
        path = tmp_path / "test.yml"
        path.write_text(str(document))
    with pytest.raises(PlumblineError) as error:
        locks.read(path)
    for word in [*says, str(path)]:
        assert word in str(error.value)


def test_unreadable_yaml_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text("a: [")
    with pytest.raises(PlumblineError, match=r"not YAML.*x\.yml"):
        locks.read(tmp_path / "x.yml")


def test_unknown_lock_names_the_nearest(tmp_path: Path) -> None:
    write_lock(tmp_path, one())
    with pytest.raises(PlumblineError, match="did you mean 'test'"):
        locks.find("tset", [tmp_path])


def test_a_state_lock_carries_its_build_lock(tmp_path: Path) -> None:
    path = write_lock(tmp_path, {"name": "state", "schema": "plumbline.lock/1", "build": one()})
    assert locks.read(path)["distributions"]["thing"]["version"] == "1.0"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "other"),
        ("engine", "sglang-cpu"),
        ("environment", {"A": "1"}),
        ("patches", [{"file": "x", "sha256": A}]),
        ("overrides", [{"name": "torch", "wanted": "1", "chosen": None, "why": "because"}]),
    ],
)
def test_the_digest_covers_what_is_installed_and_how_it_runs(key: str, value: Any) -> None:
    assert lock_digest(lock(**{key: value})) != lock_digest(lock())


def test_the_digest_leaves_out_words_and_places() -> None:
    base = lock(local=[{"path": "x", "name": "sglang", "version": "1", "tree_sha256": A}])
    moved = lock(
        local=[{"path": "y/z", "name": "sglang", "version": "1", "tree_sha256": A}],
        description="text",
        needs_bytes={"base": 1},
    )
    assert lock_digest(base) == lock_digest(moved)
    assert lock_digest(base) != lock_digest(
        lock(local=[{"path": "x", "name": "sglang", "version": "1", "tree_sha256": B}])
    )
    assert build_digest(A, "3.11") != build_digest(A, "3.12")


def test_local_trees_and_patches_are_checked_and_located(tmp_path: Path) -> None:
    sglang_tree(tmp_path / "trees" / "server")
    (tmp_path / "p.patch").write_text("x")
    good = {"path": "server", "version": "1.2.3+sim-a"}
    resolved = locks.resolve(lock(local=[good]), "f", [tmp_path, tmp_path / "trees"])
    entry = resolved["local"][0]
    assert (entry["name"], entry["version"]) == ("sglang", "1.2.3+sim.a")
    assert Path(entry["source"]) == tmp_path / "trees" / "server"
    assert "source" not in locks.without_sources(resolved)["local"][0]
    with pytest.raises(PlumblineError, match="wrong hash: the source tree server"):
        locks.resolve(lock(local=[{**good, "tree_sha256": A}]), "f", [tmp_path / "trees"])
    with pytest.raises(PlumblineError, match="wrong hash: the patch"):
        locks.resolve(lock(patches=[{"file": "p.patch", "sha256": A}]), "f", [tmp_path])
    with pytest.raises(PlumblineError, match="a local source tree that does not exist"):
        locks.resolve(lock(local=[{"path": "nothing"}]), "f", [tmp_path])
    with pytest.raises(PlumblineError, match="not a version that a wheel can carry"):
        locks.resolve(lock(local=[{"path": "server", "version": "sim-a"}]), "f", [tmp_path / "trees"])


@pytest.mark.parametrize(
    ("file", "python", "serves"),
    [
        ("a-1-py3-none-any.whl", "3.12", True),
        ("a-1-py2.py3-none-any.whl", "3.11", True),
        ("a-1-py37-none-any.whl", "3.11", True),
        ("a-1-cp38-abi3-manylinux2014_x86_64.whl", "3.11", True),
        ("a-1-cp312-abi3-manylinux2014_x86_64.whl", "3.11", False),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "3.11", True),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "3.12", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", "3.11", False),
        ("a-1-cp311-cp311-manylinux_2_17_aarch64.whl", "3.11", False),
        ("a-1-cp311-cp311t-manylinux_2_17_x86_64.whl", "3.11", False),
        ("a-1-2-py3-none-any.whl", "3.11", True),
        ("a-1.tar.gz", "3.12", True),
        ("a-1.exe", "3.12", False),
    ],
)
def test_which_python_a_file_serves(file: str, python: str, serves: bool) -> None:
    assert file_serves(file, python, "x86_64") is serves


def test_wheel_names() -> None:
    assert wheel_parts("Foo_Bar-1.0+cpu-py3-none-any.whl") == ("foo-bar", "1.0+cpu", ["py3"], ["none"], ["any"])
    assert wheel_parts("foo-1.0.tar.gz") is None


@pytest.mark.parametrize("path", sorted((FILES / "locks").glob("*.yml")), ids=lambda p: p.stem)
def test_shipped_locks_are_whole(path: Path) -> None:
    document, _ = locks.load(path.stem, [FILES / "locks"], [FILES, PROJECT])
    assert document["name"] == path.stem


def test_the_cpu_lock_has_both_builds_of_torch_and_what_cuda_needs() -> None:
    document = locks.read(FILES / "locks" / "sglang-0.5.23-cpu.yml")
    assert document["python"] == ["3.11", "3.12"]
    torch = document["distributions"]["torch"]["files"]
    assert {f.split("-")[1] for f in torch} == {"2.13.0", "2.13.0+cpu"}
    for python in ("cp311", "cp312"):
        assert any(python in f and "+cpu" not in f for f in torch)
    tried = {python: [line.split()[0] for line in alternatives(document, python)[0]] for python in document["python"]}
    assert tried == {"3.11": ["torch===2.13.0+cpu", "torch===2.13.0"], "3.12": ["torch===2.13.0"]}
    libraries = requirements(document, "cuda")
    assert any(line.startswith("nvidia-nccl-cu13==") for line in libraries)
    assert not any(line.startswith("nvidia-") for line in requirements(document, None))
    assert all("--hash=sha256:" in line for line in [*libraries, *requirements(document, None)])
    assert next(o for o in document["overrides"] if o["name"] == "torch")["chosen"] == "2.13.0"
    # What make_lock.py was given is what the lock has.
    for file, flavour in (("sglang-0.5.23-cpu.txt", None), ("sglang-0.5.23-cpu.torch-cuda.txt", "cuda")):
        pins = {
            line.split("==")[0].lower().replace("_", "-"): line.split("==")[1]
            for line in (FILES / "requirements" / file).read_text().split()
        }
        have = {
            n: e["version"]
            for n, e in document["distributions"].items()
            if (e.get("when") or {}).get("torch") == flavour
        }
        assert {n.replace(".", "-"): v for n, v in pins.items()} == have
