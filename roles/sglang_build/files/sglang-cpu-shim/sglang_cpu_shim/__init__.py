"""Lets PyPI's (CUDA-built) torchvision be imported under a CPU build of torch.

torchvision's Python side registers implementations for two operators whose schemas its CUDA library would declare.
Here they are declared instead; they are never called. torch calls `autoload` itself at the end of `import torch`
(entry point `torch.backends`).
"""

from __future__ import annotations

from typing import Any

_library: Any = None


def autoload() -> None:
    """Declare torchvision's operators once, if torch is a CPU build and nothing has declared them."""
    global _library
    import torch

    if _library is not None or torch.version.cuda is not None:
        return
    try:
        torch.ops.torchvision.nms  # noqa: B018  (the look-up is the question)
    except AttributeError:
        _library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            _library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
