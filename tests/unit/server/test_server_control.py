"""Starting and stopping, on real processes: workers that leave the group, ignore SIGTERM and lose their parent."""
from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plumbline.errors import PlumblineError
from plumbline.ids import ulid
from plumbline.server import boots, control, lease
from plumbline.server.supervisor import alive, process_start, process_stat
from server_boots import until

Make = Callable[..., Any]


def test_a_stopped_boot_leaves_nothing_though_workers_left_the_group_and_ignore_sigterm(boot: Make, root: Path) -> None:
    one = boot("--workers", "3", grace_s=0.5)
    until(lambda: len(one.pids()) == 5)  # supervisor, server, three workers
    members = one.pids()
    # Two workers are to leave the server's session, a moment after they are there.
    until(lambda: len({(process_stat(pid) or ("", 0, 0))[2] for pid in members}) == 4)
    done = control.stop(root, one.id)
    assert done["changed"]
    assert [pid for pid in members if process_start(pid) is not None] == []
    assert done["exit"]["reason"] == "stopped" and done["exit"]["clean"]
    assert any("standin.py" in entry["command"] for entry in done["killed"]), "one worker ignores SIGTERM"
    again = control.stop(root, one.id)
    assert not again["changed"] and again["exit"] == done["exit"]


def test_a_server_that_ends_by_itself_is_told_at_once_and_its_workers_are_ended(boot: Make) -> None:
    one = boot("--workers", "3", "--fail", "exit")
    until(lambda: (one.folder / "exit.json").exists())
    exited = one.exit()
    assert (exited["code"], exited["signal"], exited["reason"]) == (3, None, "ended")
    until(lambda: one.exit()["clean"])
    until(lambda: one.pids() == [], 1)  # the supervisor goes last


def test_the_signal_that_ended_it_is_recorded(boot: Make) -> None:
    one = boot("--fail", "crash")
    until(lambda: (one.folder / "exit.json").exists())
    assert (one.exit()["code"], one.exit()["signal"]) == (None, signal.SIGKILL)


def test_a_killed_supervisor_takes_the_server_with_it_and_stop_finds_the_rest(boot: Make, root: Path) -> None:
    one = boot("--workers", "3")
    until(lambda: len(one.pids()) == 5)
    members = one.pids()
    os.kill(one.started["supervisor"], signal.SIGKILL)
    until(lambda: process_start(one.started["pid"]) is None)
    assert len(one.pids()) == 3, "the orphaned workers are found by the log that they hold open"
    done = control.stop(root, one.id)
    assert done["changed"] and len(done["killed"]) == 3
    assert [pid for pid in members if process_start(pid) is not None] == []
    assert not control.stop(root, one.id)["changed"]


def test_a_reader_of_the_log_is_not_held_for_a_part_of_the_boot(boot: Make, root: Path) -> None:
    one = boot()
    with open(one.folder / "server.log") as log:
        reader = subprocess.Popen([sys.executable, "-c", "import sys, time; time.sleep(60)"], stdin=log)
        try:
            control.stop(root, one.id)
            assert reader.poll() is None
        finally:
            reader.kill()
            reader.wait()


def test_starting_twice_changes_nothing_and_starting_otherwise_is_refused(boot: Make, root: Path) -> None:
    one = boot()
    environment = {"PATH": os.environ["PATH"]}
    again = control.start(root, one.id, one.argv, environment, ready_port=one.port)
    assert not again["changed"] and again["pid"] == one.started["pid"]
    with pytest.raises(PlumblineError, match="runs already, started otherwise"):
        control.start(root, one.id, [*one.argv, "--old"], environment, ready_port=one.port)
    control.stop(root, one.id)
    with pytest.raises(PlumblineError, match="started before"):
        control.start(root, one.id, one.argv, environment, ready_port=one.port)


def test_a_port_in_use_is_refused_naming_its_owner(boot: Make, root: Path, port: int) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))
        s.listen()
        with pytest.raises(PlumblineError) as caught:
            boot()
    text = str(caught.value)
    assert f"port {port} is in use" in text and f"process {os.getpid()} of user" in text and "python" in text
    assert boots.known(root) == []


def test_a_port_promised_to_a_boot_that_still_loads_is_refused(boot: Make) -> None:
    first = boot("--load-s", "30")
    with pytest.raises(PlumblineError, match=f"promised to boot {first.id}"):
        boot()


@pytest.mark.parametrize(("change", "message"), [
    ({"argv": ["/dev/null/python"]}, "program cannot be run"),
    ({"argv": ["python3"]}, "program cannot be run"),
    ({"argv": []}, "program cannot be run"),
    ({"cwd": "/dev/null/nowhere"}, "working folder does not exist"),
    ({"environment": {"A": 1}}, "cannot be put into an environment"),
    ({"boot": "../../etc"}, "named by a ULID"),
])
def test_what_cannot_work_is_refused_and_nothing_written(root: Path, change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"boot": ulid(), "argv": [sys.executable], "environment": {}, **change}
    with pytest.raises(PlumblineError, match=message):
        control.start(root, **given)
    assert list((root / "boots").iterdir()) == []


