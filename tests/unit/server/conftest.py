"""A plumbline root with the supervisor installed, and boots of the stand-in that are gone when the test is over."""
from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plumbline.server import boots, control, supervisor
from server_boots import Boot


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "plumbline"
    for name in ("bin", "boots", "spool"):
        (path / name).mkdir(parents=True)
    shutil.copy(supervisor.__file__, path / "bin" / "plumbline-supervise")
    yield path
    for boot in boots.known(path):
        control.stop(path, boot)


@pytest.fixture
def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def boot(root: Path, port: int) -> Callable[..., Boot]:
    def make(*options: str, **more: Any) -> Boot:
        return Boot(root, port, *options, **more)
    return make
