"""Train the tiny Llama target on the project's own text, on the CPU, and write it as a Hugging Face model folder.

    python models/train/target.py --output models/tiny-llama

Deterministic: fixed seeds, a fixed number of steps, a fixed number of threads. The same machine and the same versions
of torch, tokenizers and transformers give the same bytes. About 6 minutes on two cores.

The shape (16 thin layers) is chosen for measuring speculation: many layers make a decode step dear beside a step of a
one-layer draft, as in a large model.
"""
from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Iterator, List

import documents
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

STEPS, BATCH, ROW_TOKENS = 540, 10, 368
DOCUMENTS_PER_ROW = 2  # the shortest two are longer than a row, so which documents are seen depends on nothing else
TOKENIZER_DOCUMENTS = 4000
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start|>", "<|end|>"]
CHAT_TEMPLATE = ("{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
                 "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}")
MAX_POSITIONS = 2048
THREADS = 2


def training_documents(steps: int = STEPS) -> range:
    """Seeds of all documents that the tokenizer and the target see."""
    return range(max(TOKENIZER_DOCUMENTS, steps * BATCH * DOCUMENTS_PER_ROW))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that takes digits one by one; its merges run out below 1024 entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(("".join(documents.document(i)) for i in range(TOKENIZER_DOCUMENTS)), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAX_POSITIONS, bos_token=SPECIAL[0],
                                   eos_token=SPECIAL[1], pad_token=SPECIAL[1], additional_special_tokens=SPECIAL[2:])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(vocabulary: int) -> LlamaForCausalLM:
    """The untrained target. Each layer starts as the identity: 16 thin layers learn much faster so."""
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=128, num_hidden_layers=16, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=MAX_POSITIONS, bos_token_id=0, eos_token_id=1,
        tie_word_embeddings=False, attn_implementation="sdpa", initializer_range=0.04))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


class Muon:
    """Momentum, orthogonalised by a Newton-Schulz iteration, for the layers' matrices (Jordan et al., 2024).

    The matrices of one kind in all layers are treated as one batch.
    """

    MOMENTUM = 0.95
    COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration in Jordan's description

    def __init__(self, layers: torch.nn.Module) -> None:
        groups: dict = {}
        for name, parameter in layers.named_parameters():
            if parameter.ndim == 2:
                groups.setdefault(name.split(".", 1)[1], []).append(parameter)
        self.groups = list(groups.values())
        self.momentum = [torch.zeros(len(group), *group[0].shape) for group in self.groups]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for group, momentum in zip(self.groups, self.momentum):
            gradient = torch.stack([p.grad for p in group])
            momentum.lerp_(gradient, 1 - self.MOMENTUM)
            update = self.orthogonal(gradient.lerp(momentum, self.MOMENTUM))
            for parameter, u in zip(group, update):
                parameter.add_(u, alpha=-learning_rate * max(1.0, u.shape[0] / u.shape[1]) ** 0.5)

    @classmethod
    def orthogonal(cls, x: torch.Tensor) -> torch.Tensor:
        a, b, c = cls.COEFFICIENTS
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.mT if tall else x


def batches(tokenizer: PreTrainedTokenizerFast) -> Iterator[torch.Tensor]:
    """Batches of rows. Each row begins at a document's start, where a prompt begins too."""
    seed = 0
    while True:
        rows: List[List[int]] = []
        for _ in range(BATCH):
            text = "".join(documents.training_text(seed + i) for i in range(DOCUMENTS_PER_ROW))
            seed += DOCUMENTS_PER_ROW
            rows.append(tokenizer(text)["input_ids"][:ROW_TOKENS + 1])
        yield torch.tensor(rows)


def schedule(share: float, step: int) -> float:
    """Learning rate at this share of the run, relative to its top: warm-up, plateau, straight down."""
    warm_up = min(1.0, (step + 1) / 30)
    return warm_up * (1.0 if share < 0.4 else max(0.02, (1 - share) / 0.6))


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """Muon for the layers' matrices, AdamW for the rest."""
    muon = Muon(model.model.layers)
    rest = [p for name, p in model.named_parameters() if p.ndim < 2 or "embed" in name or "lm_head" in name]
    adam = torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    started, average = time.monotonic(), 0.0
    for step, rows in zip(range(steps), batches(tokenizer)):
        rate = schedule(step / steps, step)
        logits = model(input_ids=rows[:, :-1]).logits
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))
        model.zero_grad()
        loss.backward()
        for group in adam.param_groups:
            group["lr"] = 3e-3 * rate
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        adam.step()
        muon.step(0.02 * rate)
        average = loss.item() if step == 0 else 0.95 * average + 0.05 * loss.item()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} of {steps}, {time.monotonic() - started:.0f} s, loss {average:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the model")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps (default: %(default)s)")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(args.output)
    model = make_model(-(-len(tokenizer) // 64) * 64)
    print(f"tokens {len(tokenizer)}, parameters {sum(p.numel() for p in model.parameters())}", flush=True)
    train(model, tokenizer, args.steps)
    model.to(torch.bfloat16).save_pretrained(args.output)


if __name__ == "__main__":
    main()
