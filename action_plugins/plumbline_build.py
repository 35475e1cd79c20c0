"""Read a build lock, pack and carry what a host needs, and have the build made there. Documentation:
library/plumbline_build.py."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Optional

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from plumbline.analysis import project
from plumbline.analysis.build import locks, pack
from plumbline.build.lock import file_serves, machine_of, needed_bytes
from plumbline.build.make import check_wheelhouse
from plumbline.digest import file_digest
from plumbline.errors import PlumblineError
from plumbline.state.redact import redact

display = Display()


class ActionModule(ActionBase):
    """One module call if the build is there; a second one, after carrying the files, if it must be made."""

    TRANSFERS_FILES = True
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: Optional[dict] = None) -> dict:
        result = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        try:
            result.update(self._build(dict(self._task.args), task_vars))
        except PlumblineError as error:
            result.update(failed=True, msg=str(error), error=error.as_dict())
        return result

    def _build(self, args: dict, task_vars: dict) -> dict:
        if not args.get("lock"):
            raise PlumblineError(
                "no lock was given", "plumbline_build, key lock", args.get("lock"), "a lock's name or file"
            )
        folders = {key: [Path(f) for f in args.get(key) or []] for key in ("lock_folders", "search")}
        lock, file = locks.load(
            str(args["lock"]),
            [*folders["lock_folders"], *project.BUILD_LOCKS],
            [*folders["search"], *project.SOURCES],
        )
        args.update(lock=file, document=locks.without_sources(lock))
        given = {str(k): str(v) for k, v in (args.get("pip_environment") or {}).items()}
        secrets = {k: v for k, v in given.items() if redact({k: v}) != {k: v}}
        args.update(pip_environment={k: v for k, v in given.items() if k not in secrets}, pip_secrets=secrets)
        carried = (
            Path(args["wheelhouse"])
            if args.get("wheelhouse") and args.get("wheelhouse_location") == "controller"
            else None
        )
        look = self._call(args, task_vars)
        if look.get("failed") or look.get("present") or self._task.check_mode:
            return look
        if carried:
            check_wheelhouse(carried, lock, file)
        gigabytes = f", {needed_bytes(lock) / 1e9:.1f} GB or more" if needed_bytes(lock) else ""
        display.display(
            f"{task_vars.get('inventory_hostname', '')}: {'; '.join(look['actions'])}{gigabytes}; "
            f"log: {look['build_dir']}/build.log"
        )
        with tempfile.TemporaryDirectory() as folder:
            wheels = self._stage(Path(folder), lock, carried, look["interpreter"]["minor"])
            staged = self._carry(Path(folder))
        made = self._call({**args, "staged": staged, "wheels": wheels}, task_vars)
        if not made.get("failed"):
            made["actions"] = look["actions"]
        return made

    def _call(self, args: dict, task_vars: dict) -> dict:
        return self._execute_module(module_name="plumbline_build", module_args=args, task_vars=task_vars)

    def _stage(self, folder: Path, lock: dict, carried: Optional[Path], python: str) -> list[dict[str, str]]:
        """Lay out in ``folder`` what the host needs; returns the packed local trees."""
        wheels = []
        for entry in lock["local"]:
            path = pack.pack(Path(entry["source"]), entry["version"], folder / "wheels")
            wheels.append({"name": entry["name"], "version": entry["version"], "sha256": file_digest(path)})
        for i, entry in enumerate(lock["patches"]):
            (folder / "patches").mkdir(exist_ok=True)
            shutil.copyfile(entry["source"], folder / "patches" / f"{i:03d}.patch")
        if carried:
            (folder / "wheelhouse").mkdir()
            for entry in lock["distributions"].values():
                for name in entry["files"]:
                    if (carried / name).is_file() and file_serves(name, python, machine_of(lock)):
                        (folder / "wheelhouse" / name).symlink_to((carried / name).resolve())
        return wheels

    def _carry(self, folder: Path) -> str:
        """Copy ``folder`` to a temporary one on the host, removed when the task ends; returns its path there."""
        if self._connection._shell.tmpdir is None:
            self._make_tmp_path()
        remote = self._connection._shell.join_path(self._connection._shell.tmpdir, "staged")
        folders = sorted({p.parent for p in folder.rglob("*") if not p.is_dir()} | {folder})
        names = [self._connection._shell.join_path(remote, str(p.relative_to(folder))) for p in folders]
        made = self._low_level_execute_command(
            f"mkdir -p {' '.join(self._connection._shell.quote(n) for n in names)}", sudoable=False
        )
        if made["rc"]:
            raise PlumblineError("nothing can be carried to the host", remote, made["stderr"].strip())
        paths = [remote, *names]
        for path in sorted(p for p in folder.rglob("*") if not p.is_dir()):
            target = self._connection._shell.join_path(remote, str(path.relative_to(folder)))
            self._transfer_file(str(path.resolve()), target)
            paths.append(target)
        self._fixup_perms2([self._connection._shell.tmpdir, *paths])
        return remote
