"""Make a build: look whether it is there, check that it can be made, make it, write its manifest last."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from datetime import datetime, timezone
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from ..digest import file_digest
from ..errors import PlumblineError
from ..files import write_json
from ..sglang import options
from . import installed, manifest, originals, pip
from .interpreter import find, probe
from .lock import alternatives, build_digest, lock_digest, needed_bytes, requirement, requirements
from .locked import locked
from .patch import apply
from .seed import unpack_pip


def present(root: Path, lock: Dict[str, Any], given_python: Optional[str] = None) -> Optional[Path]:
    """The whole build of this lock on this host, or None. Starts no process unless the user chose a Python."""
    pythons = list(lock["python"])
    if given_python:
        found = probe(given_python)
        if "version" in found:
            pythons = [".".join(found["version"].split(".")[:2])]
    digest = lock_digest(lock)
    return manifest.find(root, digest, [build_digest(digest, p) for p in pythons])


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _tree_bytes(root: Path) -> int:
    total = 0
    for folder, _, files in os.walk(str(root)):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_blocks * 512
    return total


def check_space(root: Path, needed: int, what: str, half_made: Optional[Path] = None) -> None:
    """Refuse if the file system of ``root`` has fewer than ``needed`` bytes free (those of a half-made build count as
    free)."""
    stat = os.statvfs(_existing(manifest.builds_dir(root)))
    free = stat.f_bavail * stat.f_frsize
    if free < needed and half_made is not None:
        free += _tree_bytes(half_made)
    if free < needed:
        raise PlumblineError(
            f"no space left for {what}",
            str(manifest.builds_dir(root)),
            f"{free / 1e9:.2f} GB free",
            f"at least {needed / 1e9:.2f} GB (the lock's key needs_bytes)",
            "remove old builds there, or set plumbline_root to a larger file system",
        )


def check_wheelhouse(wheelhouse: Path, lock: Dict[str, Any], where: str) -> None:
    """Every distribution without a condition has a file of one of its digests' names in the wheelhouse, and none a
    wrong digest."""
    if not wheelhouse.is_dir():
        raise PlumblineError(
            "the wheelhouse is not a folder on this host",
            "sglang_build_wheelhouse",
            wheelhouse,
            None,
            "fill it with make_wheelhouse.py and carry it here, or unset sglang_build_wheelhouse",
        )
    for name, entry in lock.get("distributions", {}).items():
        files = [f for f in entry["files"] if (wheelhouse / f).is_file()]
        if not files and not entry.get("when"):
            raise PlumblineError(
                f"the wheelhouse lacks {name} {entry['version']}",
                str(wheelhouse),
                "no file of it",
                " or ".join(entry["files"]),
                "fill it with make_wheelhouse.py for this lock",
            )
        for file in files:
            got = file_digest(wheelhouse / file)
            if got != entry["files"][file]:
                raise PlumblineError(
                    f"wrong hash: {file} in the wheelhouse is not the file that the lock means",
                    f"{where}, key distributions.{name}.files",
                    f"sha256 {got}",
                    f"sha256 {entry['files'][file]}",
                    "fetch it again; find out which one is right before you trust either",
                )


def prepare(
    root: Path, lock: Dict[str, Any], where: str, given_python: Optional[str], wheelhouse: Optional[Path]
) -> Dict[str, Any]:
    """Check all that can be checked before anything is made; returns the interpreter to build with, with ``digest``
    added."""
    found = find(lock["python"], lock["platform"], lock.get("glibc"), given_python)
    minor = ".".join(found["version"].split(".")[:2])
    digest = build_digest(lock_digest(lock), minor)
    base = _existing(manifest.builds_dir(root))
    if not (base.is_dir() and os.access(base, os.W_OK | os.X_OK)):
        raise PlumblineError(
            "builds cannot be written",
            "plumbline_root",
            str(base),
            "a folder that this user may write to",
            "set plumbline_root to a folder of your own, or run the play with become",
        )
    half_made = manifest.builds_dir(root) / digest
    check_space(root, needed_bytes(lock), f"the build {lock['name']}", half_made if half_made.exists() else None)
    if lock.get("git") and shutil.which("git") is None:
        raise PlumblineError(
            "git is not installed on this host", f"{where}, key git", None, None, "install git, or lock a wheel instead"
        )
    if wheelhouse is not None:
        check_wheelhouse(wheelhouse, lock, where)
    return {**found, "digest": digest, "minor": minor}


def site_packages(build: Path) -> Path:
    """The build's site-packages."""
    return next((build / "venv" / "lib").glob("python3.*")) / "site-packages"


