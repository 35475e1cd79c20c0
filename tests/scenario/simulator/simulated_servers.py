"""Start the simulator as a build starts it: a wheel in a virtual environment, a process with its environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Optional

from plumbline.analysis.build import pack

ROOT = Path(__file__).resolve().parents[3]
SIMULATOR = ROOT / "simulator"
PROFILE = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}


def make_build(folder: Path, version: str) -> Path:
    """A virtual environment with that build of the simulator; returns its folder."""
    wheel = pack.pack(SIMULATOR / "server", version, folder / "wheels")
    venv = folder / version
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    return venv


def eagle(steps: int, draft: str = "eagle3") -> list[str]:
    """Arguments of EAGLE-3 with so many steps."""
    return [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(SIMULATOR / "models" / draft),
        "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(steps + 1),
    ]  # fmt: skip


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server of the simulator. ``physics`` is written as JSON; ``host`` names its clock, too."""

    def __init__(
        self,
        build: Path,
        folder: Path,
        physics: dict[str, Any],
        *args: str,
        host: str = "sim-1",
        environment: Optional[dict[str, str]] = None,
        profile: Optional[dict[str, str]] = None,
        port: int = 0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.folder = port or free_port(), folder
        self.log_path = folder / f"server-{self.port}-{time.monotonic_ns()}.log"
        file = folder / "physics.json"
        file.write_text(json.dumps(physics))
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PLUMBLINE_"))}
        keep.update(PROFILE if profile is None else profile)
        keep.update(
            HOME=str(folder),
            PLUMBLINE_SIMULATOR_PHYSICS=str(file),
            PLUMBLINE_SIMULATOR_HOST=host,
            PLUMBLINE_SIMULATOR_CLOCK=str(folder / f"clock-{host}.json"),
        )
        keep.update(environment or {})
        command = [str(build / "bin" / "python"), "-m", "sglang.launch_server"]
        command += ["--model-path", str(SIMULATOR / "models" / "target"), "--port", str(self.port)]
        command += ["--max-running-requests", "16", "--decode-log-interval", "10", "--enable-metrics", *args]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, env=keep, stdout=log, stderr=log, start_new_session=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def get(self, path: str, method: str = "GET", body: Any = None, timeout: float = 20.0) -> tuple[int, str]:
        """(status, body) of one request; status 0 when the connection is refused."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError:
            return 0, ""
        except ConnectionError:
            return 0, ""

    def json(self, path: str, **how: Any) -> Any:
        """The JSON of one request."""
        status, text = self.get(path, **how)
        assert status == 200, (path, status, text)
        return json.loads(text)

    def generate(self, text: str, tokens: int, **more: Any) -> dict[str, Any]:
        """One answer without streaming."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more}
        answer = self.json("/generate", method="POST", body={"text": text, "sampling_params": sampling}, timeout=60)
        assert isinstance(answer, dict)
        return answer

    def wait_ready(self, limit: float = 60.0) -> Server:
        """Return when /ready says so. Fails if the server ends before."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log[-2000:]
            if self.get("/ready", timeout=2)[0] == 200:
                return self
            time.sleep(0.05)
        raise AssertionError(f"not ready in {limit} s: {self.log[-2000:]}")

    def wait_end(self, limit: float = 60.0) -> int:
        """The exit status."""
        return self.process.wait(timeout=limit)

    def ranks(self) -> dict[str, int]:
        """Process id by title of the processes below the server."""
        found = {}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            if title.startswith("sglang::"):
                found[title] = int(pid)
        return found

    def stop(self) -> int:
        """SIGTERM, then SIGKILL to what is left of its process group; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait(timeout=20)
