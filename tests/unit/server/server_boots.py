"""Boots of the stand-in, for tests."""
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plumbline.ids import ulid
from plumbline.server import boots, control

STANDIN = Path(__file__).parent / "standin.py"


class Boot:
    """One boot of the stand-in."""

    def __init__(self, root: Path, port: int, *options: str, holder: dict[str, Any] | None = None,
                 grace_s: float = 2.0) -> None:
        self.root, self.port, self.id = root, port, ulid()
        self.marks_file = root / f"{self.id}.marks"
        self.argv = [sys.executable, str(STANDIN), "--port", str(port), "--model-path", "/models/m",
                     "--marks", str(self.marks_file), *options]
        self.started = control.start(root, self.id, self.argv, {"PATH": os.environ["PATH"]}, ready_port=port,
                                     holder=holder, grace_s=grace_s)
        self.folder = Path(self.started["boot_dir"])

    def marks(self) -> dict[str, float]:
        lines = self.marks_file.read_text().splitlines() if self.marks_file.exists() else []
        return {entry["mark"]: entry["at"] for entry in map(json.loads, lines)}

    def exit(self) -> dict[str, Any]:
        value = boots.read_json(self.folder / "exit.json")
        assert value is not None
        return value

    def pids(self) -> list[int]:
        return boots.remains(self.root, self.id)


def until(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait for something to become true, and give it back."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)
