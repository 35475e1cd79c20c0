"""Makes two apt repositories of empty packages: NVIDIA's, by its names, versions and dependencies, and another's.

    repository.py FOLDER     FOLDER/repositories.tar (nvidia/, other/), FOLDER/key.asc

Both families of names are there: Ubuntu's, which hold the branch below 590 and do not from 590 on, and Debian's. The
other repository has newer versions, which no pin may let in. NVIDIA's is signed with a key made for the occasion.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

VERSIONS = ("580.95.05", "580.105.08", "595.58.03")
NVML = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{}"
UNIT = """\
[Unit]
Description=stand-in
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
"""
Package = dict[str, object]


def package(name: str, version: str, files: dict[str, str] | None = None, **fields: str) -> Package:
    return {"name": name, "version": version, "files": files or {}, "fields": fields}


def debian(v: str) -> list[Package]:
    full = f"{v}-1"
    kernel = {
        "Provides": "nvidia-kernel-module",
        "Conflicts": "nvidia-kernel-module, nvidia-dkms-kernel",
        "Replaces": "nvidia-kernel-module",
    }
    return [
        package(
            "libnvidia-ml1", full, {NVML.format(v): ""}, Conflicts="libnvidia-compute", Replaces="libnvidia-compute"
        ),
        package("libcuda1", full, Depends=f"libnvidia-ml1 (= {full})"),
        package("nvidia-driver-cuda", full, Depends=f"libcuda1 (= {full}), libnvidia-ml1 (= {full})"),
        package("nvidia-kernel-open-dkms", full, Depends="dkms", **kernel),
        package("nvidia-kernel-dkms", full, Depends="dkms", **kernel),
        package(
            "nvidia-persistenced",
            full,
            {"usr/lib/systemd/system/nvidia-persistenced.service": UNIT},
            Conflicts="nvidia-persistence-daemon",
            Replaces="nvidia-persistence-daemon",
            Provides="nvidia-persistence-daemon",
        ),
        package("nvidia-open", full, Depends=f"nvidia-driver-cuda (= {full}), nvidia-kernel-open-dkms (= {full})"),
    ]


def ubuntu(v: str) -> list[Package]:
    full, number = f"{v}-1ubuntu1", int(v.split(".")[0])
    s = f"-{number}" if number < 590 else ""
    one = {
        "Provides": "nvidia-dkms-kernel",
        "Conflicts": "nvidia-dkms-kernel, nvidia-kernel-module",
        "Replaces": "nvidia-dkms-kernel",
    }
    library = {
        "Provides": "libnvidia-compute-any",
        "Conflicts": "libnvidia-compute-any, libnvidia-ml1",
        "Replaces": "libnvidia-compute-any, libnvidia-ml1",
    }
    tools = {"Provides": "nvidia-utils-any", "Conflicts": "nvidia-utils-any", "Replaces": "nvidia-utils-any"}
    daemon = {
        "Provides": "nvidia-persistence-daemon",
        "Conflicts": "nvidia-persistence-daemon",
        "Replaces": "nvidia-persistence-daemon",
    }
    return [
        package(f"libnvidia-compute{s}", full, {NVML.format(v): ""}, **library),
        package(f"nvidia-dkms{s}-open", full, Depends="dkms", **one),
        package(f"nvidia-utils{s}", full, Depends=f"libnvidia-compute{s} (= {full})", **tools),
        package(
            f"nvidia-compute-utils{s}",
            full,
            {"usr/lib/systemd/system/nvidia-persistenced.service": UNIT},
            Depends=f"libnvidia-compute{s}",
            **daemon,
        ),
        package(
            f"nvidia-open{s}",
            full,
            Depends=f"libnvidia-compute{s} (= {full}), nvidia-dkms{s}-open (= {full}), nvidia-utils{s} (= {full})",
        ),
    ]


def pinning(v: str) -> Package:
    text = f"Package: *nvidia* libcuda1 cuda-drivers*\nPin: version {v}-*\nPin-Priority: 1000\n"
    return package(
        f"nvidia-driver-pinning-{v}",
        f"{v}-1",
        {"etc/apt/preferences.d/nvidia-driver-pinning": text},
        Provides="nvidia-driver-pinning",
        Conflicts="nvidia-driver-pinning",
        Replaces="nvidia-driver-pinning",
    )


def build(made: Package, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        root.chmod(0o755)
        (root / "DEBIAN").mkdir()
        lines = {
            "Package": made["name"],
            "Version": made["version"],
            "Architecture": "amd64",
            "Maintainer": "tests <root@localhost>",
            **made["fields"],
            "Description": "stand-in with nothing in it",
        }  # type: ignore[dict-item]
        (root / "DEBIAN/control").write_text("".join(f"{k}: {v}\n" for k, v in lines.items()))
        for path, text in made["files"].items():  # type: ignore[attr-defined]
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def index(folder: Path, label: str, home: str = "") -> None:
    """Packages and Release, and with a key's home InRelease, which is signed."""
    scanned = subprocess.run(
        ["dpkg-scanpackages", "--multiversion", "."], cwd=folder, check=True, capture_output=True
    ).stdout
    (folder / "Packages").write_bytes(scanned)
    date = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime(time.time() - 3600))
    release = (
        f"Origin: {label.split()[0]}\nLabel: {label}\nSuite: stable\nArchitectures: amd64\nDate: {date}\nSHA256:\n"
        f" {hashlib.sha256(scanned).hexdigest()} {len(scanned)} Packages\n"
    )
    (folder / "Release").write_text(release)
    if home:
        signed = subprocess.run(
            ["gpg", "--batch", "--homedir", home, "--clearsign", "--output", "-"],
            input=release.encode(),
            check=True,
            capture_output=True,
        )
        (folder / "InRelease").write_bytes(signed.stdout)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        nvidia, other, home = top / "nvidia", top / "other", top / "home"
        for path in (nvidia, other, home):
            path.mkdir()
        home.chmod(0o700)
        for version in VERSIONS:
            for made in (*debian(version), *ubuntu(version), pinning(version)):
                build(made, nvidia)
        build(package("dkms", "99.0-1"), nvidia)
        for name in ("libcuda1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libnvidia-compute-580"):
            build(package(name, "999.1-1"), other)
        gpg = ["gpg", "--batch", "--homedir", str(home)]
        quiet = {"check": True, "stderr": subprocess.DEVNULL}
        subprocess.run([*gpg, "--passphrase", "", "--quick-generate-key", "tests", "ed25519", "sign", "1d"], **quiet)  # type: ignore[call-overload]
        key = subprocess.run([*gpg, "--armor", "--export"], check=True, capture_output=True).stdout
        index(nvidia, "NVIDIA CUDA", str(home))
        index(other, "Other")
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"], check=False)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path in (nvidia, other):
                archive.add(path, arcname=path.name)
        (folder / "repositories.tar").write_bytes(buffer.getvalue())
        (folder / "key.asc").write_bytes(key)


if __name__ == "__main__":
    os.umask(0o022)
    main(Path(sys.argv[1]))
