"""Run pip in a build's own environment, and say in one error what it could not do."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from ..errors import PlumblineError
from ..server.supervisor import die_with_parent

# Settings that would make pip or Python look at, or write to, another environment than the build's.
_FOREIGN = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PIP_USER",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_PYTHON",
    "PIP_REQUIREMENT",
    "PIP_EDITABLE",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
)


def environment(extra: Optional[Dict[str, str]] = None) -> Dict[str, str]:
    """The environment of a build step: the host's pip configuration stays in force, its Python settings do not.

    Nor do its constraints: the lock decides on versions, and beside a constraint pip does not say that a version is
    missing, so the next build of it would not be tried.
    """
    env = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
    env.update(
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INPUT="1",
        PIP_NO_COLOR="1",
        PYTHONNOUSERSITE="1",
        PIP_ROOT_USER_ACTION="ignore",
        PIP_CONSTRAINT=os.devnull,
        LC_ALL="C.UTF-8",
        GIT_TERMINAL_PROMPT="0",
    )
    env.update(extra or {})
    return env


def offline(env: Dict[str, str]) -> Dict[str, str]:
    """The same environment without what would let pip look for files anywhere but in the folder it is told."""
    kept = {
        k: v
        for k, v in env.items()
        if k not in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
    }
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


def run(argv: Sequence[str], env: Dict[str, str], log: Path, keep_open: int, cwd: Path) -> str:
    """Run one step, its output appended to ``log``; returns that output.

    :param keep_open: file descriptor of the build's lock: held by the step too, so that nobody clears its folder
        while it lives
    :raises subprocess.CalledProcessError: it ended with another status than 0; ``output`` is what it wrote
    """
    own = os.getpid()
    with open(log, "ab") as f:
        f.write(("$ " + " ".join(argv) + "\n").encode())
        f.flush()
        begin = f.tell()
        done = subprocess.run(
            list(argv),
            env=env,
            stdout=f,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
            cwd=cwd,
            pass_fds=(keep_open,),
            # A killed build must not leave a pip behind that goes on writing.
            preexec_fn=lambda: die_with_parent(own),
        )
    with open(log, "rb") as f:
        f.seek(begin)
        text = f.read().decode(errors="replace")
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, list(argv), output=text)
    return text


class VersionMissingError(PlumblineError):
    """pip found no file of a pinned version."""


def _no_version(found: re.Match[str], where: str) -> PlumblineError:
    versions = re.sub(r"^from versions: ", "", found.group("versions"))
    name = found.group("wanted").partition("=")[0]
    return VersionMissingError(
        f"the version {found.group('wanted')} does not exist for this Python and platform where pip looked",
        f"{where}, key distributions.{name}.version",
        found.group("wanted"),
        versions or "none at all",
        "correct the lock, or give pip an index or a wheelhouse that has it",
    )


def _wrong_hash(found: re.Match[str], where: str) -> PlumblineError:
    name = re.split(r"[=<> @]", found.group("what").strip())[0]
    return PlumblineError(
        f"wrong hash: {found.group('what').strip()} is not the file that the lock means",
        f"{where}, key distributions.{name}.files",
        f"sha256 {found.group('got')}",
        f"sha256 {found.group('expected')}",
        "find out which one is right before you trust either",
    )


def _no_hash(found: re.Match[str], where: str) -> PlumblineError:
    return PlumblineError(
        "missing hash", where, found.group(0).strip(), "a SHA-256 for each distribution", "make the lock anew"
    )


def _no_space(_: re.Match[str], where: str) -> PlumblineError:
    return PlumblineError(
        "no space left on the device",
        where,
        None,
        None,
        "make room; an interrupted build is removed and made again, or set plumbline_root elsewhere",
    )


_EXPLAINED: List[tuple[re.Pattern[str], Callable[[re.Match[str], str], PlumblineError]]] = [
    (re.compile(r"No space left on device"), _no_space),
    (re.compile(r"requirement (?P<wanted>\S+==\S+)[^\n]*\((?P<versions>from versions: [^)]*)\)"), _no_version),
    (
        re.compile(
            r"DO NOT MATCH THE HASHES.*?\n\s+(?P<what>\S[^\n]*?)(?: from [^\n]*)?:\n"
            r".*?Expected sha256 (?P<expected>\w+).*?Got\s+(?P<got>\w+)",
            re.S,
        ),
        _wrong_hash,
    ),
    (re.compile(r"Hashes are required in --require-hashes mode[^\n]*\n[^\n]*\n?[^\n]*"), _no_hash),
]


def explain(error: subprocess.CalledProcessError, doing: str, where: str, log: Path) -> PlumblineError:
    """What a failed step means for whoever wrote the lock."""
    text = error.output or ""
    for pattern, make in _EXPLAINED:
        found = pattern.search(text)
        if found:
            return make(found, where)
    last = [line for line in text.splitlines() if line.strip() and not line.startswith("WARNING")][-6:]
    return PlumblineError(
        f"{doing} failed with status {error.returncode}", where, " / ".join(last), None, f"the whole output: {log}"
    )


def install(
    python: Path, lines: List[str], folder: Optional[Path], step: Dict[str, Any], doing: str, where: str
) -> None:
    """``pip install --require-hashes --no-deps`` of requirement lines.

    :param folder: take files from this folder alone; None: from the index that the host configures
    :param step: ``env``, ``log``, ``keep_open`` and ``cwd`` for `run`
    """
    if not lines:
        return
    options = ["--no-index", "--find-links", str(folder)] if folder else []
    # Wheels are unpacked on the file system of the build: /tmp may be small. Other steps make sockets there, for which
    # this path is too long.
    step = {**step, "env": {**step["env"], "TMPDIR": str(step["cwd"])}}
    if folder:
        step["env"] = offline(step["env"])
    file = Path(step["cwd"]) / "requirements.txt"
    file.write_text("\n".join(lines) + "\n")
    try:
        run(
            [
                str(python),
                "-I",
                "-m",
                "pip",
                "install",
                "--require-hashes",
                "--no-deps",
                "--no-compile",
                "--progress-bar",
                "off",
                *options,
                "-r",
                str(file),
            ],
            **step,
        )
    except subprocess.CalledProcessError as e:
        raise explain(e, doing, where, Path(step["log"])) from None
