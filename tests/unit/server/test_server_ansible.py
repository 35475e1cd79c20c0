"""The role and the modules through a real ansible-playbook on this machine, with Ctrl-C and SIGKILL in the middle."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plumbline.ids import ulid
from plumbline.server import boots, control, lease
from server_boots import until

HERE = Path(__file__).parent
PROJECT = HERE.parents[2]
BIN = Path(sys.executable).parent


class Play:
    """One ansible-playbook over play.yml."""

    def __init__(self, folder: Path, port: int) -> None:
        self.root, self.boot, self.run = folder / "plumbline", ulid(), ulid()
        build = folder / "build"
        build.mkdir(exist_ok=True)
        if not (build / "venv").exists():
            (build / "venv").symlink_to(Path(sys.prefix))
        self.variables: dict[str, Any] = {
            "plumbline_root": str(self.root), "boot_id": self.boot, "run_id": self.run, "hold_s": 0,
            "standin_folder": str(HERE), "build_dir": str(build), "ansible_python_interpreter": sys.executable,
            "manifest": {"sglang_version": "0.5.23", "environment": {"OMP_NUM_THREADS": "1"},
                         "options": ["--port", "--host", "--model-path", "--workers", "--max-running-requests"]},
            "arm_args": {"model-path": "/models/m", "host": "127.0.0.1", "port": port, "workers": 3}}

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(BIN / "ansible-playbook"), "-i", "localhost,", "-c", "local", str(HERE / "play.yml"), "-e",
             json.dumps(self.variables), *options], cwd=PROJECT, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_DISPLAY_OK_HOSTS": "true"})

    def left(self) -> list[int]:
        return boots.remains(self.root, self.boot)


@pytest.fixture
def play(tmp_path: Path, port: int) -> Iterator[Play]:
    one = Play(tmp_path, port)
    yield one
    control.stop_all(one.root)


def test_one_boot_from_install_to_stop(play: Play) -> None:
    output, _ = play.start().communicate(timeout=120)
    assert "failed=0" in output, output
    folder = boots.folder(play.root, play.boot)
    spec, exited = (json.loads((folder / name).read_text()) for name in ("spec.json", "exit.json"))
    assert spec["argv"][1:3] == ["-m", "standin"]
    assert spec["argv"][3:] == ["--host", "127.0.0.1", "--model-path", "/models/m", "--port",
                                str(play.variables["arm_args"]["port"]), "--workers", "3"]
    assert spec["environment"]["OMP_NUM_THREADS"] == "1" and spec["environment"]["PYTHONPATH"] == str(HERE)
    assert set(spec["environment"]) <= {"LANG", *control.INHERIT, "OMP_NUM_THREADS", "PYTHONPATH", boots.MARK}
    assert exited["reason"] == "stopped" and exited["clean"]
    assert play.left() == [] and lease.read(play.root) is None


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_controller_that_is_ended_takes_the_server_with_it(play: Play, how: signal.Signals) -> None:
    play.variables["hold_s"] = 40
    process = play.start()
    log = boots.folder(play.root, play.boot) / "server.log"
    until(lambda: log.exists() and "fired up" in log.read_text(), 300)
    time.sleep(0.5)
    assert len(play.left()) == 5
    process.send_signal(how)
    began = time.monotonic()
    until(lambda: play.left() == [], 15)
    took = time.monotonic() - began
    process.communicate(timeout=30)
    exited = json.loads((log.parent / "exit.json").read_text())
    assert exited["clean"] and exited["reason"] == "controller_died"
    # Ctrl-C: Ansible itself takes a moment to end. Then half a second to notice, and the grace for who ignores SIGTERM.
    assert took < (10 if how == signal.SIGINT else 4)


def test_a_second_run_is_refused_while_the_first_lives_and_the_same_run_goes_on_after_it(
        play: Play, tmp_path: Path, port: int) -> None:
    play.variables["hold_s"] = 40
    first = play.start()
    log = boots.folder(play.root, play.boot) / "server.log"
    until(lambda: log.exists() and "fired up" in log.read_text(), 300)
    other = Play(tmp_path, port)
    output, _ = other.start().communicate(timeout=120)
    assert f"held by another run, {play.run}" in output and f"process {first.pid}" in output
    first.kill()
    first.communicate(timeout=30)
    until(lambda: play.left() == [], 15)
    again = Play(tmp_path, port)
    again.variables["run_id"] = play.run
    output, _ = again.start().communicate(timeout=120)
    assert "failed=0" in output, output


def test_a_misspelt_argument_ends_it_before_anything_starts(play: Play) -> None:
    play.variables["arm_args"]["max-runing-requests"] = 16
    output, _ = play.start().communicate(timeout=120)
    assert "unknown server argument 'max-runing-requests'" in output and "did you mean 'max-running-requests'" in output
    assert boots.known(play.root) == []


def test_check_mode_starts_nothing(play: Play) -> None:
    output, _ = play.start("--check").communicate(timeout=120)
    assert "failed=0" in output, output
    assert not play.root.exists()


def test_an_unknown_manager_is_refused_with_what_is_allowed(play: Play) -> None:
    play.variables["plumbline_server_manager"] = "upstart"
    output, _ = play.start().communicate(timeout=120)
    assert "value of plumbline_server_manager must be one of: auto, supervisor, systemd" in output
