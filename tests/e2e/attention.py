"""Run by the engine's Python: the stand-in's decode attention gives what torch's own does, forward by forward."""
import torch
from sgl_kernel.attention import decode_attention


def reference(q, k_buffer, v_buffer, req_to_token, rows, lens, scale, window):
    out = torch.empty_like(q)
    for i, (row, n) in enumerate(zip(rows.tolist(), lens.tolist())):
        slots = req_to_token[row, :n].long()
        k, v = k_buffer[slots].transpose(0, 1), v_buffer[slots].transpose(0, 1)
        seen = torch.arange(n) >= (n - window if window > 0 else 0)
        out[i] = torch.nn.functional.scaled_dot_product_attention(
            q[i][:, None], k, v, attn_mask=seen[None], scale=scale, enable_gqa=True)[:, 0]
    return out


torch.manual_seed(1)
for requests, heads, kv_heads, window in ((1, 2, 1, -1), (5, 2, 1, -1), (5, 4, 2, -1), (5, 4, 4, 7)):
    k_buffer, v_buffer = torch.randn(512, kv_heads, 16), torch.randn(512, kv_heads, 16)
    req_to_token = torch.randperm(512, dtype=torch.int32)[: 8 * 60].view(8, 60)
    rows, lens = torch.randperm(8)[:requests], torch.randint(20, 40, (requests,))
    loc = torch.empty(requests, dtype=torch.long)
    # Several forwards, each with several layers; the tensors that say where the tokens lie are written in place.
    for _forward in range(4):
        lens += 1
        loc.copy_(req_to_token[rows, lens - 1])
        for _layer in range(3):
            q, key, value = torch.randn(requests, heads, 16), *torch.randn(2, requests, kv_heads, 16)
            out = torch.empty(requests, heads, 16)
            decode_attention(q, k_buffer, v_buffer, 1.0, 1.0, out, key, value, loc, out, req_to_token, rows, lens, 0.25,
                             0.0, False, window, None, None)
            assert torch.equal(k_buffer[loc], key) and torch.equal(v_buffer[loc], value)
            torch.testing.assert_close(
                out, reference(q, k_buffer, v_buffer, req_to_token, rows, lens, 0.25, window))
