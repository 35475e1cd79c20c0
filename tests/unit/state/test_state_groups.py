"""The other groups, read from captured trees of /proc, /sys and /etc, and from this machine."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from plumbline.state import container, driver, hardware, kernel, nccl, packages, runtime, units
from plumbline.state.cache import DigestCache
from plumbline.state.context import Context
from plumbline.state.values import absent, is_unknown

DATA = Path(__file__).parent / "data"
TOPO = (
    "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tPHB\t0-31\t0\t\tN/A\nGPU1\tPHB\t X \t0-31\t0\t\tN/A\n\nLegend:\n\n  X    = Self\n"
)
P2P = " \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n\nLegend:\n\n  X    = Self\n"


class Host:
    """A captured tree that a test fills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, path: str, text: str) -> Host:
        target = self.folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return self

    def context(self, **more: Any) -> Context:
        base = {
            "root": self.folder / "root",
            "cache": DigestCache(None),
            "sysroot": self.folder,
            "home": Path("/home/u"),
        }
        return Context(**{**base, **more})


@pytest.fixture()
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def gpu_host(host: Host, licence: str = "Dual MIT/GPL") -> Host:
    host.put(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\nGCC version: 12\n",
    )
    host.put("/proc/driver/nvidia/params", 'ResmanDebugLevel: 4294967295\nRegistryDwords: "ForceP2P=0x11"\n')
    host.put("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.159.04", "").put(
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", ""
    )
    host.put("/tools/smi", (DATA / "smi_q.xml").read_text()).put("/tools/topo", TOPO)
    host.put("/tools/p2p.read", P2P).put("/tools/p2p.write", P2P)
    return host.put("/tools/modinfo.version", "580.159.04\n").put("/tools/modinfo.license", licence + "\n")


def test_a_host_without_a_gpu_has_no_driver(host: Host) -> None:
    assert set(map(str, driver.observe(host.context()).identity.values())) == {str(absent())}


def test_the_driver_as_loaded_installed_and_set(host: Host) -> None:
    group = driver.observe(gpu_host(host).context())
    found = group.identity
    assert (
        found["module"],
        found["module.flavour"],
        found["module.installed"],
        found["user_space"],
        found["cuda"],
    ) == ("580.159.04", "open", "580.159.04", "580.159.04", "13.0")
    assert found["parameters"]["RegistryDwords"] == "ForceP2P=0x11"
    assert (found["gpu.0.name"], found["gpu.1.power_limit_w"], found["gpu.0.bar1_mib"], found["gpu.0.mig"]) == (
        "NVIDIA H200",
        700.0,
        262144,
        False,
    )
    assert found["gpu.0.link_width_max"] == 16 and found["topology"] == {"0-1": "PHB", "1-0": "PHB"}
    assert found["p2p.read"] == {"0-1": "OK", "1-0": "CNS"}
    assert group.condition["gpu.0.link_gen"] == 5 and group.condition["gpu.0.event_reasons"] == ["gpu_idle"]
    assert not [k for k in found if "clocks_mhz" in k or "temperature" in k]


def test_a_driver_that_does_not_answer_is_unknown_not_absent(host: Host) -> None:
    gpu_host(host)
    for name in ("smi", "topo", "p2p.read", "p2p.write"):
        (host.folder / "tools" / name).unlink()
    found = driver.observe(host.context()).identity
    assert is_unknown(found["gpus"]) and is_unknown(found["p2p.read"]) and found["module"] == "580.159.04"


def test_proprietary_modules_are_told_apart() -> None:
    assert driver.loaded_module("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12") == {
        "version": "535.183.01",
        "flavour": "proprietary",
    }


def test_gpus_of_the_bus_are_hardware(host: Host) -> None:
    for address, kind in (("0000:06:00.0", "0x030200"), ("0000:07:00.0", "0x060400")):
        for name, value in (("vendor", "0x10de\n"), ("class", kind), ("device", "0x2bb5"), ("max_link_width", "16")):
            host.put(f"/sys/bus/pci/devices/{address}/{name}", value)
    host.put(
        "/proc/cpuinfo",
        "processor\t: 0\nmodel name\t: X\nphysical id\t: 0\ncore id\t\t: 0\nflags\t\t: avx2 fpu\n\n"
        "processor\t: 1\nphysical id\t: 0\ncore id\t\t: 1\n",
    )
    host.put("/proc/meminfo", "MemTotal:       24689512 kB\n")
    found = hardware.observe(host.context()).identity
    assert found["gpu.count"] == 1 and found["gpu.0"]["device"] == "0x2bb5"
    assert (found["cpu.model"], found["cpu.threads"], found["cpu.cores"], found["cpu.flags"], found["memory.gib"]) == (
        "X",
        2,
        2,
        "avx2",
        24,
    )


