"""Builds really made on this machine, small ones: by the core alone, and by the role as Ansible runs it."""

from __future__ import annotations

import difflib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from plumbline.analysis import schema
from plumbline.analysis.build import locks, pack
from plumbline.build import ensure, manifest
from plumbline.digest import file_digest
from plumbline.errors import PlumblineError
from plumbline.state.document import observe

from tests.unit.build.builds import PROJECT, entry, lock, play, sglang_tree, wheel_of, write_lock


class Lab:
    """A package index in a folder, a source tree, and locks that use them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.thing = wheel_of(folder / "trees", "thing", "1.0", self.wheels, requires="other>=1")
        self.other = wheel_of(folder / "trees", "other", "1.5", self.wheels)
        self.tree = sglang_tree(folder / "trees" / "server")
        for wheel in (self.thing, self.other):
            page = folder / "simple" / wheel.name.split("-")[0] / "index.html"
            page.parent.mkdir(parents=True)
            page.write_text(f'<a href="{wheel.as_uri()}#sha256={file_digest(wheel)}">{wheel.name}</a>')
        # Another build of the same version in a plain folder, as a CPU build of torch may lie beside an index.
        self.cpu = wheel_of(folder / "trees", "thing", "1.0+cpu", folder / "folder", requires="other>=1")
        # The index of the lab and nothing of this machine's own pip configuration.
        self.pip = {
            "PIP_INDEX_URL": (folder / "simple").as_uri(),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": "",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_NO_CACHE_DIR": "1",
        }

    def lock(self, **more: Any) -> dict[str, Any]:
        document = lock(
            distributions={"thing": entry(self.thing), "other": entry(self.other)},
            local=[{"path": "trees/server", "version": "1.2.3+lab"}],
            environment={"SGLANG_X": "1"},
        )
        return {**document, **more}

    def patch(self) -> dict[str, Any]:
        old = (self.tree / "src/sglang/srt/scheduler.py").read_text()
        new = old.replace("line_7 = 7", "line_7 = 'patched'")
        lines = difflib.unified_diff(
            old.splitlines(True),
            new.splitlines(True),
            "a/python/sglang/srt/scheduler.py",
            "b/python/sglang/srt/scheduler.py",
        )
        path = self.folder / "scheduler.patch"
        path.write_text("".join(lines))
        return {"file": path.name, "sha256": file_digest(path), "strip": 2}

    def ensure(self, root: Path, document: dict[str, Any], **more: Any) -> dict[str, Any]:
        """What the module does, without Ansible between."""
        resolved = locks.resolve(document, "lab.yml", [self.folder])
        staged = root.parent / "staged"
        wheels = []
        for e in resolved["local"]:
            path = pack.pack(Path(e["source"]), e["version"], staged / "wheels")
            wheels.append({"name": e["name"], "version": e["version"], "sha256": file_digest(path)})
        (staged / "patches").mkdir(parents=True, exist_ok=True)
        for i, e in enumerate(resolved["patches"]):
            (staged / "patches" / f"{i:03d}.patch").write_bytes(Path(e["source"]).read_bytes())
        return ensure.ensure(
            root,
            locks.without_sources(resolved),
            "lab.yml",
            staged=staged,
            wheels=wheels,
            **{"pip_environment": self.pip, **more},
        )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


def nothing_left(root: Path) -> bool:
    """No build, no `current`; a log of the failure may stay."""
    left = {p.name for p in (root / "builds").iterdir()} if (root / "builds").exists() else set()
    return not {n for n in left if not n.endswith(".failed.log") and n != ".lock"}


def test_the_role_makes_a_build_once(lab: Lab, tmp_path: Path) -> None:
    root = tmp_path / "root"
    two_builds = entry(lab.thing)
    two_builds["files"].update(entry(lab.cpu)["files"])
    path = write_lock(
        lab.folder / "locks",
        lab.lock(name="lab", patches=[lab.patch()], distributions={"thing": two_builds, "other": entry(lab.other)}),
    )
    pip = {**lab.pip, "PIP_FIND_LINKS": str(lab.cpu.parent)}
    given = {
        "sglang_build_lock": "lab",
        "sglang_build_lock_folders": [str(path.parent)],
        "sglang_build_search": [str(lab.folder)],
    }

    looked = play(tmp_path / "play", root, "--check", "--diff", pip=pip, **given)
    assert looked.status == 0, looked.text
    assert looked.changed == 1 and not root.exists()
    assert "+thing==1.0" in looked.text and "+sglang==1.2.3+lab" in looked.text
    assert looked.facts["sglang_build_manifest"] is None

    secret = {"NETRC_PASSWORD": "hunter2hunter2", "HTTPS_PROXY": "http://me:hunter3hunter3@127.0.0.1:9"}
    made = play(tmp_path / "play", root, "-vvv", pip={**pip, **secret}, **given)
    assert made.status == 0, made.text
    module_output = made.text.split("TASK [sglang_build : Build of lock lab]")[1]
    assert "hunter2" not in module_output and "hunter3" not in module_output
    assert made.changed == 1
    found = made.facts["sglang_build_manifest"]
    schema.validate("build-manifest", found, "manifest")
    assert (found["name"], found["engine"], found["sglang_version"]) == ("lab", "simulator", "1.2.3+lab")
    assert found["torch"] == {"version": None, "flavour": "none"} and found["nccl_version"] is None
    assert found["distributions"]["thing"] == "1.0+cpu", (
        "the build that pip takes by itself, although its hash is no index's"
    )
    assert found["environment"] == {"SGLANG_X": "1"}
    assert found["options"]["--attention-backend"]["choices"] == ["triton", "torch_native"]
    assert found["lock_digest"] == looked_digest(path, lab)
    build = Path(made.facts["sglang_build_dir"])
    assert build == root / "builds" / found["digest"] == (root / "builds" / "current").resolve()
    assert json.loads((build / manifest.FILE).read_text()) == found
    site = next((build / "venv/lib").glob("python3*/site-packages"))
    scheduler = site / "sglang/srt/scheduler.py"
    assert "line_7 = 'patched'" in scheduler.read_text()
    assert found["patches"][0]["files"] == {"sglang/srt/scheduler.py": file_digest(scheduler)}
    # Compiled, after the patch.
    line = subprocess.run(
        [
            made.facts["sglang_build_python"],
            "-c",
            "from sglang.srt import scheduler as s; print(s.line_7, s.__cached__)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert line[0] == "patched" and Path(line[1]).exists()
    # A wheel that came from a temporary folder must not write that folder into the build.
    assert not list(site.glob("sglang-*.dist-info/direct_url.json"))

    before = (build / manifest.FILE).stat().st_mtime_ns
    again = play(tmp_path / "play", root, pip=pip, **given)
    assert again.changed == 0 and again.facts == made.facts
    assert (build / manifest.FILE).stat().st_mtime_ns == before


def test_an_edit_is_shown_against_what_the_wheel_brought(lab: Lab, tmp_path: Path) -> None:
    """The host has no wheel and no other build: what was installed is kept before it is patched."""
    root = tmp_path / "root"
    lab.ensure(root, lab.lock(patches=[lab.patch()]))
    build = next(p.parent for p in root.glob(f"builds/*/{manifest.FILE}") if p.parent.name != "current")
    scheduler = next(build.glob("venv/lib/python3*/site-packages/sglang/srt/scheduler.py"))
    scheduler.write_text(scheduler.read_text() + "EDITED = 1\n")
    found = observe(root, build_dir=build, groups=["files"], evidence=True)["evidence"]
    kept = found[str(scheduler.relative_to(build))]
    assert kept["kind"] == "diff" and kept["original"] == f"wheel sglang-{build.name[:12]}.whl"
    assert "+EDITED = 1" in kept["text"] and "-line_7 = 7" in kept["text"], "the lock's own patch is part of it"


def looked_digest(path: Path, lab: Lab) -> str:
    from plumbline.build.lock import lock_digest

    resolved, _ = locks.load(str(path), [], [lab.folder])
    return lock_digest(locks.without_sources(resolved))


def test_a_constraint_of_the_host_does_not_hide_that_a_build_is_missing(lab: Lab, tmp_path: Path) -> None:
    """The index has the second build of the version; the host's own pip configuration has a say on the name."""
    (tmp_path / "constraints.txt").write_text("thing<=2\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nconstraint = {tmp_path}/constraints.txt\n")
    both = entry(lab.thing)
    both["files"].update(entry(lab.cpu)["files"])
    document = lab.lock(distributions={"thing": both, "other": entry(lab.other)})
    pip = {**lab.pip, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    made = lab.ensure(tmp_path / "root", document, pip_environment=pip)
    assert made["manifest"]["distributions"]["thing"] == "1.0"


def test_several_builds_from_a_commit_and_a_carried_wheelhouse(lab: Lab, tmp_path: Path) -> None:
    root = tmp_path / "root"
    repository = tmp_path / "repository"
    sglang_tree(repository / "python", version="2.0.0")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (repository / "python/src/sglang/srt/scheduler.py").write_text("later = True\n")
    subprocess.run([*git, "commit", "-qam", "two"], check=True)
    setuptools = tool_wheel(tmp_path)
    house = tmp_path / "house"
    house.mkdir()
    for wheel in (lab.thing, lab.other, setuptools):
        (house / wheel.name).write_bytes(wheel.read_bytes())
    source = {"name": "sglang", "url": repository.as_uri(), "commit": commit, "subdirectory": "python"}
    write_lock(
        tmp_path / "locks",
        lab.lock(
            name="commit",
            git=[source],
            local=[],
            distributions={"thing": entry(lab.thing), "other": entry(lab.other), "setuptools": entry(setuptools)},
        ),
    )
    write_lock(tmp_path / "locks", lab.lock(name="tree", distributions={}))
    # No index at all: what is not in the wheelhouse cannot come from anywhere.
    done = play(
        tmp_path / "play",
        root,
        pip={"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "file:///nowhere", "PIP_FIND_LINKS": ""},
        sglang_build_lock="tree",
        sglang_build_locks=["commit"],
        sglang_build_lock_folders=[str(tmp_path / "locks")],
        sglang_build_search=[str(lab.folder)],
        sglang_build_wheelhouse=str(house),
        sglang_build_wheelhouse_location="controller",
    )
    assert done.status == 0, done.text
    builds = done.facts["sglang_builds"]
    assert (
        builds["commit"]["manifest"]["sglang_version"] == "2.0.0"
        and builds["commit"]["manifest"]["distributions"]["thing"] == "1.0"
    )
    assert builds["tree"]["manifest"]["sglang_version"] == "1.2.3+lab"
    assert done.facts["sglang_build_manifest"]["name"] == "tree", "current is sglang_build_lock's"
    assert (root / "builds/current").resolve() == Path(builds["tree"]["dir"])
    site = next((Path(builds["commit"]["dir"]) / "venv/lib").glob("python3*/site-packages"))
    assert "line_7 = 7" in (site / "sglang/srt/scheduler.py").read_text(), "the commit, not the branch's end"
    url = json.loads(next(site.glob("sglang-*.dist-info/direct_url.json")).read_text())
    assert url["vcs_info"]["commit_id"] == commit
    info = ensure.info(root, builds["commit"]["manifest"]["lock_digest"])
    assert info["build_dir"] == builds["commit"]["dir"] and {b["name"] for b in info["builds"]} == {"commit", "tree"}


def tool_wheel(folder: Path) -> Path:
    """setuptools as a wheel, packed from the one that runs here: a build from a commit needs it, the tests no index."""
    import setuptools

    version, name = setuptools.__version__, f"setuptools-{setuptools.__version__}.dist-info"
    site = Path(setuptools.__file__).parent.parent
    import zipfile

    path = folder / f"setuptools-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for top in ("setuptools", "_distutils_hack", "pkg_resources", name):
            for file in sorted((site / top).rglob("*")):
                if file.is_file() and file.suffix != ".pyc" and file.name not in ("INSTALLER", "REQUESTED"):
                    archive.write(file, file.relative_to(site))
        archive.write(site / "distutils-precedence.pth", "distutils-precedence.pth")
    return path


def test_killed_half_way_it_is_made_again(lab: Lab, tmp_path: Path) -> None:
    root = tmp_path / "root"
    script = tmp_path / "build.py"
    script.write_text(
        "import sys, json\nfrom pathlib import Path\nsys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from tests.unit.build.test_making import Lab\n"
        f"lab = Lab(Path({str(tmp_path / 'lab')!r}))\nlab.ensure(Path({str(root)!r}), lab.lock())\n"
    )
    build = subprocess.Popen(
        [sys.executable, str(script), str(PROJECT / "module_utils"), str(PROJECT)], start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(root.glob("builds/*/venv/bin/python*")):
        assert time.monotonic() < deadline and build.poll() is None
        time.sleep(0.05)
    os.kill(build.pid, signal.SIGKILL)
    build.wait()
    half = [p for p in root.glob("builds/*") if p.is_dir()]
    assert len(half) == 1 and manifest.read(half[0]) is None and manifest.current(root) is None
    (half[0] / "left-over").write_text("x")
    of_another_lock = half[0].with_name("f" * 64)
    of_another_lock.mkdir()
    document = Lab.lock(lab)
    again = lab.ensure(root, document)
    assert (
        again["changed"] and again["build_dir"] == str(half[0]) and "remove the half-made build" in again["actions"][0]
    )
    assert not (half[0] / "left-over").exists() and not of_another_lock.exists()
    assert manifest.current(root) == half[0].name


def test_what_is_wrong_with_a_lock_leaves_nothing_behind(lab: Lab, tmp_path: Path) -> None:
    root = tmp_path / "root"
    thing = entry(lab.thing)
    wrong = {**thing, "files": {lab.thing.name: "0" * 64}}
    missing = {"version": "9.9", "files": {"thing-9.9-py3-none-any.whl": "0" * 64}}
    bad_patch = {**lab.patch(), "strip": 1}
    cases: list[tuple[dict[str, Any], str]] = [
        (lab.lock(distributions={"thing": wrong}), "wrong hash: .*thing.*lab.yml, key distributions.thing.files"),
        (lab.lock(distributions={"thing": missing}), r"thing==9\.9 does not exist.*allowed: 1\.0"),
        (lab.lock(distributions={"thing": thing}), "do not fit together.*thing 1.0 requires other"),
        (lab.lock(patches=[bad_patch]), "changes a file that is not in the build"),
        (lab.lock(local=[]), "installs no distribution sglang"),
        (lab.lock(needs_bytes={"base": 10**16}), "no space left for the build test.*GB free"),
        (lab.lock(platform="linux-s390x"), "the lock is for linux-s390x"),
    ]
    for document, says in cases:
        with pytest.raises(PlumblineError, match=f"(?s){says}"):
            lab.ensure(root, document)
        assert nothing_left(root), says
    declared = lab.lock(
        distributions={"thing": thing},
        overrides=[{"name": "other", "wanted": ">=1", "chosen": None, "why": "not used"}],
    )
    assert lab.ensure(root, declared)["manifest"]["overrides"][0]["name"] == "other"
    assert not list((root / "builds").glob("*/work"))


def test_a_wheelhouse_is_checked_before_anything_is_made(lab: Lab, tmp_path: Path) -> None:
    root, house = tmp_path / "root", tmp_path / "house"
    with pytest.raises(PlumblineError, match="not a folder on this host"):
        lab.ensure(root, lab.lock(), wheelhouse=house)
    house.mkdir()
    (house / lab.thing.name).write_bytes(lab.thing.read_bytes() + b"x")
    with pytest.raises(PlumblineError, match="wrong hash: thing"):
        lab.ensure(root, lab.lock(), wheelhouse=house)
    (house / lab.thing.name).write_bytes(lab.thing.read_bytes())
    with pytest.raises(PlumblineError, match=r"lacks other 1\.5"):
        lab.ensure(root, lab.lock(), wheelhouse=house)
    assert not root.exists()


def test_a_folder_that_cannot_be_written_is_refused(lab: Lab, tmp_path: Path) -> None:
    root = tmp_path / "root" / "file"
    root.parent.mkdir()
    root.write_text("")
    with pytest.raises(PlumblineError, match=r"builds cannot be written.*plumbline_root"):
        lab.ensure(root, lab.lock())
