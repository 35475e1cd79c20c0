"""What a rebuild does on a host: builds set aside, put back and rolled back, stray files moved aside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plumbline.build import manifest
from plumbline.errors import PlumblineError
from plumbline.files import read_lines
from plumbline.rebuild import builds, strays

A, B = "a" * 64, "b" * 64


def make(root: Path, digest: str) -> Path:
    """A build as far as `manifest` looks at it: an interpreter that runs, and the manifest."""
    build = root / "builds" / digest
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(build / "venv")], check=True)
    document = {"schema": manifest.SCHEMA, "digest": digest, "name": digest[:1], "lock_digest": digest}
    more = {"engine": "simulator", "sglang_version": "1", "python": "3"}
    (build / manifest.FILE).write_text(json.dumps({**document, **more}))
    return build


@pytest.fixture()
def root(tmp_path: Path) -> Path:
    make(tmp_path, A)
    manifest.switch(tmp_path, A)
    return tmp_path


def current(root: Path) -> Path:
    return (root / "builds" / "current").resolve()


def test_an_altered_build_is_kept_and_current_follows_it(root: Path):
    done = builds.prepare(root, A, "known")
    assert done == {"changed": True, "current": A, "kept": str(root / "builds" / f"{A}.altered")}
    assert current(root).name == f"{A}.altered"
    assert manifest.python_of(current(root)).exists(), "whole, although altered"
    assert manifest.whole(root) == [], "and no build that anybody would take"
    make(root, A)
    manifest.switch(root, A)
    again = builds.prepare(root, A, "known")
    assert again["changed"]
    assert [p.name for p in (root / "builds").glob("*.altered*")] == [f"{A}.altered"], "one for each digest is kept"


def test_check_mode_moves_nothing(root: Path):
    assert builds.prepare(root, A, "known", check=True)["changed"]
    assert current(root).name == A
    assert not (root / "builds" / builds.HISTORY).exists()


def test_put_back_if_it_could_not_be_made(root: Path):
    builds.prepare(root, A, "known")
    assert builds.restore(root, A) == {"changed": True}
    assert current(root).name == A
    assert manifest.whole(root) == [root / "builds" / A]
    assert builds.restore(root, A) == {"changed": False}


def test_killed_between_link_and_folder_the_next_one_goes_on(root: Path):
    manifest.switch(root, f"{A}.altered")  # the link was moved, the folder was not
    assert not current(root).exists(), "it points to nothing rather than to what is being made"
    builds.prepare(root, A, "known")
    assert current(root).name == f"{A}.altered"
    assert current(root).is_dir()


def test_a_build_that_a_server_runs_from_is_not_moved(root: Path):
    python = manifest.python_of(root / "builds" / A)
    for program in (python, root / "builds" / "current" / "venv" / "bin" / "python"):
        server = subprocess.Popen([str(program), "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
        assert server.stdout is not None
        server.stdout.readline()
        try:
            with pytest.raises(PlumblineError, match=f"process {server.pid}"):
                builds.prepare(root, A, "known")
        finally:
            server.communicate()
    assert current(root).name == A


def test_roll_back_goes_to_the_build_that_was_current_before(root: Path):
    with pytest.raises(PlumblineError, match="no build to go back to"):
        builds.roll_back(root)
    builds.prepare(root, None, "other")
    make(root, B)
    manifest.switch(root, B)
    builds.prepare(root, None, "third")  # a rebuild that then failed: current is still B
    assert builds.roll_back(root, check=True)["now"] == A
    assert current(root).name == B
    says = "from build bbbbbbbbbbbb (b, sglang 1) to build aaaaaaaaaaaa (a, sglang 1)"
    assert builds.roll_back(root) == {"changed": True, "was": B, "now": A, "name": "a", "says": says}
    assert current(root).name == A
    assert builds.roll_back(root)["now"] == B, "and back again"
    assert [row["was"] for row in read_lines(root / "builds" / builds.HISTORY)] == [A, B, B, A]


def test_a_roll_back_from_an_altered_build_says_so(root: Path):
    builds.prepare(root, None, "other")
    make(root, B)
    manifest.switch(root, B)
    builds.prepare(root, B, "other")  # set aside, and never made anew
    assert builds.roll_back(root)["says"].startswith("from build bbbbbbbbbbbb (altered) to build aaaaaaaaaaaa (a,")


def test_a_build_that_is_gone_is_no_way_back(root: Path):
    builds.prepare(root, None, "other")
    make(root, B)
    manifest.switch(root, B)
    (root / "builds" / A / manifest.FILE).unlink()
    with pytest.raises(PlumblineError, match="no build to go back to"):
        builds.roll_back(root)


# Stray files.


def test_stray_files_are_moved_aside_not_deleted(tmp_path: Path):
    root, home = tmp_path / "root", tmp_path / "home"
    home.mkdir()
    (home / ".nccl.conf").write_text("NCCL_PROTO=Simple\n")
    asked = [{"path": "~/.nccl.conf", "content": None}, {"path": str(tmp_path / "none"), "content": None}]
    looked = strays.tidy(root, asked, str(home), check=True)
    assert looked["changed"]
    assert (home / ".nccl.conf").exists()
    done = strays.tidy(root, asked, str(home))
    assert [m["path"] for m in done["moved"]] == [str(home / ".nccl.conf")]
    assert Path(done["moved"][0]["to"]).read_text() == "NCCL_PROTO=Simple\n"
    assert not (home / ".nccl.conf").exists()
    assert strays.tidy(root, asked, str(home))["changed"] is False


def test_files_of_the_state_are_written_again_and_what_lay_there_is_kept(tmp_path: Path):
    path = tmp_path / "etc" / "limits.conf"
    path.parent.mkdir()
    path.write_text("* - memlock 64\n")
    asked = [{"path": str(path), "content": "* - memlock unlimited\n"}]
    done = strays.tidy(tmp_path / "root", asked)
    assert path.read_text() == "* - memlock unlimited\n"
    assert Path(done["moved"][0]["to"]).read_text() == "* - memlock 64\n"
    assert strays.tidy(tmp_path / "root", asked)["changed"] is False


def test_a_link_of_the_state_comes_back_with_what_it_led_to(tmp_path: Path):
    """Debian's own sitecustomize.py is a link to a file below /etc: somebody wrote through it, or put a file there."""
    lib, etc = tmp_path / "lib", tmp_path / "etc"
    for folder in (lib, etc):
        folder.mkdir()
    path, behind = lib / "sitecustomize.py", etc / "sitecustomize.py"
    asked = [{"path": str(path), "content": "# Debian\n", "link": "../etc/sitecustomize.py"}]

    def through() -> None:
        path.write_text("import os\n")

    def in_place() -> None:
        path.unlink()
        path.write_text("import os\n")

    strays.tidy(tmp_path / "root", asked)
    for tamper in (through, in_place):
        tamper()
        done = strays.tidy(tmp_path / f"root-{tamper.__name__}", asked)
        assert (path.readlink(), behind.read_text()) == (Path("../etc/sitecustomize.py"), "# Debian\n")
        kept = [Path(m["to"]) for m in done["moved"]]
        assert "import os\n" in [k.read_text() for k in kept if not k.is_symlink()]
        assert strays.tidy(tmp_path / "root", asked)["changed"] is False


def test_start_up_code_in_the_standard_library_of_the_builds_python(tmp_path: Path):
    prefix = tmp_path / "python"
    short = "{}.{}".format(*sys.version_info[:2])
    stdlib = prefix / "lib" / f"python{short}"
    stdlib.mkdir(parents=True)
    (stdlib / "os.py").write_text("")
    (stdlib / "sitecustomize.py").write_text("import os\n")
    venv = tmp_path / "root" / "builds" / A / "venv"
    venv.mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {prefix}/bin\nversion = {short}.0\n")
    manifest.switch(tmp_path / "root", A)
    done = strays.tidy(tmp_path / "root", [{"path": "stdlib/sitecustomize.py", "content": None}])
    assert [m["path"] for m in done["moved"]] == [str(stdlib / "sitecustomize.py")]
    assert not (stdlib / "sitecustomize.py").exists()


def test_a_path_that_is_not_absolute_is_refused(tmp_path: Path):
    with pytest.raises(PlumblineError, match="not an absolute path"):
        strays.tidy(tmp_path, [{"path": "etc/x", "content": None}])