ACS = """00:01.0 PCI bridge: Host
\tCapabilities: [100 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+
40:01.0 PCI bridge: Host
\tCapabilities: [100 v1] Access Control Services
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd-
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ACS, {"00:01.0": True, "40:01.0": False}),
        ("00:01.0 PCI bridge: Host\n\tCapabilities: <access denied>\n", {"unknown": "lspci shows ACS only to root"}),
        ("00:01.0 PCI bridge: Host\n\tCapabilities: [40] Power Management\n", {"absent": True}),
        ("", {"unknown": "lspci is not installed"}),
    ],
)
def test_acs(host: Host, text: str, expected: dict) -> None:
    host.put("/sys/bus/pci/devices/0000:00:01.0/class", "0x060400")
    if text:
        host.put("/tools/lspci", text)
    assert kernel.observe(host.context()).identity["acs"] == expected


def test_kernel_settings(host: Host) -> None:
    for name, value in (
        ("vm/swappiness", "60"),
        ("kernel/ns_last_pid", "4711"),
        ("kernel/hostname", "h"),
        ("fs/file-max", "123"),
        ("kernel/numa_balancing", "1"),
        ("net/ipv4/conf/eth0/forwarding", "1"),
        ("net/ipv4/tcp_sack", "1"),
        ("vm/overcommit_memory", "0\n"),
    ):
        host.put(f"/proc/sys/{name}", value)
    secret = host.folder / "proc/sys/net/ipv4/tcp_fastopen_key"
    secret.write_text("00000000-00000000")
    secret.chmod(0o600)
    counter = host.folder / "proc/sys/fs/dentry-state"
    counter.write_text("1 2 3")
    counter.chmod(0o444)
    host.put("/proc/cmdline", "BOOT_IMAGE=/vmlinuz-6.1 root=/dev/sda1 iommu=pt luks.password=hunter2 quiet")
    group = kernel.observe(host.context())
    assert {k for k in group.identity if k.startswith("sysctl.")} == {
        "sysctl.vm.swappiness",
        "sysctl.kernel.numa_balancing",
        "sysctl.net.ipv4.tcp_sack",
        "sysctl.vm.overcommit_memory",
    }
    assert group.identity["sysctl.vm.overcommit_memory"] == "0"
    assert group.condition["sysctl.fs.file-max"] == "123"
    assert group.identity["command_line"] == ["root=/dev/sda1", "iommu=pt", "luks.password=[redacted]", "quiet"]


STATUS = """Package: dpkg
Status: install ok installed
Architecture: amd64
Version: 1.21

