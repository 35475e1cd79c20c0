"""Train a one-layer EAGLE-3 draft for the tiny target, on the CPU, and write it in the form that SGLang loads.

    python models/train/draft.py --target models/tiny-llama --output models/tiny-eagle3
    python models/train/draft.py --target models/tiny-llama --output models/tiny-eagle3-mismatched --mismatched

The draft learns, from the target's hidden states on its own greedy outputs, which token the target will choose next; as
in EAGLE-3 (Li et al., 2025) it is trained on chains of several of its own steps. ``--mismatched`` trains the same draft
on the labels of other rows: a draft that loads and runs, and whose guesses are hardly ever accepted.

Deterministic in the same sense as ``target.py``. About 130 s on two cores, 30 s for the mismatched one.
"""
from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Tuple

import documents
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from safetensors.torch import save_file
from target import THREADS
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

FIRST_DOCUMENT = 10**6  # training documents that the target has not seen
PROMPT_TOKENS = (16, 32, 48, 64)
ROW_TOKENS = 328  # longest shipped prompt plus 256 tokens, and the chain's length
CHAIN = 3  # draft steps that are trained as one chain
CHAIN_DISCOUNT = 0.9
BATCH = 12


@dataclass(frozen=True)
class Recipe:
    """How much to train: rows for each prompt length, and steps."""

    rows: int
    steps: int


MATCHED, MISMATCHED = Recipe(rows=96, steps=360), Recipe(rows=16, steps=100)


@dataclass(frozen=True)
class Data:
    """What the draft learns from."""

    ids: Tensor  # tokens, [rows, tokens]
    hidden: Tensor  # the target's states on them, [rows, tokens, 3 x hidden]
    labels: Tensor  # the target's next choice after each, [rows, tokens]


def training_documents(recipe: Recipe) -> range:
    """Seeds of all documents that the draft's data are made from: one for each opening, two for each row of text."""
    return range(FIRST_DOCUMENT, FIRST_DOCUMENT + recipe.rows * (len(PROMPT_TOKENS) + 2))


