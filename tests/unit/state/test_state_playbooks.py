"""capture.yml and compare.yml as people run them: tampering, each alone and all together, is named, and nothing
else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest
import state_builds
import yaml
from plumbline.analysis import capture, comparison, project, rebuild, schema
from plumbline.analysis.store import Results
from plumbline.errors import PlumblineError
from plumbline.state import document
from plumbline.state.document import assemble
from plumbline.state.values import Group

PROJECT = Path(__file__).parents[3]
SECRET = "hunter2hunter2"


class Lab:
    """An inventory of one host that is this machine, with a root, a home, a results tree and a states folder of its
    own."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.home, self.results, self.states = folder / "home", folder / "results", folder / "states"
        self.home.mkdir()
        catalogue: dict[str, Any] = {}
        for name, kind in (("target", "target"), ("draft", "eagle3-draft")):
            catalogue[name] = {
                "kind": kind,
                "source": {"directory": "/none"},
                "files": {"config.json": "0" * 64, "model.safetensors": "1" * 64},
            }
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "plumbline_root": str(root),
            "plumbline_state_home": str(self.home),
            "plumbline_models_lab": catalogue,
            "sglang_server_target": "target",
            "sglang_server_drafts": {"eagle3": "draft"},
            "sglang_server_args": {"tensor-parallel-size": 8, "api-key": SECRET},
            "sglang_server_environment": {"HF_TOKEN": SECRET, "OMP_NUM_THREADS": "1"},
            "nccl_profile_name": "ll",
            "plumbline_nccl_profiles_lab": {"ll": {"variables": {"NCCL_PROTO": "LL"}}},
        }
        self.inventory = folder / "inventory.yml"
        self.inventory.write_text(yaml.safe_dump({"serving": {"hosts": {"box": variables}}}))

    def play(self, playbook: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                str(Path(sys.executable).parent / "ansible-playbook"),
                "-i",
                str(self.inventory),
                f"playbooks/{playbook}.yml",
                "-vvv",
                "-e",
                f"results_root={self.results}",
                "-e",
                f"states_folder={self.states}",
                *options,
            ],
            capture_output=True,
            text=True,
            cwd=PROJECT,
            env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "HOME": str(self.home)},
        )

    def compare(self, was: str, now: str, *options: str) -> tuple[dict, subprocess.CompletedProcess[str]]:
        done = self.play("compare", "-e", f"was={was}", "-e", f"now={now}", *options)
        path = self.results / "compare" / f"{was}--{now}.json"
        assert path.exists(), done.stdout + done.stderr
        return json.loads(path.read_text()), done


@pytest.fixture()
def lab(tmp_path: Path, root: Path) -> Lab:
    return Lab(tmp_path, root)


def place_models(lab: Lab) -> dict[str, Path]:
    """Models at the places that the catalogue's digests name."""
    out = {}
    for name, entry in yaml.safe_load(lab.inventory.read_text())["serving"]["hosts"]["box"][
        "plumbline_models_lab"
    ].items():
        from plumbline.models.catalogue import parse

        out[name] = lab.root / "models" / parse(name, entry, "x").folder
        out[name].mkdir(parents=True)
        (out[name] / "config.json").write_text(json.dumps({"name": name}))
        (out[name] / "model.safetensors").write_bytes(name.encode() * 100)
    return out


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


