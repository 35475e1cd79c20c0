"""The one function that NGRAM speculation imports from here."""

from __future__ import annotations

import torch
from torch import Tensor


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Fill in positions and tree links from each request's tree mask ``[batch, n, n]``.

    Token i's ancestors are the set bits before i in its row of the mask: its depth is their number, its parent the
    last of them.
    """
    n = draft_token_num
    mask = tree_mask.view(batch_size, n, n).bool().tolist()
    lengths = verified_seq_len.tolist()
    for b in range(batch_size):
        next_token, next_sibling = [-1] * n, [-1] * n
        last_child: dict[int, int] = {}
        place = []
        for i in range(n):
            ancestors = [j for j in range(i) if mask[b][i][j]]
            place.append(lengths[b] + len(ancestors))
            if not ancestors:
                continue
            parent = ancestors[-1]
            if next_token[parent] == -1:
                next_token[parent] = i
            else:
                next_sibling[last_child[parent]] = i
            last_child[parent] = i
        positions.view(batch_size, n)[b] = torch.tensor(place)
        retrive_index.view(batch_size, n)[b] = torch.arange(b * n, (b + 1) * n)
        retrive_next_token.view(batch_size, n)[b] = torch.tensor(next_token)
        retrive_next_sibling.view(batch_size, n)[b] = torch.tensor(next_sibling)
