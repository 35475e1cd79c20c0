"""What a rebuild decides: each kind of difference goes to the step that mends it, or is said with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plumbline.analysis import lock as locks
from plumbline.analysis import rebuild
from plumbline.errors import PlumblineError
from plumbline.state.document import assemble
from plumbline.state.values import Group, absent

ROOT = Path(__file__).parents[3]
FILES = ROOT / "roles" / "sglang_build" / "files"
DIGEST = "a" * 64
BUILD = "b" * 64
SHA = {n: str(n) * 64 for n in range(10)}


def state(kind: str = "bare", **changed: dict[str, Any]) -> dict[str, Any]:
    """A state with something in each group; ``changed``: items by group that are otherwise."""
    identity: dict[str, dict[str, Any]] = {
        "hardware": {"cpu.model": "EPYC", "gpu.count": 8},
        "firmware_and_kernel": {
            "kernel": "6.8.0-60",
            "command_line": ["root=/dev/sda1", "iommu=pt"],
            "sysctl.vm.swappiness": "10",
            "bios_version": "3.1",
        },
        "driver": {"module": "580.105.08", "module.flavour": "open", "user_space": "580.105.08"},
        "os_packages": {
            "package.nvidia-open": {"version": "580.105.08-1", "held": True},
            "package.htop": {"version": "3.2"},
        },
        "build": {"distribution.sglang": {"version": "0.5.23", "record": "0" * 16}, "stdlib": "c" * 16},
        "files": {},
        "models": {"target/config.json": SHA[1]},
        "nccl": {
            "profile": "pcie-ll-ring",
            "delivery": "env_file",
            "variable.NCCL_PROTO": "LL",
            "conf.~/.nccl.conf": absent(),
            "conf./etc/nccl.conf": {"sha256": "d" * 16, "variables": {"NCCL_DEBUG": "WARN"}},
        },
        "engine_args": {"args.tp-size": 8, "environment.OMP_NUM_THREADS": "1"},
        "runtime": {"governor": "performance", "limits./etc/security/limits.conf": ["* - memlock unlimited"]},
        "container": {"kind": kind, "image": absent()},
    }
    for group, items in changed.items():
        identity[group].update(items)
    condition = {"build": {"lock_digest": BUILD, "digest": DIGEST, "path": f"/opt/plumbline/builds/{DIGEST}"}}
    return assemble("gpu-1", [Group(n, i, condition.get(n, {})) for n, i in identity.items()])


BUILD_LOCK = {"schema": "plumbline.build/1", "name": "x", "engine": "sglang-cuda", "distributions": {}}


def lock_of(was: dict[str, Any], **more: Any) -> dict[str, Any]:
    made, _files, _remarks = locks.make(was, name="known", build_lock=BUILD_LOCK)
    return {**made, **more}


HOST = rebuild.Host(
    name="gpu-1",
    catalogue={"target": {"files": {"config.json": SHA[1]}}},
    models=("target",),
    args={"tp-size": 8, "model-path": "/opt/plumbline/models/target"},
    environment={"OMP_NUM_THREADS": "1"},
    build_digest=BUILD,
)


def plan_of(now: dict[str, Any], host: rebuild.Host = HOST, full: bool = False, **more: Any) -> dict[str, Any]:
    lock = lock_of(state(), **more)
    return rebuild.plan(lock, locks.compare_with(lock, now), now, host, full)


def steps(plan: dict[str, Any]) -> dict[str, list[str]]:
    return {s["step"]: [d["item"] for d in s["items"]] for s in plan["steps"]}


def test_the_same_state_needs_nothing():
    plan = plan_of(state())
    assert (plan["result"], plan["steps"], plan["cannot"], plan["inventory"]) == ("same", [], [], [])
    assert plan["facts"] == {}
    assert plan["again"] == 0


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a stray conf file": ("nccl", {"conf.~/.nccl.conf": {"sha256": "1", "variables": {"NCCL_PROTO": "LL"}}}, "files"),
    "a conf file that is gone": ("nccl", {"conf./etc/nccl.conf": absent()}, "files"),
    "a start-up file on PYTHONPATH": ("nccl", {"pythonpath./srv/x/sitecustomize.py": {"sha256": "1"}}, "files"),
    "a drop-in of the unit": ("engine_args", {"unit./etc/systemd/system/s.d/x.conf": {"directives": {}}}, "files"),
    "start-up code of the library": ("files", {"stdlib/sitecustomize.py": {"kind": "startup", "sha256": "1"}}, "files"),
    "limits that were edited": ("runtime", {"limits./etc/security/limits.conf": ["* - memlock 64"]}, "files"),
    "a module option": ("firmware_and_kernel", {"boot./etc/modprobe.d/x.conf": ["options nvidia NVreg_X=1"]}, "files"),
    "a preloaded library": ("runtime", {"loader./etc/ld.so.preload": ["/tmp/x.so"]}, "files"),
    "a mode": ("files", {"venv/x.py": {"kind": "mode", "mode": "0600"}}, "sglang_build"),
    "an edited file": ("files", {"venv/x.py": {"kind": "edited", "sha256": "1", "recorded": "2"}}, "sglang_build"),
    "another version": ("build", {"distribution.sglang": {"version": "0.5.22", "record": "1" * 16}}, "sglang_build"),
    "a package unheld": ("os_packages", {"package.nvidia-open": {"version": "580.105.08-1"}}, "packages"),
    "another package version": ("os_packages", {"package.htop": {"version": "3.3"}}, "packages"),
    "a sysctl": ("firmware_and_kernel", {"sysctl.vm.swappiness": "60"}, "sysctls"),
    "the governor": ("runtime", {"governor": "powersave"}, "gpu_host"),
    "the command line": ("firmware_and_kernel", {"command_line": ["root=/dev/sda1"]}, "gpu_host"),
    "the driver": ("driver", {"module": "570.124.06"}, "gpu_driver"),
    "a model": ("models", {"target/config.json": SHA[2]}, "sglang_models"),
    "a file beside a model": ("models", {"target/extra.json": SHA[2]}, "sglang_models"),
    "the environment file": ("nccl", {"file./opt/plumbline/nccl.env": "0" * 16}, "nccl_profile"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "-"))
def test_each_kind_of_difference_has_its_step(case: str):
    group, items, step = CASES[case]
    plan = plan_of(state(**{group: items}))
    assert steps(plan) == {step: list(items)}
    assert plan["cannot"] == []
    assert plan["anew"] == (DIGEST if step == "sglang_build" else None)


def test_steps_know_what_to_do_from_the_lock_as_the_comparison_shows_differences_only():
    plan = plan_of(
        state(
            os_packages={"package.nvidia-open": {"version": "580.105.08-1"}},
            nccl={"conf./etc/nccl.conf": absent(), "conf.~/.nccl.conf": {"sha256": "1", "variables": {}}},
            firmware_and_kernel={"sysctl.vm.swappiness": "60", "command_line": ["root=/dev/sda1"]},
            runtime={"limits./etc/security/limits.conf": absent()},
        )
    )
    data = {s["step"]: s["data"] for s in plan["steps"]}
    assert data["packages"] == [
        {"name": "nvidia-open", "version": "580.105.08-1", "pinned": "nvidia-open=580.105.08-1", "held": True}
    ]
    assert sorted(data["files"], key=lambda e: e["path"]) == [
        {"path": "/etc/nccl.conf", "content": "NCCL_DEBUG=WARN\n"},
        {"path": "/etc/security/limits.conf", "content": "* - memlock unlimited\n"},
        {"path": "~/.nccl.conf", "content": None},
    ]
    assert data["sysctls"] == {"set": {"vm.swappiness": "10"}, "kept": {"vm.swappiness": "10"}}
    assert data["gpu_host"] == {"kernel_parameters": ["iommu=pt"]}
    assert plan["reboot"] == ["firmware_and_kernel: command_line"]


def test_files_that_are_set_at_boot_are_written_again_by_the_lock():
    item = "boot./etc/sysctl.d/90-x.conf"
    lock = lock_of(state(firmware_and_kernel={item: ["vm.swappiness = 10"]}))
    now = state(firmware_and_kernel={item: ["vm.swappiness = 60"]})
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)
    assert plan["steps"][0]["data"] == [{"path": "/etc/sysctl.d/90-x.conf", "content": "vm.swappiness = 10\n"}]


def test_a_container_has_files_of_its_own_that_act_at_boot():
    plan = plan_of(state("docker", firmware_and_kernel={"boot./etc/modprobe.d/x.conf": ["blacklist x"]}))
    assert steps(plan) == {"files": ["boot./etc/modprobe.d/x.conf"]}


def test_start_up_code_that_the_lock_has_is_written_again_as_it_was():
    item = "stdlib/sitecustomize.py"
    own = {"kind": "startup", "link": "/etc/python3.11/sitecustomize.py", "sha256": SHA[1], "text": "# Debian\n"}
    lock = lock_of(state(files={item: own}))
    assert "not_rebuilt" not in lock["captured"]
    now = state(files={item: {"kind": "startup", "sha256": SHA[2], "text": "import os\n"}})
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)
    assert [(s["step"], s["data"]) for s in plan["steps"]] == [
        ("files", [{"path": item, "content": "# Debian\n", "link": "/etc/python3.11/sitecustomize.py"}])
    ]
    del lock["installed"]["files"][item]["text"]
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)
    assert "reinstall the package" in plan["cannot"][0]["why"]


UNIT = {"unit./etc/systemd/system/sglang.service": {"sha256": SHA[1], "directives": {}}}
SERVED = rebuild.Host(**{**HOST.__dict__, "unit": "sglang.service"})


@pytest.mark.parametrize(
    ("how", "changed", "ran", "stopped"),
    [
        ("runs", {}, [], None),
        ("runs", {"models": {"target/config.json": SHA[2]}}, ["sglang_models", "sglang_server"], "sglang.service"),
        ("runs", {"os_packages": {"package.htop": {"version": "3.3"}}}, ["packages"], None),
        ("runs", {"runtime": {"limits./etc/security/limits.conf": absent()}}, ["files"], None),
        ("runs", {"nccl": {"conf.~/.nccl.conf": {"sha256": "1", "variables": {"A": "1"}}}}, ["files", "sglang_server"],
         "sglang.service"),
        ("stopped", {}, ["sglang_server"], None),
        ("stopped", {"models": {"target/config.json": SHA[2]}}, ["sglang_models", "sglang_server"], None),
        ("runs with older files", {}, ["sglang_server"], "sglang.service"),
    ],
)  # fmt: skip
def test_the_production_server_is_stopped_for_what_it_runs_on_and_found_if_it_was_left(
    how: str, changed: dict[str, Any], ran: list[str], stopped: str | None
):
    lock = lock_of(state(engine_args=UNIT))
    now = state(**{**changed, "engine_args": UNIT})
    now["groups"]["engine_args"]["condition"]["service.sglang.service"] = how
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, SERVED)
    assert (list(steps(plan)), plan["stop"]) == (ran, stopped)
    assert rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)["stop"] is None, "none without a unit"


def test_a_unit_that_is_not_there_is_made_and_not_stopped():
    lock, now = lock_of(state(engine_args=UNIT)), state()
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, SERVED)
    assert (list(steps(plan)), plan["stop"]) == (["sglang_server"], None)


def test_what_is_taken_from_the_lock_reaches_a_running_server_that_nothing_stops_for_it():
    now = state(engine_args={**UNIT, "args.tp-size": 4})
    now["groups"]["engine_args"]["condition"]["service.sglang.service"] = "runs"
    lock = lock_of(state(engine_args=UNIT))
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, SERVED)
    assert (steps(plan), plan["stop"], plan["again"]) == ({"sglang_server": []}, None, 0)


@pytest.mark.parametrize(
    "item",
    ["unit./etc/systemd/system/sglang.service.d/50-mine.conf", "unit./etc/systemd/system/other.service"],
)
def test_units_that_no_role_writes_are_left_to_a_person(item: str):
    lock = lock_of(state(engine_args={**UNIT, item: {"sha256": SHA[2], "directives": {}}}))
    now = state(engine_args=UNIT)
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, SERVED)
    assert plan["steps"] == []
    assert "restore it by hand" in plan["cannot"][0]["why"]


def test_a_redacted_text_is_never_written_to_a_host():
    secret = {"sha256": "1", "variables": {"NCCL_X": "Bearer [redacted]"}}
    words = ["root=/dev/sda1", "iommu=pt", "rd.luks.key=[redacted]"]
    was = state(
        nccl={"conf./etc/nccl.conf": secret},
        firmware_and_kernel={"boot./etc/sysctl.d/9.conf": ["a.key = [redacted]"], "command_line": words},
    )
    lock, now = lock_of(was), state(firmware_and_kernel={"command_line": ["root=/dev/sda1"]})
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)
    assert [c["why"] for c in plan["cannot"]] == [
        "the lock keeps no secrets, and the file holds one: restore it by hand"
    ] * 2
    assert [(s["step"], s["data"]) for s in plan["steps"]] == [("gpu_host", {"kernel_parameters": ["iommu=pt"]})]


@pytest.mark.parametrize(
    ("delivery", "item"),
    [
        ("nccl_conf", "conf.NCCL_CONF_FILE"),
        ("sitecustomize", "pythonpath./opt/plumbline/nccl/p-sitecustomize/profile.json"),
    ],
)
def test_the_files_of_each_delivery_are_delivered_again(delivery: str, item: str):
    was = {"delivery": delivery, item: {"sha256": "1", "variables": {}}}
    other = {"sha256": "2", "variables": {"NCCL_PROTO": "Simple"}}
    lock, now = lock_of(state(nccl=was)), state(nccl={**was, item: other})
    assert steps(rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)) == {"nccl_profile": [item]}


def test_words_that_an_earlier_rebuild_gave_the_kernel_are_given_again():
    line = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"'
    ours = {"boot./etc/default/grub.d/90-plumbline.cfg": [line]}
    now = state(firmware_and_kernel=ours, runtime={"governor": "powersave"})
    plan = rebuild.plan(lock := lock_of(state()), locks.compare_with(lock, now), now, HOST)
    assert {s["step"]: s["data"] for s in plan["steps"]}["gpu_host"] == {"kernel_parameters": ["iommu=pt"]}


IMPOSSIBLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "hardware": ("hardware", {"cpu.model": "Xeon"}, "other hardware"),
    "bios": ("firmware_and_kernel", {"bios_version": "3.2"}, "firmware"),
    "container": ("container", {"image": "sha256:1"}, "the machine that it runs on"),
    "stdlib": ("build", {"stdlib": "e" * 16}, "reinstall the package"),
    "extra package": ("os_packages", {"package.nano": {"version": "8"}}, "remove it by hand"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE, ids=lambda c: c.replace(" ", "-"))
def test_what_cannot_be_changed_is_said_with_the_reason(case: str):
    group, items, why = IMPOSSIBLE[case]
    plan = plan_of(state(**{group: items}))
    assert plan["steps"] == []
    assert [(c["group"], c["item"]) for c in plan["cannot"]] == [(group, item) for item in items]
    assert why in plan["cannot"][0]["why"]


def test_in_a_container_the_machine_below_owns_kernel_and_module():
    lock = lock_of(state("docker"))
    now = state("docker", driver={"module": "570.1"}, firmware_and_kernel={"kernel": "6.9"})
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)
    assert plan["steps"] == []
    assert {c["why"] for c in plan["cannot"]} == {"the machine that this container runs on owns it: rebuild it there"}


def test_a_build_without_a_lock_of_its_own_cannot_be_made():
    now = state(files={"venv/x.py": {"kind": "edited", "sha256": "1", "recorded": "2"}})
    lock = {**lock_of(state()), "build": None}
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)
    assert plan["steps"] == []
    assert "no build lock" in plan["cannot"][0]["why"]


def test_a_build_that_was_set_aside_is_not_moved_again():
    now = state(files={"venv/x.py": {"kind": "edited", "sha256": "1", "recorded": "2"}})
    now["groups"]["build"]["condition"]["path"] += ".altered"
    assert plan_of(now)["anew"] is None


def test_what_the_inventory_declares_otherwise_is_taken_from_the_lock_and_said():
    now = state(engine_args={"args.tp-size": 4}, nccl={"variable.NCCL_PROTO": "Simple"})
    plan = plan_of(now, HOST)
    assert steps(plan) == {"nccl_profile": []}, "what is delivered holds the inventory's values"
    assert plan["again"] == 0
    assert plan["cannot"] == []
    assert {r["variable"] for r in plan["inventory"]} == {
        "sglang_server_args.tp-size",
        "plumbline_nccl_profiles_lab, variable NCCL_PROTO",
    }
    assert plan["facts"]["sglang_server_args"] == {"tp-size": 8, "model-path": "/opt/plumbline/models/target"}
    assert plan["facts"]["nccl_profile_name"] == "pcie-ll-ring"
    assert plan["facts"]["plumbline_nccl_profiles_lab"]["pcie-ll-ring"]["variables"] == {"NCCL_PROTO": "LL"}
    assert any("put it into the inventory" in line for line in rebuild.lines(plan, done=False))


def test_a_model_that_the_catalogue_declares_otherwise_is_placed_by_the_lock():
    other = {"target": {"files": {"config.json": SHA[2]}, "source": {"controller": "x"}}}
    host = rebuild.Host(name="gpu-1", catalogue=other, models=("target",), build_digest=BUILD)
    plan = plan_of(state(models={"target/config.json": SHA[2]}), host)
    assert steps(plan) == {"sglang_models": ["target/config.json"]}
    assert plan["facts"]["plumbline_models_lab"]["target"]["files"] == {"config.json": SHA[1]}


def test_roles_that_a_host_must_not_run_are_left_out_and_said():
    host = rebuild.Host(name="gpu-1", build_digest=BUILD, may_run=("sglang_build",))
    plan = plan_of(state(firmware_and_kernel={"sysctl.vm.swappiness": "60"}), host)
    assert plan["steps"] == []
    assert plan["cannot"][0]["why"] == "sysctls is not among plumbline_rebuild_roles of this host"


def test_a_full_run_has_every_role_that_the_lock_says_something_of():
    plan = plan_of(state(runtime={"governor": "powersave"}), full=True)
    assert [s["step"] for s in plan["steps"]] == [
        "sglang_build",
        "gpu_driver",
        "gpu_host",
        "sglang_models",
        "nccl_profile",
        "sglang_server",
    ]
    assert {s["step"]: len(s["items"]) for s in plan["steps"]}["gpu_host"] == 1
    assert plan["anew"] is None


def test_a_lock_by_hand_notices_a_build_of_another_lock():
    lock = {"schema": "plumbline.lock/1", "name": "sim", "build": BUILD_LOCK}
    now = state()
    now["groups"]["build"]["condition"]["lock_digest"] = "f" * 64
    plan = rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)
    assert steps(plan) == {"sglang_build": ["lock_digest"]}
    assert plan["anew"] is None, "the other build stays, for a way back"


def test_a_patch_of_a_lock_by_hand_is_no_difference_and_another_edit_of_that_file_is():
    item = "venv/lib/python3.12/site-packages/sglang/x.py"
    lock = {"schema": "plumbline.lock/1", "name": "sim", "build": {**BUILD_LOCK, "patches": [{"sha256": SHA[3]}]}}
    for sha256, result in ((SHA[4], {}), (SHA[5], {"sglang_build": [item]})):
        now = state(files={item: {"kind": "edited", "sha256": sha256, "recorded": SHA[6]}})
        made = [{"file": "x.patch", "sha256": SHA[3], "files": {"sglang/x.py": SHA[4]}}]
        now["groups"]["build"]["condition"]["patches"] = made
        assert steps(rebuild.plan(lock, locks.compare_with(lock, now), now, HOST)) == result


def test_settle_says_what_was_mended_what_is_left_and_what_a_full_run_found_beside():
    first = state(models={"target/config.json": SHA[2]}, runtime={"governor": "powersave"})
    last = state(engine_args={"args.tp-size": 4})
    lock = lock_of(state())
    plans = [rebuild.plan(lock, locks.compare_with(lock, s), s, HOST) for s in (first, last)]
    ended = rebuild.settle(first, last, plans, full=True)
    assert ended["mended"] == ["models: target/config.json", "runtime: governor"]
    assert ended["left"] == []
    assert ended["unexpected"] == []
    ended = rebuild.settle(first, state(driver={"module": "1.2"}), plans, full=True)
    assert ended["unexpected"] == ["driver: module"]


@pytest.mark.parametrize(
    ("status", "came_back"), [("stable", True), ("improved", True), ("drifted", False), ("new", None)]
)
def test_whether_the_number_came_back(status: str, came_back: bool | None):
    row = {"host": "gpu-1", "workload": "one-stream", "status": status, "now_tok_s": 88.7, "reference_tok_s": 88.8}
    verdict = {"baselines": [{**row, "reasons": []}, {**row, "host": "gpu-2", "status": "drifted"}]}
    said = rebuild.came_back(verdict, "gpu-1")
    assert [s["came_back"] for s in said] == [came_back]
    assert "88.7 tok/s now" in said[0]["text"]


# The locks that ship.


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "states").glob("*.yml")))
def test_each_state_that_ships_can_be_read(name: str):
    found = rebuild.read(name, [ROOT / "states"], [FILES, ROOT])
    assert found["build_digest"]
    assert "sglang_build" in rebuild.of_lock(found["lock"])


def test_the_lab_example_is_the_build_that_its_inventory_names():
    found = rebuild.read("kimi-k25-2026-11", [ROOT / "states"], [FILES, ROOT])
    assert found["build_digest"] == rebuild.digest_of_build("sglang-0.5.23-cuda", [FILES / "locks"], [FILES, ROOT])
    assert rebuild.digest_of_build("no-such-build", [FILES / "locks"], [FILES, ROOT]) is None


def test_models_that_cannot_be_placed_are_refused_first(tmp_path: Path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    files = {"config.json": SHA[1], "model.safetensors": SHA[2]}
    catalogue = {"m": {"kind": "target", "source": {"controller": "m"}, "files": files}}
    lock = {"name": "known", "models": {"m": {"files": files}}}
    with pytest.raises(PlumblineError, match=r"wrong hash: config\.json of m"):
        rebuild.check_models(lock, catalogue, tmp_path)
    with pytest.raises(PlumblineError, match="unknown model"):
        rebuild.check_models({"name": "known", "models": {"n": {"files": {}}}}, catalogue, tmp_path)
    hub = {"m": {"kind": "target", "source": {"hub": "a/b", "revision": "1" * 40}}}
    with pytest.raises(PlumblineError, match="another revision of m"):
        rebuild.check_models({"name": "k", "models": {"m": {"revision": "2" * 40, "files": {}}}}, hub, tmp_path)
