"""The physics file: what is taken, what is refused, and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from sglang.simulation import check, physics

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "simulator" / "physics.schema.json").read_text())
FILES = sorted((ROOT / "simulator" / "physics").glob("*.yml"))

# The design's own example, key by key.
EXAMPLE = """
ranks: 8
seed: 1
time_scale: 60
load_s: {mean: 300, sd: 20}
decode_ms: 12.17
batch_factor: {1: 1.0, 4: 1.2}
untuned_factor: {decode: 1.305, verify: 1.3}
eager_factor: {decode: 1.6, verify: 1.0}
steps:
  2: {verify_ms: 20.5, draft_ms: 1.8, accept_length: 2.1, cuda_graph: true}
  3: {verify_ms: 30.6, draft_ms: 1.8, accept_length: 2.16, cuda_graph: false}
ngram: {verify_ms: 18.0, accept_length: 1.5}
noise: {boot_sd: 0.006, request_sd: 0.002, candidate_boot_factor: 1.0, outlier_share: 0.0, outlier: -0.10}
drift: {per_hour: 0.0, step_after_boots: null, step: 0.0, first_boot: 0.0}
foreign_load: {share: 0.0, cost: 0.0}
build_factor: {sim-a: 1.08, sim-b: 1.0}
edited_file_factor: {"srt/managers/scheduler.py": 1.0}
faults: [{when: load, do: hang, every: 2}]
rank_without_profile: null
hosts: {sim-3: {drift: {per_hour: -0.05}}}
"""


def example() -> dict[str, Any]:
    document = yaml.safe_load(EXAMPLE)
    assert isinstance(document, dict)
    return document


def test_the_example_is_taken_whole() -> None:
    read = physics.resolve(example(), "sim-1")
    assert read["steps"]["3"] == {"verify_ms": 30.6, "draft_ms": 1.8, "accept_length": 2.16, "cuda_graph": False}
    assert read["faults"] == [{"when": "load", "do": "hang", "every": 2, "rank": 0, "after_steps": 100, "factor": 3}]
    assert read["batch_factor"] == {"1": 1.0, "4": 1.2}
    assert read["rank_without_profile"] == [] and read["draft_mismatch"] is False


def test_keys_not_given_are_one_nought_or_none() -> None:
    read = physics.resolve({"decode_ms": 10}, "anywhere")
    assert read["ranks"] == 1 and read["time_scale"] == 1 and read["load_s"] == {"mean": 0, "sd": 0}
    assert read["untuned_factor"] == {"decode": 1, "verify": 1} and read["eager_factor"] == {"decode": 1, "verify": 1}
    assert read["noise"] == {
        "boot_sd": 0,
        "request_sd": 0,
        "candidate_boot_factor": 1,
        "outlier_share": 0,
        "outlier": 0,
    }
    assert read["drift"] == {"per_hour": 0, "step_after_boots": None, "step": 0, "first_boot": 0}
    assert read["steps"] == {} and read["ngram"] is None and read["faults"] == [] and read["batch_factor"] == {}


def test_a_host_overrides_part_of_a_key() -> None:
    document = example()
    document["drift"] = {"per_hour": 0.0, "step": -0.1}
    document["hosts"]["sim-4"] = {"steps": {3: {"accept_length": 1.5}}, "faults": []}
    assert physics.resolve(document, "sim-3")["drift"]["per_hour"] == -0.05
    assert physics.resolve(document, "sim-3")["drift"]["step"] == -0.1
    four = physics.resolve(document, "sim-4")
    assert four["steps"]["3"]["verify_ms"] == 30.6 and four["steps"]["3"]["accept_length"] == 1.5
    assert four["faults"] == [] and physics.resolve(document, "sim-1")["steps"]["3"]["accept_length"] == 2.16


def test_the_digest_names_the_file_and_not_the_host() -> None:
    one, two = physics.resolve(example(), "sim-1"), physics.resolve(example(), "sim-3")
    assert one["digest"] == two["digest"] != physics.resolve({**example(), "seed": 2}, "sim-1")["digest"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decode_ms": 0}, "decode_ms: found 0; allowed: more than 0"),
        ({"decode_ms": "12"}, "decode_ms: found '12'; allowed: number"),
        ({"decode_ms": None}, "decode_ms: found None; allowed: number"),
        ({"rank": 8}, "rank: is not a key here"),
        ({"drift": {"per_hours": 1}}, "drift.per_hours: is not a key here; allowed: per_hour"),
        ({"drift": {"per_hours": 1}}, "did you mean per_hour?"),
        ({"ranks": 2.5}, "ranks: found 2.5; allowed: integer"),
        ({"ranks": 1000}, "ranks: found 1000; allowed: at most 64"),
        ({"steps": {2: {"verify_ms": 1}}}, "steps.2.accept_length: is missing"),
        (
            {"steps": {2: {"verify_ms": 1, "accept_length": 3.5}}},
            "steps.2.accept_length: found 3.5; allowed: at most 3",
        ),
        ({"steps": {0: {"verify_ms": 1, "accept_length": 1}}}, "steps.0: is not a key here"),
        ({"batch_factor": {"many": 1}}, "batch_factor.many: is not a key here"),
        ({"ngram": {"verify_ms": 5}}, "ngram.accept_length: is missing"),
        (
            {"faults": [{"when": "boot", "do": "hang", "every": 1}]},
            "faults[0].when: found 'boot'; allowed: load, warmup",
        ),
        ({"faults": [{"when": "load", "do": "hang"}]}, "faults[0]: give either every or boot"),
        (
            {"faults": [{"when": "load", "do": "hang", "every": 1, "rank": 8}]},
            "faults[0].rank: found 8; allowed: less than",
        ),
        ({"rank_without_profile": 8}, "rank_without_profile: found 8; allowed: less than ranks, 8"),
        ({"hosts": {"sim-2": {"decode_ms": -1}}}, "hosts.sim-2: decode_ms: found -1; allowed: more than 0"),
        ({"hosts": {"sim-2": {"host": 1}}}, "hosts.sim-2.host: is not a key here"),
        ({"noise": {"outlier_share": 2}}, "noise.outlier_share: found 2; allowed: at most 1"),
        ({"foreign_load": {"cost": 1}}, "foreign_load.cost: found 1; allowed: less than 1"),
        ({"log_version": "0.5.7"}, "log_version: found '0.5.7'; allowed: 0.4.6, 0.5.0"),
    ],
)
def test_every_mistake_names_its_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(physics.PhysicsError) as caught:
        physics.resolve({**example(), **change}, "sim-1", "my.yml")
    assert words in str(caught.value) and "my.yml" in str(caught.value)


def test_own_validator_agrees_with_jsonschema() -> None:
    """Each document is broken in one place after the other; both must say the same of every one."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    whole = json.loads(json.dumps(example()))
    bad: list[Any] = [None, "text", -1, 0, 1, 2.5, True, [], {}, {"x": 1}, [1], [{"when": "load"}]]
    tried = 0
    for key in [*SCHEMA["properties"], "unknown"]:
        for value in bad:
            document = {**whole, key: value}
            assert (not check.problems(document, SCHEMA, SCHEMA)) == validator.is_valid(document), (key, value)
            tried += 1
            if isinstance(whole.get(key), dict):
                for inner in [*whole[key], "unknown"]:
                    document = {**whole, key: {**whole[key], inner: value}}
                    assert (not check.problems(document, SCHEMA, SCHEMA)) == validator.is_valid(document), (key, inner)
                    tried += 1
    assert tried > 600


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_the_projects_files_are_whole(file: Path) -> None:
    read = physics.resolve(yaml.safe_load(file.read_text()), "sim-1", str(file))
    assert (
        read["ranks"] == 8 and set(read["steps"]) == {"1", "2", "3"} and set(read["build_factor"]) == {"sim-a", "sim-b"}
    )


def test_json_is_read_and_yaml_where_it_can_be(tmp_path: Path) -> None:
    file = tmp_path / "physics.json"
    file.write_text(json.dumps(example()))
    yml = tmp_path / "physics.yml"
    yml.write_text(EXAMPLE)
    assert physics.load(str(file), "sim-1") == physics.load(str(yml), "sim-1")
    with pytest.raises(physics.PhysicsError, match="cannot be read"):
        physics.load(str(tmp_path / "none.json"))
    yml.write_text("decode_ms: [")
    with pytest.raises(physics.PhysicsError, match="neither JSON nor YAML"):
        physics.load(str(yml))


def test_without_a_file_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(physics.PHYSICS_VARIABLE, raising=False)
    with pytest.raises(physics.PhysicsError, match="set PLUMBLINE_SIMULATOR_PHYSICS"):
        physics.load()
