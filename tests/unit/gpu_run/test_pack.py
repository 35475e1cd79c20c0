"""What the packing of the run on GPUs decides by itself: pins, files, RECORDs."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "gpu"
_spec = importlib.util.spec_from_file_location("gpu_pack", GPU / "pack.py")
assert _spec and _spec.loader
pack = importlib.util.module_from_spec(_spec)
sys.modules["gpu_pack"] = pack
_spec.loader.exec_module(pack)


def test_the_projects_own_pins_are_read_and_name_each_distribution_once() -> None:
    pins = pack.read_pins((GPU / "pins.txt").read_text())
    names = [p.name for p in pins]
    assert len(names) == len(set(names)) > 30
    kernel = next(p for p in pins if p.name == "sglang-kernel")
    assert kernel.keep == ("sgl_kernel/sm90/common_ops.abi3.so",)


@pytest.mark.parametrize(
    "line", ["sglang", "sglang>=1 engine", "sglang==1 nowhere", "sglang==1", "sglang==1 engine colour=red"]
)
def test_a_line_that_is_no_pin_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        pack.read_pins(f"# pins\n{line}\n")


def test_of_compiled_libraries_only_the_kept_one_travels() -> None:
    pin = pack.Pin("k", "1", "engine", keep=("k/sm90/ops.so",), drop=("k/demo/",))
    assert pack.wanted("k/sm90/ops.so", pin)
    assert pack.wanted("k/__init__.py", pin)
    assert not pack.wanted("k/sm100/ops.so", pin)
    assert not pack.wanted("k/demo/__init__.py", pin)
    assert not pack.wanted("k/ops.cpp", pin)
    assert pack.wanted("sglang/jit_kernel/csrc/a.cpp", pack.Pin("sglang", "1", "engine"))


def test_a_trimmed_record_is_true_to_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    record = f"a.py,sha256={digest},6\nb.so,sha256=abc,9\nk.dist-info/RECORD,,\n"
    assert pack.faults(record, tmp_path) == ["b.so"]
    trimmed = pack.trimmed_record(record, ["a.py", "k.dist-info/RECORD"])
    assert pack.faults(trimmed, tmp_path) == []
    assert "b.so" not in trimmed
    (tmp_path / "a.py").write_text("x = 2\n")
    assert pack.faults(trimmed, tmp_path) == ["a.py"]
