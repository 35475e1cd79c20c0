"""Placing models: from a folder, from a bundle, from a hub on loopback."""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from hub_standin import Hub, hub_python
from plumbline.errors import PlumblineError
from plumbline.models import place
from plumbline.models.catalogue import parse, select
from plumbline.models.present import present

FILES = {"config.json": b'{"architectures": ["LlamaForCausalLM"]}', "model.safetensors": b"weights" * 1000,
         "sub/extra.json": b"{}"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(source: Dict[str, Any], files: Dict[str, bytes] = FILES) -> Dict[str, Any]:
    return {"kind": "target", "source": source, "files": {name: sha256(data) for name, data in files.items()}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def run(root: Path, source: Dict[str, Any], files: Dict[str, bytes] = FILES, **more: Any) -> Dict[str, Any]:
    return present(str(root), [parse("m", entry(source, files), "plumbline_models.m")], **more)


def visible(root: Path) -> List[str]:
    """What anybody would take for a model."""
    folder = root / "models"
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) if folder.exists() else []


def hidden(root: Path) -> List[str]:
    return sorted(p.name for p in (root / "models").iterdir() if p.name.startswith(".") and p.name != ".lock")


def test_a_folder_is_copied_and_checked(root: Path, source: Path) -> None:
    done = run(root, {"directory": str(source)})
    path = Path(done["paths"]["m"])
    assert done["changed"] and visible(root) == [path.name] and not hidden(root)
    assert path.name == f"m-{done['models']['m']['digest'][:12]}"
    assert {name: (path / name).read_bytes() for name in place.listing(path)} == FILES
    assert done["models"]["m"]["config"] == {"architectures": ["LlamaForCausalLM"]}
    assert done["models"]["m"]["was"] == "absent"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> List[Path]:
    """The files whose digests are taken."""
    found: List[Path] = []
    real = place.file_digest

    def noted(path: Path) -> str:
        found.append(path)
        return real(path)
    monkeypatch.setattr(place, "file_digest", noted)
    return found


def test_the_second_run_changes_nothing_and_reads_nothing(root: Path, source: Path, reads: List[Path]) -> None:
    run(root, {"directory": str(source)})
    reads.clear()
    again = run(root, {"directory": str(source)})
    assert not again["changed"] and not reads and again["diff"]["before"] == again["diff"]["after"]
    assert not run(root, {"directory": str(source)}, reread=True)["changed"]
    assert len(reads) == len(FILES)


def test_a_link_costs_no_space(root: Path, source: Path) -> None:
    path = Path(run(root, {"directory": str(source), "link": True})["paths"]["m"])
    assert (path / "model.safetensors").is_symlink() and (path / "model.safetensors").read_bytes() == b"weights" * 1000
    assert not run(root, {"directory": str(source), "link": True})["changed"]


def test_check_mode_touches_nothing_and_tells_all(root: Path, source: Path) -> None:
    done = run(root, {"directory": str(source)}, check=True)
    assert done["changed"] and not root.exists()
    assert done["diff"]["before"] == ""
    assert f"model.safetensors: {sha256(FILES['model.safetensors'])}" in done["diff"]["after"]


def test_wrong_digest_leaves_nothing(root: Path, source: Path) -> None:
    (source / "model.safetensors").write_bytes(b"something else")
    with pytest.raises(PlumblineError) as error:
        run(root, {"directory": str(source)})
    assert error.value.what.startswith("wrong digest of model.safetensors")
    assert error.value.found == f"SHA-256 {sha256(b'something else')}"
    assert error.value.allowed == sha256(FILES["model.safetensors"])
    assert visible(root) == [] and hidden(root) == []


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "add", "manifest"])
def test_a_damaged_model_is_found_and_replaced(root: Path, source: Path, damage: str) -> None:
    path = Path(run(root, {"directory": str(source)})["paths"]["m"])
    weights = path / "model.safetensors"
    if damage == "flip":
        before = weights.stat()
        weights.write_bytes(b"W" + weights.read_bytes()[1:])
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))  # as an attacker or a careful rsync would
    elif damage == "truncate":
        weights.write_bytes(b"")
    elif damage == "remove":
        weights.unlink()
    elif damage == "add":
        (path / "stray.safetensors").write_bytes(b"")
    else:
        (path / "plumbline-model.json").write_text("{")
    done = run(root, {"directory": str(source)})
    was = done["models"]["m"]["was"]
    assert done["changed"] and len(was) == 1
    stray = {"add": "stray.safetensors", "manifest": "plumbline-model.json"}
    assert next(iter(was)) == stray.get(damage, "model.safetensors")
    assert {name: (path / name).read_bytes() for name in place.listing(path)} == FILES
    assert visible(root) == [path.name] and not hidden(root)