def test_capture_and_compare_through_the_playbooks(lab: Lab) -> None:
    models = place_models(lab)
    site = lab.root / "builds/current" / state_builds.SITE
    (site / "sglang/srt/entrypoints/engine.py").write_text(
        f"password = '{SECRET}'\n"
    )  # a secret in a file, there from the beginning
    captured = lab.play("capture", "-e", "state=known")
    assert captured.returncode == 0, captured.stdout + captured.stderr
    schema.validate("lock", yaml.safe_load((lab.states / "known.yml").read_text()), "known.yml")
    same, done = lab.compare("state:known", "host:box", "-e", "strict=true")
    assert (same["result"], same["differences"], done.returncode) == ("same", [], 0), done.stdout

    tampering: dict[tuple[str, str], tuple[str, Callable[[], object]]] = {
        ("files", f"{state_builds.SITE}/sglang/srt/managers/scheduler.py"): (
            "performance",
            lambda: (site / "sglang/srt/managers/scheduler.py").write_text(state_builds.SCHEDULER + "# tuned\n"),
        ),
        ("build", "distribution.tinydep"): (
            "performance",
            lambda: state_builds.install(
                lab.root / "builds/current",
                state_builds.wheel(lab.folder, "tinydep", "1.1", {"tinydep/__init__.py": "ONE = 2\n"}),
            ),
        ),
        ("files", f"{state_builds.SITE}/sitecustomize.py"): (
            "performance",
            lambda: (site / "sitecustomize.py").write_text("import os\n"),
        ),
        ("nccl", "conf.~/.nccl.conf"): (
            "performance",
            lambda: (lab.home / ".nccl.conf").write_text("NCCL_PROTO=Simple\n"),
        ),
        ("models", "target/model.safetensors"): ("invalidates", lambda: flip(models["target"] / "model.safetensors")),
        ("models", "draft/config.json"): (
            "invalidates",
            lambda: (models["draft"] / "config.json").write_text('{"name": "other"}'),
        ),
    }
    for _impact, tamper in tampering.values():
        tamper()
    found, done = lab.compare("state:known", "host:box")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(d["group"], d["item"]): d["impact"] for d in found["differences"]} == {
        place: impact for place, (impact, _tamper) in tampering.items()
    }, "all together, and nothing else"
    assert (
        found["result"] == "6 settings differ"
        and [d["impact"] for d in found["differences"]][:2] == ["invalidates"] * 2
    )
    assert "scheduler.py" in done.stdout and "What mends it:" in done.stdout
    strict = lab.play("compare", "-e", "was=host:box", "-e", "now=state:known", "-e", "strict=true", "--check")
    assert strict.returncode == 2 and "6 settings differ" in strict.stdout
    assert not (lab.results / "compare/host:box--state:known.json").exists(), "check mode writes nothing"

    places = [p for top in (lab.results, lab.states) for p in top.rglob("*") if p.is_file()]
    assert len(places) > 3 and not [p for p in places if SECRET in p.read_text()]
    assert not [d for d in (captured, done, strict) if SECRET in d.stdout + d.stderr]


@pytest.mark.parametrize("ref", ["known", "", "stat:known", "host:"])
def test_what_is_no_reference_is_refused(ref: str) -> None:
    with pytest.raises(PlumblineError, match="allowed: state:NAME, host:NAME or measurement:ID"):
        comparison.split(ref, "was")


def test_a_captured_lock_has_the_patches_of_its_build_beside_it(tmp_path: Path) -> None:
    """Its build lock names them by a path beside itself: in another folder they would be nowhere."""
    digest = rebuild.read("sim-b", [project.STATES], project.SOURCES)["build_digest"]
    condition = {"lock_digest": digest, "name": "sim-b"}
    state = assemble("h", [Group("build", {"distribution.x": {"version": "1"}}, condition)])
    given = {"lock_folders": project.BUILD_LOCKS, "search": project.SOURCES}
    made = capture.prepare(state, {}, name="mine", states_folder=tmp_path / "states", **given)
    assert "sim-b.patch" in made["files"]
    capture.write(made, Results(tmp_path / "results"), state, {})
    assert rebuild.read("mine", [tmp_path / "states"], project.SOURCES)["build_digest"] == digest
    (tmp_path / "states" / "sim-b.patch").write_text("another")
    with pytest.raises(PlumblineError, match=r"another file has the name of a patch.*sim-b\.patch"):
        capture.prepare(state, {}, name="more", states_folder=tmp_path / "states", **given)


def test_a_limit_leaves_the_comparison_to_be_made(lab: Lab) -> None:
    """-l takes localhost away: the comparison ran nowhere, and that was a success."""
    lab.states.mkdir(exist_ok=True)
    for name in ("sim-a", "sim-b"):
        lock = {"schema": "plumbline.lock/1", "name": name, "kernel": {"sysctls": {"vm.swappiness": name}}}
        (lab.states / f"{name}.yml").write_text(yaml.safe_dump(lock))
    found, done = lab.compare("state:sim-a", "state:sim-b", "-l", "box", "-e", "strict=true")
    assert done.returncode != 0 and len(found["differences"]) == 1


