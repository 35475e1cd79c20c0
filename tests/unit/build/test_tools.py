"""The tools that make locks and wheelhouses."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from plumbline.digest import file_digest

from tests.unit.build.builds import PROJECT, PYTHON, entry, lock, wheel_of, write_lock

FILES = PROJECT / "roles" / "sglang_build" / "files"


@pytest.fixture(scope="module")
def make_lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_lock", FILES / "make_lock.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_lock_is_filled_in_from_the_index_answer(
    make_lock: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index's answer is a file as `uv pip compile --format pylock.toml` writes it; a script hands it over."""
    cpu = wheel_of(tmp_path / "trees", "thing", "1.0+cpu", tmp_path / "wheels")
    minor = PYTHON.replace(".", "")
    linux, mac = (
        f"thing-1.0-cp{minor}-cp{minor}-{platform}.whl" for platform in ("manylinux_2_28_x86_64", "macosx_11_0_arm64")
    )
    answer = tmp_path / "answer.toml"
    answer.write_text(
        '[[packages]]\nname = "thing"\nversion = "1.0"\nwheels = ['
        + ", ".join(f'{{name = "{w}", hashes = {{sha256 = "{h * 64}"}}}}' for w, h in ((linux, "a"), (mac, "b")))
        + "]\n"
    )
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nwhile [ "$1" != -o ]; do shift; done\ncp {answer} "$2"\n')
    uv.chmod(0o755)
    path = write_lock(tmp_path / "locks", lock(glibc="2.34"))
    path.write_text("# kept\n" + path.read_text())
    (tmp_path / "pins.txt").write_text("thing==1.0\n")
    monkeypatch.setattr(
        sys,
        "argv",
        ["x", str(path), "--requirements", str(tmp_path / "pins.txt"), "--wheels", str(cpu.parent), "--uv", str(uv)],
    )
    make_lock.main()
    asked = (tmp_path / "asked").read_text()
    assert f"--python-version {PYTHON}" in asked and "x86_64-manylinux_2_34" in asked
    text = path.read_text()
    assert text.startswith("# kept\n")
    document = yaml.safe_load(text)
    assert document["distributions"] == {
        "thing": {"version": "1.0", "files": {linux: "a" * 64, cpu.name: file_digest(cpu)}}
    }


def test_a_wheelhouse_is_filled_and_checked(tmp_path: Path) -> None:
    thing = wheel_of(tmp_path / "trees", "thing", "1.0", tmp_path / "wheels")
    cpu = wheel_of(tmp_path / "trees", "thing", "1.0+cpu", tmp_path / "elsewhere")
    only_cuda = wheel_of(tmp_path / "trees", "library", "2.0", tmp_path / "wheels")
    builds = entry(thing)
    builds["files"].update(entry(cpu)["files"])
    path = write_lock(
        tmp_path / "locks", lock(distributions={"thing": builds, "library": entry(only_cuda, when={"torch": "cuda"})})
    )
    pip = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(thing.parent), "PIP_NO_INDEX": "1"}

    def fill(*options: str) -> set[str]:
        tool = [sys.executable, str(FILES / "make_wheelhouse.py"), str(path), str(tmp_path / "house")]
        subprocess.run([*tool, "--python", PYTHON, *options], env=pip, check=True, capture_output=True)
        return {p.name for p in (tmp_path / "house").iterdir()}

    assert fill() == {thing.name}
    assert fill("--torch", "cuda") == {thing.name, only_cuda.name}
    pip["PIP_FIND_LINKS"] = f"{thing.parent} {cpu.parent}"
    assert cpu.name in fill(), "the build that pip would take"


def test_a_wheelhouse_for_a_python_without_files_is_refused(tmp_path: Path) -> None:
    path = write_lock(tmp_path, lock())
    tool = [sys.executable, str(FILES / "make_wheelhouse.py"), str(path), str(tmp_path / "house"), "--python", "3.8"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"it serves {PYTHON}" in done.stderr
    assert not (tmp_path / "house").exists()
