"""What a rebuild refuses, what it never shows, that a server which was stopped is started, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hosts_lab import BUILDS, PLANTED, SITE, UNIT, HostsLab

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(1800)]
SCENARIO, HOST = "refused", "refuse-12"


def test_a_killed_rebuild_may_leave_the_server_stopped_and_the_next_one_starts_it(known: HostsLab) -> None:
    known.sh(HOST, "systemctl stop sglang.service")
    assert known.play("rebuild", HOST, state="known", prove=False) == 0, known.text()
    assert known.sh(HOST, "systemctl is-active sglang.service") == "active"


# Locks that are wrong are refused before a change is made.


def _other_hash(lock: dict[str, Any]) -> None:
    lock["build"]["local"][0]["tree_sha256"] = "0" * 64


def _no_such_package(lock: dict[str, Any]) -> None:
    lock["build"]["distributions"] = {
        "wheel": {"version": "999.0", "files": {"wheel-999.0-py3-none-any.whl": "0" * 64}}
    }
    lock["installed"]["distributions"]["wheel"] = {"version": "999.0"}


def _other_hardware(lock: dict[str, Any]) -> None:
    lock["observed"]["hardware"]["gpu.count"] = 64


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown key": (lambda lock: lock.update(drivers={}), "did you mean 'drivers' -> 'driver'"),
    "wrong hash": (_other_hash, "wrong hash: the source tree"),
    "other schema": (lambda lock: lock.update(schema="plumbline.lock/0"), "a lock of another schema version"),
    "other hardware": (_other_hardware, "the lock is for other hardware"),
    "no such version": (_no_such_package, "999.0"),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda c: c.replace(" ", "-"))
def test_a_wrong_lock_is_refused_and_the_host_stays_as_it_is(known: HostsLab, case: str) -> None:
    change, message = WRONG[case]
    lock = {**yaml.safe_load((known.states / "known.yml").read_text()), "name": "wrong"}
    change(lock)
    (known.states / "wrong.yml").write_text(yaml.safe_dump(lock))
    look = f"readlink {BUILDS}/current; systemctl show -P ActiveState sglang.service; sysctl -n vm.swappiness"
    before = known.sh(HOST, look)
    no_index = {"PIP_NO_INDEX": "1"}
    assert known.play("rebuild", HOST, state="wrong", prove=False, sglang_build_pip_environment=no_index) != 0
    assert message in known.text().replace("\n", " ")
    assert known.sh(HOST, look) == before
    allowed = [t for t in known.changed() if "production server" not in t]
    assert allowed == []


# The way back.


def test_an_edit_is_kept_as_a_patch_rebuilt_and_rolled_back(known: HostsLab) -> None:
    first = known.sh(HOST, f"readlink -f {BUILDS}/current")
    known.sh(HOST, f"echo 'TWEAK = 1' >> {BUILDS}/current/{SITE}/sglang/srt/managers/scheduler.py")
    assert known.play("capture", HOST, state="edited") == 0, known.text()
    lock = yaml.safe_load((known.states / "edited.yml").read_text())
    assert [entry["file"] for entry in lock["build"]["patches"]] == ["edited.patch"]
    assert known.play("rebuild", HOST, state="known", prove=False) == 0, known.text()
    assert known.play("rebuild", HOST, state="edited", prove=False) == 0, known.text()
    second = known.sh(HOST, f"readlink -f {BUILDS}/current")
    assert second != first and known.compare(HOST, "edited") == {}
    assert "TWEAK = 1" in known.sh(HOST, f"cat {second}/{SITE}/sglang/srt/managers/scheduler.py")
    assert known.play("rebuild", HOST, cmdline="--check", rollback=True) == 0, known.text()
    assert known.sh(HOST, f"readlink -f {BUILDS}/current") == second, "check mode moved it"
    running = "systemctl is-active -q sglang.service; systemctl show -P MainPID sglang.service"
    for back in (first, second, first):
        before = known.sh(HOST, running)
        assert known.play("rebuild", HOST, rollback=True) == 0, known.text()
        assert "went back" in known.text() and back.rpartition("/")[2][:12] in known.text()
        assert known.sh(HOST, f"readlink -f {BUILDS}/current") == back
        assert known.sh(HOST, running) != before, "the server goes on with the build that was left"
    assert known.play("rebuild", HOST, state="known", prove=False) == 0, known.text()
    assert known.compare(HOST) == {}


def test_the_baseline_is_measured_where_the_production_server_has_the_port(known: HostsLab) -> None:
    assert known.play("rebuild", HOST, state="known") == 0, known.text()
    lines = (known.results / "baseline" / "measurements.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records and {r["status"] for r in records} == {"ok"}
    assert known.sh(HOST, "systemctl is-active sglang.service") == "active"
    assert known.compare(HOST) == {}


# Held.


def test_a_host_that_a_matrix_holds_is_neither_rebuilt_nor_converged(known: HostsLab) -> None:
    times = {"acquired_at": 2e9, "renewed_at": 2e9, "expires_at": 4e9, "ttl_s": 2e9}
    held = {"controller": "ann@desk", "run": "01KB7Q9Z6T4M5N8P2R3S1V0W7X", "experiment": "demo", **times}
    known.sh(HOST, "cat > /opt/plumbline/lease.json", json.dumps(held).encode())
    try:
        for playbook, more in (("rebuild", {"state": "known", "prove": False}), ("site", {"verify": False})):
            assert known.play(playbook, HOST, **more) != 0
            assert "held by another run" in known.text() and "ann@desk" in known.text()
            assert known.changed() == []
    finally:
        known.sh(HOST, "rm /opt/plumbline/lease.json")


def test_no_secret_is_found_in_what_was_written_or_said(known: HostsLab) -> None:
    """Planted: a token in the unit's environment (inventory), and by hand in files, arguments and environment."""
    secret = "sk-proj-PlantedByHand0123456789abcdefghijklmnop"
    for script in (
        f"mkdir -p {UNIT}.d; printf '[Service]\\nEnvironment=OPENAI_API_KEY={secret}\\n' > {UNIT}.d/60-secret.conf",
        f"echo 'NCCL_X=Bearer {secret}' > /etc/nccl.conf",
        f"echo 'KEY = \"{secret}\"' > {BUILDS}/current/{SITE}/sglang/mine.py",
        f"echo 'export TOKEN={secret}' > /etc/sysctl.d/98-secret.conf",
    ):
        known.sh(HOST, script)
    args = {"tp-size": 2, "max-running-requests": 16, "decode-log-interval": 10, "random-seed": 1, "api-key": secret}
    given = {"sglang_server_args": args, "sglang_server_environment": {"OPENAI_API_KEY": secret}}
    said = []
    rebuild = {"state": "known", "prove": False}
    for playbook, options, more in (
        ("compare", "", {"was": "state:known", "now": f"host:{HOST}", **given}),
        ("capture", "", {"state": "with-secrets", **given}),
        ("rebuild", " --check --diff", {**rebuild, **given}),
        ("rebuild", "", rebuild),
    ):
        rc = known.play(playbook, None if playbook == "compare" else HOST, cmdline=f"-vvv{options}", **more)
        said.append((playbook, rc, known.text()))
    for playbook, _rc, text in said:
        assert secret not in text and PLANTED not in text, f"{playbook} shows a secret"
    written = [p for folder in (known.results, known.states) for p in folder.rglob("*") if p.is_file()]
    assert len(written) > 5
    for path in written:
        text = path.read_text(errors="replace")
        assert secret not in text and PLANTED not in text, f"{path} holds a secret"
    assert [rc for _playbook, rc, _text in said] == [0, 0, 0, 0], said[-1][2][-3000:]
    assert known.compare(HOST) == {}
