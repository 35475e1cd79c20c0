"""An SGLang-shaped server with declared physics. It computes nothing and is not SGLang."""

from sglang.version import __version__

__all__ = ["__version__"]
