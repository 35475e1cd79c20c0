"""Bookkeeping of the KV cache: which slot of the pool holds which token of which request.

`req_to_token` is ``[requests, positions]`` and holds slot numbers; `out_cache_loc` holds the slots given to new
tokens, request by request. `pool_len` and the like are strides that the kernels need and indexing does not.
"""

# The signatures are SGLang's: `pool_len` matters to its kernels alone.
# ruff: noqa: ARG001
from __future__ import annotations

import ctypes
from typing import Optional

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write the new slots of each request into its row, from its start to its end position."""
    at = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start].to(req_to_token.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The other way round: read each request's slots from its row into `out_cache_loc`."""
    at = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        out_cache_loc[at : at + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the ``topk * num_steps`` draft slots that follow each request's sequence."""
    n = topk * num_steps
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        out_cache_loc[i * n : (i + 1) * n] = req_to_token[row, length : length + n].to(out_cache_loc.dtype)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Take each request's last accepted token, which is the target's own: the bonus token."""
    n = accept_lens.numel()
    at = torch.arange(n, device=accept_lens.device) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:n] = accept_tokens.flatten()[at].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Gather the slots of the accepted tokens (index -1: not accepted)."""
    keep = accept_index.flatten()
    keep = keep[keep > -1].long()
    accept_out_cache_loc[: keep.numel()] = out_cache_loc[keep].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Optional[Tensor] = None,
) -> None:
    """Shift each request's input by one token to the left and put its newly chosen token at the end (or at
    `select_index`)."""
    new = topk_index.flatten()
    for i, (start, n) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist())):
        if n <= 0:
            continue
        input_ids[start : start + n - 1] = input_ids[start + 1 : start + n].clone()
        end = start + n - 1 if select_index is None else int(select_index[i])
        input_ids[end] = new[i]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slots to other slots in every layer's buffer. All rows are read before the first is written: safe in
    place."""
    source, target = src_loc.tolist(), tgt_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist()):
        rows = [ctypes.string_at(base + s * stride, stride) for s in source]
        for row, t in zip(rows, target):
            ctypes.memmove(base + t * stride, row, stride)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """One row for each draft candidate: the request's prefix slots, then that candidate's own draft slots."""
    lengths = seq_lens.tolist()
    out = req_to_token.new_zeros((len(lengths) * topk, max(lengths, default=0) + num_steps))
    for b, (row, n) in enumerate(zip(req_pool_indices.tolist(), lengths)):
        for t in range(topk):
            out[b * topk + t, :n] = req_to_token[row, :n]
            out[b * topk + t, n : n + num_steps] = req_to_token[row, n + t * num_steps : n + (t + 1) * num_steps]
    return out
