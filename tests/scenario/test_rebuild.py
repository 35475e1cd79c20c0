"""Rebuilding a captured state: what was tampered with is named, mended, and nothing else is touched; whenever it is
killed, the next run ends in the same state."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from os import kill
from pathlib import Path
from typing import Any

import ansible_runner
import pytest
import yaml
from plumbline.analysis.build import pack
from plumbline.build import manifest

from playbooks import ROOT, Lab

pytestmark = pytest.mark.story

# The hosts of this lab share one machine, whose packages and kernel are not theirs to change.
ROLES = ["files", "sglang_build", "sglang_models", "nccl_profile", "sglang_server"]
SITE = "venv/lib/python{}.{}/site-packages".format(*sys.version_info[:2])


class Host:
    """A simulated host whose state was captured as `known`."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.root = folder / "hosts" / "sim-1"
        self.home = folder / "home"
        self.states = folder / "states"
        for made in (self.home, self.states):
            made.mkdir()

    def run(self, playbook: str, on_event: Callable[[dict], Any] | None = None, **more: Any) -> ansible_runner.Runner:
        common = {"states_folder": str(self.states), "plumbline_state_home": str(self.home)}
        return self.lab.run(playbook, on_event, **{**common, "plumbline_rebuild_roles": ROLES, **more})

    def rebuild(self, state: str = "known", on_event: Callable[[dict], Any] | None = None, **more: Any) -> Any:
        return self.run("rebuild", on_event, state=state, **{"prove": False, **more})

    def write_lock_by_hand(self, name: str) -> None:
        """A lock that names a build and models, and nothing else."""
        lock = yaml.safe_load((ROOT / "states" / "sim-a.yml").read_text())
        catalogue = yaml.safe_load((ROOT / "inventory/simulated/group_vars/serving/models.yml").read_text())
        models = {n: {"files": m["files"]} for n, m in catalogue["plumbline_models_lab"].items()}
        (self.states / f"{name}.yml").write_text(yaml.safe_dump({**lock, "name": name, "models": models}))

    def check(self) -> str:
        """What `rebuild.yml --check --diff` prints."""
        variables = {
            "state": "known",
            "states_folder": str(self.states),
            "plumbline_state_home": str(self.home),
            "plumbline_rebuild_roles": ROLES,
            "simulated_root": str(self.lab.folder / "hosts"),
            "results_root": str(self.lab.results),
            "simulator_physics": str(self.lab.physics),
            "simulated_first_port": self.lab.first_port,
        }
        program = str(Path(sys.executable).parent / "ansible-playbook")
        argv = [program, "-i", "inventory/simulated", "-l", "sim-1", "--check", "--diff", "playbooks/rebuild.yml"]
        done = subprocess.run(
            [*argv, "-e", json.dumps(variables)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def compared(self) -> dict[str, Any]:
        """The last comparison of the captured state with the host, whoever made it."""
        return json.loads((self.lab.results / "compare" / "state:known--host:sim-1.json").read_text())

    def compare(self) -> dict[str, Any]:
        assert self.run("compare", was="state:known", now="host:sim-1", limit=None).rc == 0, self.lab.text()
        return self.compared()

    @property
    def build(self) -> Path:
        return (self.root / "builds" / "current").resolve()

    def changed(self) -> list[str]:
        """Modules that changed something in the last run."""
        ok = [e["event_data"] for e in self.lab.events if e["event"] in ("runner_on_ok", "runner_item_on_ok")]
        return [d["task_action"] for d in ok if d["res"].get("changed")]

    def calls(self) -> list[str]:
        """Tasks of the last run that called a module on the host."""
        local = ("validate", "include", "import", "set_fact", "debug", "assert", "fail", "plumbline_command_line",
                 "plumbline_rebuild")
        ok = [e["event_data"] for e in self.lab.events if e["event"] == "runner_on_ok"]
        names = [d["task_action"].rpartition(".")[2] for d in ok]
        return [n for n in names if not n.startswith(local) or n.startswith("plumbline_rebuild_")]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    made = Host(tmp_path_factory.mktemp("rebuild"))
    made.write_lock_by_hand("start")
    assert made.rebuild("start", prove=True).rc == 0, made.lab.text()
    assert "there is no reference yet" in made.lab.text()
    assert made.run("capture", state="known").rc == 0, made.lab.text()
    lock = yaml.safe_load((made.states / "known.yml").read_text())
    assert lock["build"] and set(lock["models"]) == {"sim-target", "sim-eagle3", "sim-mismatched"}
    return made


# What somebody does to a host, and what compare.yml must say: {(group, item): impact}.


def edit_scheduler(host: Host) -> dict[tuple[str, str], str]:
    file = f"{SITE}/sglang/srt/managers/scheduler.py"
    path = host.build / file
    path.write_text(path.read_text() + "\nTWEAK = 1\n")
    return {("files", file): "performance"}


def install_by_hand(host: Host) -> dict[tuple[str, str], str]:
    wheel = pack.pack(ROOT / "simulator" / "nccl", "2.29.9", host.lab.folder / "wheels")
    python = str(host.build / "venv" / "bin" / "python")
    argv = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", str(wheel)]
    subprocess.run(argv, check=True)
    return {("build", "distribution.nvidia-nccl-cu13"): "performance"}


def drop_sitecustomize(host: Host) -> dict[tuple[str, str], str]:
    (host.build / SITE / "sitecustomize.py").write_text("import os\nos.environ['NCCL_PROTO'] = 'Simple'\n")
    return {("files", f"{SITE}/sitecustomize.py"): "performance"}


def drop_conf_file(host: Host) -> dict[tuple[str, str], str]:
    (host.home / ".nccl.conf").write_text("NCCL_PROTO=Simple\n")
    return {("nccl", "conf.~/.nccl.conf"): "performance"}


def model(host: Host, name: str) -> Path:
    return next((host.root / "models").glob(f"{name}-*"))


def flip_a_byte(host: Host) -> dict[tuple[str, str], str]:
    path = model(host, "sim-target") / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return {("models", "sim-target/model.safetensors"): "invalidates"}


def swap_the_draft(host: Host) -> dict[tuple[str, str], str]:
    for file in (ROOT / "simulator" / "models" / "mismatched").iterdir():
        shutil.copy2(file, model(host, "sim-eagle3") / file.name)
    return {("models", f"sim-eagle3/{n}"): "invalidates" for n in ("config.json", "model.safetensors")}


def delete_a_file(host: Host) -> dict[tuple[str, str], str]:
    file = f"{SITE}/sglang/srt/utils/logs.py"
    (host.build / file).unlink()
    # The byte code that stays would now be run without its source.
    code = "{}/sglang/srt/utils/__pycache__/logs.cpython-{}{}.pyc".format(SITE, *sys.version_info[:2])
    return {("files", file): "performance", ("files", code): "performance"}


TAMPERINGS = [
    edit_scheduler,
    install_by_hand,
    drop_sitecustomize,
    drop_conf_file,
    flip_a_byte,
    swap_the_draft,
    delete_a_file,
]


def found(comparison: dict[str, Any]) -> dict[tuple[str, str], str]:
    """What a comparison says of what belongs to the simulated host alone: others change this machine's packages."""
    shared = ("os_packages", "firmware_and_kernel", "runtime", "hardware", "container", "driver")
    rows = [d for d in comparison["differences"] if d["group"] not in shared]
    return {(d["group"], d["item"]): d["impact"] for d in rows}


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda t: t.__name__)
def test_a_tampering_is_named_and_mended(host: Host, tamper: Callable[[Host], dict[tuple[str, str], str]]):
    expected = tamper(host)
    assert found(host.compare()) == expected
    assert host.rebuild().rc == 0, host.lab.text()
    assert found(host.compared()) == {}, "the rebuild's own last look"


def test_all_together_are_named_and_mended(host: Host):
    expected: dict[tuple[str, str], str] = {}
    for tamper in TAMPERINGS:
        expected.update(tamper(host))
    assert found(host.compare()) == expected
    assert host.rebuild().rc == 0, host.lab.text()
    assert found(host.compare()) == {}
    moved = [p for p in (host.root / "aside").rglob("*") if p.name == ".nccl.conf"]
    assert moved, "what was moved aside is kept"


def test_nothing_to_do_takes_three_module_calls_and_changes_nothing(host: Host):
    host.rebuild()
    assert host.rebuild().rc == 0, host.lab.text()
    assert host.calls() == ["plumbline_lease", "plumbline_state", "plumbline_lease"]
    assert host.changed() == []


def test_check_mode_says_what_would_be_run_and_changes_nothing(host: Host):
    expected = edit_scheduler(host)
    said = host.check()
    assert "to run: sglang_build" in said
    assert all(item[-40:] in said for _group, item in expected)
    assert found(host.compare()) == expected
    assert host.rebuild().rc == 0, host.lab.text()


# Killed.


def kill_at(event: dict) -> None:
    kill(event["pid"], signal.SIGKILL)


KILLS: list[tuple[str, float]] = [
    ("Move aside what the state does not have", 0.0),
    ("Note what is current, and set an altered build aside", 0.0),
    ("Note what is current, and set an altered build aside", 0.4),
    ("Build of lock", 0.0),
    ("Build of lock", 2.5),
    ("Place the models and check their digests", 0.0),
    ("Look again", 0.0),
]


def test_killed_at_any_task_the_next_run_ends_in_the_same_state(host: Host):
    for tamper in TAMPERINGS:
        tamper(host)
    for task, after_s in KILLS:
        hit: list[str] = []

        def at_task(event: dict, task: str = task, after_s: float = after_s, hit: list[str] = hit) -> None:
            if event["event"] == "playbook_on_task_start" and task in event["event_data"]["task"] and not hit:
                hit.append(event["event_data"]["task"])
                threading.Timer(after_s, kill_at, [event]).start()

        assert host.rebuild(on_event=at_task).rc != 0 or not hit, host.lab.text()
        assert (host.build / manifest.FILE).is_file(), f"killed at {hit}: current points to a half-made build"
    assert host.rebuild().rc == 0, host.lab.text()
    assert found(host.compare()) == {}
    assert manifest.current(host.root) == json.loads((host.build / manifest.FILE).read_text())["digest"]
    assert manifest.half_made(host.root) == []


# Held, wrong, old.


def test_a_host_that_a_matrix_holds_is_refused(host: Host):
    lease = host.root / "lease.json"
    held = {"controller": "ann@desk", "run": "01KB7Q9Z6T4M5N8P2R3S1V0W7X", "experiment": "demo", "ttl_s": 120}
    times = {"acquired_at": 2e9, "renewed_at": 2e9, "expires_at": 2e9 + 120}
    lease.write_text(json.dumps({**held, **times}))
    edit_scheduler(host)
    try:
        assert host.rebuild().rc != 0
        assert "held by another run" in host.lab.text()
        assert "plumbline_state" not in host.calls()
    finally:
        lease.unlink()
    assert host.rebuild().rc == 0, host.lab.text()


def _of(host: Host, change: Callable[[dict], None]) -> str:
    lock = yaml.safe_load((host.states / "known.yml").read_text())
    lock["name"] = "wrong"
    change(lock)
    (host.states / "wrong.yml").write_text(yaml.safe_dump(lock))
    return "wrong"


def _missing_hash(lock: dict) -> None:
    lock["build"]["distributions"] = {"numpy": {"version": "2.3.5", "files": {}}}


def _no_such_version(lock: dict) -> None:
    entry = {"version": "999.0", "files": {"wheel-999.0-py3-none-any.whl": "0" * 64}}
    lock["build"]["distributions"] = {"wheel": entry}
    lock["installed"]["distributions"]["wheel"] = {"version": "999.0"}


WRONG: dict[str, tuple[Callable[[dict], Any], str]] = {
    "unknown key": (lambda lock: lock.update(drivers={}), "did you mean 'drivers' -> 'driver'"),
    "missing hash": (_missing_hash, "missing hash: numpy 2.3.5 has no file with a SHA-256"),
    "wrong tree": (lambda lock: lock["build"]["local"][0].update(tree_sha256="0" * 64), "wrong hash: the source tree"),
    "wrong model": (
        lambda lock: lock["models"]["sim-target"]["files"].update({"config.json": "0" * 64}),
        "wrong hash: config.json of sim-target",
    ),
    "no such version": (_no_such_version, "999.0"),
    "other schema": (lambda lock: lock.update(schema="plumbline.lock/0"), "a lock of another schema version"),
    "other hardware": (
        lambda lock: lock["observed"]["hardware"].update({"gpu.count": 64}),
        "the lock is for other hardware",
    ),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda c: c.replace(" ", "-"))
def test_a_wrong_lock_is_refused_before_anything_is_changed(host: Host, case: str):
    change, message = WRONG[case]
    before, build = sorted(p.name for p in (host.root / "builds").iterdir()), host.build
    assert host.rebuild(_of(host, change), sglang_build_pip_environment={"PIP_NO_INDEX": "1"}).rc != 0
    assert message in host.lab.text().replace("\n", " ")
    assert host.build == build
    logs = {n for n in (p.name for p in (host.root / "builds").iterdir()) if n.endswith(".failed.log")}
    assert {p.name for p in (host.root / "builds").iterdir()} - logs - {"history.jsonl"} == set(before) - {
        "history.jsonl"
    } - logs
    assert host.changed() == []


def test_another_build_is_switched_to_and_rolled_back(host: Host):
    known = host.build
    assert host.rebuild("sim-b").rc == 0, host.lab.text()
    other = host.build
    assert other != known
    assert (known / manifest.FILE).is_file(), "the old one stays"
    assert host.rebuild(rollback=True).rc == 0, host.lab.text()
    assert host.build == known
    went = f"from build {other.name[:12]} (sim-b, sglang 0.5.23+sim.b) to build {known.name[:12]} (sim-a, sglang"
    assert went in host.lab.text()
    assert found(host.compare()) == {}


END = "Say how it ended"


def test_a_full_run_finds_the_same(host: Host):
    assert host.rebuild(full=True).rc == 0, host.lab.text()
    ok = [e for e in host.lab.events if e["event"] == "runner_on_ok"]
    ended = [e["event_data"]["res"] for e in ok if e["event_data"].get("task") == END]
    assert [r["unexpected"] for r in ended] == [[]]
    assert found(host.compared()) == {}
