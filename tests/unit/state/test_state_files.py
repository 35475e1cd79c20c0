"""Group ``files`` on real builds: what was tampered with is named, and nothing else."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from plumbline.state import compare, document
from plumbline.state.cache import DigestCache
from plumbline.state.layout import find_layout, parse_record
from state_builds import SCHEDULER, SITE, copy_root, install, look, make_build, sglang_files, wheel

FILE = f"{SITE}/sglang/srt/managers/scheduler.py"


def files(root: Path, **more: Any) -> dict:
    """Deviating files of the build (start-up code of this machine's own Python left out)."""
    found = look(root, "files", **more)["files"]["identity"]
    return {name: value for name, value in found.items() if not name.startswith("stdlib/")}


def build_file(root: Path, name: str) -> Path:
    return root / "builds" / "current" / name


def edit(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_a_build_as_its_wheels_made_it_has_no_items(root: Path) -> None:
    assert files(root) == {}
    assert look(root, "files")["files"]["condition"]["checked"]["files"] > 10


def test_an_edited_file_is_named_with_both_digests(root: Path) -> None:
    edit(build_file(root, FILE), "# tuned\n")
    found = files(root)
    assert list(found) == [FILE]
    assert found[FILE] == {
        "kind": "edited",
        "sha256": hashlib.sha256((SCHEDULER + "# tuned\n").encode()).hexdigest(),
        "recorded": hashlib.sha256(SCHEDULER.encode()).hexdigest(),
    }


def test_an_edit_that_restores_size_and_time_is_seen_though_digests_are_remembered(root: Path) -> None:
    path = build_file(root, FILE)
    old = time.time() - 3600
    os.utime(path, (old, old))
    time.sleep(1.1)  # past the margin within which nothing is remembered
    assert files(root) == {}
    assert files(root) == {}  # and now from memory
    path.write_text(SCHEDULER.replace("+ 1", "+ 2"))
    os.utime(path, (old, old))
    assert path.stat().st_size == len(SCHEDULER)
    assert list(files(root)) == [FILE]


def test_warm_looks_read_no_file_and_full_reads_all(root: Path) -> None:
    time.sleep(1.1)
    cold = document.observe(root, groups=["files"])
    warm = document.observe(root, groups=["files"])
    full = document.observe(root, groups=["files"], full=True)
    assert cold["cost"]["hashed_files"] > 5 and warm["cost"]["hashed_files"] == 0
    assert full["cost"]["hashed_files"] == cold["cost"]["hashed_files"]
    assert cold["state"]["groups"] == warm["state"]["groups"] == full["state"]["groups"]


def test_two_edits_within_one_clock_tick_are_both_seen(root: Path) -> None:
    path = build_file(root, FILE)
    seen = set()
    for text in ("# a\n", "# b\n", "# c\n"):
        path.write_text(SCHEDULER + text)
        seen.add(files(root)[FILE]["sha256"])
    assert len(seen) == 3


@pytest.mark.parametrize(
    "name",
    [
        f"{SITE}/sitecustomize.py",
        f"{SITE}/usercustomize.py",
        f"{SITE}/zz_tuning.pth",
        f"{SITE}/sglang/srt/fast_path.py",
        "venv/bin/sitecustomize.py",
        "venv/bin/sglang.py",
        "notes.txt",
    ],
)
def test_a_file_that_no_wheel_brought_is_named(root: Path, name: str) -> None:
    build_file(root, name).write_text("import os\n")
    assert files(root) == {name: {"kind": "extra", "sha256": hashlib.sha256(b"import os\n").hexdigest()}}


def test_missing_files_are_named(root: Path) -> None:
    build_file(root, FILE).unlink()
    assert files(root)[FILE] == {"kind": "missing"}


def test_a_link_in_place_of_a_file_is_named(root: Path) -> None:
    path = build_file(root, FILE)
    path.unlink()
    path.symlink_to("/tmp/scheduler.py")
    assert files(root)[FILE]["link"] == "/tmp/scheduler.py"


@pytest.mark.parametrize("mode", [0o600, 0o666, 0o4644])
def test_a_file_that_others_may_read_or_write_than_usual_is_named(root: Path, mode: int) -> None:
    build_file(root, FILE).chmod(mode)
    assert files(root) == {FILE: {"kind": "mode", "mode": f"{mode:04o}"}}


def test_a_build_that_was_made_under_another_umask_has_no_items(root: Path) -> None:
    build = (root / "builds" / "current").resolve()
    for path in build.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o750)
    assert files(root) == {}


def test_byte_code_is_no_item_while_python_checks_it(root: Path) -> None:
    source = build_file(root, f"{SITE}/sglang/srt/entrypoints/engine.py")
    subprocess.run(
        [str(root / "builds/current/venv/bin/python"), "-c", "import sglang.srt.managers.scheduler, tinydep"],
        check=True,
    )
    py_compile.compile(str(source), doraise=True)
    assert files(root) == {}


def test_byte_code_without_a_source_or_unchecked_is_named(root: Path) -> None:
    cache = build_file(root, f"{SITE}/sglang/srt/managers/__pycache__")
    (cache / "hidden.cpython-311.pyc").write_bytes(importlib.util.MAGIC_NUMBER + b"\0" * 12)
    tagged = cache / f"scheduler.{sys.implementation.cache_tag}.pyc"
    data = tagged.read_bytes()
    tagged.write_bytes(data[:4] + struct.pack("<I", 1) + data[8:])  # PEP 552: a hash that is not checked
    found = files(root)
    assert {n.rsplit("/", 1)[-1] for n in found} == {"hidden.cpython-311.pyc", tagged.name}
    assert all(v["kind"] == "extra" and v["why"] for v in found.values())


def test_a_dropped_folder_is_one_item_and_its_content_counts(root: Path) -> None:
    folder = build_file(root, f"{SITE}/handmade")
    folder.mkdir()
    for i in range(30):
        (folder / f"m{i}.py").write_text(f"x = {i}\n")
    first = files(root)
    assert list(first) == [f"{SITE}/handmade/"] and first[f"{SITE}/handmade/"]["files"] == 30
    (folder / "m7.py").write_text("x = 8\n")
    assert files(root)[f"{SITE}/handmade/"]["sha256"] != first[f"{SITE}/handmade/"]["sha256"]


def test_another_version_installed_by_hand_is_a_difference_of_the_build_alone(root: Path, tmp_path: Path) -> None:
    was = document.observe(root, groups=["build", "files"])["state"]
    install(root / "builds/current", wheel(tmp_path, "tinydep", "1.1", {"tinydep/__init__.py": "ONE = 1.1\n"}))
    now = document.observe(root, groups=["build", "files"])["state"]
    (difference,) = compare.compare(was, now)["differences"]
    assert (difference["group"], difference["item"], difference["impact"]) == (
        "build",
        "distribution.tinydep",
        "performance",
    )
    assert (difference["was"]["version"], difference["now"]["version"]) == ("1.0", "1.1")


def test_the_same_version_with_other_content_is_a_difference_of_the_build(root: Path, tmp_path: Path) -> None:
    was = document.observe(root, groups=["build", "files"])["state"]
    other = wheel(tmp_path, "sglang", "0.5.23", sglang_files("0.5.23", SCHEDULER + "# rebuilt\n"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(root / "builds/current/venv/bin/python"),
            "uninstall",
            "-qy",
            "sglang",
        ],
        check=True,
    )
    install(root / "builds/current", other)
    (difference,) = compare.compare(was, document.observe(root, groups=["build", "files"])["state"])["differences"]
    assert difference["item"] == "distribution.sglang" and set(difference["was"]) == {"record"}


def test_a_record_that_was_edited_along_with_its_file_does_not_hide_the_edit(root: Path) -> None:
    was = document.observe(root, groups=["build", "files"])["state"]
    edit(build_file(root, FILE), "# tuned\n")
    record = build_file(root, f"{SITE}/sglang-0.5.23.dist-info/RECORD")
    record.write_text("\n".join(line for line in record.read_text().splitlines() if "scheduler.py" not in line) + "\n")
    differences = compare.compare(was, document.observe(root, groups=["build", "files"])["state"])["differences"]
    assert {d["item"] for d in differences} == {"distribution.sglang", FILE}


def test_a_line_without_a_hash_does_not_hide_a_file_that_was_dropped_in(root: Path) -> None:
    was = document.observe(root, groups=["build", "files"])["state"]
    build_file(root, f"{SITE}/sitecustomize.py").write_text("import os\n")
    record = build_file(root, f"{SITE}/sglang-0.5.23.dist-info/RECORD")
    record.write_text(record.read_text() + "sitecustomize.py,,\n")
    differences = compare.compare(was, document.observe(root, groups=["build", "files"])["state"])["differences"]
    assert {d["item"] for d in differences} == {"distribution.sglang"}


def test_a_reinstalled_build_elsewhere_is_the_same(built_root: Path, tmp_path: Path) -> None:
    make_build(tmp_path / "other")
    was = document.observe(built_root, groups=["build", "files"])["state"]
    now = document.observe(tmp_path / "other", groups=["build", "files"])["state"]
    assert compare.compare(was, now)["differences"] == []
    assert was["digest"] == now["digest"]


def test_the_diff_is_kept_as_evidence_with_where_its_original_is_from(root: Path) -> None:
    edit(build_file(root, FILE), "API_KEY = 'hunter2hunter2'\n")
    build_file(root, f"{SITE}/sitecustomize.py").write_text("TOKEN = 'hf_abcdefghijklmnop'\nimport os\n")
    found = document.observe(root, groups=["files"], evidence=True)["evidence"]
    assert found[FILE]["kind"] == "diff" and found[FILE]["original"] == "wheel sglang-0.5.23-py3-none-any.whl"
    assert "+API_KEY = '[redacted]'" in found[FILE]["text"] and "hunter2" not in json.dumps(found)
    dropped = found[f"{SITE}/sitecustomize.py"]
    assert dropped["kind"] == "text" and dropped["original"] is None and "import os" in dropped["text"]
    assert "hf_abc" not in json.dumps(found)


def test_the_original_comes_from_a_sibling_build_and_else_the_text_is_kept(root: Path) -> None:
    sibling = root / "builds" / "bbb"
    shutil.copytree(root / "builds" / "aaa", sibling, symlinks=True)
    shutil.rmtree(root / "wheelhouse")
    edit(build_file(root, FILE), "# tuned\n")
    assert document.observe(root, groups=["files"], evidence=True)["evidence"][FILE]["original"] == "build bbb"
    shutil.rmtree(sibling)
    kept = document.observe(root, groups=["files"], evidence=True)["evidence"][FILE]
    assert kept["kind"] == "text" and kept["text"].endswith("# tuned\n")


def fake_python(root: Path, tmp_path: Path, shared: bool = False) -> Path:
    """A prefix that the environment says it stands on, with a standard library of one file."""
    prefix = tmp_path / "prefix"
    stdlib = prefix / f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    (stdlib / "site-packages").mkdir(parents=True)
    (stdlib / "os.py").write_text("x = 1\n")
    (prefix / "bin").mkdir()
    config = root / "builds/current/venv/pyvenv.cfg"
    lines = [f"home = {prefix}/bin" if x.startswith("home") else x for x in config.read_text().splitlines()]
    config.write_text("\n".join(lines).replace("packages = false", f"packages = {str(shared).lower()}") + "\n")
    return stdlib


def test_start_up_code_in_the_standard_library_is_named(root: Path, tmp_path: Path) -> None:
    stdlib = fake_python(root, tmp_path)
    was = document.observe(root, groups=["build", "files"])["state"]
    (stdlib / "sitecustomize.py").write_text("import os\n")
    comparison = compare.compare(was, document.observe(root, groups=["build", "files"])["state"])
    (difference,) = comparison["differences"]
    assert (difference["group"], difference["item"], difference["impact"]) == (
        "files",
        "stdlib/sitecustomize.py",
        "performance",
    )
    assert comparison["result"] == "one setting differs"


def test_an_edited_standard_library_is_a_difference_of_the_build(root: Path, tmp_path: Path) -> None:
    stdlib = fake_python(root, tmp_path)
    was = document.observe(root, groups=["build", "files"])["state"]
    (stdlib / "os.py").write_text("x = 2\n")
    (difference,) = compare.compare(was, document.observe(root, groups=["build", "files"])["state"])["differences"]
    assert difference["item"] == "stdlib"


def test_packages_below_a_shared_environment_are_seen(root: Path, tmp_path: Path) -> None:
    stdlib = fake_python(root, tmp_path, shared=True)
    source = root / "builds/current" / SITE
    shutil.copytree(source / "tinydep", stdlib / "site-packages/tinydep")
    shutil.copytree(source / "tinydep-1.0.dist-info", stdlib / "site-packages/tinydep-1.0.dist-info")
    found = look(root)
    assert found["build"]["identity"]["distribution.system.tinydep"]["version"] == "1.0"
    assert not [n for n in found["files"]["identity"] if n.startswith("system/")]
    (stdlib / "site-packages/tinydep/__init__.py").write_text("ONE = 2\n")
    assert [n for n in look(root)["files"]["identity"] if n.startswith("system/")] == ["system/tinydep/__init__.py"]


def test_a_distribution_without_a_record_cannot_be_verified(root: Path) -> None:
    build_file(root, f"{SITE}/tinydep-1.0.dist-info/RECORD").unlink()
    found = document.observe(root, groups=["files"])["state"]
    assert any("tinydep 1.0 has no RECORD" in u for u in found["unverified"])


def test_no_build_is_absent(tmp_path: Path) -> None:
    assert look(tmp_path)["files"]["identity"] == {"build": {"absent": True}}


def test_records_with_quoted_paths_and_without_digests() -> None:
    text = '"a,b.py",sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\r\nc.pyc,,\nd.py,md5=abc,1\n'
    assert parse_record(text) == {"a,b.py": hashlib.sha256(b"").hexdigest(), "c.pyc": "", "d.py": ""}


def test_a_damaged_cache_costs_time_only(root: Path) -> None:
    time.sleep(1.1)
    expected = files(root)
    for path in (root / "cache/digests").glob("*.json"):
        path.write_text("{")
    edit(build_file(root, FILE), "# tuned\n")
    assert expected == {} and list(files(root)) == [FILE]


def test_nothing_is_written_when_the_cache_must_not_be(root: Path) -> None:
    document.observe(root, groups=["files"], cache_writable=False)
    assert not (root / "cache").exists()


def test_the_layout_is_read_without_running_the_build(root: Path) -> None:
    layout = find_layout(root / "builds/current")
    assert layout.sites == [(root / "builds/aaa" / SITE).resolve()]
    assert layout.stdlib is not None and (layout.stdlib / "os.py").exists()


def test_remembered_digests_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    os.utime(path, (1, 1))
    time.sleep(1.1)
    cache = DigestCache(tmp_path / "cache")
    assert cache.digest("s", "f", str(path)) == cache.digest("s", "f", str(path)) == hashlib.sha256(b"one").hexdigest()
    assert cache.hashed_files == 1
    cache.save()
    again = DigestCache(tmp_path / "cache")
    assert again.digest("s", "f", str(path)) and again.hashed_files == 0


def test_copies_for_tests_start_without_memory(root: Path, tmp_path: Path) -> None:
    files(root)
    assert not (copy_root(root, tmp_path / "copy") / "cache").exists()
