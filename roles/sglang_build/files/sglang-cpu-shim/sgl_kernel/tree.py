"""Draft trees of EAGLE: built from the draft's choices, and walked along the target's.

A tree of one request has `draft_token_num` slots; slot 0 is the root, the last verified token. `retrive_next_token`
holds each slot's first child, `retrive_next_sibling` its next sibling, -1 where there is none (the spelling is
SGLang's).
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

_FULL_MASK = 0
_BIT_PACKED = 2


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill in mask, positions and links of each request's tree. `retrive_*` come in filled with -1.

    `tree_mask` is flat. In full-mask mode each of a request's n rows covers its whole sequence and the n draft
    tokens; else the n draft tokens alone.
    """
    mode = int(tree_mask_mode)
    if mode == _BIT_PACKED:
        raise NotImplementedError("QLEN_ONLY_BITPACKING")
    n = draft_token_num
    mask, position = tree_mask.view(-1), positions.view(-1)
    index, first_child, sibling = (t.view(-1, n) for t in (retrive_index, retrive_next_token, retrive_next_sibling))
    parents, picked = parent_list.tolist(), selected_index.tolist()
    before = 0  # tokens of all requests before this one
    for b, seq in enumerate(verified_seq_len.tolist()):
        selected = picked[b][: n - 1]
        parent = _parents(selected, parents[b], topk)
        next_token, next_sibling = first_child[b].tolist(), sibling[b].tolist()
        for i in range(n - 1, 0, -1):  # backwards, so that the first child comes first
            up = parent[i - 1]
            if up is not None:
                if next_token[up] != -1:
                    next_sibling[i] = next_token[up]
                next_token[up] = i
        index[b] = torch.arange(b * n, (b + 1) * n)
        first_child[b] = torch.tensor(next_token, dtype=first_child.dtype)
        sibling[b] = torch.tensor(next_sibling, dtype=sibling.dtype)
        for x in range(n):
            prefix = before * n + (seq + n) * x + seq if mode == _FULL_MASK else n * x
            start = n * n * b + prefix
            mask[start] = 1
            mask[start + 1 : start + n] = 0
            steps, at = 0, x - 1
            while x > 0 and steps < depth:
                steps += 1
                mask[start + 1 + at] = 1
                up = parent[at]
                if not up:
                    break
                at = up - 1
            position[b * n + x] = seq + steps
        before += seq


def _parents(selected: list[int], parents: list[int], topk: int) -> list[Optional[int]]:
    """For each selected draft token, the slot (0 is the root) that it hangs from; None if that one was not selected."""
    place: dict[int, int] = {}
    for at, value in enumerate(selected):
        place.setdefault(value, at)
    out: list[Optional[int]] = []
    for value in selected:
        row = value // topk
        up = None if row == 0 else place.get(parents[row])
        out.append(0 if row == 0 else None if up is None else up + 1)
    return out


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each request's tree as long as a child is the token that the target would take, and note what was accepted.

    Written to: `predicts` (the target's token at each accepted slot), `accept_index`, `accept_token_num` (bonus token
    left out).
    """
    width, target = accept_index.shape[1], target_predict.view(-1).tolist()
    token, index, first_child, sibling = (
        t.tolist() for t in (candidates, retrive_index, retrive_next_token, retrive_next_sibling)
    )
    flat = predicts.view(-1)
    for b in range(len(token)):
        last, accepted, slot = index[b][0], 0, 0
        accept_index[b, 0] = last
        for _ in range(1, width):
            slot = first_child[b][slot]
            while slot != -1 and token[b][slot] != target[last]:
                slot = sibling[b][slot]
            if slot == -1:
                break
            flat[last] = target[last]
            accepted += 1
            last = index[b][slot]
            accept_index[b, accepted] = last
        accept_token_num[b] = accepted
        flat[last] = target[last]
