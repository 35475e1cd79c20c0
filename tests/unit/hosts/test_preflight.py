"""Checks against captured trees of /proc, /sys and /etc, and what tools said (``tools/NAME`` in the tree)."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from plumbline.errors import PlumblineError
from plumbline.preflight import CHECKS, run
from plumbline.state.cache import DigestCache
from plumbline.state.context import Context

CORPUS = Path(__file__).parents[2] / "corpus"
KERNEL = "6.8.0-60-generic"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build\n"
SECURE = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def corpus(name: str) -> str:
    return (CORPUS / name).read_text().partition("#@ ----\n")[2]


class Tree:
    """A captured host: two GPUs, driver 580.105.08 with open modules, nothing amiss."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("proc/sys/kernel/osrelease", KERNEL)
        self.put("etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')
        self.put("proc/driver/nvidia/version", OPEN)
        self.put("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08", "")
        self.put("proc/modules", "nvidia 1 0 - Live 0x0\n")
        self.put("proc/cmdline", "quiet iommu=pt\n")
        self.put(f"lib/modules/{KERNEL}/build/Makefile", "")
        self.put(f"boot/vmlinuz-{KERNEL}", "")
        self.put("tools/modinfo.license", "Dual MIT/GPL\n")
        self.put("tools/modinfo.version", "580.105.08\n")
        self.put("tools/smi", corpus("77_smi_q_xml_two_h200.txt"))
        self.put("tools/dmesg", "")
        for i in (1, 2):
            self.put(f"sys/bus/pci/devices/0000:0{i}:00.0/vendor", "0x10de")
            self.put(f"sys/bus/pci/devices/0000:0{i}:00.0/class", "0x030200")

    def put(self, path: str, text: str | bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)

    def drop(self, path: str) -> None:
        (self.root / path).unlink()

    def look(self, check: str, kind: str = "bare", **expected: Any) -> list[dict[str, Any]]:
        context = Context(root=Path("/opt/plumbline"), cache=DigestCache(None), host_kind=kind, sysroot=self.root)
        found = run(context, expected, [check])["findings"]
        for f in found:
            assert f["remedy"], f"no remedy: {f}"
        return list(found)

    def levels(self, check: str, kind: str = "bare", **expected: Any) -> list[str]:
        return [f["level"] for f in self.look(check, kind, **expected)]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_host_with_nothing_amiss_has_no_errors(tree: Tree) -> None:
    context = Context(root=Path("/x"), cache=DigestCache(None), host_kind="bare", sysroot=tree.root)
    found = run(context, {"gpus": 2, "driver_version": "580.105.08"}, ["all"])
    assert found["facts"]["distribution"] == "ubuntu2404" and found["facts"]["gpus"] == 2
    assert [f for f in found["findings"] if f["level"] == "error"] == []
    assert {f["check"] for f in found["findings"]} >= {"headers", "nouveau", "open_modules", "driver_version", "gpus"}


def test_secure_boot_without_a_key_is_an_error_unless_a_module_is_loaded(tree: Tree) -> None:
    tree.put(SECURE, b"\6\0\0\0\1")
    assert tree.levels("secure_boot") == ["ok"]
    tree.drop("proc/driver/nvidia/version")
    assert tree.levels("secure_boot") == ["error"]
    assert "mokutil --import" in tree.look("secure_boot")[0]["remedy"]
    tree.put(SECURE, b"\6\0\0\0\0")
    assert tree.levels("secure_boot") == ["ok"]


def test_headers_of_the_kernel_that_boots_next_are_needed_too(tree: Tree) -> None:
    assert tree.levels("headers") == ["ok"]
    tree.put("boot/vmlinuz-6.8.0-100-generic", "")
    (found,) = tree.look("headers")
    assert found["level"] == "error" and "linux-headers-6.8.0-100-generic" in found["remedy"]
    assert tree.levels("headers", kind="container") == ["error"] or tree.levels("headers", kind="container") == []


def test_nouveau_and_proprietary_modules_are_errors(tree: Tree) -> None:
    tree.put("proc/modules", "nouveau 1 0 - Live 0x0\n")
    assert tree.levels("nouveau") == ["error"]
    tree.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Release\n")
    assert tree.levels("open_modules") == ["error"]


def test_a_user_space_of_another_version_is_named_with_what_did_it(tree: Tree) -> None:
    tree.drop("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08")
    tree.put("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126.09", "")
    history = "Start-Date: 2026-11-20\nCommandline: /usr/bin/unattended-upgrade\nUpgrade: libnvidia-compute-580\n"
    tree.put("var/log/apt/history.log", history)
    found = next(f for f in tree.look("driver_version") if f["level"] == "error")
    assert "580.126.09" in found["found"] and "unattended-upgrade" in found["found"] and "reboot" in found["remedy"]


def test_the_wanted_version_and_the_module_of_the_next_boot_count(tree: Tree) -> None:
    assert tree.levels("driver_version", driver_version="595.58.03").count("error") == 1
    tree.put("tools/modinfo.version", "595.58.03\n")
    assert tree.levels("driver_version").count("error") == 1


def test_held_packages_and_unattended_upgrades(tree: Tree) -> None:
    block = "Package: {}\nStatus: {} ok installed\nArchitecture: amd64\nVersion: 1\n\n"
    names = ["nvidia-dkms-580-open", "libnvidia-compute-580"]
    text = (
        block.format(names[0], "hold")
        + block.format(names[1], "install")
        + block.format("unattended-upgrades", "install")
    )
    tree.put("var/lib/dpkg/status", text)
    tree.put("etc/apt/apt.conf.d/50u", 'Unattended-Upgrade::Package-Blacklist {\n//  "libnvidia-";\n  "nvidia-";\n};\n')
    held, upgrades = tree.look("upgrades", held=names)
    assert held["level"] == "error" and "apt-mark hold libnvidia-compute-580" in held["remedy"]
    assert upgrades["level"] == "warning" and names[1] in upgrades["found"] and names[0] not in upgrades["found"]


def test_gpus_that_are_missing(tree: Tree) -> None:
    assert tree.levels("gpus", gpus=2).count("error") == 0
    assert tree.levels("gpus", gpus=8).count("error") == 1
    tree.drop("tools/smi")
    assert tree.levels("gpus", gpus=8) == ["error"] and tree.levels("gpus") == ["unknown"]


def test_persistence_is_nvmls_word(tree: Tree) -> None:
    tree.put(
        "tools/smi",
        corpus("77_smi_q_xml_two_h200.txt").replace("<persistence_mode>Enabled", "<persistence_mode>Disabled"),
    )
    found = next(f for f in tree.look("gpus") if "persistence" in f["what"])
    assert found["level"] == "warning" and "nvidia-persistenced" in found["remedy"]


def test_xids_of_hardware(tree: Tree) -> None:
    tree.put("tools/dmesg", corpus("82_dmesg_xid79.txt"))
    (found,) = tree.look("xid")
    assert found["level"] == "warning" and "79" in found["found"]


def test_acs_and_iommu_between_gpus(tree: Tree) -> None:
    tree.put("sys/bus/pci/devices/0000:00:01.1/class", "0x060400")
    tree.put("tools/lspci", corpus("81_lspci_acs_switch_redirects.txt"))
    assert tree.levels("acs", p2p=True) == ["warning"]
    tree.put("tools/lspci", corpus("80_lspci_acs_all_off.txt"))
    assert tree.levels("acs", p2p=True) == ["ok"] and tree.levels("acs", p2p=False) == []
    tree.put("sys/class/iommu/ivhd0/x", "")
    tree.put("sys/kernel/iommu_groups/1/type", "DMA-FQ")
    assert tree.levels("iommu", p2p=True) == ["warning"]
    tree.put("sys/kernel/iommu_groups/1/type", "identity")
    assert tree.levels("iommu", p2p=True) == ["ok"]


def test_nccl_ib(tree: Tree) -> None:
    assert tree.levels("nccl_ib", single_node=True, nccl_environment={"NCCL_PROTO": "LL"}) == ["warning"]
    assert tree.levels("nccl_ib", single_node=True, nccl_environment={"NCCL_IB_DISABLE": "1"}) == ["ok"]


def test_limits_of_the_server_count_before_those_of_a_session(tree: Tree) -> None:
    row = "Max locked memory         {0}            {0}            bytes\nMax open files            {1}   {1}   files\n"
    tree.put("proc/self/limits", row.format("unlimited", 1048576))
    assert tree.levels("memlock", memlock="unlimited") == ["ok"] and tree.levels("nofile", nofile=65536) == ["ok"]
    tree.put("proc/70/cmdline", "/x/python\0-m\0sglang.launch_server\0")
    tree.put("proc/70/limits", row.format(8388608, 1024))
    (found,) = tree.look("memlock", memlock="unlimited")
    assert found["level"] == "error" and "pid 70" in found["found"]
    assert tree.levels("nofile", nofile=65536) == ["warning"]
    tree.put("proc/70/limits", row.format("unlimited", 1048576))
    tree.put("proc/80/cmdline", "/usr/bin/dockerd\0-H\0")
    tree.put("proc/80/limits", row.format(8388608, 1048576))
    assert "dockerd (pid 80)" in tree.look("memlock", memlock="unlimited")[0]["found"]


def test_orphans_are_named_with_their_cgroup_and_the_units_processes_are_not(tree: Tree) -> None:
    tree.put("proc/90/cmdline", "sglang::scheduler_TP0\0")
    tree.put("proc/90/stat", "90 (sglang::sched) S 1 90 90 0")
    tree.put("proc/90/cgroup", "0::/user.slice/user-0.slice\n")
    (found,) = tree.look("orphans")
    assert found["level"] == "error" and "pid 90" in found["found"] and "user-0.slice" in found["found"]
    tree.put("proc/90/cgroup", "0::/system.slice/sglang.service\n")
    assert tree.levels("orphans", unit="sglang.service") == ["ok"]
    tree.put("proc/90/cgroup", "0::/user.slice\n")
    tree.put("proc/90/stat", "90 (sglang::sched) S 42 90 90 0")
    assert tree.levels("orphans") == ["ok"]


def test_servers_of_other_simulated_hosts_are_nothing_of_this_ones(tree: Tree) -> None:
    """They share its machine. Without physics it is a real server, which takes memory from ours."""
    low = "Max locked memory  8388608  8388608  bytes\n"
    for pid, parent, command in ((90, 1, "sglang::scheduler_TP0\0"), (91, 42, "python\0-m\0sglang.launch_server\0")):
        tree.put(f"proc/{pid}/cmdline", command)
        tree.put(f"proc/{pid}/stat", f"{pid} (sglang) S {parent} 90 90 0")
        tree.put(f"proc/{pid}/limits", low)
        (tree.root / f"proc/{pid}/fd").mkdir()
        (tree.root / f"proc/{pid}/fd/1").symlink_to("/hosts/sim-1/boots/B/server.log")
    for root, environment, orphans, memlock in (
        ("/hosts/sim-2", {"PLUMBLINE_SIMULATOR_PHYSICS": "/hosts/sim-1/simulator/physics.json"}, "ok", "ok"),
        ("/hosts/sim-1", {"PLUMBLINE_SIMULATOR_PHYSICS": "/hosts/sim-1/simulator/physics.json"}, "error", "error"),
        ("/hosts/sim-2", {}, "error", "error"),
    ):
        tree.put("hosts/sim-1/boots/B/spec.json", json.dumps({"environment": environment}))
        assert tree.levels("orphans", root=root) == [orphans]
        assert tree.levels("memlock", root=root, memlock="unlimited") == [memlock]


def test_a_port_that_somebody_holds_is_named() -> None:
    here = Context(root=Path("/x"), cache=DigestCache(None))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (found,) = run(here, {"ports": [port]}, ["ports"])["findings"]
        assert found["level"] == "error" and f"pid {os.getpid()}" in found["found"]
    assert run(here, {"ports": [port]}, ["ports"])["findings"][0]["level"] == "ok"


def test_shared_memory_is_measured_here() -> None:
    here = Context(root=Path("/x"), cache=DigestCache(None))
    assert run(here, {"shm_mib": 1}, ["shm"])["findings"][0]["level"] == "ok"
    found = run(here, {"shm_mib": 1 << 30}, ["shm"])["findings"][0]
    assert found["level"] == "error" and "shm" in found["remedy"]


def test_an_unknown_check_is_refused_with_the_nearest() -> None:
    with pytest.raises(PlumblineError, match="memlock"):
        run(Context(root=Path("/x"), cache=DigestCache(None)), {}, ["memlok"])
    assert len(CHECKS) == 19
