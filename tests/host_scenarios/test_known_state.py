"""A known state on a real host over ssh: captured, tampered with in every way, named, mended, killed in between."""

from __future__ import annotations

import json
import signal
import threading
from os import kill
from pathlib import Path
from typing import Any

import pytest
import yaml
from hosts_lab import BUILDS, ROOT, SITE, UNIT, HostsLab
from plumbline.analysis import schema
from plumbline.analysis.build import pack

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(1800)]
SCENARIO, HOST = "known", "known-12"
Found = dict[tuple[str, str], str]


def test_the_state_is_whole_and_its_lock_means_nothing_else(known: HostsLab) -> None:
    documents = [json.loads(p.read_text()) for p in (known.results / "states").glob("*.json")]
    assert [d["host"] for d in documents] == [HOST]
    schema.validate("state", documents[0], "the state")
    assert set(documents[0]["groups"]) >= {
        "hardware",
        "os_packages",
        "build",
        "models",
        "nccl",
        "engine_args",
        "runtime",
    }
    lock = yaml.safe_load((known.states / "known.yml").read_text())
    assert lock["build"] and lock["packages"]["nvidia-persistenced"]["held"] and "not_rebuilt" not in lock["captured"]
    assert known.compare(HOST) == {}


# Somebody's hands: {name: (script on the host, {(group, item): impact})}. Each is named alone, beside those before it.

TAMPERINGS: dict[str, tuple[str, Found]] = {
    "a line of the scheduler": (
        f"echo 'TWEAK = 1' >> {BUILDS}/current/{SITE}/sglang/srt/managers/scheduler.py",
        {("files", f"{SITE}/sglang/srt/managers/scheduler.py"): "performance"},
    ),
    "a wheel of another version": (
        f"{BUILDS}/current/venv/bin/python -m pip install -q --no-index --no-deps --force-reinstall /root/wheels/*.whl",
        {("build", "distribution.nvidia-nccl-cu13"): "performance"},
    ),
    "start-up code in the environment": (
        f"echo 'import os' > {BUILDS}/current/{SITE}/sitecustomize.py",
        {("files", f"{SITE}/sitecustomize.py"): "performance"},
    ),
    "start-up code in the standard library": (
        "rm /usr/lib/python3.11/sitecustomize.py; echo 'import os' > /usr/lib/python3.11/sitecustomize.py",
        {("files", "stdlib/sitecustomize.py"): "performance"},
    ),
    "a file of the build is gone": (
        f"cd {BUILDS}/current/{SITE}/sglang/srt/utils; rm -f logs.py __pycache__/logs.*",
        {("files", f"{SITE}/sglang/srt/utils/logs.py"): "performance"},
    ),
    "a link in place of a file": (
        f"cd {BUILDS}/current/{SITE}/sglang; cp version.py /root/version.py; ln -sf /root/version.py version.py",
        {("files", f"{SITE}/sglang/version.py"): "performance"},
    ),
    "a file that others may write": (
        f"chmod 666 {BUILDS}/current/{SITE}/sglang/launch_server.py",
        {("files", f"{SITE}/sglang/launch_server.py"): "performance"},
    ),
    "another Python": (
        f"cd {BUILDS}/current/venv/bin; cp /usr/bin/python3.11 python3.other; ln -sf python3.other python",
        {("build", "venv"): "performance"},
    ),
    "a conf file of NCCL": (
        "echo NCCL_PROTO=Simple > /etc/nccl.conf",
        {("nccl", "conf./etc/nccl.conf"): "performance"},
    ),
    "a sysctl": ("echo 60 > /proc/sys/vm/swappiness", {("firmware_and_kernel", "sysctl.vm.swappiness"): "possible"}),
    "a sysctl of the next boot": (
        "echo vm.overcommit_memory=2 > /etc/sysctl.d/99-mine.conf",
        {("firmware_and_kernel", "boot./etc/sysctl.d/99-mine.conf"): "possible"},
    ),
    "an option of a module": (
        "echo options nvidia NVreg_EnablePCIeGen3=0 > /etc/modprobe.d/zz-mine.conf",
        {("firmware_and_kernel", "boot./etc/modprobe.d/zz-mine.conf"): "performance"},
    ),
    "a preloaded library": (
        "echo /lib/x86_64-linux-gnu/libm.so.6 > /etc/ld.so.preload",
        {("runtime", "loader./etc/ld.so.preload"): "performance"},
    ),
    "limits that are gone": (
        "rm /etc/security/limits.d/90-plumbline.conf",
        {("runtime", "limits./etc/security/limits.d/90-plumbline.conf"): "possible"},
    ),
    "a package unheld and exchanged": (
        "apt-mark -q unhold nvidia-persistenced; DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o Dpkg::Use-Pty=0 "
        "--allow-downgrades install nvidia-persistenced=580.95.05-1",
        {("os_packages", "package.nvidia-persistenced"): "performance"},
    ),
    "a byte of the model": (
        "cd /opt/plumbline/models/sim-target-*; printf X | dd of=model.safetensors bs=1 seek=100 conv=notrunc",
        {("models", "sim-target/model.safetensors"): "invalidates"},
    ),
    "another draft under its name": (
        "cd /opt/plumbline/models; cp sim-mismatched-*/config.json sim-mismatched-*/model.safetensors sim-eagle3-*/",
        {("models", f"sim-eagle3/{n}"): "invalidates" for n in ("config.json", "model.safetensors")},
    ),
    "the unit": (
        f"sed -i 's/^LimitNOFILE=.*/LimitNOFILE=4096/' {UNIT}; systemctl daemon-reload",
        {("engine_args", f"unit.{UNIT}"): "performance"},
    ),
    "a drop-in of the unit": (
        f"mkdir -p {UNIT}.d; printf '[Service]\\nEnvironment=NCCL_ALGO=Tree\\n' > {UNIT}.d/50-mine.conf; "
        "systemctl daemon-reload",
        {("engine_args", f"unit.{UNIT}.d/50-mine.conf"): "performance"},
    ),
}  # fmt: skip


