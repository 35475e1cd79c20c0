"""What counts as a data check of a profile: this host, this state, these very variables, all sizes, every element."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from plumbline.analysis import schema
from plumbline.nccl import datacheck, host_paths, sweep

LL128 = {"NCCL_PROTO": "LL128"}
GROUPS = {"hardware": "h", "driver": "580", "build": "b", "nccl": "any", "engine_args": "any"}


def record(size: int | None = 4096, status: str = "ok", **given: object) -> dict:
    out = {
        "schema": "plumbline.nccl-sweep/1", "sweep": "s", "host": "node-a", "at": "2026-11-29T20:00:00Z", "key": "k",
        "profile": "ll128", "variables": LL128, "mode": "as-is", "world": 2, "backend": "nccl", "bytes": size,
        "status": status, "nccl_environment": LL128,
        "state": {"digest": "d", "groups": datacheck.of_state(GROUPS)},
    }  # fmt: skip
    if size is None:
        out["diagnosis"] = {"what": "the collective hung", "ranks": [], "missing": [], "remedy": "P2P is on"}
    else:
        times = {"median": 1.0, "min": 1.0, "max": 1.0}
        out.update(
            elements=size // 2, eager_us=times, graph_us=times, wrong=0, wrong_in_graph=0, ranks=2, wrong_ranks=[],
            algo=None, proto=None, channels=None, device="GPU", nccl="2.28.9", torch="2.11", fault=None,
        )  # fmt: skip
    return {**out, **given}


ALL = [record(size) for size in datacheck.FULL_SIZES]


def test_every_size_right_in_this_state_passes():
    for one in ALL:
        schema.validate("nccl-sweep", one, "record")
    status, why = datacheck.outcome(ALL, LL128, GROUPS)
    assert (status, f"{len(ALL)} sizes checked on 2 ranks, every element right" in why) == ("passed", True)


@pytest.mark.parametrize(
    ("records", "status", "why"),
    [
        ([], "open", "no data-checked collective was ever run"),
        (ALL[:-1], "open", f"not checked in a CUDA graph at {datacheck.FULL_SIZES[-1]} bytes"),
        ([*ALL[:-1], {**ALL[-1], "wrong_in_graph": None}], "open", "not checked in a CUDA graph"),
        ([{**r, "backend": "gloo"} for r in ALL], "open", "no data-checked collective was ever run"),
        ([{**r, "nccl_environment": {**LL128, "NCCL_P2P_DISABLE": "1"}} for r in ALL], "open", "was ever run"),
        ([{**r, "state": None} for r in ALL], "open", "the host has changed since"),
        (
            [{**r, "state": {"digest": "x", "groups": {**r["state"]["groups"], "driver": "570"}}} for r in ALL],
            "open",
            "the host has changed since it was checked: driver",
        ),
        ([record(8192, "wrong_data", wrong=3), *ALL], "failed", "wrong data at 8192 bytes"),
        ([*ALL, record(None, "hang")], "failed", "hang on 2026-11-29T20:00:00Z: the collective hung; P2P is on"),
        ([record(None, "crash"), *ALL[1:]], "failed", "crash on"),
        ([record(None, "hang"), *ALL], "passed", ""),
        ([{k: v for k, v in r.items() if k not in ("state", "nccl_environment")} for r in ALL], "open", "was ever"),
    ],
)
def test_what_does_not_pass_says_why(records, status, why):
    found = datacheck.outcome(records, LL128, GROUPS)
    assert found[0] == status
    assert why in found[1]


def test_without_a_state_nothing_has_passed():
    assert datacheck.outcome(ALL, LL128, None)[0] == "open"


def test_debug_output_is_no_other_setting():
    assert datacheck.outcome(ALL, {**LL128, "NCCL_DEBUG": "INFO", "PATH": "/bin"}, GROUPS)[0] == "passed"


def test_the_sweeps_own_records_are_found_again(tmp_path: Path):
    state = {"digest": "d", "groups": GROUPS}
    given = {"python": sys.executable, "world": 2, "backend": "socket", "environment": {"PATH": os.environ["PATH"]}}
    work = sweep.Sweep(tmp_path, "check", iterations=2, state=state, **given)
    profile = {"name": "ll128", "variables": LL128}
    assert work.checked([profile], ["as-is"], [4096])[0]["status"] == "open"
    work.run([profile], ["as-is"], [4096])
    (found,) = work.checked([profile], ["as-is"], [4096])
    assert (found["profile"], found["status"]) == ("ll128", "passed")
    assert work.checked([profile], ["no-p2p"], [4096])[0]["status"] == "open"
    broken = sweep.Sweep(tmp_path, "other", fault={"rank": 1, "do": "wrong", "at": 8192}, state=state, **given)
    broken.run([profile], ["as-is"], [8192])
    assert work.checked([profile], ["as-is"], [4096])[0]["status"] == "failed", "in whichever sweep it was seen"


def test_a_hang_names_what_of_the_host_keeps_gpus_apart(tmp_path: Path):
    sysroot = tmp_path / "machine"
    for path, text in {
        "sys/kernel/iommu_groups/0/type": "DMA-FQ\n",
        "sys/bus/pci/devices/0000:00:01.1/class": "0x060400\n",
    }.items():
        (sysroot / path).parent.mkdir(parents=True, exist_ok=True)
        (sysroot / path).write_text(text)
    (sysroot / "tools").mkdir()
    (sysroot / "tools" / "lspci").write_text(
        "00:01.1 PCI bridge: Some Bridge\n\tCapabilities: [2a0 v1] Access Control Services\n"
        "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+\n"
    )
    said = host_paths.after_hang(tmp_path, sysroot, nvidia_smi=str(tmp_path / "none"))
    assert said.startswith("IOMMU=translating (DMA-FQ); ACS redirects peers on 1 bridge (")
    assert host_paths.after_hang(tmp_path, tmp_path / "empty", nvidia_smi=str(tmp_path / "none")) == (
        "IOMMU=off; ACS: no bridge to be seen"
    )
