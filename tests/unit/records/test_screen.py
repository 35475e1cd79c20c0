"""A refusal on the screen: once, line by line."""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plumbline.errors import PlumblineError

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("plumbline_screen", ROOT / "callback_plugins" / "plumbline_screen.py")
screen = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(screen)

ERROR = PlumblineError("port 30000 is in use", "sglang_server_port", "process 7: x; y", None, "stop process 7")
LINES = ["port 30000 is in use", "where: sglang_server_port", "found: process 7: x; y", "remedy: stop process 7"]
FINDINGS = "h is not fit to serve:\n/dev/shm; found: 64; expected: 8192; remedy: mount it"


@pytest.mark.parametrize(("result", "lines"), [
    ({"msg": str(ERROR), "error": ERROR.as_dict()}, LINES),
    ({"msg": str(ERROR), "assertion": "x"}, LINES),  # what a role says in the same form
    ({"msg": "no such thing", "error": PlumblineError("no such thing").as_dict()}, ["no such thing"]),
    ({"msg": FINDINGS}, FINDINGS.split("\n")),
    ({"msg": "Module failed", "rc": 1, "stderr": "Traceback"}, []),
    ({"rc": 1}, []),
], ids=["error", "form", "only-what", "findings", "other", "no-message"])
def test_what_is_a_refusal(result: dict, lines: list[str]) -> None:
    assert screen.refusal(result) == lines


def test_it_is_shown_once(tmp_path: Path) -> None:
    def shown(*options: str) -> str:
        argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "inventory/simulated", "-l", "sim-1,sim-2"]
        argv += ["playbooks/rebuild.yml", "-e", "stat=known", "-e", f"simulated_root={tmp_path}", *options]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8"}
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 2
        return done.stdout + done.stderr

    text = shown()
    assert text.count("found: stat") == text.count("remedy: did you mean 'state'?") == 1
    assert text.count("\n  no variable of Plumbline's is called 'stat'\n  where: ") == 1
    assert text.count("no variable of Plumbline's is called 'stat' (as above)") == 1, "the other host"
    assert "[ERROR]" not in text
    assert "[ERROR]" in shown("-v"), "with -v as Ansible shows it"
