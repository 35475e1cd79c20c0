"""Checks of speculation, with the configs that are shipped and with published ones (their keys that matter here)."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest
import yaml
from plumbline.errors import PlumblineError
from plumbline.sglang import speculation

ROOT = Path(__file__).parents[3]
VERSION = "0.5.23"

# sgl-project/SpecForge, configs/kimi-k25-eagle3.json
KIMI_EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000, "hidden_size": 7168, "vocab_size": 163840,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
    "max_position_embeddings": 131072, "model_type": "llama", "num_hidden_layers": 1, "rope_scaling": None}
# Kimi-K2.5 is multimodal: the language model's keys are nested.
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "vocab_size": 163840,
                    "num_hidden_layers": 61, "max_position_embeddings": 262144}}
# sgl-project/SpecForge, configs/qwen2.5-7b-eagle3.json, whose hidden size is not that of Qwen2.5-7B (3584).
QWEN25_EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 5120, "vocab_size": 152064, "draft_vocab_size": 16000,
    "max_position_embeddings": 32768, "num_hidden_layers": 1}
QWEN25_7B = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "vocab_size": 152064, "num_hidden_layers": 28,
             "max_position_embeddings": 32768}
EAGLE2_LLAMA = {"architectures": ["LlamaForCausalLMEagle"], "hidden_size": 4096, "vocab_size": 128256,
                "num_hidden_layers": 1, "max_position_embeddings": 8192}
UNNAMED_EAGLE3 = {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000, "hidden_size": 4096,
                  "vocab_size": 128256, "num_hidden_layers": 1, "max_position_embeddings": 2048}


def shipped(name: str) -> Dict[str, Any]:
    return json.loads((ROOT / "models" / name / "config.json").read_text())


def eagle3(steps: Any = 3, topk: Any = 1, tokens: Any = 4, **more: Any) -> Dict[str, Any]:
    return {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/models/draft",
            "max-running-requests": 16, "speculative-num-steps": steps, "speculative-eagle-topk": topk,
            "speculative-num-draft-tokens": tokens,
            **{k.replace("_", "-"): v for k, v in more.items()}}


def check(args: Dict[str, Any], **more: Any) -> List[PlumblineError]:
    return speculation.check(args, **{"where": "arm x", "version": VERSION, **more})


def only(faults: List[PlumblineError]) -> PlumblineError:
    assert len(faults) == 1, [str(f) for f in faults]
    return faults[0]


@pytest.mark.parametrize("name", ["tiny-eagle3", "tiny-eagle3-mismatched"])
def test_shipped_models_fit(name: str) -> None:
    workloads = yaml.safe_load((ROOT / "group_vars/all/workloads.yml").read_text())["plumbline_workloads"]
    faults = check(eagle3(), target=shipped("tiny-llama"), draft=shipped(name),
                   workloads=[{"name": n, **w} for n, w in workloads.items()])
    assert faults == []


def test_all_variants_of_the_catalogue_are_sound() -> None:
    variants = yaml.safe_load((ROOT / "group_vars/all/variants.yml").read_text())["plumbline_variants"]
    for name, variant in variants.items():
        args = {"max-running-requests": 16, **variant["args"]}
        if variant.get("draft"):
            args["speculative-draft-model-path"] = "/models/draft"
        assert check(args) == [], name


def test_no_speculation_no_fault() -> None:
    assert check({"device": "cpu"}, target=shipped("tiny-llama")) == []


@pytest.mark.parametrize("missing", speculation.EAGLE_NUMBERS)
def test_two_of_three_numbers_are_refused(missing: str) -> None:
    fault = only(check({**eagle3(), missing: None}))
    assert missing in fault.what and "all or none" in fault.what and missing in fault.where


def test_steps_without_draft_tokens_names_what_was_found() -> None:
    args = eagle3()
    del args["speculative-num-draft-tokens"]
    fault = only(check(args))
    assert fault.found == "speculative-num-steps 3, speculative-eagle-topk 1"
    assert fault.remedy == "give all three"


def test_none_of_the_numbers_is_allowed() -> None:
    assert check(eagle3(None, None, None)) == []


def test_topk_1_needs_steps_plus_one_and_says_why() -> None:
    fault = only(check(eagle3(3, 1, 8)))
    assert "SGLang changes it to 4" in fault.what and (fault.found, fault.allowed) == (8, 4)


@pytest.mark.parametrize("value", [0, -1, "three", True, 2.5])
def test_numbers_must_be_numbers(value: Any) -> None:
    assert "whole number" in only(check(eagle3(steps=value))).what


def test_numbers_given_as_text_are_read() -> None:
    assert check(eagle3("3", "1", "4")) == []


@pytest.mark.parametrize(("steps", "topk", "tokens", "sound"), [
    (5, 4, 8, True), (1, 4, 5, True), (1, 4, 6, False), (2, 2, 7, True), (2, 2, 8, False)])
def test_a_tree_has_so_many_tokens(steps: int, topk: int, tokens: int, sound: bool) -> None:
    faults = check(eagle3(steps, topk, tokens))
    assert (faults == []) is sound
    if not sound:
        assert "more than the tree has" in only(faults).what


def test_a_tree_and_the_backend() -> None:
    assert only(check(eagle3(5, 4, 8, attention_backend="trtllm_mha"))).allowed == 1
    assert "page-size 16" in only(check(eagle3(5, 4, 8, attention_backend="torch_native", page_size=16))).what
    assert check(eagle3(5, 4, 8, attention_backend="fa3", page_size=16)) == []
    assert "sets speculative-eagle-topk to 1" in only(check(eagle3(5, 4, 8, page_size=16), version="0.4.6.post5")).what


def test_speculation_needs_max_running_requests() -> None:
    args = eagle3()
    del args["max-running-requests"]
    fault = only(check(args))
    assert "48" in fault.what and fault.where == "arm x, max-running-requests"


def test_numbers_without_an_algorithm() -> None:
    args = eagle3()
    del args["speculative-algorithm"]
    assert "without speculative-algorithm" in only(check(args)).what


def test_misspelt_algorithm_gets_the_nearest() -> None:
    args = {**eagle3(), "speculative-algorithm": "EAGEL3"}
    assert only(check(args)).remedy == "did you mean 'EAGLE3'?"


def test_lower_case_algorithm_is_taken_as_sglang_takes_it() -> None:
    assert check({**eagle3(), "speculative-algorithm": "eagle3"}) == []


def test_adaptive_steps_are_refused() -> None:
    assert "changes the number of steps" in only(check(eagle3(speculative_adaptive=True))).what


def test_eagle3_without_a_draft() -> None:
    args = eagle3()
    del args["speculative-draft-model-path"]
    assert only(check(args)).what == "EAGLE3 without a draft model"


def test_ngram_takes_no_draft() -> None:
    args = {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": 8, "max-running-requests": 16}
    assert check(args) == []
    assert "takes no draft" in only(check({**args, "speculative-draft-model-path": "/models/draft"})).what


def test_eagle3_draft_under_eagle_is_the_silent_one() -> None:
    args = {**eagle3(), "speculative-algorithm": "EAGLE"}
    for draft, target in ((KIMI_EAGLE3, KIMI), (shipped("tiny-eagle3"), shipped("tiny-llama")), (UNNAMED_EAGLE3, None)):
        fault = check(args, draft=draft, target=target)[0]
        assert "accept length 1.00" in fault.what and fault.allowed == "EAGLE3"


@pytest.mark.parametrize("draft", [EAGLE2_LLAMA, QWEN25_7B, {"architectures": ["DFlashDraftModel"]}, {}])
def test_what_is_no_eagle3_draft_under_eagle3(draft: Dict[str, Any]) -> None:
    assert only(check(eagle3(), draft=draft)).what == "the draft is not an EAGLE-3 draft"


def test_eagle3_keys_under_a_plain_architecture() -> None:
    assert "plain model's architecture" in only(check(eagle3(), draft=UNNAMED_EAGLE3)).what


def test_eagle_draft_under_eagle_is_sound() -> None:
    assert check({**eagle3(), "speculative-algorithm": "EAGLE"}, draft=EAGLE2_LLAMA) == []


def test_draft_of_another_target() -> None:
    assert "another hidden size" in only(check(eagle3(), draft=QWEN25_EAGLE3, target=QWEN25_7B)).what
    faults = check(eagle3(context_length=2048), draft=shipped("tiny-eagle3"), target=KIMI)
    assert {f.what.rsplit("another ", 1)[-1] for f in faults} == {"vocabulary", "hidden size"}
    shallow = {**shipped("tiny-llama"), "num_hidden_layers": 8}
    fault = only(check(eagle3(), draft=shipped("tiny-eagle3"), target=shallow))
    assert "layers that the target does not have" in fault.what


def test_context_of_prompt_and_output() -> None:
    short = {**shipped("tiny-eagle3"), "max_position_embeddings": 300}
    workload = {"name": "one-stream", "output_tokens": 256, "prompts": {"max_tokens": 64}}
    fault = only(check(eagle3(), draft=short, workloads=[workload]))
    assert fault.what == "the draft's context is shorter than prompt plus output of workload 'one-stream'"
    assert (fault.found, fault.allowed) == ("300 tokens (config.json)", "320 or more")
    assert check(eagle3(), draft={**short, "max_position_embeddings": 320}, workloads=[workload]) == []
    limited = check({"context-length": 256}, target=shipped("tiny-llama"), workloads=[workload])
    assert only(limited).found == "256 tokens (context-length)"


def test_draft_shorter_than_what_is_served() -> None:
    """Kimi-K2.5 serves 262144 tokens, its published draft holds 131072."""
    fault = only(check(eagle3(), draft=KIMI_EAGLE3, target=KIMI))
    assert fault.remedy == "set context-length to 131072 on every arm"
    assert check(eagle3(context_length=131072), draft=KIMI_EAGLE3, target=KIMI) == []
    assert check(eagle3(), draft=KIMI_EAGLE3, target=KIMI, environment={speculation.LONGER_CONTEXT: "1"}) == []
    assert check(eagle3(), draft=KIMI_EAGLE3, target=KIMI, version="0.5.9") == []


@pytest.mark.parametrize(("config", "tokens"), [
    ({"max_position_embeddings": 2048}, 2048),
    ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear", "factor": 2}}, 8192),
    ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
    ({"max_position_embeddings": 163840,
      "rope_scaling": {"original_max_position_embeddings": 4096, "factor": 40}}, 163840),
    ({"text_config": {"max_position_embeddings": 262144}}, 262144),
    ({"seq_length": 512, "max_position_embeddings": 1024}, 512),
    ({}, 2048)])
def test_context_length_as_sglang_derives_it(config: Dict[str, Any], tokens: int) -> None:
    assert speculation.context_length(config) == tokens


@pytest.mark.parametrize(("args", "most"), [
    ({}, 1), (eagle3(2, 1, 3), 3), (eagle3(3, 1, 4), 4), (eagle3(3, 1, 9), 4), (eagle3(5, 4, 8), 6),
    (eagle3(5, 4, 3), 3),
    (eagle3(None, None, None), None), ({"speculative-algorithm": "ngram", "speculative-num-draft-tokens": 8}, 8),
    ({"speculative-algorithm": "NGRAM"}, None)])
def test_max_accept_length(args: Dict[str, Any], most: Any) -> None:
    assert speculation.max_accept_length(args) == most


def test_numbers_of_an_arm() -> None:
    assert speculation.numbers({}) is None
    assert speculation.numbers(eagle3()) == {"algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4}


@pytest.mark.parametrize(("version", "parts"), [
    ("0.5.10.post1", (0, 5, 10)), ("0.5.0rc2", (0, 5, 0)), ("main", (10**6,))])
def test_release(version: str, parts: tuple) -> None:
    assert speculation.release(version) == parts
