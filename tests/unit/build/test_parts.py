"""Packing, finding a Python, reading what was installed, explaining what pip said, and the option lists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Callable

import pytest
from plumbline.analysis.build import pack
from plumbline.build import installed, interpreter, manifest, pip
from plumbline.errors import PlumblineError
from plumbline.sglang import options

from tests.unit.build.builds import PROJECT, PYTHON, sglang_tree

LISTS = PROJECT / "module_utils" / "plumbline" / "analysis" / "data" / "sglang-options"


def test_equal_trees_give_equal_wheels(tmp_path: Path) -> None:
    one = pack.pack(sglang_tree(tmp_path / "one"), "1.2.3", tmp_path / "out1")
    other = sglang_tree(tmp_path / "two")
    (other / "src" / "sglang" / "srt" / "__pycache__").mkdir()
    for path in other.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o600)
    two = pack.pack(other, "1.2.3", tmp_path / "out2")
    assert one.read_bytes() == two.read_bytes()


def test_the_version_is_written_into_the_wheel(tmp_path: Path) -> None:
    path = pack.pack(sglang_tree(tmp_path / "tree"), "0.5.23+sim-a", tmp_path)
    assert path.name == "sglang-0.5.23+sim.a-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        metadata = archive.read("sglang-0.5.23+sim.a.dist-info/METADATA").decode()
        record = archive.read("sglang-0.5.23+sim.a.dist-info/RECORD").decode()
        assert {line.split(",")[0] for line in record.split()} == set(archive.namelist())
    assert "\nVersion: 0.5.23+sim.a\n" in metadata


def test_a_tree_that_cannot_be_packed_says_why(tmp_path: Path) -> None:
    tree = sglang_tree(tmp_path / "tree")
    (tree / "pyproject.toml").write_text("[project]\nname = 'x'\nversion = 'not a version'\n")
    with pytest.raises(PlumblineError, match="cannot be packed"):
        pack.pack(tree, "1", tmp_path)


def fake_python(folder: Path, name: str, **answer: object) -> Path:
    """An interpreter that answers the probe with something else than the truth."""
    truth = interpreter.probe(sys.executable)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{json.dumps({**truth, 'path': str(path), **answer})}'\n")
    path.chmod(0o755)
    return path


def test_this_python_is_found_and_described() -> None:
    found = interpreter.find([PYTHON], "linux-x86_64")
    assert found["version"].startswith(PYTHON)
    assert interpreter.probe(found["path"])["version"] == found["version"]
    # Never a virtual environment's: the build's would hang on it.
    base = subprocess.run(
        [found["path"], "-c", "import sys; print(sys.prefix == sys.base_prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert base.stdout.strip() == "True"


def test_a_python_is_the_same_by_whatever_name_it_is_called(tmp_path: Path) -> None:
    real = interpreter.probe(sys.executable)["path"]
    (tmp_path / "python3").symlink_to(real)
    assert interpreter.probe(str(tmp_path / "python3"))["path"] == real


def test_a_folder_that_may_not_be_read_has_no_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, _pattern: str) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "glob", refuse)
    assert list(interpreter.candidates(["3.77"], home=tmp_path, search_path="")) == []
    with pytest.raises(PlumblineError):
        interpreter.find(["3.77"], platform="linux-x86_64")


def test_pythons_on_path_of_pyenv_and_uv_are_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    places = [
        tmp_path / "bin",
        tmp_path / "pyenv/versions/3.77.1/bin",
        tmp_path / "home/.local/share/uv/python/cpython-3.77.0-linux/bin",
    ]
    for place in places:
        place.mkdir(parents=True)
        fake_python(place, "python3.77")
    found = list(interpreter.candidates(["3.77"], home=tmp_path / "home", search_path=str(tmp_path / "bin")))
    assert found == [str(place / "python3.77") for place in places]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"version": "3.13.1"}, "is Python 3.13.1"),
        ({"implementation": "pypy"}, "pypy"),
        ({"modules": ["venv", "zlib", "ssl", "ctypes"]}, "lacks the modules ensurepip"),
        ({"machine": "aarch64"}, "linux-aarch64"),
        ({"libc": ["glibc", "2.28"]}, "runs on glibc 2.28"),
        ({"libc": ["", ""]}, "another libc"),
    ],
)
def test_a_python_that_does_not_serve_is_refused_with_the_reason(tmp_path: Path, answer: dict, says: str) -> None:
    path = fake_python(tmp_path, "python", **answer)
    with pytest.raises(PlumblineError, match="sglang_build_engine_python") as error:
        interpreter.find([PYTHON], "linux-x86_64", "2.34", str(path))
    assert says in str(error.value)


def test_another_minor_alone_is_a_refusal_that_says_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python(tmp_path, "python3.13", version="3.13.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlumblineError, match=r"no Python 3\.98 or 3\.99") as error:
        interpreter.find(["3.98", "3.99"], "linux-x86_64")
    assert "3.13.0" in str(error.value) and "install Python 3.98" in str(error.value)


def test_a_broken_shim_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 'version 3.11 is not installed' >&2; exit 127\n")
    path.chmod(0o755)
    assert "not installed" in interpreter.probe(str(path))["error"]


@pytest.mark.parametrize(
    ("text", "flavour", "version"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "cpu", "2.13.0+cpu"),
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n", "cuda", "2.13.0+cu130"),
        ("__version__ = '2.13.0'\ncuda = '13.0'\n", "cuda", "2.13.0"),
        (None, "none", None),
    ],
)
def test_flavour_of_torch(tmp_path: Path, text: str, flavour: str, version: str) -> None:
    if text:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(text)
    assert installed.torch_of(tmp_path) == {"version": version, "flavour": flavour}


def test_nccl_of_the_wheel() -> None:
    assert installed.nccl_of({"nvidia-nccl-cu13": "2.29.7", "torch": "2.13.0"}) == "2.29.7"
    assert installed.nccl_of({"torch": "2.13.0+cpu"}) is None


def test_requirements_that_do_not_hold_must_be_declared() -> None:
    said = (
        "sglang 0.5.23 has requirement torch==2.14.1, but you have torch 2.13.0+cpu.\n"
        "sglang 0.5.23 requires flashinfer-python, which is not installed.\n"
        "x 1 has requirement y[z]<2,>=1, but you have y 3.\n"
    )
    assert installed.undeclared(said, [{"name": "torch"}, {"name": "flashinfer_python"}]) == [said.splitlines()[2]]
    assert len(installed.undeclared(said, [])) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement foo==9.9 (from versions: 1.0, 1.1)\n"
            "ERROR: No matching distribution",
            ["foo==9.9", "does not exist", "1.0, 1.1", "distributions.foo.version"],
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated\n"
            "    foo==1.0 from file:///x/foo.whl"
            " (from -r r.txt (line 1)):\n        Expected sha256 aaaa\n             Got        bbbb\n",
            ["wrong hash", "foo==1.0", "aaaa", "bbbb", "distributions.foo.files"],
        ),
        ("OSError: [Errno 28] No space left on device", ["no space left"]),
        ("something else\n", ["installing failed with status 1", "something else", "build.log"]),
    ],
)
def test_what_pip_said_becomes_one_error(tmp_path: Path, text: str, says: list[str]) -> None:
    error = pip.explain(
        subprocess.CalledProcessError(1, ["pip"], output=text), "installing", "lock.yml", tmp_path / "build.log"
    )
    for word in says:
        assert word in str(error)


def test_a_step_dies_with_the_build(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(PROJECT / 'module_utils')!r})\n"
        "from pathlib import Path\nfrom plumbline.build import pip\n"
        f"t = Path({str(tmp_path)!r})\nf = open(t / 'lock', 'w')\n"
        "pip.run(['sh', '-c', 'echo $$ > pid; exec sleep 60'], pip.environment(), t / 'log', f.fileno(), t)\n"
    )
    build = subprocess.Popen([sys.executable, "-c", script])
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and bool(pid.read_text().strip()))
    step = int(pid.read_text())
    build.kill()
    build.wait()
    wait_for(lambda: not Path(f"/proc/{step}").exists() or "\nState:\tZ" in Path(f"/proc/{step}/status").read_text())


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_current_is_switched_and_old_builds_are_kept(tmp_path: Path) -> None:
    for digest in ("a" * 64, "b" * 64):
        bin_dir = tmp_path / "builds" / digest / "venv" / "bin"
        bin_dir.mkdir(parents=True)
        (bin_dir / "python").symlink_to(sys.executable)
        (tmp_path / "builds" / digest / manifest.FILE).write_text(
            json.dumps({"schema": manifest.SCHEMA, "digest": digest, "lock_digest": f"lock-{digest[0]}"})
        )
    assert manifest.current(tmp_path) is None
    assert manifest.switch(tmp_path, "a" * 64) and not manifest.switch(tmp_path, "a" * 64)
    assert manifest.switch(tmp_path, "b" * 64)
    assert (tmp_path / "builds" / "current").resolve().name == "b" * 64
    assert [p.name[0] for p in manifest.whole(tmp_path)] == ["a", "b"]
    assert manifest.by_lock(tmp_path, "lock-a") == tmp_path / "builds" / ("a" * 64)
    (tmp_path / "builds" / ("a" * 64) / "venv" / "bin" / "python").unlink()
    assert manifest.by_lock(tmp_path, "lock-a") is None, "its Python is gone: it must be made again"


@pytest.mark.parametrize(("version", "count"), [("0.5.22", 546), ("0.5.23", 561)])
def test_kept_option_lists(version: str, count: int) -> None:
    known = json.loads((LISTS / f"{version}.json").read_text())
    assert len(known) == count
    assert known["--attention-backend"]["takes_value"] and "torch_native" in known["--attention-backend"]["choices"]
    assert not known["--enable-metrics"]["takes_value"]
    assert "--cuda-graph-max-bs" not in known and "--cuda-graph-max-bs-decode" in known


def test_a_build_is_asked_for_its_options(tmp_path: Path) -> None:
    tree = sglang_tree(tmp_path / "tree")
    answer = tmp_path / "answer.json"
    subprocess.run(
        options.argv(sys.executable, str(answer)), env={**os.environ, "PYTHONPATH": str(tree / "src")}, check=True
    )
    found = options.tidy(json.loads(answer.read_text()))
    assert found["--attention-backend"] == {
        "takes_value": True,
        "choices": ["triton", "torch_native"],
        "nargs": None,
        "dest": "attention_backend",
        "deprecated": False,
    }
    assert found["--cuda-graph-bs-decode"]["nargs"] == "+"
    assert found["--enable-metrics"]["takes_value"] is False
