"""What is refused before any host is touched, with the project's own catalogues and option lists."""
from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from plumbline.analysis import experiment, prepare, project
from plumbline.errors import PlumblineError

HOST: dict[str, Any] = {
    "name": "h1", "target": "tiny-llama", "drafts": {"eagle3": "tiny-eagle3"}, "environment": {},
    "server_args": {"max-running-requests": 16, "context-length": 1024}, "address": "127.0.0.1", "port": 30000,
    "nccl_profile": "none", "build": "sglang-0.5.23-cpu", "models_root": str(project.ROOT)}


def catalogues() -> dict[str, dict]:
    names = {"variants": "variants", "nccl_profiles": "nccl_profiles", "workloads": "workloads", "models": "models"}
    return {key: yaml.safe_load((project.ROOT / "group_vars" / "all" / f"{name}.yml").read_text())[f"plumbline_{key}"]
            for key, name in names.items()}


def arms(books: dict[str, dict] | None = None, host: dict[str, Any] | None = None, variant: str = "eagle3-2step",
         workloads: tuple[str, ...] = ("one-stream",), axes: dict[str, list] | None = None) -> list[dict]:
    books, host = books or catalogues(), {**HOST, **(host or {})}
    paths, configs = prepare.model_places(books["models"], "/opt/plumbline", host["models_root"])
    document = experiment.normalise({
        "schema": experiment.SCHEMA, "name": "x", "reference": {"variant": "baseline"},
        "axes": {"variant": [variant], **(axes or {})}, "workloads": list(workloads)}, "x.yml")
    builds = prepare.needed_builds(document, host, {}, list(project.BUILD_LOCKS))
    return prepare.arms(document, books, host, builds=builds, model_paths=paths, model_configs=configs)


def refused(**given: Any) -> str:
    with pytest.raises(PlumblineError) as error:
        arms(**given)
    return str(error.value)


def test_what_is_right_is_rendered() -> None:
    baseline, candidate = arms()
    assert baseline["argv"][:2] == ["--context-length", "1024"]
    assert candidate["args"]["speculative-draft-model-path"].startswith("/opt/plumbline/models/tiny-eagle3-")


def test_a_build_of_a_state_is_known_by_its_lock() -> None:
    """sglang_build_lock may name a lock in states/, as the role sglang_build takes it."""
    known = prepare.locked_build("kimi-k25-2026-11", project.BUILD_LOCKS)
    assert known["version"] == "0.5.23"
    assert "--tp-size" in known["options"]


@pytest.mark.parametrize(("given", "words"), [
    ({"workloads": ("one-strem",)},
     ["unknown workload 'one-strem'", "experiment x, key workloads", "did you mean 'one-stream'"]),
    ({"variant": "eagle3-2steps"},
     ["unknown variant 'eagle3-2steps'", "experiment x, key axes.variant", "did you mean 'eagle3-2step'"]),
    ({"host": {"server_args": {**HOST["server_args"], "max-runing-requests": 3}}},
     ["unknown server argument 'max-runing-requests'", "sglang_server_args of h1",
      "did you mean 'max-running-requests'"]),
    ({"axes": {"build": ["sglang-0.5.23-cpuu"]}},
     ["unknown build lock 'sglang-0.5.23-cpuu'", "experiment x, key reference.build or axes.build", "did you mean"]),
    ({"host": {"build": "sim-c"}},
     ["unknown build lock 'sim-c'", "where: sglang_build_lock of h1", "did you mean 'sim-"]),
    ({"axes": {"nccl_profile": ["pcie-ll-rings"]}},
     ["unknown NCCL profile 'pcie-ll-rings'", "key axes.nccl_profile", "did you mean 'pcie-ll-ring'"]),
    ({"host": {"server_args": {"context-length": 1024}}}, ["max-running-requests", "sglang_server_args"]),
    ({"host": {"server_args": {**HOST["server_args"], "port": 1}}}, ["'port' is set elsewhere", "sglang_server_port"]),
    ({"host": {"drafts": {}}}, ["unknown draft 'eagle3'", "sglang_server_drafts", "none is defined"]),
    ({"host": {"target": "tiny-lama"}}, ["unknown model 'tiny-lama'", "sglang_server_target", "did you mean"]),
    ({"host": {"drafts": {"eagle3": "tiny-llama"}}}, ["not an EAGLE-3 draft", "LlamaForCausalLM", "remedy: give an"]),
], ids=lambda v: v[0] if isinstance(v, list) else "")
def test_a_mistake_names_where_it_is_and_what_would_be_right(given: dict, words: list[str]) -> None:
    text = refused(**given)
    assert all(word in text for word in words), text


def variant(**args: Any) -> dict[str, dict]:
    books = catalogues()
    own = books["variants"]["eagle3-2step"]
    books["variants"]["mine"] = {**own, "args": {**own["args"], **args}}
    return books


@pytest.mark.parametrize(("args", "words"), [
    ({"api-key": "sk-1"}, ["a secret in what the plan records", "arm mine", "argument api-key", "unit_variant"]),
    ({"speculative-num-draft-tokens": None}, ["speculative-num-draft-tokens missing", "arm mine", "give all three"]),
    ({"speculative-algorithm": "EAGLE"}, ["an EAGLE-3 draft under EAGLE", "set speculative-algorithm to EAGLE3"]),
    ({"speculative-algorithm": None}, ["without speculative-algorithm: SGLang ignores them"]),
    ({"speculative-algorithm": "EAGLE33"}, ["'EAGLE33'", "did you mean 'EAGLE3'"]),
], ids=lambda v: v[0] if isinstance(v, list) else "")
def test_speculation_that_does_not_fit(args: dict, words: list[str]) -> None:
    text = refused(books=variant(**args), variant="mine")
    assert all(word in text for word in words), text


