"""Sends the files of models that come from the controller. Documentation: library/plumbline_models.py.

The module looks first. Only if it names models that have to come from here are their files packed into one tar,
sent and unpacked; otherwise the module's one call is all that happens.
"""
from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from plumbline.analysis import controller_models
from plumbline.errors import PlumblineError
from plumbline.models.catalogue import Model, select


class ActionModule(ActionBase):
    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict | None = None) -> dict:
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        result = self._module(arguments, task_vars)
        if result.get("failed") or not result.get("needs"):
            return result
        try:
            models = select(result["needs"], arguments["catalogue"])
            root = Path(arguments.get("controller_root") or ".").expanduser()
            sources = {m.name: controller_models.folder_of(m, root) for m in models}
            for model in models:
                controller_models.check_digests(sources[model.name], model)
        except PlumblineError as e:
            return {"failed": True, "msg": str(e), "error": e.as_dict()}
        if self._task.check_mode:
            return result
        with tempfile.TemporaryDirectory(prefix="plumbline-models-") as folder:
            local = Path(folder) / "models.tar"
            pack(local, models, sources)
            remote = self._connection._shell.join_path(self._make_tmp_path(), "models.tar")
            try:
                self._transfer_file(str(local), remote)
                self._fixup_perms2((self._connection._shell.tmpdir, remote))
                return self._module({**arguments, "bundle": remote}, task_vars)
            finally:
                self._remove_tmp_path(self._connection._shell.tmpdir)

    def _module(self, arguments: dict[str, Any], task_vars: dict | None) -> dict:
        return self._execute_module(module_name="plumbline_models", module_args=arguments, task_vars=task_vars)


def pack(path: Path, models: list[Model], sources: dict[str, Path]) -> None:
    """A tar of the models' files, as ``<name>/<relative path>``."""
    with tarfile.open(path, "w") as tar:
        for model in models:
            for name in model.files:
                tar.add(sources[model.name] / name, arcname=f"{model.name}/{name}", recursive=False)