class _Making:
    """One build in the making: its folder, its steps' environment and how long each took."""

    def __init__(
        self, build: Path, lock: Dict[str, Any], where: str, keep_open: int, pip_environment: Dict[str, str]
    ) -> None:
        self.build, self.lock, self.where = build, lock, where
        self.python = manifest.python_of(build)
        self.log = build / "build.log"
        self.work = build / "work"
        self.work.mkdir(parents=True)
        self.took: Dict[str, float] = {}
        self.step: Dict[str, Any] = {
            "env": pip.environment(pip_environment),
            "log": self.log,
            "keep_open": keep_open,
            "cwd": self.work,
        }

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.took[name] = round(time.monotonic() - begin, 1)

    def run(self, argv: List[str], doing: str, allowed: int = 0, extra: Optional[Dict[str, str]] = None) -> str:
        step = dict(self.step, env={**self.step["env"], **(extra or {})})
        try:
            return pip.run(argv, **step)
        except subprocess.CalledProcessError as e:
            if allowed and e.returncode == allowed:
                return e.output
            raise pip.explain(e, doing, self.where, self.log) from None

    def virtual_environment(self, python: str, pip_wheel: Optional[str]) -> None:
        venv = self.build / "venv"
        options = ["--without-pip"] if pip_wheel else []
        self.run([python, "-I", "-m", "venv", *options, str(venv)], "making the virtual environment")
        if pip_wheel:
            unpack_pip(Path(pip_wheel), site_packages(self.build), venv / "bin")

    def install(self, lines: List[str], folder: Optional[Path], doing: str) -> None:
        pip.install(self.python, lines, folder, self.step, doing, self.where)

    def install_first(self, lines: List[str], folder: Optional[Path]) -> None:
        """Install the first of several builds of one version that pip can get."""
        for line in lines:
            try:
                return self.install([line], folder, f"installing {line.split()[0]}")
            except pip.VersionMissingError:
                if line == lines[-1]:
                    raise
        return None

    def from_git(self) -> None:
        for entry in self.lock.get("git", []):
            # Without a name before it: older pips take `name @ git+file:///...` for a path.
            link = f"git+{entry['url']}@{entry['commit']}"
            if entry.get("subdirectory"):
                link += f"#subdirectory={entry['subdirectory']}"
            # Its build requirements are distributions of the lock: an isolated build would fetch others, without
            # hashes.
            options = ["--no-deps", "--no-build-isolation", "--no-compile", "--no-index"]
            self.run(
                [str(self.python), "-I", "-m", "pip", "install", *options, link],
                f"installing {entry['name']} from commit {entry['commit'][:12]} of {entry['url']}",
                extra={"TMPDIR": str(self.work)},
            )
            got = installed.commit_of(site_packages(self.build), entry["name"])
            if got != entry["commit"]:
                raise PlumblineError(
                    f"another commit of {entry['name']} was installed", f"{self.where}, key git", got, entry["commit"]
                )

    def patch(self, folder: Path) -> List[Dict[str, Any]]:
        out, site = [], site_packages(self.build)
        for i, entry in enumerate(self.lock.get("patches", [])):
            text = (folder / f"{i:03d}.patch").read_bytes()
            changed = apply(site, text.decode(), entry.get("strip", 1), f"patch {entry['file']}")
            out.append(
                {
                    "file": entry["file"],
                    "sha256": entry["sha256"],
                    "files": {n: None if t is None else file_digest(site / n) for n, t in sorted(changed.items())},
                }
            )
        return out

    def check_requirements(self) -> None:
        """What distributions require of one another holds, but for what the lock says is overridden."""
        text = self.run([str(self.python), "-I", "-m", "pip", "check"], "pip check", allowed=1)
        undeclared = installed.undeclared(text, self.lock.get("overrides", []))
        if undeclared:
            raise PlumblineError(
                "the lock's distributions do not fit together",
                f"{self.where}, key overrides",
                "; ".join(undeclared),
                "only what is listed under overrides with its reason",
                "correct the versions, or declare the override",
            )

    def compile(self) -> None:
        site = site_packages(self.build)
        jobs = str(len(os.sched_getaffinity(0)))
        # Status 1: some packages ship sources for other Pythons, which do not compile here and are never imported.
        said = self.run(
            [str(self.python), "-I", "-m", "compileall", "-q", "-j", jobs, str(site)], "compiling", allowed=1
        )
        if "Traceback (most recent call last)" in said or not (site / "sglang" / "__pycache__").is_dir():
            raise PlumblineError("compiling ended before its end", str(site), said.strip()[-300:], None, str(self.log))

    def options(self) -> Dict[str, Any]:
        answer = self.work / "options.json"
        self.run(
            options.argv(str(self.python), str(answer)),
            "asking the installed SGLang for its options",
            extra={k: str(v) for k, v in self.lock.get("environment", {}).items()},
        )
        return options.tidy(json.loads(answer.read_text()))


