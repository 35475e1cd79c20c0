"""Runs the module from a worker that ends with its controller. Documentation: library/plumbline_throughput.py."""
from __future__ import annotations

from typing import Any, Optional

from ansible.plugins.action import ActionBase
from plumbline.analysis.worker import die_with_controller


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict] = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        die_with_controller()
        result.update(self._execute_module(module_name="plumbline_throughput", task_vars=task_vars))
        return result
