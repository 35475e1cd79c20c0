"""Who may take the lease of a host, and what is said to whom it is refused."""
from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from plumbline.errors import PlumblineError
from plumbline.server import lease

T0 = 1_800_000_000.0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield child
    child.kill()
    child.wait()


def holder(run: str, controller: str = "me@here", pid: int | None = None) -> dict[str, object]:
    return {"run": run, "controller": controller, "experiment": "demo", **(lease.identity(pid) if pid else {})}


def test_taken_renewed_released(root: Path) -> None:
    first = lease.acquire(root, holder("R"), now=T0)
    assert first["changed"] and first["took_over"] is None
    assert json.loads((root / "lease.json").read_text()) == first["lease"] == {
        "controller": "me@here", "run": "R", "experiment": "demo", "controller_pid": None, "controller_start": None,
        "controller_machine": None, "acquired_at": T0, "renewed_at": T0, "expires_at": T0 + 120, "ttl_s": 120.0}
    again = lease.acquire(root, holder("R"), now=T0 + 50)
    assert not again["changed"]
    assert (again["lease"]["acquired_at"], again["lease"]["expires_at"]) == (T0, T0 + 170)
    assert lease.renew(root, first["lease"], now=T0 + 100)["expires_at"] == T0 + 220
    assert lease.release(root, "S") == {"changed": False, "lease": lease.read(root)}
    assert lease.release(root, "R", dry=True)["changed"] and lease.read(root)
    assert lease.release(root, "R")["changed"] and lease.read(root) is None
    assert not lease.release(root, "R")["changed"]


def test_another_run_is_told_who_holds_it_since_when_and_until_when(root: Path) -> None:
    lease.acquire(root, holder("R", "ann@desk"), now=T0)
    with pytest.raises(PlumblineError) as caught:
        lease.acquire(root, holder("S"), now=T0 + 30)
    text = str(caught.value)
    for part in ("held by another run, R", "ann@desk", "experiment demo", "since 2027-01-15T08:00:00Z",
                 "until 2027-01-15T08:02:00Z", "free in 90 s", "stop.yml"):
        assert part in text
    assert lease.acquire(root, holder("S"), now=T0 + 120)["took_over"] == "expired"
    with pytest.raises(PlumblineError, match="no longer held by run R"):
        lease.renew(root, holder("R", "ann@desk"))


def test_the_same_run_takes_over_at_once_from_a_controller_elsewhere(root: Path) -> None:
    lease.acquire(root, holder("R", "ann@desk"), now=T0)
    done = lease.acquire(root, holder("R", "bob@desk"), now=T0 + 1)
    assert done["took_over"] == "same run" and done["lease"]["acquired_at"] == T0 + 1
    with pytest.raises(PlumblineError, match="no longer held"):
        lease.renew(root, holder("R", "ann@desk"), now=T0 + 2)


def test_two_living_controllers_cannot_drive_one_run(root: Path, process: subprocess.Popen[bytes]) -> None:
    lease.acquire(root, holder("R", pid=process.pid))
    with pytest.raises(PlumblineError, match=f"already being driven by process {process.pid}"):
        lease.acquire(root, holder("R", pid=1))
    process.kill()
    time.sleep(0.1)  # a zombie by now
    assert lease.acquire(root, holder("R", pid=1))["took_over"] == "same run"


def test_a_dead_controller_on_this_machine_holds_nothing(root: Path, process: subprocess.Popen[bytes]) -> None:
    lease.acquire(root, holder("R", pid=process.pid))
    with pytest.raises(PlumblineError, match="held by another run"):
        lease.acquire(root, holder("S"))
    process.kill()
    time.sleep(0.1)
    assert lease.acquire(root, holder("S"))["took_over"] == "the former controller's process is gone"


def test_a_controller_of_another_machine_is_never_held_for_dead(root: Path, process: subprocess.Popen[bytes]) -> None:
    elsewhere = {**holder("R", pid=process.pid), "controller_machine": "another-boot/1"}
    process.kill()
    lease.acquire(root, elsewhere)
    with pytest.raises(PlumblineError, match="held by another run"):
        lease.acquire(root, holder("S"))


def test_dry_takes_nothing(root: Path, tmp_path: Path) -> None:
    assert lease.acquire(root, holder("R"), dry=True)["changed"] and lease.read(root) is None
    assert lease.acquire(tmp_path / "none", holder("R"), dry=True)["changed"]
    lease.acquire(root, holder("R"))
    with pytest.raises(PlumblineError):
        lease.acquire(root, holder("S"), dry=True)


def test_a_damaged_lease_holds_nobody(root: Path) -> None:
    (root / "lease.json").write_text('{"run": ')
    assert lease.acquire(root, holder("R"))["changed"]


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(PlumblineError, match="needs 'run'"):
        lease.acquire(root, {"controller": "me"})
    with pytest.raises(PlumblineError, match="no plumbline root"):
        lease.acquire(tmp_path / "none", holder("R"))


def _try(root: str, run: str, won: multiprocessing.Queue[str]) -> None:
    try:
        lease.acquire(root, {"run": run, "controller": run})
        won.put(run)
    except PlumblineError:
        won.put("")


def test_one_of_many_at_once_gets_it(root: Path) -> None:
    context = multiprocessing.get_context("fork")
    won: multiprocessing.Queue[str] = context.Queue()
    children = [context.Process(target=_try, args=(str(root), f"R{i}", won)) for i in range(12)]
    for child in children:
        child.start()
    answers = [won.get(timeout=20) for _ in children]
    for child in children:
        child.join()
    held = lease.read(root)
    assert held is not None and [answer for answer in answers if answer] == [held["run"]]