def carry_wheel(lab: HostsLab) -> None:
    """A wheel of a version that the lock does not have, on the host: it reaches no package index."""
    wheel: Path = pack.pack(ROOT / "simulator" / "nccl", "2.29.9", lab.folder / "wheels")
    lab.sh(HOST, f"mkdir -p /root/wheels; cat > /root/wheels/{wheel.name}", wheel.read_bytes())


def everything() -> Found:
    return {item: impact for _script, found in TAMPERINGS.values() for item, impact in found.items()}


def test_each_tampering_is_named_and_nothing_else(known: HostsLab) -> None:
    carry_wheel(known)
    expected: Found = {}
    for name, (script, found) in TAMPERINGS.items():
        known.sh(HOST, script)
        expected.update(found)
        assert known.compare(HOST) == expected, name


KILLS: list[tuple[str, float]] = [
    ("Move aside what the state does not have", 0.2),
    ("Note what is current, and set an altered build aside", 0.3),
    ("Build of lock", 2.0),
    ("Have the packages in the locked versions", 1.0),
    ("Place the models and check their digests", 0.3),
    ("Have its environment and its unit", 0.5),
    ("Have the server running, also after a boot", 0.3),
]


def test_killed_anywhere_a_rebuild_that_is_started_again_mends_all_of_it(known: HostsLab) -> None:
    hit: list[str] = []
    for task, after_s in KILLS:

        def at_task(event: dict[str, Any], task: str = task, after_s: float = after_s) -> None:
            if event["event"] == "playbook_on_task_start" and task in event["event_data"]["task"] and task not in hit:
                hit.append(task)
                threading.Timer(after_s, kill, [event["pid"], signal.SIGKILL]).start()

        rc = known.play("rebuild", HOST, at_task, state="known", prove=False)
        assert rc != 0 or task not in hit, f"{task}: {known.text()}"
        made = known.sh(HOST, f"ls {BUILDS}/current/plumbline-build.json {BUILDS}/current/venv/bin/python")
        assert len(made.splitlines()) == 2, f"killed at {task}: current is a build that is not whole"
    assert len(hit) == len(KILLS), f"never reached: {[task for task, _s in KILLS if task not in hit]}"
    assert known.play("rebuild", HOST, state="known", prove=False) == 0, known.text()
    assert known.compared(HOST) == {}, "the rebuild's own last look"
    assert known.compare(HOST) == {}
    current = known.sh(HOST, f"readlink -f {BUILDS}/current; ls {BUILDS}")
    lock = json.loads(known.sh(HOST, f"cat {BUILDS}/current/plumbline-build.json"))
    assert current.splitlines()[0] == f"{BUILDS}/{lock['digest']}"
    running = known.sh(HOST, "systemctl show -P ActiveState -P NeedDaemonReload -P LimitNOFILE sglang.service")
    assert sorted(running.split()) == ["1048576", "active", "no"]
    assert "NCCL_PROTO=Simple" in known.sh(HOST, "cat /opt/plumbline/aside/*/etc/nccl.conf"), "what was moved is kept"


def test_the_host_is_verified(known: HostsLab) -> None:
    assert known.play("verify", HOST) == 0, known.text()
    tested = known.verified(known.results)
    assert list(tested) == [HOST] and tested[HOST][0] >= 30 and tested[HOST][1] == 0, tested
    known.sh(HOST, "echo 60 > /proc/sys/vm/swappiness")
    assert known.play("verify", HOST, verify_tests="sysctl") != 0
    assert "vm.swappiness is 60, expected 10; remedy: ansible-playbook playbooks/site.yml" in known.text()
    known.sh(HOST, "echo 10 > /proc/sys/vm/swappiness")


def test_nothing_to_do_changes_nothing_and_a_full_run_finds_the_same(known: HostsLab) -> None:
    since = known.sh(HOST, "systemctl show -P MainPID sglang.service")
    assert known.play("rebuild", HOST, state="known", prove=False) == 0, known.text()
    assert known.changed() == []
    assert known.play("rebuild", HOST, state="known", prove=False, full=True) == 0, known.text()
    ends = [e["event_data"] for e in known.events if e["event"] == "runner_on_ok"]
    assert [d["res"]["unexpected"] for d in ends if d["task"] == "Say how it ended"] == [[]]
    assert known.compared(HOST) == {}
    assert known.sh(HOST, "systemctl show -P MainPID sglang.service") == since, "the server was not disturbed"
