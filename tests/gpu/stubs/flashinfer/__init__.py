"""SGLang imports names of FlashInfer at its head; the run on GPUs samples with PyTorch and attends with Triton.

Every module below this one can be imported and has every name; what is called says that it is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# sglang-kernel has its own where these cannot be imported.
_USED = ("flashinfer.norm", "flashinfer.activation", "flashinfer.rope")


def _name_of(module: str, name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: object, **__: object) -> None:
        raise RuntimeError(f"{module}.{name} of FlashInfer is not in this build")

    return absent


class _Absent(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return (
            ModuleSpec(fullname, self, is_package=True)
            if fullname.startswith("flashinfer.") and fullname not in _USED
            else None
        )

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = lambda name: _name_of(module.__name__, name)  # type: ignore[method-assign]


sys.meta_path.append(_Absent())


def __getattr__(name: str) -> object:
    return _name_of("flashinfer", name)