Package: nvidia-open
Status: hold ok installed
Architecture: amd64
Version: 580.1-1
Description: text
 Status: not a field

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libc6
Status: install ok half-configured
Architecture: i386
Version: 2.36
"""


def test_packages_by_version_hold_and_state(host: Host) -> None:
    host.put("/var/lib/dpkg/status", STATUS).put("/etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    host.put("/etc/apt/preferences.d/nvidia", "Package: nvidia-*\nPin: version 580.*\n")
    host.put("/etc/apt/sources.list.d/lab.list", "deb https://me:hunter2@mirror/ x y\n")
    found = packages.observe(host.context()).identity
    assert {k: v for k, v in found.items() if k.startswith("package.")} == {
        "package.dpkg": {"version": "1.21"},
        "package.nvidia-open": {"version": "580.1-1", "held": True},
        "package.libc6:i386": {"version": "2.36", "state": "half-configured"},
    }
    assert found["os-release"] == {"ID": "debian", "VERSION_ID": "12"}
    before = found["apt./etc/apt/sources.list.d/lab.list"]
    host.put("/etc/apt/sources.list.d/lab.list", "deb https://me:hunter3@mirror/ x y\n")
    assert packages.observe(host.context()).identity["apt./etc/apt/sources.list.d/lab.list"] == before, (
        "a password is no part of the state"
    )


@pytest.mark.parametrize(
    ("path", "text", "kind", "image"),
    [
        ("/run/systemd/container", "systemd-nspawn\n", "systemd-nspawn", {"absent": True}),
        ("/.dockerenv", "", "docker", {"unknown": "docker does not tell the image's digest inside the container"}),
        ("/run/.containerenv", 'engine="podman"\nimageid="' + "ab" * 32 + '"\n', "podman", "ab" * 32),
        ("/proc/1/environ", "PATH=/bin\0container=lxc\0", "lxc", {"absent": True}),
        (
            "/proc/1/cgroup",
            "0::/kubepods/pod1\n",
            "kubernetes",
            {"unknown": "kubernetes does not tell the image's digest inside the container"},
        ),
        ("/etc/hostname", "h", "bare", {"absent": True}),
    ],
)
def test_kinds_of_containers(host: Host, path: str, text: str, kind: str, image: object) -> None:
    found = container.observe(host.put(path, text).context()).identity
    assert (found["kind"], found["image"]) == (kind, image)
    assert bool(found["owned_by_the_host"]) == (kind != "bare")


def test_a_docker_image_by_its_layers(host: Host) -> None:
    line = "100 1 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/o/l/{}:/o/l/B:/o/l/C,upperdir=/o/x,workdir=/o/w\n"
    host.put("/.dockerenv", "").put("/proc/self/mountinfo", line.format("INIT1"))
    image = container.observe(host.context()).identity["image"]
    host.put("/proc/self/mountinfo", line.format("INIT2"))
    assert container.observe(host.context()).identity["image"] == image, "another container of the same image"
    host.put("/proc/self/mountinfo", line.format("INIT2").replace("/C,", "/D,"))
    assert container.observe(host.context()).identity["image"] != image
    host.put("/proc/self/mountinfo", "1 1 8:1 / / rw - ext4 /dev/vda rw\n")
    assert container.observe(host.context()).identity["image"] == absent()


def test_the_kind_can_be_decided(host: Host) -> None:
    host.put("/run/systemd/container", "systemd-nspawn")
    assert container.kind(host.context(host_kind="bare")) == "bare"
    assert container.kind(host.context(host_kind="container")) == "systemd-nspawn"
    (host.folder / "run/systemd/container").unlink()
    assert container.kind(host.context(host_kind="container")) == "container"


def test_conf_files_are_read_as_nccl_reads_them() -> None:
    text = "NCCL_PROTO=LL\n # NCCL_A=1\n#NCCL_B=1\nNCCL_C = 2\nexport NCCL_D=3\nNCCL_PROTO=Simple\nrubbish\n"
    assert nccl.parse_conf(text) == {"NCCL_PROTO": "LL", " # NCCL_A": "1", "NCCL_C ": " 2", "export NCCL_D": "3"}


def test_what_would_be_in_force_and_from_where(host: Host) -> None:
    host.put("/etc/nccl.conf", "NCCL_PROTO=Simple\nNCCL_DEBUG=WARN\nNCCL_CUMEM_ENABLE=1\n").put(
        "/home/u/.nccl.conf", "NCCL_BUFFSIZE=1\n"
    )
    host.put("/opt/site/sitecustomize.py", "import os\n")
    context = host.context(nccl={"profile": "p", "delivery": "nccl_conf", "variables": {"NCCL_PROTO": "LL"}})
    group = nccl.observe(context, {"NCCL_ALGO": "Ring", "PYTHONPATH": "/opt/site:relative"})
    force = group.condition["in_force"]
    assert force["NCCL_ALGO"] == {"value": "Ring", "source": "environment"}
    assert force["NCCL_PROTO"]["source"] == "profile p by nccl_conf" and force["NCCL_PROTO"]["loses"] == [
        {"source": "/etc/nccl.conf", "value": "Simple"}
    ]
    assert force["NCCL_CUMEM_ENABLE"]["source"] == "engine", "SGLang sets it before NCCL reads a file"
    assert force["NCCL_BUFFSIZE"]["source"] == "~/.nccl.conf" and force["NCCL_DEBUG"]["source"] == "/etc/nccl.conf"
    assert group.identity["variable.NCCL_PROTO"] == "LL" and group.identity["environment.NCCL_ALGO"] == "Ring"
    assert "pythonpath./opt/site/sitecustomize.py" in group.identity
    host.put("/opt/site/profile.json", "{}").put("/opt/site/other.json", "{}")
    now = nccl.observe(context, {"PYTHONPATH": "/opt/site"}).identity
    assert "pythonpath./opt/site/profile.json" in now, "ours reads the variables from there"
    assert "pythonpath./opt/site/other.json" not in now


def test_a_graph_file_with_another_text_is_another_setting(host: Host) -> None:
    host.put("/opt/graph.xml", "<graphs version='1'/>").put("/etc/nccl.conf", "NCCL_TOPO_FILE=/opt/none.xml\n")
    asked = {"profile": "p", "delivery": "env_file", "variables": {"NCCL_GRAPH_FILE": "/opt/graph.xml"}}
    before = nccl.observe(host.context(nccl=asked), {})
    assert before.identity["content.NCCL_TOPO_FILE"] == {"absent": True}
    host.put("/opt/graph.xml", "<graphs version='2'/>")
    after = nccl.observe(host.context(nccl=asked), {})
    assert before.document()["digest"] != after.document()["digest"]
    assert before.identity["content.NCCL_GRAPH_FILE"] != after.identity["content.NCCL_GRAPH_FILE"]


UNIT = """[Unit]
Description=SGLang
[Service]
Environment=NCCL_ALGO=Ring "A=1 2"
EnvironmentFile=-/etc/plumbline/server.env
ExecStart=/opt/plumbline/builds/current/venv/bin/python -m sglang.launch_server \\
  --api-key hunter2 --tp 8