def test_a_touched_file_is_read_again_once(root: Path, source: Path, reads: List[Path]) -> None:
    path = Path(run(root, {"directory": str(source)})["paths"]["m"])
    os.utime(path / "config.json")
    reads.clear()
    assert not run(root, {"directory": str(source)})["changed"]
    assert reads == [path / "config.json"]
    assert not run(root, {"directory": str(source)})["changed"]
    assert len(reads) == 1


def test_a_half_copy_of_a_killed_run_is_invisible_and_in_nobodys_way(root: Path, source: Path) -> None:
    model = parse("m", entry({"directory": str(source)}), "x")
    half = root / "models" / f".{model.folder}.partial"
    half.mkdir(parents=True)
    (half / "left-over.bin").write_bytes(b"x")
    assert not place.standing(root, model).present
    path = Path(run(root, {"directory": str(source)})["paths"]["m"])
    assert not (path / "left-over.bin").exists() and not hidden(root)


def test_a_copy_that_breaks_off_leaves_nothing(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(source: Path, target: Path) -> None:  # noqa: ARG001 - shutil.copyfile's arguments
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(place.shutil, "copyfile", break_off)
    with pytest.raises(OSError, match="No space left"):
        run(root, {"directory": str(source)})
    assert visible(root) == [] and hidden(root) == []


def test_too_little_space_is_said_before_copying(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(place.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(PlumblineError, match="no space left for model m") as error:
        run(root, {"directory": str(source)})
    assert error.value.allowed == "1 MiB or more" and visible(root) == []


def test_a_path_without_weights(root: Path, source: Path) -> None:
    (source / "model.safetensors").unlink()
    with pytest.raises(PlumblineError, match="a model path without weights") as error:
        run(root, {"directory": str(source)})
    assert "config.json" in str(error.value.found) and str(source) in error.value.where


def test_no_such_folder_and_missing_files(root: Path, source: Path) -> None:
    with pytest.raises(PlumblineError, match="no such folder"):
        run(root, {"directory": str(source / "nowhere")})
    (source / "sub/extra.json").unlink()
    with pytest.raises(PlumblineError, match=r"allowed: also sub/extra\.json"):
        run(root, {"directory": str(source)})
    assert not root.exists()


def bundle(path: Path, files: Dict[str, bytes], tmp_path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            file = tmp_path / "member"
            file.write_bytes(data)
            tar.add(file, arcname=f"m/{name}")
    return path


def test_from_the_controller(root: Path, tmp_path: Path) -> None:
    first = run(root, {"controller": "models/m"})
    assert first["needs"] == ["m"] and first["changed"] and not root.exists()
    sent = str(bundle(tmp_path / "b.tar", FILES, tmp_path))
    done = run(root, {"controller": "models/m"}, bundle=sent)
    assert done["changed"] and done["needs"] == []
    again = run(root, {"controller": "models/m"})
    assert not again["changed"] and again["needs"] == []


def test_a_bundle_with_a_wrong_file_leaves_nothing(root: Path, tmp_path: Path) -> None:
    sent = str(bundle(tmp_path / "b.tar", {**FILES, "config.json": b"{}"}, tmp_path))
    with pytest.raises(PlumblineError, match=r"wrong digest of config\.json"):
        run(root, {"controller": "models/m"}, bundle=sent)
    assert visible(root) == [] and hidden(root) == []


def test_two_placers_at_once(root: Path, source: Path) -> None:
    """The second waits and then finds the work done."""
    installed: List[str] = []
    real = place.from_directory

    def counted(model: Any) -> Callable[[Path], Any]:
        installed.append(model.name)
        return real(model)
    original, place.from_directory = place.from_directory, counted
    try:
        with place.lock(root):
            workers = [threading.Thread(target=run, args=(root, {"directory": str(source)})) for _ in range(3)]
            for worker in workers:
                worker.start()
        for worker in workers:
            worker.join()
    finally:
        place.from_directory = original
    assert len(installed) == 1 and len(visible(root)) == 1


# The hub: huggingface_hub itself against a stand-in on loopback.
HUB_PYTHON = hub_python()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({"lab/open": {COMMIT: {**FILES, "README.md": b"# card"}}, "lab/private": {COMMIT: FILES},
              "lab/empty": {COMMIT: {"config.json": b"{}"}}}, tokens={"lab/private": "hf_aVerySecretToken"}) as server:
        yield server


def from_hub(root: Path, hub: Hub, repository: str = "lab/open", files: Dict[str, bytes] = FILES,
             revision: str = COMMIT, **more: Any) -> Dict[str, Any]:
    return run(root, {"hub": repository, "revision": revision}, files, python=HUB_PYTHON, endpoint=hub.endpoint, **more)


def test_hub_at_a_commit(root: Path, hub: Hub) -> None:
    path = Path(from_hub(root, hub)["paths"]["m"])
    assert {name: (path / name).read_bytes() for name in place.listing(path)} == FILES
    assert not any("README" in line for line in hub.requests)
    hub.requests.clear()
    assert not from_hub(root, hub)["changed"] and not hub.requests
    manifest = json.loads((path / "plumbline-model.json").read_text())
    assert manifest["source"] == {"hub": "lab/open", "revision": COMMIT}


def test_hub_without_listed_files_is_checked_with_the_hubs_own_digests(root: Path, hub: Hub) -> None:
    path = Path(from_hub(root, hub, files={})["paths"]["m"])
    assert "README.md" in place.listing(path)
    assert not from_hub(root, hub, files={})["changed"]
    (path / "model.safetensors").write_bytes(b"damaged")
    assert from_hub(root, hub, files={})["models"]["m"]["was"].keys() == {"model.safetensors"}
    assert (path / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_hub_with_a_wrong_digest_leaves_nothing(root: Path, hub: Hub) -> None:
    with pytest.raises(PlumblineError, match=r"wrong digest of model\.safetensors"):
        from_hub(root, hub, files={**FILES, "model.safetensors": b"other weights"})
    assert visible(root) == [] and hidden(root) == []


def test_hub_file_that_is_not_there(root: Path, hub: Hub) -> None:
    with pytest.raises(PlumblineError, match=r"allowed: also more\.safetensors"):
        from_hub(root, hub, files={**FILES, "more.safetensors": b""})
    assert visible(root) == [] and hidden(root) == []


def test_hub_revision_missing(root: Path, hub: Hub) -> None:
    with pytest.raises(PlumblineError, match="the repository has no such revision: lab/open") as error:
        from_hub(root, hub, revision="f" * 40)
    assert "f" * 40 in str(error.value.found) and visible(root) == [] and hidden(root) == []


def test_hub_repository_missing(root: Path, hub: Hub) -> None:
    with pytest.raises(PlumblineError, match="no such repository, or the token may not see it: lab/nothing"):
        from_hub(root, hub, repository="lab/nothing")


def test_hub_without_weights(root: Path, hub: Hub) -> None:
    with pytest.raises(PlumblineError, match="a model path without weights"):
        from_hub(root, hub, repository="lab/empty", files={})
    assert visible(root) == [] and hidden(root) == []


def test_hub_unreachable(root: Path, hub: Hub) -> None:
    hub.endpoint = "http://127.0.0.1:9"
    with pytest.raises(PlumblineError, match="the hub cannot be reached"):
        from_hub(root, hub)
    assert visible(root) == []


def test_hub_token_goes_by_standard_input_only(root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "hf_aVerySecretToken"
    commands: List[Any] = []
    real = subprocess.run

    def watched(argv: Any, **more: Any) -> Any:
        commands.append((argv, more["env"]))
        return real(argv, **more)
    monkeypatch.setattr(subprocess, "run", watched)
    done = from_hub(root, hub, repository="lab/private", token=token)
    assert hub.authorized and done["changed"]
    assert token not in json.dumps(done) and commands and token not in json.dumps(commands)
    for file in root.rglob("*"):
        assert file.is_dir() or token.encode() not in file.read_bytes()
    with pytest.raises(PlumblineError) as error:
        from_hub(root / "2", hub, repository="lab/private", token="hf_wrong")
    assert "hf_wrong" not in str(error.value)


def test_a_broken_download_is_invisible_and_goes_on(root: Path, hub: Hub) -> None:
    """Whole files of a download that broke off are not fetched again."""
    hub.break_after = {"model.safetensors": 100}
    with pytest.raises(PlumblineError, match="what has been fetched is kept"):
        from_hub(root, hub, timeout_s=60)
    assert visible(root) == [] and len(hidden(root)) == 1
    hub.break_after = {}
    hub.requests.clear()
    path = Path(from_hub(root, hub)["paths"]["m"])
    assert {name: (path / name).read_bytes() for name in place.listing(path)} == FILES
    assert f"GET /lab/open/resolve/{COMMIT}/model.safetensors" in hub.requests
    assert f"GET /lab/open/resolve/{COMMIT}/config.json" not in hub.requests
    assert not hidden(root)


def test_python_without_huggingface_hub(root: Path, hub: Hub, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S \"$@\"\n")
    bare.chmod(0o755)
    with pytest.raises(PlumblineError, match="this Python has no huggingface_hub"):
        run(root, {"hub": "lab/open", "revision": COMMIT}, python=str(bare), endpoint=hub.endpoint)
    with pytest.raises(PlumblineError, match="no such Python for the download"):
        run(root, {"hub": "lab/open", "revision": COMMIT}, python=str(tmp_path / "none"), endpoint=hub.endpoint)


def test_unknown_model_gets_the_nearest() -> None:
    with pytest.raises(PlumblineError, match="did you mean 'tiny-eagle3'"):
        select(["tiny-eagel3"], {"tiny-eagle3": {}, "tiny-llama": {}})


GOOD = {"config.json": "0" * 64, "model.safetensors": "1" * 64}


@pytest.mark.parametrize(("name", "given", "message"), [
    ("m", {"source": {"hub": "a/b", "revision": "main"}}, "the revision is not pinned"),
    ("m", {"source": {"hub": "a/b"}}, "the revision is not pinned"),
    ("m", {"source": {"hub": "a/../b", "revision": COMMIT}}, "not a repository of the hub"),
    ("m", {"source": {"directory": "/x", "hub": "a/b"}, "files": GOOD}, "a model has one source"),
    ("m", {"files": GOOD}, "a model has one source"),
    ("m", {"source": {"directory": "x"}, "files": GOOD}, "given from the root on"),
    ("m", {"source": {"directory": "/x"}}, "files are listed with their SHA-256"),
    ("m", {"source": {"directory": "/x"}, "files": {**GOOD, "../y": "0" * 64}}, "not a file of the model"),
    ("m", {"source": {"directory": "/x"}, "files": {**GOOD, "/etc/passwd": "0" * 64}}, "not a file of the model"),
    ("m", {"source": {"directory": "/x"}, "files": {**GOOD, "y": "0" * 63}}, "not a SHA-256"),
    ("m", {"source": {"directory": "/x"}, "files": {"config.json": "0" * 64}}, "a model path without weights"),
    ("m", {"source": {"directory": "/x"}, "files": {"model.safetensors": "0" * 64}}, "a model without config.json"),
    ("m", {"source": {"directory": "/x", "revison": "y"}, "files": GOOD}, "unknown key 'revison'"),
    ("m", {"sources": {"directory": "/x"}, "files": GOOD}, "did you mean 'source'?"),
    ("../m", {"source": {"directory": "/x"}, "files": GOOD}, "becomes a folder's name"),
    ("m", [], "not a model's entry")])
def test_faulty_entries(name: str, given: Any, message: str) -> None:
    with pytest.raises(PlumblineError) as error:
        parse(name, given, f"plumbline_models.{name}")
    assert message in str(error.value) and error.value.where.startswith(f"plumbline_models.{name}")


def test_content_decides_the_folder() -> None:
    one = parse("m", {"source": {"directory": "/x"}, "files": GOOD}, "x")
    same = parse("m", {"source": {"controller": "y"}, "files": GOOD}, "x")
    other = parse("m", {"source": {"directory": "/x"}, "files": {**GOOD, "config.json": "2" * 64}}, "x")
    assert one.folder == same.folder != other.folder