def test_unknown_hosts_and_measurements_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlumblineError, match="did you mean 'box'"):
        comparison.hosts_of(["host:bx"], {"all": ["box"]})
    with pytest.raises(PlumblineError, match="no such measurement"):
        comparison.resolve(
            "measurement:x", where="was", results=Results(tmp_path), states_folders=[], hosts={}, members={}
        )


def test_capturing_again_writes_nothing_and_another_state_needs_a_new_name(root: Path, tmp_path: Path) -> None:
    def capture_it(overwrite: bool = False) -> dict:
        found = document.observe(root, host="box", groups=["build", "files"])
        made = capture.prepare(
            found["state"], {}, name="known", states_folder=tmp_path, lock_folders=[], search=[], overwrite=overwrite
        )
        capture.write(made, Results(tmp_path / "results"), found["state"], {})
        return made

    assert capture_it()["changed"] is True and capture_it()["changed"] is False
    (root / "builds/current" / state_builds.SITE / "sitecustomize.py").write_text("import os\n")
    with pytest.raises(PlumblineError, match="a lock of that name with another content"):
        capture_it()
    assert capture_it(overwrite=True)["changed"] is True


def state(root: Path, **more: Any) -> dict:
    return document.observe(root, host="box", groups=["build", "files", "engine_args", "nccl", "models"], **more)[
        "state"
    ]


def test_measurements_and_recorded_states(root: Path, tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    of_boot = state(
        root,
        args={"speculative-num-steps": 2},
        profile={"profile": "ll", "delivery": "env_file", "variables": {"NCCL_PROTO": "LL"}},
    )
    results.write_state(of_boot)
    folder = tmp_path / "results" / "demo"
    folder.mkdir()
    (folder / "measurements.jsonl").write_text(json.dumps({"id": "M1", "state": {"digest": of_boot["digest"]}}) + "\n")
    (tmp_path / "results/demo/plan.jsonl").touch()
    (root / "builds/current" / state_builds.SITE / "sitecustomize.py").write_text("import os\n")
    hosts = {"box": state(root)}
    members = comparison.hosts_of(["measurement:M1", "host:box"], {"all": ["box"]})
    sides = [
        comparison.resolve(ref, where="was", results=results, states_folders=[], hosts=hosts, members=members)[0]
        for ref in ("measurement:M1", "host:box", f"state:{of_boot['digest'][:12]}")
    ]
    found = comparison.compare_sides(sides[0], sides[1])
    assert [d["item"] for d in found["differences"]] == [f"{state_builds.SITE}/sitecustomize.py"], (
        "a boot's own settings are no difference of the host"
    )
    assert found["not_compared"]
    assert sides[2].state == of_boot
    assert Path(comparison.save(found, results)).name == "measurement:M1--host:box.json"


def test_locks_written_by_hand_differ_where_their_builds_do(tmp_path: Path) -> None:
    def side(name: str) -> comparison.Side:
        found = comparison.resolve(f"state:{name}", where="was", results=Results(tmp_path), hosts={}, members={},
                                   states_folders=[PROJECT / "states"])
        return found[0]

    good, bad = side("sim-a"), side("sim-b")
    found = comparison.compare_sides(good, bad)
    assert found["result"] == "one setting differs"
    assert [(d["group"], d["item"]) for d in found["differences"]] == [("build", "lock_digest")]
    assert comparison.compare_sides(good, good)["result"] == "same"
    made = {"digest": "d", "host": "h", "observed_at": "2026-01-01T00:00:00Z", "unverified": [],
            "groups": {"build": {"identity": {}, "condition": {"lock_digest": bad.build}, "digest": "x"}}}
    host = comparison.Side("host:h", "host", state=made)
    assert comparison.compare_sides(bad, host)["result"] != "one setting differs"
    assert "lock_digest" in [d["item"] for d in comparison.compare_sides(good, host)["differences"]]


def test_a_group_stands_for_each_of_its_hosts() -> None:
    members = comparison.hosts_of(["host:serving", "host:a"], {"all": ["a", "b"], "serving": ["a", "b"]})
    assert members == {"host:serving": ["a", "b"], "host:a": ["a"]}
    with pytest.raises(PlumblineError, match=r"hosts could not be observed.*b"):
        comparison.resolve(
            "host:serving", where="now", results=Results("/none"), states_folders=[], hosts={"a": {}}, members=members
        )
