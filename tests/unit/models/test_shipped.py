"""What is shipped is what the catalogues say."""
from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, Dict

import catalogue
import documents
import pytest
import yaml
from plumbline.models.catalogue import select

ROOT = Path(__file__).parents[3]
MODELS: Dict[str, Any] = yaml.safe_load((ROOT / "group_vars/all/models.yml").read_text())["plumbline_models"]
WORKLOADS: Dict[str, Any] = yaml.safe_load((ROOT / "group_vars/all/workloads.yml").read_text())["plumbline_workloads"]


def tensors(path: Path) -> Dict[str, Any]:
    """The header of a safetensors file: name -> {dtype, shape, data_offsets}."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return {k: v for k, v in json.loads(data[8:8 + length]).items() if k != "__metadata__"}


def test_catalogue_is_what_the_script_writes() -> None:
    assert (ROOT / "group_vars/all/models.yml").read_text() == catalogue.render(ROOT / "models")


def test_every_entry_is_sound() -> None:
    assert [m.name for m in select(list(MODELS), MODELS)] == ["tiny-llama", "tiny-eagle3", "tiny-eagle3-mismatched"]


def test_weights_are_small() -> None:
    assert sum(f.stat().st_size for name in MODELS for f in (ROOT / "models" / name).iterdir()) <= 5_000_000


def test_the_target_has_the_shape_that_its_card_says() -> None:
    config = json.loads((ROOT / "models/tiny-llama/config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (16, 128, 960)
    found = tensors(ROOT / "models/tiny-llama/model.safetensors")
    assert found["model.embed_tokens.weight"]["shape"] == [960, 128]
    assert {t["dtype"] for t in found.values()} == {"BF16"}
    tokenizer = json.loads((ROOT / "models/tiny-llama/tokenizer.json").read_text())
    assert max(tokenizer["model"]["vocab"].values()) < config["vocab_size"]


@pytest.mark.parametrize("name", ["tiny-eagle3", "tiny-eagle3-mismatched"])
def test_drafts_have_what_sglang_loads(name: str) -> None:
    found = tensors(ROOT / "models" / name / "model.safetensors")
    assert found["fc.weight"]["shape"] == [128, 3 * 128]
    assert found["midlayer.self_attn.q_proj.weight"]["shape"] == [128, 2 * 128]
    assert found["lm_head.weight"]["shape"] == [960, 128] and found["d2t"]["shape"] == [960]
    assert not any("embed" in key for key in found)


def test_the_two_drafts_differ_in_their_weights_only() -> None:
    drafts = [MODELS[n]["files"] for n in ("tiny-eagle3", "tiny-eagle3-mismatched")]
    assert drafts[0]["config.json"] == drafts[1]["config.json"]
    assert drafts[0]["model.safetensors"] != drafts[1]["model.safetensors"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_each_card_names_the_digest_of_the_weights(name: str) -> None:
    card = (ROOT / "models" / name / "MODELS.md").read_text()
    assert MODELS[name]["files"]["model.safetensors"] in card
    assert "Apache-2.0" in card


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_workloads_name_prompts_that_are_there(name: str) -> None:
    workload = WORKLOADS[name]
    file = ROOT / workload["prompts"]["file"]
    assert hashlib.sha256(file.read_bytes()).hexdigest() == workload["prompts"]["sha256"]
    lines = file.read_text().splitlines()
    assert workload["prompts"]["skip"] + workload["prompts"]["take"] <= len(lines)
    # Each measured prompt comes once, and the kinds are mixed.
    assert workload["prompts"]["take"] == workload["warmup_requests"] + workload["requests"]
    # A profiled workload is for the stages of a few cycles, so two requests are enough.
    profiled = workload.get("profiled", False)
    assert workload["requests"] >= max(2 if profiled else 8, workload["concurrency"])
    assert workload["output_tokens"] >= 256
    own = [json.loads(x) for x in lines[workload["prompts"]["skip"]:][:workload["prompts"]["take"]]]
    assert profiled or {p["kind"] for p in own[workload["warmup_requests"]:]} == set(documents.KINDS)


def test_no_prompt_belongs_to_two_workloads() -> None:
    slices = [set(range(w["prompts"]["skip"], w["prompts"]["skip"] + w["prompts"]["take"])) for w in WORKLOADS.values()]
    assert sum(len(s) for s in slices) == len(set().union(*slices))