def make(
    root: Path,
    lock: Dict[str, Any],
    where: str,
    interpreter: Dict[str, Any],
    staged: Path,
    wheels: List[Dict[str, str]],
    wheelhouse: Optional[Path] = None,
    pip_environment: Optional[Dict[str, str]] = None,
) -> Dict[str, Any]:
    """Make the build and return its manifest. A half-made one of the same digest is removed first; on an error
    nothing is left.

    :param interpreter: as `prepare` returned it
    :param staged: folder with ``wheels/`` (packed local trees) and ``patches/NNN.patch`` in the lock's order
    :param wheels: ``[{name, version, sha256}]`` of the packed local trees
    """
    digest = interpreter["digest"]
    build = manifest.builds_dir(root) / digest
    with locked(root) as keep_open:
        found = manifest.read(build)
        if found is not None:  # somebody else made it while this one waited
            return found
        for left in {*manifest.half_made(root), *([build] if build.exists() else [])}:
            shutil.rmtree(left)
        making = _Making(build, lock, where, keep_open, pip_environment or {})
        try:
            document = _steps(
                making, lock, interpreter, staged, wheels, wheelhouse, lambda n, w: check_space(root, n, w)
            )
            shutil.rmtree(making.work)
            write_json(build / manifest.FILE, document)
        except BaseException as e:
            kept = build.with_name(f"{digest}.failed.log")
            with contextlib.suppress(OSError):
                making.log.replace(kept)
            shutil.rmtree(build, ignore_errors=True)
            if isinstance(e, PlumblineError):
                raise PlumblineError(
                    e.what, e.where, e.found, e.allowed, e.remedy.replace(str(making.log), str(kept))
                ) from None
            raise
        with contextlib.suppress(FileNotFoundError):
            build.with_name(f"{digest}.failed.log").unlink()
        return document


def _steps(
    m: _Making,
    lock: Dict[str, Any],
    interpreter: Dict[str, Any],
    staged: Path,
    wheels: List[Dict[str, str]],
    wheelhouse: Optional[Path],
    space: Callable[[int, str], None],
) -> Dict[str, Any]:
    with m.timed("venv"):
        m.virtual_environment(interpreter["path"], interpreter["pip_wheel"])
    with m.timed("distributions"):
        for lines in alternatives(lock, interpreter["minor"]):
            m.install_first(lines, wheelhouse)
        m.install(requirements(lock, None), wheelhouse, "installing the lock's distributions")
    site = site_packages(m.build)
    torch = installed.torch_of(site)
    with m.timed("flavour"):
        flavoured = requirements(lock, torch["flavour"])
        if flavoured:
            space(needed_bytes(lock, torch["flavour"]), f"what torch's {torch['flavour']} build needs")
        m.install(flavoured, wheelhouse, f"installing what torch's {torch['flavour']} build needs")
    with m.timed("local"):
        lines = [requirement(w["name"], w["version"], [w["sha256"]]) for w in wheels]
        m.install(lines, staged / "wheels", "installing local source trees")
        m.from_git()
    with m.timed("originals"):
        originals.keep(m.build.parents[1], site, m.build.name)
    patches = m.patch(staged / "patches")
    m.check_requirements()
    found = {installed.normal_name(d.metadata["Name"]): d.version for d in distributions(path=[str(site)])}
    if "sglang" not in found:
        raise PlumblineError(
            "the lock installs no distribution sglang",
            m.where,
            ", ".join(sorted(found)),
            "sglang among them",
            "add it under distributions, git or local",
        )
    with m.timed("compile"):
        m.compile()
    with m.timed("options"):
        asked = m.options()
    return {
        "schema": manifest.SCHEMA,
        "digest": m.build.name,
        "name": lock["name"],
        "engine": lock["engine"],
        "sglang_version": found["sglang"],
        "python": interpreter["version"],
        "torch": torch,
        "nccl_version": installed.nccl_of(found),
        "distributions": dict(sorted(found.items())),
        "options": asked,
        "environment": {k: str(v) for k, v in lock.get("environment", {}).items()},
        "patches": patches,
        "overrides": lock.get("overrides", []),
        "lock_digest": lock_digest(lock),
        "interpreter": interpreter["path"],
        "made_at": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "took_s": m.took,
    }
