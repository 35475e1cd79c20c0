"""The role through Ansible itself, on this machine: the shipped models from the controller to a root of their own."""
from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import ansible_runner
import pytest
import yaml
from hub_standin import Hub, hub_python

ROOT = Path(__file__).parents[3]
MODELS: Dict[str, Any] = yaml.safe_load((ROOT / "group_vars/all/models.yml").read_text())["plumbline_models"]
NAMES = ["tiny-llama", "tiny-eagle3"]

PLAY = """
- name: Models
  hosts: localhost
  gather_facts: false
  roles: [sglang_models]
  post_tasks:
    - name: Show the fact
      ansible.builtin.debug:
        var: sglang_models_paths
"""


class Run:
    """One playbook run, as ansible-runner's events tell it: exit status, all results, the role's own and the fact."""

    def __init__(self, folder: Path, variables: Dict[str, Any], flags: str = "") -> None:
        settings = {
            "plumbline_models": MODELS, "sglang_server_target": NAMES[0], "sglang_server_drafts": {"eagle3": NAMES[1]},
            "plumbline_root": str(folder / "root"), "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable, **variables}
        (folder / "play.yml").write_text(PLAY)
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = ansible_runner.run(
            private_data_dir=tempfile.mkdtemp(dir=folder), playbook=str(folder / "play.yml"), inventory="localhost,",
            extravars=settings, cmdline=flags or None, quiet=True, project_dir=str(ROOT),
            envvars={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": binaries})
        self.status = done.rc
        ended = [e["event_data"] for e in done.events if e["event"] in ("runner_on_ok", "runner_on_failed")]
        self.results: List[Dict[str, Any]] = [e["res"] for e in ended]
        named = {e["task"]: e["res"] for e in ended}
        self.result = named.get("Place the models and check their digests", {})
        self.fact = named.get("Show the fact", {}).get("sglang_models_paths")
        assert self.result, done.stdout.read() if done.stdout else done.status


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("role")
    checked = Run(folder, {}, "--check --diff")
    assert checked.status == 0 and checked.result["changed"] and not (folder / "root").exists()
    assert MODELS["tiny-llama"]["files"]["model.safetensors"] in checked.result["diff"]["after"]
    first = Run(folder, {})
    assert first.status == 0
    assert first.result["changed"] and sorted(first.fact) == sorted(NAMES)
    assert first.fact == checked.fact
    for name, path in first.fact.items():
        assert Path(path).parent == folder / "root" / "models"
        assert {f.name for f in Path(path).iterdir()} == {*MODELS[name]["files"], "plumbline-model.json"}
    return folder


def test_the_second_run_changes_nothing(placed: Path) -> None:
    again = Run(placed, {}, "--diff")
    assert again.status == 0 and not again.result["changed"]
    assert again.result["diff"]["before"] == again.result["diff"]["after"]
    assert again.result["models"]["tiny-eagle3"]["config"]["architectures"] == ["LlamaForCausalLMEagle3"]


def test_damage_is_shown_and_mended(placed: Path) -> None:
    path = next((placed / "root/models").glob("tiny-eagle3-*")) / "config.json"
    good = path.read_bytes()
    path.write_bytes(b"{}")
    checked = Run(placed, {}, "--check")
    assert checked.result["changed"] and "SHA-256" in checked.result["models"]["tiny-eagle3"]["was"]["config.json"]
    assert path.read_bytes() == b"{}"
    mended = Run(placed, {})
    assert mended.result["changed"] and path.read_bytes() == good
    assert not mended.result["models"]["tiny-llama"]["changed"]


def test_a_wrong_digest_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    wrong = {**MODELS["tiny-eagle3"], "files": {**MODELS["tiny-eagle3"]["files"], "config.json": "0" * 64}}
    run = Run(tmp_path, {"plumbline_models_lab": {"tiny-eagle3": wrong}})
    assert run.status != 0 and "wrong digest of config.json" in run.result["msg"]
    assert run.result["error"]["allowed"] == "0" * 64 and not (tmp_path / "root").exists()


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    run = Run(tmp_path, {"sglang_server_target": "tiny-lama"})
    assert run.status != 0 and "unknown model 'tiny-lama'" in run.result["msg"]
    assert "did you mean 'tiny-llama'?" in run.result["msg"] and "where: plumbline_models" in run.result["msg"]


def test_from_a_hub_with_the_token_of_a_private_repository(tmp_path: Path) -> None:
    """The download's script travels inside the module, and the token is seen by the hub alone."""
    token, commit = "hf_aVerySecretToken", "0123456789abcdef0123456789abcdef01234567"
    files = {"config.json": b"{}", "model.safetensors": b"weights"}
    entry = {"kind": "target", "source": {"hub": "lab/private", "revision": commit},
             "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}}
    with Hub({"lab/private": {commit: files}}, tokens={"lab/private": token}) as hub:
        variables = {"sglang_models_names": ["lab"], "plumbline_models_lab": {"lab": entry},
                     "sglang_models_hub_python": hub_python(), "sglang_models_hub_endpoint": hub.endpoint}
        refused = Run(tmp_path, variables)
        assert refused.status != 0 and "the token may not see it" in refused.result["msg"]
        run = Run(tmp_path, {**variables, "sglang_models_hub_token": token}, "-vvv")
        assert run.status == 0 and hub.authorized
    assert {f: (Path(run.fact["lab"]) / f).read_bytes() for f in files} == files
    assert token not in json.dumps(run.result)
    assert run.result["invocation"]["module_args"]["hub_token"] == "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"
