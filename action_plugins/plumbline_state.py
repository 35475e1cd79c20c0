"""Runs the module from a worker that ends with its controller. Documentation: library/plumbline_state.py."""
from __future__ import annotations

from plumbline.analysis.action import ModuleInWorker


class ActionModule(ModuleInWorker):
    pass