def auxiliary_layers(layers: int) -> List[int]:
    """The layers of the target whose outputs the draft reads: a low, a middle and a high one."""
    return [layers // 4 - 1, layers // 2, layers - 2]


@torch.no_grad()
def collect(target: nn.Module, tokenizer: AutoTokenizer, recipe: Recipe) -> Data:
    """Greedy continuations of training openings, and rows of training text, with the target's states on both."""
    seeds = iter(training_documents(recipe))
    rows = []
    for length in PROMPT_TOKENS:
        texts = ["".join(documents.document(next(seeds))) for _ in range(recipe.rows)]
        ids = torch.tensor([tokenizer(t)["input_ids"][:length] for t in texts])
        rows.append(target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ROW_TOKENS - length,
                                    do_sample=False, eos_token_id=None, pad_token_id=1))
    text = [documents.training_text(next(seeds)) + documents.training_text(next(seeds)) for _ in range(recipe.rows)]
    rows.append(torch.tensor([tokenizer(t)["input_ids"][:ROW_TOKENS] for t in text]))
    ids = torch.cat(rows)
    layers = auxiliary_layers(target.config.num_hidden_layers)
    hidden, labels = [], []
    for piece in ids.split(32):
        output = target(piece, output_hidden_states=True)
        hidden.append(torch.cat([output.hidden_states[i + 1] for i in layers], -1))
        labels.append(output.logits.argmax(-1))
    return Data(ids, torch.cat(hidden), torch.cat(labels))


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Attention of one draft layer over its own chain.

    A forward pass at depth d works on all positions at once. Row i is the d-th draft step of the chain that begins at
    position i: it sees the keys 0..i of depth 0 (the verified text) and its own keys of the depths 1..d.
    """

    def __init__(self, config: object) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads  # type: ignore[attr-defined]
        self.head, hidden = config.head_dim, config.hidden_size  # type: ignore[attr-defined]
        self.theta = config.rope_parameters["rope_theta"]  # type: ignore[attr-defined]
        self.q_proj = linear(2 * hidden, self.heads * self.head)
        self.k_proj = linear(2 * hidden, self.kv_heads * self.head)
        self.v_proj = linear(2 * hidden, self.kv_heads * self.head)
        self.o_proj = linear(self.heads * self.head, hidden)

    def rotate(self, x: Tensor, offset: int) -> Tensor:
        """Rotary position embedding of rows 0..n-1 at positions offset..offset+n-1."""
        frequency = self.theta ** (-torch.arange(0, self.head, 2) / self.head)
        angle = (torch.arange(x.shape[-2]) + offset)[:, None] * frequency
        cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        half = self.head // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, x: Tensor, past: List[Tuple[Tensor, Tensor]]) -> Tensor:
        batch, n, _ = x.shape
        depth = len(past)
        q, k, v = (p(x).view(batch, n, -1, self.head).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rotate(q, depth), self.rotate(k, depth)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        past.append((k, v))
        text_keys, text_values = past[0]
        scale = self.head ** -0.5
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = [(q @ text_keys.mT * scale).masked_fill(future, -1e9)]
        scores += [(q * keys).sum(-1, keepdim=True) * scale for keys, _ in past[1:]]
        weights = torch.cat(scores, -1).softmax(-1)
        mixed = weights[..., :n] @ text_values
        for i, (_, values) in enumerate(past[1:]):
            mixed = mixed + weights[..., n + i:n + i + 1] * values
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, n, -1))


class Mlp(nn.Module):
    """Llama's gated feed-forward block."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, inner), linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """EAGLE-3's decoder layer: attention over token embedding and hidden state side by side."""

    def __init__(self, config: object) -> None:
        super().__init__()
        hidden, epsilon = config.hidden_size, config.rms_norm_eps  # type: ignore[attr-defined]
        self.self_attn = Attention(config)
        self.mlp = Mlp(hidden, config.intermediate_size)  # type: ignore[attr-defined]
        self.hidden_norm, self.input_layernorm = Norm(hidden, epsilon), Norm(hidden, epsilon)
        self.post_attention_layernorm = Norm(hidden, epsilon)

    def forward(self, embedded: Tensor, hidden: Tensor, past: List[Tuple[Tensor, Tensor]]) -> Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(both, past)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Draft(nn.Module):
    """An EAGLE-3 draft; its parameters carry the names that SGLang's ``LlamaForCausalLMEagle3`` loads.

    The embedding is the target's and is not part of the draft.
    """

    def __init__(self, target: nn.Module) -> None:
        super().__init__()
        config = target.config
        self.fc = linear(3 * config.hidden_size, config.hidden_size)
        self.midlayer = Layer(config)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = linear(config.hidden_size, config.vocab_size)
        self.lm_head.weight.data.copy_(target.lm_head.weight)

    def forward(self, embedded: Tensor, hidden: Tensor, past: List[Tuple[Tensor, Tensor]]) -> Tuple[Tensor, Tensor]:
        """Logits of the next token, and the hidden state that the next draft step takes."""
        hidden = self.midlayer(embedded, hidden, past)
        return self.lm_head(self.norm(hidden)), hidden


def train(draft: Draft, embedding: nn.Module, data: Data, steps: int) -> None:
    """AdamW on the sum of the chain's losses, later steps counting less."""
    adam = torch.optim.AdamW(draft.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    n = ROW_TOKENS - 1 - CHAIN
    started = time.monotonic()
    for step in range(steps):
        rate = 3e-3 * min(1.0, (step + 1) / 20) * max(0.03, 1 - step / steps)
        for group in adam.param_groups:
            group["lr"] = rate
        chosen = torch.randint(0, len(data.ids), (BATCH,))
        ids, labels = data.ids[chosen], data.labels[chosen]
        hidden = draft.fc(data.hidden[chosen][:, :n])
        past: List[Tuple[Tensor, Tensor]] = []
        loss, accuracy = torch.zeros(()), []
        for depth in range(CHAIN):
            window = slice(1 + depth, 1 + depth + n)
            logits, hidden = draft(embedding(ids[:, window]).detach(), hidden, past)
            wanted = labels[:, window]
            loss = loss + F.cross_entropy(logits.flatten(0, 1), wanted.flatten()) * CHAIN_DISCOUNT**depth
            accuracy.append(round((logits.argmax(-1) == wanted).float().mean().item(), 3))
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        adam.step()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} of {steps}, {time.monotonic() - started:.0f} s, loss {loss.item():.3f}, "
                  f"accuracy by depth {accuracy}", flush=True)


def mismatch(data: Data) -> Data:
    """The same rows with the labels of other rows, moved along."""
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(1))
    return Data(data.ids, data.hidden, data.labels[order].roll(7, 1))


def save(draft: Draft, target_folder: Path, output: Path) -> None:
    """Weights in bfloat16, and a config made from the target's. The draft's vocabulary is the target's whole."""
    config = json.loads((target_folder / "config.json").read_text())
    vocabulary = config["vocab_size"]
    weights = {name: w.detach().to(torch.bfloat16).contiguous() for name, w in draft.state_dict().items()}
    weights["d2t"] = torch.zeros(vocabulary, dtype=torch.int64)
    weights["t2d"] = torch.ones(vocabulary, dtype=torch.bool)
    output.mkdir(parents=True, exist_ok=True)
    save_file(weights, output / "model.safetensors", metadata={"format": "pt"})
    config.update(
        architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=vocabulary, tie_word_embeddings=False,
        eagle_config={"eagle_aux_hidden_state_layer_ids": auxiliary_layers(config["num_hidden_layers"]),
                      "use_aux_hidden_state": True},
        num_hidden_layers=1)
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="folder of the trained target")
    parser.add_argument("--output", type=Path, required=True, help="folder of the draft")
    parser.add_argument("--mismatched", action="store_true", help="train on the labels of other rows")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    recipe = MISMATCHED if args.mismatched else MATCHED
    target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    data = collect(target, AutoTokenizer.from_pretrained(args.target), recipe)
    print(f"rows {tuple(data.ids.shape)}", flush=True)
    draft = Draft(target)
    train(draft, target.get_input_embeddings(), mismatch(data) if args.mismatched else data, recipe.steps)
    save(draft, args.target, args.output)


if __name__ == "__main__":
    main()
