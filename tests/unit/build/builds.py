"""Small real material for tests of builds: source trees, wheels of them, locks, and the role run on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import yaml
from plumbline.analysis.build import pack
from plumbline.digest import file_digest

PROJECT = Path(__file__).resolve().parents[3]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

_SERVER_ARGS = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--attention-backend", choices=["triton", "torch_native"])
        parser.add_argument("--cuda-graph-bs-decode", type=int, nargs="+")
        parser.add_argument("--enable-metrics", action="store_true")
"""


def sglang_tree(folder: Path, version: str = "1.2.3") -> Path:
    """A source tree of a distribution `sglang` with an argument parser where SGLang has its own."""
    package = folder / "src" / "sglang" / "srt"
    package.mkdir(parents=True)
    (folder / "src" / "sglang" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "server_args.py").write_text(_SERVER_ARGS)
    (package / "scheduler.py").write_text("".join(f"line_{i} = {i}\n" for i in range(20)))
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "sglang"\nversion = "{version}"\n[tool.setuptools.packages.find]\nwhere = ["src"]\n'
    )
    return folder


def wheel_of(folder: Path, name: str, version: str, out: Path, requires: str = "") -> Path:
    """The wheel of a distribution with one module `name`."""
    tree = folder / f"{name}-{version}"
    tree.mkdir(parents=True)
    (tree / f"{name}.py").write_text(f"version = {version!r}\n")
    (tree / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "{name}"\n'
        f'version = "{version}"\ndependencies = [{json.dumps(requires) if requires else ""}]\n'
        f'[tool.setuptools]\npy-modules = ["{name}"]\n'
    )
    return pack.pack(tree, version, out)


def entry(wheel: Path, **more: Any) -> dict[str, Any]:
    """A lock's entry for one wheel."""
    return {"version": wheel.name.split("-")[1], "files": {wheel.name: file_digest(wheel)}, **more}


def lock(**more: Any) -> dict[str, Any]:
    """A whole lock for this Python, without distributions unless given."""
    return {
        "schema": "plumbline.build/1",
        "name": "test",
        "engine": "simulator",
        "python": [PYTHON],
        "platform": "linux-x86_64",
        "distributions": {},
        **more,
    }


def write_lock(folder: Path, document: dict[str, Any]) -> Path:
    """The lock's file in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['name']}.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def play(folder: Path, root: Path, *arguments: str, pip: Optional[dict[str, str]] = None, **variables: Any) -> Played:
    """Run the role `sglang_build` on this machine by ansible-playbook; facts it set come back by a file."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = folder / "facts.json"
    names = ["sglang_build_manifest", "sglang_build_dir", "sglang_build_python", "sglang_builds"]
    dump = "{{ {" + ", ".join(f"'{n}': {n} | default(none)" for n in names) + "} | to_json }}"
    book = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars": {"ansible_python_interpreter": sys.executable},
            "roles": ["sglang_build"],
            "post_tasks": [
                {
                    "ansible.builtin.copy": {"content": dump, "dest": str(facts), "mode": "0644"},
                    "check_mode": False,
                    "changed_when": False,
                    "diff": False,
                }
            ],
        }
    ]
    (folder / "play.yml").write_text(json.dumps(book))
    given = {"plumbline_root": str(root), "sglang_build_pip_environment": pip or {}, **variables}
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            "localhost,",
            str(folder / "play.yml"),
            "-e",
            json.dumps(given),
            *arguments,
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    return Played(
        done.returncode, done.stdout + done.stderr, json.loads(facts.read_text()) if done.returncode == 0 else {}
    )


class Played:
    """What a run of the role gave."""

    def __init__(self, status: int, text: str, facts: dict[str, Any]) -> None:
        self.status, self.text, self.facts = status, text, facts

    @property
    def changed(self) -> int:
        """Number of changed tasks in the recap."""
        return int(self.text.rsplit("changed=", 1)[1].split()[0])
