"""The driver on another release than the rest of site.yml is shown on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts_lab import HostsLab, missing

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(1800)]


def test_the_driver_on_debian_13(tmp_path: Path) -> None:
    """Debian 13's names, by the same role, on a machine and in a container."""
    assert not missing(), missing()
    lab = HostsLab("trixie", tmp_path)
    try:
        status, text = lab.molecule("test", "--destroy=never")
    finally:
        lab.destroy()
    assert status == 0, text[-8000:]
    checked, first, second = lab.runs("driver.yml")
    assert checked["check"]
    for name in lab.platforms:
        assert first["hosts"][name]["changed"] >= 6, f"{name} changed nothing much: {first['hosts'][name]}"
        assert second["hosts"][name]["changed"] == 0
    assert lab.runs("verify_driver.yml")[-1]["hosts"][lab.platforms[0]]["ok"] >= 3
