"""Builds and servers of the simulator for its own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulated_servers import SIMULATOR, Server, make_build


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two builds, by the names that physics files give them."""
    folder = tmp_path_factory.mktemp("builds")
    return {name: make_build(folder, f"0.5.23+{name}") for name in ("sim-a", "sim-b")}


@pytest.fixture
def start(builds: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server: ``start(physics, *args, build="sim-a", ...)``; every one is stopped at the end."""
    servers: list[Server] = []

    def make(physics: dict[str, Any], *args: str, build: str = "sim-a", folder: str = "", **how: Any) -> Server:
        server = Server(builds[build], tmp_path / folder, physics, *args, **how)
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def physics() -> Callable[..., dict[str, Any]]:
    """A physics file of the project, without noise and with a short load: ``physics("story-a", ranks=2, ...)``."""

    def read(name: str, **change: Any) -> dict[str, Any]:
        document = yaml.safe_load((SIMULATOR / "physics" / f"{name}.yml").read_text())
        document.update(noise={}, load_s={"mean": 30, "sd": 0})
        document.update(change)
        return document

    return read
