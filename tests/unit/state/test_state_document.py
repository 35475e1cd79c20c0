"""The whole document: its digest, its schema, what enters it, and that no secret does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
import state_builds
from plumbline.analysis import schema
from plumbline.errors import PlumblineError
from plumbline.state import document
from plumbline.state.values import Group, absent, unknown

ARGS = {"tensor-parallel-size": 8, "port": 30000, "disable-cuda-graph": False, "model-path": "/m"}
PROFILE = {"profile": "pcie-ll-ring", "delivery": "env_file", "variables": {"NCCL_PROTO": "LL"}}


@pytest.fixture()
def models(tmp_path: Path) -> dict[str, str]:
    for name in ("target", "draft"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"name": name}))
        (folder / "model.safetensors").write_bytes(bytes(range(256)) * 16)
    return {name: str(tmp_path / "models" / name) for name in ("target", "draft")}


def test_a_host_without_root_gives_the_same_digest_at_every_look(root: Path, models: dict[str, str]) -> None:
    looks = []
    for i in range(3):
        looks.append(
            document.observe(
                root,
                model_paths=models,
                args={**ARGS, "port": 30000 + i},
                profile=PROFILE,
                environment={
                    "NCCL_PROTO": "LL",
                    "PLUMBLINE_BOOT": f"boot{i}",
                    "LOGS": f"/r/boots/01ARZ3NDEKTSV4RRFFQ69G5FA{i}",
                },
            )["state"]
        )
        # Work between two looks: processes, files elsewhere, byte code.
        subprocess.run(
            [str(root / "builds/current/venv/bin/python"), "-c", "import sglang.srt.managers.scheduler"], check=True
        )
    changed = [
        n for n, g in looks[0]["groups"].items() if any(x["groups"][n]["identity"] != g["identity"] for x in looks)
    ]
    assert changed == []
    assert len({x["digest"] for x in looks}) == 1


def test_it_has_all_groups_and_validates(root: Path, models: dict[str, str]) -> None:
    found = document.observe(root, model_paths=models, args=ARGS, profile=PROFILE)["state"]
    schema.validate("state", found, "state")
    assert tuple(found["groups"]) == document.GROUPS
    assert found["groups"]["engine_args"]["identity"]["args.tensor-parallel-size"] == 8
    assert set(found["groups"]["engine_args"]["condition"]) == {"args.port", "args.model-path"}
    assert set(found["groups"]["models"]["identity"]) == {
        f"{m}/{f}" for m in models for f in ("config.json", "model.safetensors")
    }


def test_one_flipped_byte_of_a_model_is_seen(root: Path, models: dict[str, str]) -> None:
    was = document.observe(root, model_paths=models, groups=["models"])["state"]
    weights = Path(models["draft"]) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    now = document.observe(root, model_paths=models, groups=["models"])["state"]
    differs = {i for i, v in now["groups"]["models"]["identity"].items() if was["groups"]["models"]["identity"][i] != v}
    assert differs == {"draft/model.safetensors"} and was["digest"] != now["digest"]


def test_models_are_found_by_the_arguments_when_none_are_named(root: Path, models: dict[str, str]) -> None:
    args = {"model_path": models["target"], "--speculative-draft-model-path": models["draft"]}
    found = document.observe(root, args=args, groups=["models", "engine_args"])["state"]["groups"]
    assert "draft/config.json" in found["models"]["identity"] and found["engine_args"]["identity"] == {}


def test_a_model_of_a_hub_is_an_argument_not_a_place(root: Path) -> None:
    found = document.observe(root, args={"model-path": "org/model"}, groups=["engine_args"])["state"]
    assert found["groups"]["engine_args"]["identity"] == {"args.model-path": "org/model"}


def test_conditions_and_unknowns_enter_no_digest_and_absent_does() -> None:
    def made(identity: dict, condition: dict) -> dict:
        return document.assemble(
            "h", [Group("runtime", identity, condition)], datetime(2026, 1, 1, tzinfo=timezone.utc)
        )

    base = made({"a": 1}, {"t": 1})
    assert made({"a": 1}, {"t": 2})["digest"] == base["digest"]
    with_unknown = made({"a": 1, "b": unknown("no permission")}, {})
    assert with_unknown["digest"] == base["digest"] and with_unknown["unverified"] == ["runtime: b (no permission)"]
    assert made({"a": 1, "b": absent()}, {})["digest"] != base["digest"]
    assert base["observed_at"] == "2026-01-01T00:00:00.000Z"


def test_an_unreadable_file_is_unknown(root: Path, models: dict[str, str]) -> None:
    dead = Path(models["draft"]) / "dead.bin"
    dead.symlink_to(dead)  # a loop cannot be read, not even by root
    found = document.observe(root, model_paths=models, groups=["models"])["state"]
    assert "unknown" in found["groups"]["models"]["identity"]["draft/dead.bin"] and len(found["unverified"]) == 1
    schema.validate("state", found, "state")


def test_an_unknown_group_is_refused_with_the_nearest_name(root: Path) -> None:
    with pytest.raises(PlumblineError, match="did you mean 'hardware'"):
        document.observe(root, groups=["hardwear"])


def test_no_planted_secret_is_found_in_it(root: Path, models: dict[str, str], tmp_path: Path) -> None:
    secret = "hunter2hunter2"
    token = "hf_" + "aB3" * 11
    edited = root / "builds/current" / state_builds.SITE / "sglang/srt/entrypoints/engine.py"
    edited.write_text(f"import os\nos.environ['HF_TOKEN'] = '{token}'\npassword = '{secret}'\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".nccl.conf").write_text(f"NCCL_DEBUG=WARN\nAPI_TOKEN={secret}\n")
    found = document.observe(
        root,
        model_paths=models,
        evidence=True,
        home=str(home),
        args={
            "api-key": secret,
            "admin_api_key": secret,
            "json-model-override-args": json.dumps({"api_key": secret}),
            "log": f"https://u:{secret}@h/",
        },
        environment={"HF_TOKEN": secret, "X": token, "LAB_PASSWORD": secret, "URL": f"http://u:{secret}@proxy/"},
        profile={"profile": "p", "delivery": "env_file", "variables": {"NCCL_DEBUG": "WARN"}},
    )
    text = json.dumps(found)
    assert secret not in text and token not in text
    assert text.count("[redacted]") >= 8


def test_the_module_looks_alike_in_check_mode_and_hides_its_arguments(root: Path) -> None:
    project = Path(__file__).parents[3]
    module = {
        "root": str(root),
        "groups": ["files", "engine_args"],
        "args": {"api-key": "hunter2hunter2"},
        "environment": {"HF_TOKEN": "hunter2hunter2"},
    }

    def play(*options: str) -> str:
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "ansible"),
                "-i",
                "localhost,",
                "-c",
                "local",
                "localhost",
                "-vvv",
                "-e",
                f"ansible_python_interpreter={sys.executable}",
                "-m",
                "plumbline_state",
                "-a",
                json.dumps(module),
                *options,
            ],
            capture_output=True,
            text=True,
            cwd=root,
            check=True,
            env={
                **os.environ,
                "ANSIBLE_LIBRARY": str(project / "library"),
                "ANSIBLE_MODULE_UTILS": str(project / "module_utils"),
                "ANSIBLE_STDOUT_CALLBACK": "default",
                "ANSIBLE_CALLBACKS_ENABLED": "ansible.builtin.default",
            },
        )
        return done.stdout + done.stderr

    checked = play("--check")
    assert not (root / "cache").exists(), "check mode writes nothing"
    for output in (checked, play()):
        assert "hunter2" not in output and '"changed": false' in output and '"args.api-key": "[redacted]"' in output
