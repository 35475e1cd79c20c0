"""Make a build of the carried SGLang beside the machine's own torch, and the controller's environment. Runs on the GPU machine.

    python3 assemble.py WORK          (with the machine's Python, the one that holds torch)

The machine reaches no index and has a torch that fits its driver, so the build is not made from a lock by pip: its virtual
environment holds the carried packages, and a `.pth` file lets it see the machine's. The lock (`WORK/locks/gpu-carried.yml`) and
the manifest say so: each carried wheel with its SHA-256, patches, and as overrides everything that SGLang asks for and that is
another version or absent here. Both are read by the project's own roles, which then find the build made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
NAME = "gpu-carried"
# Controls where SGLang's small kernels are kept, and that it asks nobody outside.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
}


def machine_site() -> Path:
    """The folder of the machine's packages: where torch is."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit(f"{sys.executable} has no torch; give the Python that holds it")
    return Path(spec.origin).parent.parent


def environment_with(python: str, folder: Path, paths: Iterable[Path]) -> Path:
    """A virtual environment without pip that also sees ``paths``, after its own packages; returns its site-packages."""
    subprocess.run([python, "-I", "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next((folder / "lib").glob("python3.*")) / "site-packages"
    (site / "machine.pth").write_text("".join(f"{p}\n" for p in paths))
    return site


def unmet(sglang: Distribution, have: dict[str, str]) -> list[dict[str, Any]]:
    """What SGLang requires and this build has otherwise or not at all, as a lock's overrides."""
    from packaging.requirements import Requirement
    from plumbline.build.lock import normal_name

    out = []
    for text in sglang.requires or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = have.get(normal_name(requirement.name))
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            continue
        why = "the machine's own" if version else "not imported by what the run on GPUs serves"
        out.append(
            {"name": requirement.name, "wanted": str(requirement.specifier) or "any", "chosen": version, "why": why}
        )
    return sorted(out, key=lambda o: str(o["name"]).lower())


def make_lock(work: Path, carried: dict[str, Any], overrides: list[dict[str, Any]], python: str) -> Path:
    """Write the lock; returns its file."""
    import yaml
    from plumbline.digest import file_digest

    patches = sorted((HERE / "patches").glob("*.patch"))
    lock = {
        "schema": "plumbline.build/1",
        "name": NAME,
        "description": "SGLang as carried to a GPU machine, beside that machine's torch; assembled, not installed by pip",
        "engine": "sglang-cuda",
        "python": [python],
        "platform": "linux-x86_64",
        "distributions": {
            name: {"version": c["version"], "files": {c["file"]: c["sha256"]}}
            for name, c in carried.items()
            if c["part"] != "controller"
        },
        "local": [{"path": "stubs"}],
        "patches": [{"file": f"patches/{p.name}", "sha256": file_digest(p)} for p in patches],
        "overrides": overrides,
        "environment": {**ENVIRONMENT, "TVM_FFI_CACHE_DIR": str(work / "jit")},
    }
    path = work / "locks" / f"{NAME}.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(lock, sort_keys=False, width=140))
    return path


def make_build(work: Path, lock: dict[str, Any], site_from: Path, machine: Path, python: str) -> Path:
    """Lay the build out and write its manifest last; returns its folder."""
    from plumbline.analysis.build import locks, pack
    from plumbline.build import installed, manifest, patch
    from plumbline.build.lock import build_digest, lock_digest
    from plumbline.digest import file_digest
    from plumbline.files import write_json
    from plumbline.sglang import options

    began = time.monotonic()
    identity = lock_digest(locks.without_sources(lock))
    digest = build_digest(identity, python)
    build = manifest.builds_dir(work / "root") / digest
    if manifest.read(build):
        return build
    # Without its manifest it is half-made.
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    site = environment_with(sys.executable, build / "venv", [machine])
    for path in site_from.iterdir():
        path.rename(site / path.name)
    for entry in lock["local"]:
        wheel = pack.pack(Path(entry["source"]), entry["version"], build / "wheels")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    patched = []
    for entry in lock["patches"]:
        changed = patch.apply(
            site, Path(entry["source"]).read_text(), entry.get("strip", 1), f"patch {entry['file']}"
        )
        patched.append(
            {
                "file": entry["file"],
                "sha256": entry["sha256"],
                "files": {n: None if t is None else file_digest(site / n) for n, t in sorted(changed.items())},
            }
        )
    own = manifest.python_of(build)
    subprocess.run([own, "-I", "-m", "compileall", "-q", "-j", "0", site], check=False, stdout=subprocess.DEVNULL)
    compiled = time.monotonic() - began
    answer = build / "options.json"
    subprocess.run(options.argv(str(own), str(answer)), check=True, env={**os.environ, **lock["environment"]})
    found = {installed.normal_name(d.metadata["Name"]): d.version for d in distributions(path=[str(machine)])}
    found.update({installed.normal_name(d.metadata["Name"]): d.version for d in distributions(path=[str(site)])})
    write_json(
        build / manifest.FILE,
        {
            "schema": manifest.SCHEMA,
            "digest": digest,
            "name": lock["name"],
            "engine": lock["engine"],
            "sglang_version": found["sglang"],
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": installed.torch_of(machine),
            "nccl_version": installed.nccl_of(found),
            "distributions": dict(sorted(found.items())),
            "options": options.tidy(json.loads(answer.read_text())),
            "environment": lock["environment"],
            "patches": patched,
            "overrides": lock["overrides"],
            "lock_digest": identity,
            "interpreter": sys.executable,
            "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "took_s": {"layout": round(compiled, 1), "all": round(time.monotonic() - began, 1)},
        },
    )
    manifest.switch(work / "root", digest)
    return build


def make_controller(work: Path, machine: Path) -> None:
    """A Python with ansible-core and the project's package: ``WORK/controller-venv/bin/ansible-playbook``."""
    folder = work / "controller-venv"
    environment_with(sys.executable, folder, [work / "controller", PROJECT / "module_utils", machine])
    script = folder / "bin" / "ansible-playbook"
    script.write_text(f"#!{folder}/bin/python\nimport sys\nfrom ansible.cli.playbook import main\nsys.exit(main())\n")
    script.chmod(0o755)


def main() -> None:
    work = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(work / "controller"), str(PROJECT / "module_utils")]
    from plumbline.analysis.build import locks
    from plumbline.build.lock import normal_name

    machine = machine_site()
    python = ".".join(map(str, sys.version_info[:2]))
    # The script is written last.
    if not (work / "controller-venv" / "bin" / "ansible-playbook").exists():
        shutil.rmtree(work / "controller-venv", ignore_errors=True)
        make_controller(work, machine)
    carried = json.loads((work / "carried.json").read_text())
    lock_file = work / "locks" / f"{NAME}.yml"
    if not lock_file.exists():
        have = {normal_name(d.metadata["Name"]): d.version for d in distributions(path=[str(machine)])}
        have.update({normal_name(d.metadata["Name"]): d.version for d in distributions(path=[str(work / "site")])})
        sglang = next(d for d in distributions(path=[str(work / "site")]) if d.metadata["Name"] == "sglang")
        make_lock(work, carried, unmet(sglang, have), python)
    lock, _ = locks.load(NAME, [work / "locks"], [HERE])
    build = make_build(work, lock, work / "site", machine, python)
    print(f"build {build.name[:12]}")


if __name__ == "__main__":
    main()