def test_a_missing_supervisor_is_named(root: Path) -> None:
    (root / "bin" / "plumbline-supervise").unlink()
    with pytest.raises(PlumblineError, match="supervisor is not installed"):
        control.start(root, ulid(), [sys.executable], {})


def test_a_program_that_the_kernel_refuses_is_a_failed_start(root: Path) -> None:
    script = root / "broken"
    script.write_text("#!/dev/null/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(PlumblineError, match="could not be started"):
        control.start(root, ulid(), [str(script)], {})


def test_check_mode_does_nothing(root: Path, boot: Make) -> None:
    assert control.start(root, ulid(), [sys.executable], {}, dry=True)["changed"]
    assert boots.known(root) == []
    one = boot()
    assert control.stop(root, one.id, dry=True)["changed"]
    assert alive(one.started["pid"], process_start(one.started["pid"]))


def test_the_server_gets_the_environment_given_and_no_other(boot: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    one = boot()
    text = Path(f"/proc/{one.started['pid']}/environ").read_bytes()
    names = {entry.split(b"=")[0].decode() for entry in text.split(b"\0") if entry}
    assert names - {"LC_CTYPE"} == {"PATH", "PLUMBLINE_BOOT"}


def test_the_server_stops_when_the_controllers_process_is_gone(boot: Make, root: Path) -> None:
    controller = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    holder = lease.acquire(root, {"run": "R", "controller": "me", **lease.identity(controller.pid)})["lease"]
    one = boot("--workers", "3", holder=holder, grace_s=0.5)
    until(lambda: len(one.pids()) == 5)
    controller.kill()  # stays a zombie, which counts as gone
    began = time.monotonic()
    until(lambda: one.pids() == [], 5)
    assert time.monotonic() - began < 0.5 + 0.5 + 0.5 + 1.5
    assert one.exit()["reason"] == "controller_died"
    controller.wait()


def test_the_server_stops_when_the_lease_runs_out(boot: Make, root: Path) -> None:
    holder = lease.acquire(root, {"run": "R", "controller": "elsewhere"}, ttl_s=1.0)["lease"]
    one = boot(holder=holder)
    for _ in range(4):  # renewed: it goes on
        time.sleep(0.5)
        lease.renew(root, holder)
    assert one.pids()
    until(lambda: one.pids() == [], 5)
    assert one.exit()["reason"] == "lease_expired"


def test_the_server_stops_when_another_run_has_the_lease(boot: Make, root: Path) -> None:
    holder = lease.acquire(root, {"run": "R", "controller": "elsewhere"}, ttl_s=0.5)["lease"]
    one = boot(holder=holder)
    lease.acquire(root, {"run": "S", "controller": "other"}, now=time.time() + 10)
    until(lambda: one.pids() == [], 5)
    assert one.exit()["reason"] == "lease_lost" and "run S of other" in one.exit()["detail"]


def test_stop_all_ends_the_measuring_process_and_every_boot(boot: Make, root: Path) -> None:
    one = boot("--workers", "2")
    code = "print(flush=True); import time; time.sleep(60)"
    measuring = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    # A process that was just started has no command line yet: one that says something has.
    assert measuring.stdout and measuring.stdout.readline()
    (one.folder / "measuring.json").write_text(
        f'{{"pid": {measuring.pid}, "start": {process_start(measuring.pid)}}}')
    assert control.stop_all(root, dry=True) == {
        "changed": True, "stopped": [one.id], "measuring": [
            {"boot": one.id, "pid": measuring.pid, "command": f"{sys.executable} -c {code}"}]}
    assert measuring.poll() is None
    done = control.stop_all(root)
    assert done["changed"] and done["stopped"] == [one.id]
    assert measuring.wait(5) == -signal.SIGTERM
    assert one.pids() == [] and not (one.folder / "measuring.json").exists()
    assert control.stop_all(root) == {"changed": False, "stopped": [], "measuring": []}


def test_a_pid_that_another_process_has_by_now_is_left_alone(boot: Make, root: Path) -> None:
    one = boot()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = process_start(bystander.pid)
        assert started is not None
        (one.folder / "measuring.json").write_text(f'{{"pid": {bystander.pid}, "start": {started - 1}}}')
        assert control.stop_all(root)["measuring"] == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_supervisor_needs_nothing_but_the_standard_library(root: Path) -> None:
    script = root / "bin" / "plumbline-supervise"
    done = subprocess.run([sys.executable, "-I", "-S", str(script), "/dev/null/no"], capture_output=True, text=True)
    assert done.returncode == 2 and "usage: plumbline-supervise" in done.stderr


def test_a_process_whose_first_thread_has_ended_is_ended_too(root: Path) -> None:
    code = ("import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "
            "ctypes.CDLL(None).pthread_exit(None)")
    boot = ulid()
    started = control.start(root, boot, [sys.executable, "-c", code], {}, grace_s=0.3)
    until(lambda: (process_stat(started["pid"]) or ("",))[0] == "Z")
    assert len(list(Path(f"/proc/{started['pid']}/task").iterdir())) == 2
    done = control.stop(root, boot)
    assert done["exit"]["signal"] in (signal.SIGTERM, signal.SIGKILL) and done["exit"]["clean"]
    assert process_stat(started["pid"]) is None
