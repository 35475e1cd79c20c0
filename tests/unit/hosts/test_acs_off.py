"""The script that switches ACS off, against configuration space as bytes."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "roles/gpu_host/files/plumbline-acs-off.py"


@pytest.fixture
def acs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("acs_off", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def device(sysfs: Path, bdf: str, class_: str, control: int | None, at: int = 0x148) -> Path:
    """A device whose extended capabilities are AER, then (unless null) ACS with that control register."""
    folder = sysfs / "bus/pci/devices" / bdf
    folder.mkdir(parents=True)
    (folder / "class").write_text(class_)
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | (at if control is not None else 0) << 20)
    if control is not None:
        struct.pack_into("<IHH", config, at, 0x000D | 1 << 16, 0x001F, control)
    (folder / "config").write_bytes(config)
    return folder / "config"


def register(config: Path, at: int = 0x148) -> int:
    return int(struct.unpack_from("<H", config.read_bytes(), at + 6)[0])


def test_bridges_alone_are_switched_off_and_reported(tmp_path: Path) -> None:
    on = device(tmp_path, "0000:00:01.1", "0x060400", 0x001D)
    device(tmp_path, "0000:00:02.1", "0x060400", 0)
    device(tmp_path, "0000:00:03.1", "0x060400", None)
    gpu = device(tmp_path, "0000:01:00.0", "0x030200", 0x001D)
    before = gpu.read_bytes()
    argv = [sys.executable, str(SCRIPT), "--sysfs", str(tmp_path), "--state", str(tmp_path / "run/acs.json")]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    assert register(on) == 0 and gpu.read_bytes() == before
    assert (
        "0000:00:01.1: SrcValid+ReqRedir+CmpltRedir+UpstreamFwd -> none" in said
        and "1 changed, 1 were off, 0 failed" in said
    )
    assert json.loads((tmp_path / "run/acs.json").read_text())["ports"][0]["bdf"] == "0000:00:01.1"
    again = subprocess.run([*argv, "--report"], check=True, capture_output=True, text=True).stdout
    assert "1 changed" in again and "on now: none" in again


def test_other_bits_of_the_register_stay(acs: ModuleType, tmp_path: Path) -> None:
    config = device(tmp_path, "0000:00:01.1", "0x060400", 0xFF9D)
    assert acs.switch_off(tmp_path)["failed"] == []
    assert register(config) == 0xFF80


@pytest.mark.parametrize(
    "config", [b"", bytes(256), b"\xff" * 4096, struct.pack("<I", 0x0001 | 0x100 << 20).rjust(260, b"\0") + bytes(3836)]
)
def test_broken_lists_of_capabilities_end(acs: ModuleType, config: bytes) -> None:
    assert acs.find(config) is None