def test_a_secret_in_a_variants_environment_would_be_recorded() -> None:
    books = catalogues()
    books["variants"]["eagle3-2step"]["environment"] = {"HF_TOKEN": "hf_abcdefghij", "SGLANG_X": "1"}
    text = refused(books=books)
    assert "variable HF_TOKEN" in text
    assert "sglang_server_environment" in text
    assert "hf_abcdefghij" not in text


def test_a_context_that_does_not_hold_prompt_and_output() -> None:
    books = catalogues()
    books["workloads"]["one-stream"]["output_tokens"] = 5000
    text = refused(books=books)
    assert "the draft's context is shorter than prompt plus output of workload 'one-stream'" in text
    assert "5096 or more" in text


@pytest.mark.parametrize(("there", "words"), [
    (None, ["no such folder on the controller", "plumbline_models.tiny-llama.source.controller", "mend the path"]),
    (["config.json"], ["a model path without weights", "found: config.json", "*.safetensors"]),
    (["model.safetensors", "config.json"], ["files of the model are missing", "also chat_template.jinja"]),
], ids=["folder", "weights", "files"])
def test_a_model_that_the_controller_does_not_have(tmp_path: Path, there: list[str] | None, words: list[str]) -> None:
    books = catalogues()
    books["models"]["tiny-llama"]["source"] = {"controller": "mine"}
    for name in ("tiny-eagle3", "mine") if there is not None else ("tiny-eagle3",):
        (tmp_path / "models" / name if name != "mine" else tmp_path / name).mkdir(parents=True)
    for name in there or []:
        (tmp_path / "mine" / name).write_text("{}")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "models" / "tiny-eagle3" / name).write_text("{}")
    text = refused(books=books, host={"models_root": str(tmp_path)})
    assert all(word in text for word in words), text


def workload(**prompts: Any) -> dict[str, dict]:
    books = catalogues()
    own = books["workloads"]["one-stream"]
    books["workloads"]["one-stream"] = {**own, "prompts": {**own["prompts"], **prompts}}
    return books


def test_prompts_by_an_absolute_path(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(json.dumps(f"prompt {i}") for i in range(14)))
    arms(books=workload(file=str(file), sha256=hashlib.sha256(file.read_bytes()).hexdigest()))


@pytest.mark.parametrize(("prompts", "words"), [
    ({"file": None}, ["without file of its prompts", "plumbline_workloads.one-stream.prompts.file", "add file"]),
    ({"sha256": None}, ["without sha256 of its prompts", "sha256sum"]),
    ({"file": "models/prompts/tinny.jsonl"}, ["no such prompt file", "tinny.jsonl", "from the project's root"]),
    ({"sha256": "0" * 64}, ["not what the workload says", "allowed: sha256 000"]),
    ({"take": 300}, ["too few prompts"]),
], ids=lambda v: v[0] if isinstance(v, list) else "")
def test_prompts_that_are_not_there(prompts: dict, words: list[str]) -> None:
    text = refused(books=workload(**prompts))
    assert all(word in text for word in words), text


def test_a_workload_that_is_empty() -> None:
    books = catalogues()
    books["workloads"]["one-stream"] = None
    assert "plumbline_workloads.one-stream: output_tokens" in refused(books=books)


def test_workloads_that_share_prompts() -> None:
    books = catalogues()
    books["workloads"]["again"] = books["workloads"]["one-stream"]
    text = refused(books=books, workloads=("one-stream", "again"))
    assert "workloads one-stream and again share a prompt" in text


def test_a_profiled_workload_is_alone_on_its_boot() -> None:
    books = catalogues()
    books["workloads"]["stages"] = {**books["workloads"]["one-stream"], "profiled": True}
    assert "plumbline_workloads.stages.profiled" in refused(books=books, workloads=("one-stream", "stages"))
    entry = {**books["workloads"]["stages"], "name": "stages"}
    prepare.check_workloads([entry])
    with pytest.raises(PlumblineError, match="not profiled twice"):
        prepare.check_workloads([entry], repeats=2)


def test_every_fault_is_named_at_once() -> None:
    text = refused(host={"server_args": {"tp-sice": 2, "context-lenght": 3}})
    assert "did you mean 'tp-size'" in text
    assert "did you mean 'context-length'" in text


def test_a_wrong_argument_is_told_once_and_where_it_was_given() -> None:
    text = refused(host={"server_args": {**HOST["server_args"], "tp-sice": 2}})
    assert text.count("tp-sice") == 3  # what, where and found
    assert "where: sglang_server_args of h1: tp-sice" in text
    text = refused(books=variant(**{"speculative-num-step": 3}), variant="mine")
    assert "where: plumbline_variants.mine.args: speculative-num-step;" in text
    text = refused(axes={"args.speculative-atention-mode": ["decode"]})
    assert "where: experiment x, key axes: speculative-atention-mode" in text
    assert "did you mean 'speculative-attention-mode'" in text


def test_two_names_of_one_option_come_together_in_an_arm() -> None:
    host = {"server_args": {**HOST["server_args"], "tp-size": 1}}
    assert "two names of one option; where: experiment x, arm mine" in refused(
        books=variant(**{"tensor-parallel-size": 2}), variant="mine", host=host)


def test_what_is_wrong_in_every_arm_is_told_once() -> None:
    books = catalogues()
    books["workloads"]["one-stream"]["output_tokens"] = 5000
    text = refused(books=books)
    assert text.count("the target's context is shorter") == 1
    assert "arm baseline, host h1, workload one-stream (and 1 more)" in text
