"""Patches are applied exactly, in full or not at all."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from plumbline.build.patch import apply
from plumbline.errors import PlumblineError

OLD = "".join(f"line {i}\n" for i in range(1, 41))
NEW = (
    OLD.replace("line 5\n", "line five\nand more\n").replace("line 30\n", "").replace("line 39\n", "line 39 changed\n")
)


def diff(old: str, new: str, name: str = "pkg/a.py", context: int = 3) -> str:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}", n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def tree(root: Path, text: str = OLD) -> Path:
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text(text)
    return root


@pytest.mark.parametrize("context", [0, 1, 3])
def test_several_hunks(tmp_path: Path, context: int) -> None:
    changed = apply(tree(tmp_path), diff(OLD, NEW, context=context), 1, "p")
    assert (tmp_path / "pkg" / "a.py").read_text() == NEW
    assert changed == {"pkg/a.py": NEW}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb", "a\nc"),
        ("a\nb\n", "a\nb"),
        ("a\nb", "a\nb\n"),
        ("x\x0cy\nz\n", "x\x0cy\nZ\n"),
        ("a\r\nb\r\n", "a\r\nB\r\n"),
        ("", "new\n"),
    ],
)
def test_ends_of_lines_and_files_are_kept(tmp_path: Path, old: str, new: str) -> None:
    root = tree(tmp_path)
    (root / "pkg" / "a.py").write_bytes(old.encode())
    repository(root, new)
    apply(root, (root / "p.diff").read_bytes().decode(), 1, "p")
    assert (root / "pkg" / "a.py").read_bytes() == new.encode()


def repository(root: Path, new: str) -> None:
    """p.diff: git's own diff of pkg/a.py to `new`; the file itself is put back."""
    file = root / "pkg" / "a.py"
    old = file.read_bytes()
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.autocrlf=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "pkg"], check=True)
    file.write_bytes(new.encode())
    (root / "p.diff").write_bytes(subprocess.run([*git, "diff", "--text"], check=True, capture_output=True).stdout)
    file.write_bytes(old)


def test_moved_lines_are_found_where_they_stand_once(tmp_path: Path) -> None:
    apply(tree(tmp_path, "intro\n" * 3 + OLD), diff(OLD, NEW), 1, "p")
    assert (tmp_path / "pkg" / "a.py").read_text() == "intro\n" * 3 + NEW


def test_an_ambiguous_place_is_refused(tmp_path: Path) -> None:
    patch = diff("x\ny\nz\n", "x\nY\nz\n")
    with pytest.raises(PlumblineError, match="several places"):
        apply(tree(tmp_path, "0\nx\ny\nz\n0\nx\ny\nz\n"), patch, 1, "p")


def test_nothing_is_written_if_one_hunk_does_not_fit(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "pkg" / "b.py").write_text("other\n")
    patch = diff(OLD, NEW) + diff("not\nthis\n", "x\n", "pkg/b.py")
    with pytest.raises(PlumblineError, match=r"does not apply to pkg/b\.py") as error:
        apply(root, patch, 1, "patch p")
    assert "patch p" in str(error.value)
    assert (root / "pkg" / "a.py").read_text() == OLD


def test_files_are_made_and_deleted(tmp_path: Path) -> None:
    root = tree(tmp_path, "only\n")
    made = "--- /dev/null\n+++ b/pkg/sub/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    patch = f"{made}--- a/pkg/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-only\n"
    assert apply(root, patch, 1, "p") == {"pkg/sub/new.py": "one\ntwo\n", "pkg/a.py": None}
    assert (root / "pkg" / "sub" / "new.py").read_text() == "one\ntwo\n"
    assert not (root / "pkg" / "a.py").exists()


def test_strip(tmp_path: Path) -> None:
    apply(tree(tmp_path), diff(OLD, NEW, "python/pkg/a.py"), 2, "p")
    assert (tmp_path / "pkg" / "a.py").read_text() == NEW


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ("", "has no hunk"),
        ("--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,3 +1,3 @@\n line 1\n-line 2\n+x\n", "shorter than it says"),
        ("--- a/../../etc/passwd\n+++ b/../../etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "outside"),
        ("--- a/pkg/none.py\n+++ b/pkg/none.py\n@@ -1 +1 @@\n-a\n+b\n", "not in the build"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "more than change lines"),
        ("--- /dev/null\n+++ b/pkg/a.py\n@@ -0,0 +1 @@\n+one\n", "which exists"),
        ("--- a/pkg/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-line 1\n", "holds more"),
    ],
)
def test_bad_patches_are_refused(tmp_path: Path, patch: str, says: str) -> None:
    with pytest.raises(PlumblineError, match=says):
        apply(tree(tmp_path), patch, 1, "p")
    assert (tmp_path / "pkg" / "a.py").read_text() == OLD


def test_a_hard_linked_original_is_left_alone(tmp_path: Path) -> None:
    root = tree(tmp_path / "build")
    (tmp_path / "cache.py").hardlink_to(root / "pkg" / "a.py")
    apply(root, diff(OLD, NEW), 1, "p")
    assert (tmp_path / "cache.py").read_text() == OLD
