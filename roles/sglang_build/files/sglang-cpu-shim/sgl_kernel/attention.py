"""Attention over the paged KV cache, in plain torch, under the operator names of the intel_amx backend.

Buffers are ``[slots, heads, head dimension]``, queries ``[tokens, heads, head dimension]``.
"""

# The operators' signatures are SGLang's: some arguments matter to its kernels alone.
# ruff: noqa: ARG001
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

_library: Any = None

_DECODE = (
    "decode_attention_cpu(Tensor query, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, float v_scale, "
    "Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
_EXTEND = (
    "extend_attention_cpu(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, Tensor(a!) o_extend, Tensor k_buffer, "
    "Tensor v_buffer, float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
    "bool is_cross_attn, int sliding_window, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, "
    "bool is_causal) -> ()"
)


def register() -> None:
    """Define the two operators in torch's registry, where SGLang looks them up."""
    global _library
    _library = torch.library.Library("sgl_kernel", "FRAGMENT")
    _library.define(_DECODE)
    _library.define(_EXTEND)
    _library.impl("decode_attention_cpu", decode_attention, "CPU")
    _library.impl("extend_attention_cpu", extend_attention, "CPU")


def _refuse_others(
    logit_cap: float, is_cross_attn: bool, encoder_lens: Optional[Tensor], sinks: Optional[Tensor]
) -> None:
    if logit_cap or is_cross_attn or encoder_lens is not None or sinks is not None:
        raise NotImplementedError("logit cap, cross attention and sinks are not in the torch attention")


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], scale: float, causal: bool = False) -> Tensor:
    """Attention of ``[tokens, heads, dimension]`` tensors, a batch dimension before them allowed."""
    q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q,
        k.to(q.dtype),
        v.to(q.dtype),
        attn_mask=mask,
        scale=scale,
        is_causal=causal,
        enable_gqa=q.shape[-3] != k.shape[-3],
    )
    return out.transpose(-3, -2)


class _Batch:
    """Where the keys and values of a decode batch lie: the same in every layer of one forward, so looked up once."""

    def __init__(self) -> None:
        self._of: Tuple[Tensor, ...] = ()
        self._values: Any = None
        self._seen: Tuple[Tensor, Optional[Tensor]] = (torch.empty(0), None)

    def see(
        self, req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, loc: Tensor, sliding_window: int
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """(slots, ``[requests * longest]``; what to add to the scores, ``[requests, 1, 1, longest]``, -inf where there
        is no token, or None). A forward is known by its tensors, held here so that no later one is taken for them,
        and by the slots of its new tokens, should somebody write into the same tensors."""
        of = (req_to_token, req_pool_indices, seq_lens, loc)
        values = (sliding_window, loc.tolist())
        if self._values == values and all(a is b for a, b in zip(self._of, of)):
            return self._seen
        width, shortest = int(seq_lens.max()), int(seq_lens.min())
        slots = req_to_token[req_pool_indices, :width].long()
        bias = None
        if shortest < width or 0 < sliding_window < width:
            at = torch.arange(width)
            mask = at < seq_lens[:, None]
            if sliding_window > 0:
                mask &= at >= seq_lens[:, None] - sliding_window
            slots = torch.where(mask, slots, 0)
            bias = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))[:, None, None]
        self._of, self._values, self._seen = of, values, (slots.flatten(), bias)
        return self._seen


_batch = _Batch()


def decode_attention(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Optional[Tensor],
    value: Optional[Tensor],
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Optional[Tensor],
    sinks: Optional[Tensor],
) -> None:
    """One new token for each request: store its key and value, attend to the whole sequence, write `output`."""
    _refuse_others(logit_cap, is_cross_attn, encoder_lens, sinks)
    if key is not None and value is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    slots, bias = _batch.see(req_to_token, req_pool_indices, seq_lens, loc, sliding_window)
    requests, heads, _ = query.shape
    # One batched product for all requests and the queries that share a key head: for one token each this costs half of
    # what scaled_dot_product_attention does.
    q = query.float().reshape(requests, k_buffer.shape[1], -1, query.shape[-1])
    k, v = (b.index_select(0, slots).float().view(requests, -1, *b.shape[1:]) for b in (k_buffer, v_buffer))
    scores = torch.matmul(q, k.permute(0, 2, 3, 1)).mul_(sm_scale)
    if bias is not None:
        scores.add_(bias)
    output.copy_(torch.matmul(torch.softmax(scores, -1), v.permute(0, 2, 1, 3)).reshape(requests, heads, -1))


def extend_attention(
    q_extend: Tensor,
    k_extend: Optional[Tensor],
    v_extend: Optional[Tensor],
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: Optional[Tensor],
    sinks: Optional[Tensor],
    tree_mask: Optional[Tensor],
    is_causal: bool,
) -> None:
    """Several new tokens for each request (prefill, draft extend, verify), the last `extend_seq_lens` of its sequence.

    `tree_mask`, if given, says flatly for each request which new tokens see which new ones; all see what came before.
    """
    _refuse_others(logit_cap, is_cross_attn, encoder_lens, sinks)
    tree_at = 0
    requests = zip(req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist())
    for row, n, m, start in requests:
        if m == 0:
            continue
        slots = req_to_token[row, :n].long()
        k, v = k_buffer[slots], v_buffer[slots]
        if k_extend is not None and v_extend is not None:
            k[n - m :] = k_extend[start : start + m].view(m, *k.shape[1:]).to(k.dtype)
            v[n - m :] = v_extend[start : start + m].view(m, *v.shape[1:]).to(v.dtype)
        mask, plainly_causal = None, False
        if tree_mask is not None:
            mask = torch.ones(m, n, dtype=torch.bool)
            mask[:, n - m :] = tree_mask[tree_at : tree_at + m * m].view(m, m).bool()
            tree_at += m * m
        elif is_causal and m == n and sliding_window <= 0:
            plainly_causal = True
        elif is_causal:
            query_at, key_at = torch.arange(n - m, n)[:, None], torch.arange(n)
            mask = key_at <= query_at
            if sliding_window > 0:
                mask &= key_at > query_at - sliding_window
        o_extend[start : start + m] = _attend(q_extend[start : start + m], k, v, mask, sm_scale, plainly_causal)
