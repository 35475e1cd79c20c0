"""What an observation is asked for, and the few ways in which it looks at the host: read a file, run a tool, list a
folder.

Nothing here changes the host. ``sysroot`` lets the same code read a captured tree of ``/proc``, ``/sys`` and ``/etc``.
"""

# ruff: noqa: PTH208
from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from .cache import DigestCache
from .values import absent, unknown

TOOL_SECONDS = 30.0


@dataclass
class Tool:
    """A tool that was started; ``result`` waits for it. Several run beside the walk over the files, as they mostly
    wait."""

    argv: Sequence[str]
    process: Optional[subprocess.Popen[str]]
    why: str = ""
    _done: Optional[Output] = None

    def result(self) -> Output:
        if self._done is None:
            self._done = self._wait()
        return self._done

    def _wait(self) -> Output:
        if self.process is None:
            return Output(None, "", self.why)
        try:
            out, err = self.process.communicate(timeout=TOOL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return Output(None, "", f"{self.argv[0]} gave no answer in {TOOL_SECONDS:.0f} s")
        return Output(self.process.returncode, out, err.strip())


@dataclass
class Output:
    """``rc`` is None when the tool could not be run at all; then ``err`` says why."""

    rc: Optional[int]
    out: str
    err: str

    @property
    def why(self) -> str:
        """For an ``unknown``: what the tool said."""
        text = self.err or self.out.strip()
        return text.splitlines()[-1][:200] if text else f"ended with status {self.rc}"


@dataclass
class Context:
    """Inputs of one observation. ``build_dir`` is None when the host has no build."""

    root: Path
    cache: DigestCache
    build_dir: Optional[Path] = None
    manifest: Dict[str, Any] = field(default_factory=dict)
    models: Dict[str, str] = field(default_factory=dict)
    args: Dict[str, Any] = field(default_factory=dict)
    nccl: Optional[Dict[str, Any]] = None
    host_kind: str = "auto"
    home: Optional[Path] = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    sysroot: Path = Path("/")
    evidence: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    want_evidence: bool = False
    tools: Dict[str, Tool] = field(default_factory=dict)

    def path(self, where: Union[str, Path]) -> Path:
        """An absolute path of the host, below ``sysroot``."""
        text = str(where)
        return Path(text) if str(self.sysroot) == "/" else self.sysroot / text.lstrip("/")

    def read(self, where: Union[str, Path]) -> Any:
        """A file's text, stripped; else absent (there is none) or unknown (it could not be read)."""
        try:
            return self.path(where).read_bytes().decode("utf-8", "replace").strip().strip("\x00")
        except (FileNotFoundError, NotADirectoryError):
            return absent()
        except OSError as e:
            return unknown(f"{where}: {e.strerror}")

    def text(self, where: Union[str, Path]) -> str:
        """A file's text, or "" whatever the reason: for files whose absence says nothing."""
        found = self.read(where)
        return found if isinstance(found, str) else ""

    def names(self, where: Union[str, Path]) -> List[str]:
        """The sorted names in a folder; [] if there is none or it cannot be read."""
        try:
            return sorted(os.listdir(self.path(where)))
        except OSError:
            return []

    def start(self, name: str, argv: Sequence[str]) -> Tool:
        """Start a tool once and remember it by ``name``. A captured tree has what it said in ``tools/NAME``."""
        if name not in self.tools:
            self.tools[name] = self._start(argv) if str(self.sysroot) == "/" else self._captured(name, argv)
        return self.tools[name]

    def _captured(self, name: str, argv: Sequence[str]) -> Tool:
        path = self.sysroot / "tools" / name
        if not path.exists():
            return Tool(argv, None, f"{argv[0]} is not installed")
        return Tool(argv, None, _done=Output(0, path.read_text(errors="replace"), ""))

    def _start(self, argv: Sequence[str]) -> Tool:
        program = shutil.which(argv[0], path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")
        if program is None:
            return Tool(argv, None, f"{argv[0]} is not installed")
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LC_ALL": "C",
            "HOME": str(self.home or "/"),
            "GIT_OPTIONAL_LOCKS": "0",
        }
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
            )
        except OSError as e:
            return Tool(argv, None, f"{argv[0]}: {e.strerror}")
        return Tool(argv, process)
