"""Wait until a boot is ready, or until it is certain that it will not be: by process, log and port together.

SGLang binds its port after the load, so a refused connection means loading as long as the process lives; the log tells
how far it is, and the process table tells at once when it died.
"""
from __future__ import annotations

import os
import socket
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Union
from urllib.parse import urlsplit

from ..errors import PlumblineError
from ..files import write_atomic
from ..sglang import failures
from ..sglang.phases import PhaseReader
from . import boots, ports, stacks
from .lease import Renewer
from .progress import Progress
from .proof import Proof
from .supervisor import alive, command_of

PathLike = Union[str, Path]
POLL_S, SOON_S = 0.05, 0.01  # steps of the loop, and once the port answers
EXIT_S = 0.6  # for the supervisor to tell how the server ended
MOST_LOG = 8 << 20  # bytes of a log's end that are searched for the cause of a death


def wait(root: PathLike, boot: str, base_url: str, model: Optional[str] = None, draft: Optional[str] = None,
         timeout_s: float = 1800, hang_s: float = 180, silence_s: float = 900, proof_s: float = 120,
         holder: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """Watch the boot until it is ready, dead, hanging or out of time.

    Returns {ready, phase, phases: [{phase, at_s, draft}], start_s, port_s, proof, failure, stacks, log}: seconds are
    from the start of the server's process; ``failure`` is null or {class, detail, lines, remedy, phase, exit_code,
    ...}; ``stacks`` is null or as `stacks.dump`, and then also stands in the boot's stacks.txt.

    ``model`` and ``draft`` are the paths that the server must say it serves. It *hangs* if for ``hang_s`` its log did
    not grow and its processes neither computed nor read, or if its log did not grow for ``silence_s`` although they
    compute (a collective that waits on a GPU spins). ``proof_s`` limits the last step, the real generation. The lease
    of ``holder`` is renewed meanwhile. Raises PlumblineError if there is no such boot, or if the lease is lost.
    """
    return _Watch(root, boot, base_url, model, draft, timeout_s, hang_s, silence_s, proof_s, holder).run()


class _Watch:
    def __init__(self, root: PathLike, boot: str, base_url: str, model: Optional[str], draft: Optional[str],
                 timeout_s: float, hang_s: float, silence_s: float, proof_s: float,
                 holder: Optional[Mapping[str, Any]]) -> None:
        now = boots.status(root, boot)
        if now["state"] == "absent" or now["pids"] is None:
            raise PlumblineError(f"boot {boot} has not been started", now["boot_dir"], now["state"], "a started boot",
                                 "start it first (plumbline_server state=started)")
        self.root, self.boot, self.folder = root, boot, Path(now["boot_dir"])
        self.spec, self.pids = now["spec"], now["pids"]
        self.base_url, self.model, self.draft = base_url, model, draft
        self.timeout_s, self.proof_s = timeout_s, proof_s
        self.log = Path(self.spec["log"])
        self.offset = 0
        self.reader = PhaseReader()
        self.phases: List[Dict[str, Any]] = []
        self.progress = Progress(hang_s, silence_s)
        self.lease = Renewer(root, holder)
        self.proof: Optional[Proof] = None
        self.port_s: Optional[float] = None
        url = urlsplit(base_url)
        self.address = (url.hostname or "127.0.0.1", url.port or 80)

    def run(self) -> Dict[str, Any]:
        began = time.monotonic()
        while True:
            living = alive(self.pids["server"], self.pids["server_start"])  # before the log: its last words count
            self._read_log()
            if not living:
                return self._dead()
            if self.proof and self.proof.done:
                return self._proven(self.proof.done)
            if self.proof and self.proof.error:
                wrong = self.proof.error
                return self._failed(wrong.cls, wrong.detail, wrong.lines, wrong.remedy,
                                    with_stacks=wrong.cls in ("not_ready", "no_generation"))
            foreign = self._knock()
            if foreign:
                return foreign
            if self.proof and self.reader.phase == "ready":
                self.proof.fired.set()
            stuck = self.progress.stuck(boots.tree, self.pids)
            if stuck:
                return self._failed("hang", f"{stuck}; {self._where()}", self._last_lines(),
                                    "read the stacks; all ranks in one collective: P2P, IOMMU or ACS", with_stacks=True)
            if time.monotonic() - began > self.timeout_s:
                return self._failed("timeout", f"not ready within {self.timeout_s:g} s; {self._where()}",
                                    self._last_lines(), "raise sglang_server_ready_timeout_s if the load takes longer",
                                    with_stacks=True)
            self.lease.tick()
            time.sleep(SOON_S if self.proof else POLL_S)

    def _elapsed(self) -> float:
        return round(time.monotonic() - float(self.pids["started_monotonic"]), 3)

    def _read_log(self) -> None:
        try:
            with open(self.log, "rb") as f:
                f.seek(self.offset)
                piece = f.read()
        except FileNotFoundError:
            return
        if piece:
            written_before = self.offset == 0  # by the time of the first look: when, only its stamps can tell
            self.offset += len(piece)
            self.progress.log_grew()
            before = len(self.reader.history)
            self.reader.feed(piece.decode(errors="replace"))
            for event in self.reader.history[before:]:
                at_s = self._stamped(event.at) if written_before else self._elapsed()
                self.phases.append({"phase": event.phase, "at_s": at_s, "draft": event.draft})

    def _stamped(self, stamp: Optional[float]) -> float:
        """A log stamp (local time, which the parser takes for UTC; whole seconds) as seconds from the start."""
        now = self._elapsed()
        if stamp is None:
            return now
        began = datetime.strptime(self.pids["started_at"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        local = began.astimezone().replace(tzinfo=timezone.utc).timestamp()
        return round(min(now, max(0.0, stamp - local)), 3)

    def _knock(self) -> Optional[Dict[str, Any]]:
        """Begin the proof when the port answers; a failure if it is another's."""
        if self.proof:
            return None
        with socket.socket(socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET) as s:
            s.settimeout(0.2)
            if s.connect_ex(self.address) != 0:
                return None
        self.port_s = self._elapsed()
        holders = ports.owners(self.address[1])
        if holders and not holders & set(boots.tree(self.pids)):
            pid = min(holders)
            return self._failed(
                "foreign_server", f"port {self.address[1]} is answered by a process that is not of this boot, {pid}",
                [command_of(pid)], f"stop process {pid}, or choose another port")
        self.proof = Proof(self.base_url, self.model, self.draft, self.proof_s)
        self.proof.start()
        return None

    def _where(self) -> str:
        """What is known of a server that is not ready."""
        parts = [f"phase {self.reader.phase}" + (f" ({self.reader.detail})" if self.reader.detail else "")]
        if self.proof:
            parts.append(f"the port answers; last step of the proof: {self.proof.step}")
        elif self.reader.phase == "ready":
            parts.append(f"the log says that it is ready, but nothing answers at {self.address[0]}:{self.address[1]}")
        return ", ".join(parts)

    def _text(self) -> str:
        try:
            with open(self.log, "rb") as f:
                f.seek(max(0, os.fstat(f.fileno()).st_size - MOST_LOG))
                return f.read().decode(errors="replace")
        except OSError:
            return ""

    def _last_lines(self, count: int = 5) -> List[str]:
        return [line[:300] for line in self._text()[-20000:].replace("\r", "\n").splitlines() if line.strip()][-count:]

    def _result(self, **more: Any) -> Dict[str, Any]:
        value: Dict[str, Any] = {
            "ready": False, "phase": self.reader.phase, "phases": self.phases, "start_s": None, "port_s": self.port_s,
            "proof": None, "failure": None, "stacks": None, "log": str(self.log)}
        value.update(more)
        return value

    def _proven(self, proof: Dict[str, Any]) -> Dict[str, Any]:
        return self._result(ready=True, phase="ready", start_s=self._elapsed(), proof=proof)

    def _failed(self, cls: str, detail: str, lines: List[str], remedy: str,
                with_stacks: bool = False) -> Dict[str, Any]:
        dump = None
        if with_stacks:
            dump = stacks.dump(boots.tree(self.pids), self.spec["argv"][0])
            write_atomic(self.folder / "stacks.txt", stacks.as_text(dump))
        failure = failures.Failure(cls, detail, lines, remedy, phase=self.reader.phase).as_dict()
        # The log may show why: a rank that died while the others wait for it, a watchdog.
        seen = failures.classify(self._text()) if cls in ("hang", "timeout", "not_ready") else None
        if seen:
            failure["log_shows"] = seen.as_dict()
        return self._result(failure=failure, stacks=dump)

    def _dead(self) -> Dict[str, Any]:
        end = time.monotonic() + EXIT_S
        exit_ = boots.read_json(self.folder / "exit.json")
        while exit_ is None and time.monotonic() < end:
            time.sleep(0.02)
            exit_ = boots.read_json(self.folder / "exit.json")
        self._read_log()
        if exit_ and exit_["reason"] != "ended":
            failure = failures.Failure(exit_["reason"], exit_["detail"], self._last_lines(),
                                       "the server was stopped from outside; start the run again",
                                       phase=self.reader.phase)
            return self._result(failure=failure.as_dict())
        status = None if not exit_ else (exit_["code"] if exit_["code"] is not None else -(exit_["signal"] or 0))
        failure = failures.classify_exit(self._text(), status)
        if failure.phase is None:
            failure.phase = self.reader.phase
        return self._result(failure=failure.as_dict())
