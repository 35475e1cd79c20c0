"""Fixtures: one root with a real build, made once; tests that change it take a copy."""

from __future__ import annotations

from pathlib import Path

import pytest
import state_builds


@pytest.fixture(scope="session")
def built_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plumbline") / "root"
    state_builds.make_build(root)
    return root


@pytest.fixture()
def root(built_root: Path, tmp_path: Path) -> Path:
    return state_builds.copy_root(built_root, tmp_path / "root")
