"""Make the models and long prompts of the run on GPUs, and the extra variables that name them. Needs torch and tokenizers.

    python models.py WORK GPUS

Target: the shape of an 8B Llama, whose weights the server makes up (`--load-format dummy`). Draft: an EAGLE-3 layer with random
weights in a real file, so that it is loaded as any draft is. Tokenizer: words and bytes of a fixed alphabet, trained on the
project's own pages. Writes WORK/models/, WORK/prompts/ and WORK/vars.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent.parent
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
VOCABULARY, DRAFT_VOCABULARY, HIDDEN, MLP, KV = 32000, 16000, 4096, 14336, 1024
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": [1, 4],
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "use_cache": True,
}
# What must stay out of reach in every process on a shared host: NVLink multicast.
GUARD = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# Where the machine's libraries and its compiler are, if it says so.
FROM_MACHINE = ("LD_LIBRARY_PATH", "CUDA_HOME")


def tokenizer(folder: Path) -> None:
    """A byte-level tokenizer of exactly VOCABULARY tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    folders = ("docs/**/*.md", "roles/**/*.md", "module_utils/**/*.py")
    pages = [str(PROJECT / "README.md"), *(str(p) for some in folders for p in sorted(PROJECT.glob(some)))]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train(
        pages,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    # Few pages give fewer words than the model has tokens: random output must decode all the same.
    made.add_tokens([f"~{n}~" for n in range(VOCABULARY - made.get_vocab_size())])
    made.post_processor = processors.TemplateProcessing(single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": SPECIAL[0],
                "eos_token": SPECIAL[4],
                "model_max_length": 8192,
                "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
            }
        )
    )


def draft(path: Path) -> None:
    """Random weights of an EAGLE-3 layer for the target's shape, always the same ones."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1)

    def weights(*shape: int) -> Any:
        return torch.empty(*shape, dtype=torch.bfloat16).uniform_(-0.03, 0.03, generator=generator)

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    save_file(
        {
            "fc.weight": weights(HIDDEN, 3 * HIDDEN),
            "lm_head.weight": weights(DRAFT_VOCABULARY, HIDDEN),
            "norm.weight": ones,
            "midlayer.hidden_norm.weight": ones.clone(),
            "midlayer.input_layernorm.weight": ones.clone(),
            "midlayer.post_attention_layernorm.weight": ones.clone(),
            "midlayer.mlp.gate_proj.weight": weights(MLP, HIDDEN),
            "midlayer.mlp.up_proj.weight": weights(MLP, HIDDEN),
            "midlayer.mlp.down_proj.weight": weights(HIDDEN, MLP),
            "midlayer.self_attn.q_proj.weight": weights(HIDDEN, 2 * HIDDEN),
            "midlayer.self_attn.k_proj.weight": weights(KV, 2 * HIDDEN),
            "midlayer.self_attn.v_proj.weight": weights(KV, 2 * HIDDEN),
            "midlayer.self_attn.o_proj.weight": weights(HIDDEN, HIDDEN),
            "d2t": torch.arange(DRAFT_VOCABULARY, dtype=torch.int64),
            "t2d": torch.arange(VOCABULARY) % 2 == 0,
        },
        str(path),
        metadata={"format": "pt"},
    )


def long_prompts(path: Path, count: int, tokens: int, tokenizer_file: Path) -> None:
    """Prompts of about ``tokens`` tokens, no two with a common beginning."""
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(tokenizer_file)).encode
    words = sorted(set((PROJECT / "docs" / "nccl.md").read_text().split()))
    rows = []
    for number in range(count):
        rng = random.Random(number)
        chosen = [rng.choice(words) for _ in range(tokens)]
        while len(encode(" ".join(chosen)).ids) > tokens:
            del chosen[-max(1, len(chosen) // 50) :]
        rows.append({"id": f"long-{number}", "kind": "long", "text": " ".join(chosen)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    work, gpus = Path(sys.argv[1]), int(sys.argv[2])
    target, eagle = work / "models" / "target", work / "models" / "eagle3"
    target.mkdir(parents=True, exist_ok=True)
    eagle.mkdir(exist_ok=True)
    tokenizer(target)
    (target / "config.json").write_text(json.dumps(SHAPE, indent=1))
    (target / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": [1, 4], "do_sample": False})
    )
    # A safetensors file with no tensor: the server makes the weights up.
    header = json.dumps({"__metadata__": {"format": "pt", "note": "made up by --load-format dummy"}}).encode()
    (target / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (eagle / "config.json").write_text(
        json.dumps(
            {
                **SHAPE,
                "architectures": ["LlamaForCausalLMEagle3"],
                "num_hidden_layers": 1,
                "draft_vocab_size": DRAFT_VOCABULARY,
            },
            indent=1,
        )
    )
    draft(eagle / "model.safetensors")
    # Below the project, since workloads name prompts from there.
    prompts = PROJECT / ".gpu" / "prompts" / "long.jsonl"
    prompts.parent.mkdir(exist_ok=True)
    long_prompts(prompts, 10, 4000, target / "tokenizer.json")
    tiny = PROJECT / "models" / "prompts" / "tiny.jsonl"
    entry = {"concurrency": 1, "requests": 8, "warmup_requests": 1, "temperature": 0, "greedy_equal": False}
    one_stream = {
        **entry,
        "output_tokens": 256,
        "prompts": {
            "file": str(tiny.relative_to(PROJECT)),
            "sha256": sha256(tiny),
            "max_tokens": 400,
            "skip": 0,
            "take": 10,
        },
    }
    (work / "vars.json").write_text(
        json.dumps(
            {
                "gpu_work": str(work),
                "gpu_count": gpus,
                "gpu_environment": {**GUARD, **{k: os.environ[k] for k in FROM_MACHINE if os.environ.get(k)}},
                "plumbline_models_lab": {
                    "gpu-target": {
                        "kind": "target",
                        "source": {"directory": str(target), "link": True},
                        "files": {p.name: sha256(p) for p in sorted(target.iterdir())},
                    },
                    "gpu-eagle3": {
                        "kind": "eagle3-draft",
                        "source": {"directory": str(eagle), "link": True},
                        "files": {p.name: sha256(p) for p in sorted(eagle.iterdir())},
                    },
                },
                "plumbline_workloads_lab": {
                    "gpu-one-stream": one_stream,
                    "gpu-one-stream-profiled": {**one_stream, "requests": 2, "profiled": True},
                    "gpu-long-prompt": {
                        **entry,
                        "output_tokens": 64,
                        "prompts": {
                            "file": str(prompts.relative_to(PROJECT)),
                            "sha256": sha256(prompts),
                            "max_tokens": 4001,
                            "skip": 0,
                            "take": 10,
                        },
                    },
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
