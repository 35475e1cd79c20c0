"""The sgl_kernel entry points that SGLang's CPU path imports, in plain torch.

PyPI's sglang-kernel holds CUDA builds alone, and SGLang's CPU path (``SGLANG_USE_CPU_ENGINE=1``) imports these names
unconditionally. Each follows the Triton kernel of the same name in ``sglang/kernels/ops/`` and
``sglang/srt/mem_cache/allocation.py``. All tensors are small (request rows, draft trees), so loops in Python are fast
enough.

Not here: MLA, MoE, Mamba, quantised layers, attention sinks, logit caps, cross attention.
"""

from __future__ import annotations

from .attention import register
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.4.10+cpu.torch"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

register()