LimitMEMLOCK=infinity
"""


def test_units_of_servers_are_known_by_what_they_run(host: Host) -> None:
    host.put("/etc/systemd/system/llm.service", UNIT).put(
        "/etc/systemd/system/llm.service.d/x.conf", "[Service]\nNice=5\n"
    )
    host.put("/etc/systemd/system/cron.service", "[Service]\nExecStart=/usr/sbin/cron\n")
    host.put("/etc/plumbline/server.env", "NCCL_PROTO=LL\nHF_TOKEN=hunter2\n")
    context = host.context()
    found = units.server_units(context)
    assert set(found) == {"/etc/systemd/system/llm.service", "/etc/systemd/system/llm.service.d/x.conf"}
    assert found["/etc/systemd/system/llm.service"]["directives"]["Service.ExecStart"] == [
        "/opt/plumbline/builds/current/venv/bin/python -m sglang.launch_server --api-key [redacted] --tp 8"
    ]
    environment, files = units.unit_environment(context, found)
    assert environment["NCCL_ALGO"] == ("Ring", "/etc/systemd/system/llm.service") and environment["A"][0] == "1 2"
    assert environment["NCCL_PROTO"] == ("LL", "/etc/plumbline/server.env") and files == ["/etc/plumbline/server.env"]
    before = nccl.observe(context, {}).identity["file./etc/plumbline/server.env"]
    host.put("/etc/plumbline/server.env", "NCCL_PROTO=LL\nHF_TOKEN=hunter3\n")
    assert nccl.observe(context, {}).identity["file./etc/plumbline/server.env"] == before
    host.put("/etc/plumbline/server.env", "NCCL_PROTO=Simple\nHF_TOKEN=hunter3\n")
    assert nccl.observe(context, {}).identity["file./etc/plumbline/server.env"] != before


def test_the_build_that_a_unit_notes_is_no_part_of_it(host: Host) -> None:
    """The same arguments on a patched build are the same unit: what differs is the build."""
    path = "/etc/systemd/system/llm.service"
    found = []
    for note in ("X-Plumbline-Build=" + "a" * 64 + "\n", "X-Plumbline-Build=" + "b" * 64 + "\n", ""):
        host.put(path, UNIT.replace("[Unit]\n", f"[Unit]\n{note}") if "[Unit]\n" in UNIT else f"[Unit]\n{note}{UNIT}")
        found.append(units.server_units(host.context())[path])
    assert found[0] == found[1]
    assert found[0]["directives"] == found[2]["directives"]


@pytest.mark.parametrize(
    "folder",
    ["/etc/systemd/system/llm.service.d", "/etc/systemd/system.control/llm.service.d", "/run/systemd/system/service.d"],
)
def test_drop_ins_count_wherever_systemd_takes_them_from(host: Host, folder: str) -> None:
    host.put("/etc/systemd/system/llm.service", UNIT).put(f"{folder}/50-x.conf", "[Service]\nCPUQuota=10%\n")
    found = units.server_units(host.context())
    assert found[f"{folder}/50-x.conf"]["directives"] == {"Service.CPUQuota": ["10%"]}


def test_what_acts_at_boot_and_on_every_program(host: Host) -> None:
    host.put("/etc/modprobe.d/x.conf", "# a remark\noptions  nvidia NVreg_X=1\n").put("/etc/sysctl.conf", "#\n")
    host.put("/etc/sysctl.d/95-plumbline-state.conf", "vm.swappiness = 10\n").put("/etc/modprobe.d/y.conf~", "x\n")
    host.put("/etc/sysctl.d/10-a.conf", "a = 1\n").put("/etc/ld.so.preload", "/tmp/x.so\n")
    (host.folder / "etc/sysctl.d/99-a.conf").symlink_to("10-a.conf")
    host.put("/etc/systemd/system.conf", "[Manager]\n#x\n").put("/etc/systemd/system.conf.d/l.conf", "[Manager]\nA=1\n")
    context = host.context()
    boot = {k: v for k, v in kernel.observe(context).identity.items() if k.startswith("boot.")}
    assert boot == {
        "boot./etc/modprobe.d/x.conf": ["options nvidia NVreg_X=1"],
        "boot./etc/sysctl.d/10-a.conf": ["a = 1"],
    }
    found = runtime.observe(context, {}, runtime.LoadMeter(context)).identity
    assert found["loader./etc/ld.so.preload"] == ["/tmp/x.so"]
    files = {k: v for k, v in found.items() if k.startswith("limits.")}
    assert files == {"limits./etc/systemd/system.conf.d/l.conf": ["[Manager]", "A=1"]}, "a section stays with its keys"


def test_a_server_that_was_started_before_its_files_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = tmp_path / "llm.service"
    unit.write_text("x")
    tree = tmp_path / "cgroup" / "system.slice" / "llm.service"
    tree.mkdir(parents=True)
    monkeypatch.setattr(units, "_CGROUPS", (str(tmp_path / "cgroup"),))
    context = Context(root=tmp_path, cache=DigestCache(None))
    found = {str(unit): {"directives": {}}}
    assert units.services(context, found) == {"llm.service": "stopped"}
    process = subprocess.Popen(["sleep", "60"])
    try:
        (tree / "cgroup.procs").write_text(f"{process.pid}\n")
        assert units.services(context, found) == {"llm.service": "runs"}
        later = time.time() + 60
        os.utime(unit, (later, later))
        assert units.services(context, found) == {"llm.service": "runs with older files"}
    finally:
        process.kill()
        process.wait()
    assert units.services(context, found) == {"llm.service": "stopped"}


def test_an_empty_directive_clears_what_stood_before() -> None:
    assert units.parse_unit("[Service]\nExecStart=/a\nExecStart=\nExecStart=/b\n") == {"Service.ExecStart": ["/b"]}


def test_runtime_settings(host: Host) -> None:
    for i, governor in enumerate(("performance", "performance", "powersave")):
        host.put(f"/sys/devices/system/cpu/cpufreq/policy{i}/scaling_governor", governor)
    host.put("/proc/swaps", "Filename Type Size Used Priority\n/swapfile file 2097148 0 -2\n").put(
        "/proc/meminfo", "MemAvailable: 2048 kB\n"
    )
    host.put("/proc/stat", "cpu  1 1 1 100 0 0 0 0 0 0\n").put("/home/u/.triton/cache/k/kernel.cubin", "x" * 10)
    context = host.context()
    group = runtime.observe(context, {}, runtime.LoadMeter(context))
    assert group.identity["governor"] == {"performance": 2, "powersave": 1}
    assert group.identity["swap"] == [{"name": "/swapfile", "kib": 2097148}] and group.identity["boost"] == absent()
    cache = group.condition["jit_cache./home/u/.triton/cache"]
    assert cache["files"] == 1 and cache["bytes"] == 10 and "jit_cache./home/u/.triton/cache" not in group.identity
    assert group.condition["foreign_load"] == 0.0
    context.manifest = {"engine": "simulator"}
    simulated = runtime.observe(context, {}, runtime.LoadMeter(context))
    assert simulated.condition["foreign_load"] == absent(), "its time is declared"
