from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plumbline.analysis import experiment
from plumbline.errors import PlumblineError

CATALOGUES: dict = {
    "variants": {
        "baseline": {"args": {"tp-size": 8}, "draft": None, "environment": {}},
        "eagle3-2step": {"args": {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 2}, "draft": "eagle3"},
        "eagle3-3step": {"args": {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 3}, "draft": "eagle3"},
    },
    "nccl_profiles": {"none": {}, "tuned": {}}, "workloads": {}, "builds": ["a", "b"]}
HOST = {"server_args": {"max-running-requests": 16, "tp-size": 4}, "nccl_profile": "tuned", "build": "a"}


def document(**keys: Any) -> dict:
    return {"schema": "plumbline.experiment/1", "name": "x", "reference": {"variant": "baseline"},
            "workloads": ["one"], **keys}


def arms(**keys: Any) -> list[dict]:
    return experiment.arms(experiment.normalise(document(**keys), "x.yml"), CATALOGUES, HOST)


def test_every_shipped_experiment_loads() -> None:
    folder = Path(__file__).parents[3] / "experiments"
    files = sorted(folder.glob("*.yml"))
    assert files
    for path in files:
        loaded = experiment.load(path)
        assert loaded["name"] == path.stem
        assert loaded["blocks"]["min"] <= loaded["blocks"]["max"]


def test_reference_alone() -> None:
    only, = arms()
    assert (only["name"], only["role"], only["differs_in"]) == ("baseline", "baseline", [])
    assert only["args"] == {"max-running-requests": 16, "tp-size": 8}
    assert (only["nccl_profile"], only["build"]) == ("tuned", "a")


def test_axes_multiply_and_name_the_arms() -> None:
    found = arms(axes={"variant": ["eagle3-2step", "eagle3-3step"],
                       "args.speculative-attention-mode": ["prefill", "decode"]})
    assert [a["name"] for a in found] == [
        "baseline", "eagle3-2step[speculative-attention-mode=prefill]",
        "eagle3-2step[speculative-attention-mode=decode]",
        "eagle3-3step[speculative-attention-mode=prefill]", "eagle3-3step[speculative-attention-mode=decode]"]
    assert found[2]["args"]["speculative-attention-mode"] == "decode"
    assert found[2]["differs_in"] == ["variant", "args.speculative-attention-mode"]
    assert found[2]["variant"] == found[2]["name"]


def test_builds_and_profiles_are_arms_like_any_other() -> None:
    found = arms(axes={"build": ["a", "b"]})
    assert [(a["name"], a["differs_in"]) for a in found] == [("baseline@a", []), ("baseline@b", ["build"])]
    found = arms(reference={"variant": "baseline", "nccl_profile": "none"}, axes={"nccl_profile": ["none", "tuned"]})
    assert [(a["name"], a["role"]) for a in found] == [("baseline/none", "baseline"), ("baseline/tuned", "candidate")]


def test_draft_axis_leaves_variants_without_draft_alone() -> None:
    found = arms(axes={"variant": ["baseline", "eagle3-3step"], "draft": ["eagle3", "mismatched"]})
    assert [(a["name"], a["draft"]) for a in found] == [
        ("baseline", None), ("eagle3-3step", "eagle3"), ("eagle3-3step[draft=mismatched]", "mismatched")]
    assert found[2]["differs_in"] == ["variant", "draft"]


def test_zip_and_exclude() -> None:
    axes = {"variant": ["eagle3-2step", "eagle3-3step"], "build": ["a", "b"], "args.page-size": [1, 16]}
    zipped = experiment.combinations(experiment.normalise(document(axes=axes, zip=[["variant", "build"]]), "x"))
    assert len(zipped) == 4
    assert {(c["variant"], c["build"]) for c in zipped} == {("eagle3-2step", "a"), ("eagle3-3step", "b")}
    rule = [{"variant": "eagle3-3step", "args.page-size": 16}]
    left = experiment.combinations(experiment.normalise(document(axes=axes, exclude=rule), "x"))
    assert len(left) == 6
    assert not any(c["variant"] == "eagle3-3step" and c["args.page-size"] == 16 for c in left)


@pytest.mark.parametrize(("keys", "words"), [
    ({"worklods": []}, ["x.yml", "worklods", "did you mean", "workloads"]),
    ({"blocks": {"min": 4, "max": 2}}, ["x.yml", "blocks", "min <= max"]),
    ({"margin": 2}, ["x.yml", "margin", "0.5"]),
    ({"axes": {"variants": ["a"]}}, ["axes", "variants", "variant"]),
    ({"axes": {"variant": ["a", "b"], "build": ["c"]}, "zip": [["variant", "build"]]}, ["zip", "different length"]),
    ({"axes": {"variant": ["a"]}, "zip": [["variant", "bild"]]}, ["zip", "bild", "variant"]),
    ({"axes": {"variant": ["eagle3"]}, "exclude": [{"variant": "eagle"}]}, ["exclude", "did you mean 'eagle3'"]),
])
def test_bad_documents_name_file_key_and_what_is_allowed(keys: dict, words: list[str]) -> None:
    with pytest.raises(PlumblineError) as error:
        experiment.normalise(document(**keys), "x.yml")
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(("keys", "guess"), [
    ({"axes": {"variant": ["eagle3-2steps"]}}, "eagle3-2step"),
    ({"axes": {"nccl_profile": ["tunned"]}}, "tuned"),
    ({"axes": {"build": ["c"]}}, "a, b"),
])
def test_unknown_names_give_the_nearest(keys: dict, guess: str) -> None:
    with pytest.raises(PlumblineError, match="unknown") as error:
        arms(**keys)
    assert guess in str(error.value)


def test_missing_file_names_the_experiments_there_are(tmp_path: Path) -> None:
    (tmp_path / "demo.yml").write_text("{}")
    with pytest.raises(PlumblineError, match="did you mean 'demo'"):
        experiment.load(tmp_path / "dmo.yml")
