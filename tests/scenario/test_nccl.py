"""The NCCL playbook on a simulated host: real delivery, really spawned workers that read their environment as
NCCL.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plumbline.analysis.store import Results
from plumbline.files import read_lines
from plumbline.nccl import datacheck

from playbooks import QUICK, ROOT, Lab, experiment

BARE = ROOT / "tests" / "scenario" / "physics" / "one_rank_bare.yml"
ARGS = {"tp-size": 2, "max-running-requests": 16, "random-seed": 1}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("nccl"), first_port=31800)


def prove(lab: Lab, rc: int = 0, **variables: object) -> dict:
    """The proof that one run of the playbook has written."""
    before = set(Results(lab.results).proofs())
    done = lab.run("nccl", profile="pcie-ll-ring", sglang_server_args=ARGS, **variables)
    assert done.rc == rc, lab.text()[-4000:]
    (new,) = set(Results(lab.results).proofs()) - before
    return Results(lab.results).proofs()[new]


@pytest.mark.parametrize("delivery", ["env_file", "sitecustomize", "nccl_conf"])
def test_each_delivery_is_proven_on_both_ranks(lab: Lab, delivery: str):
    proof = prove(lab, delivery=delivery)
    assert proof["profile_in_force"] is True, proof["reasons"]
    assert [len(r["taken"]) for r in proof["ranks"]] == [6, 6]
    assert {v["source"] for r in proof["ranks"] for v in r["taken"]} == {f"profile pcie-ll-ring by {delivery}"}
    assert [e["visible"] for e in proof["environ"]] == [[], []], "and /proc/PID/environ shows nothing of it"
    assert "2 of 2 ranks seen" in lab.text(), "said where a person sees it"
    delivered = [
        p.name for p in Path(lab.folder, "hosts/sim-1/nccl").iterdir() if (p / "plumbline-nccl.json").exists()
    ]
    assert delivered == [f"pcie-ll-ring-{delivery}"], "the former delivery is gone"
    ran = {run["pid"] for run in proof["hook_runs"]}
    assert {r["pid"] for r in proof["ranks"]} <= ran if delivery == "sitecustomize" else not ran


def test_a_rank_without_the_profile_fails_the_play_and_is_named(lab: Lab):
    lab.physics = BARE
    proof = prove(lab, rc=2, delivery="env_file")
    lab.physics = QUICK
    assert proof["profile_in_force"] is False
    assert proof["reasons"] == ["rank 1 of 2: nothing of the profile reached it in time"]
    assert "rank 1 of 2: nothing of the profile reached it in time" in lab.text()


def test_a_conf_file_that_loses_to_the_servers_environment(lab: Lab):
    host = Path(lab.folder, "hosts/sim-1/simulator")
    environment = {
        "PLUMBLINE_SIMULATOR_PHYSICS": str(host / "physics.json"),
        "PLUMBLINE_SIMULATOR_CLOCK": str(host / "clock.json"),
        "PLUMBLINE_SIMULATOR_HOST": "sim-1",
        "NCCL_PROTO": "Simple",
    }
    proof = prove(lab, rc=2, delivery="nccl_conf", sglang_server_environment=environment)
    lost = proof["ranks"][0]["overridden"]
    assert [(v["name"], v["in_force"], v["by"]) for v in lost] == [
        ("NCCL_PROTO", "Simple", "environment of the server")
    ]
    assert len(proof["ranks"][0]["taken"]) == 5


def test_an_unknown_profile_and_nothing_to_do_are_refused(lab: Lab):
    assert lab.run("nccl").rc != 0
    assert "-e profile=NAME, -e sweep=true, or both" in lab.text()
    assert lab.run("nccl", profile="pcie-ll-rong", sglang_server_args=ARGS).rc != 0
    assert "unknown NCCL profile 'pcie-ll-rong'" in lab.text()


def test_a_sweep_is_recorded_and_a_second_run_adds_nothing(lab: Lab):
    given = {
        "sweep": True,
        "profiles": "none,pcie-ll-ring",
        "modes": "as-is,no-p2p",
        "nccl_profile_sweep_backend": "socket",
        "nccl_profile_sweep_world": 2,
        "nccl_profile_sweep_sizes": [4096, 8192],
    }
    assert lab.run("nccl", **given).rc == 0, lab.text()[-4000:]
    folder = lab.results / "nccl-sweeps" / "profiles"
    records = read_lines(folder / "records.jsonl")
    assert len(records) == 8
    assert {r["status"] for r in records} == {"ok"}
    assert (folder / "sim-1-no-p2p.svg").read_text().startswith("<svg")
    assert "data checked" in (folder / "sweep.md").read_text()
    assert lab.run("nccl", **given).rc == 0
    assert len(read_lines(folder / "records.jsonl")) == 8
    assert json.loads((folder / "records.jsonl").read_text().split("\n")[0])["schema"] == "plumbline.nccl-sweep/1"


LL128 = {"ll128": {"description": "What needs a data check over PCIe.", "variables": {"NCCL_PROTO": "LL128"}}}


@pytest.mark.story
def test_ll128_over_pcie_waits_for_a_data_check_of_this_host_in_its_state_of_now(lab: Lab):
    given = {"profile": "ll128", "plumbline_nccl_profiles_lab": LL128, "sglang_server_args": ARGS}
    assert lab.run("nccl", **given).rc != 0
    assert "no data check of it has passed on this host (no data-checked collective was ever run here" in lab.text()
    swept = {
        "sweep": True,
        "sweep_name": "ll128",
        "profiles": "ll128",
        "plumbline_nccl_profiles_lab": LL128,
        "nccl_profile_sweep_backend": "socket",
        "nccl_profile_sweep_world": 2,
        "nccl_profile_sweep_sizes": [4096],
    }
    assert lab.run("nccl", **swept).rc == 0, lab.text()[-4000:]
    assert lab.run("nccl", **given).rc != 0, "what sockets carried is no data check of GPUs"
    # What a host with GPUs would have recorded, in the state in which this one is.
    results = lab.folder / "hosts" / "sim-1" / "nccl" / "sweeps" / "ll128" / "results.jsonl"
    (seen,) = read_lines(results)
    gpus = [
        {**seen, "bytes": size, "backend": "nccl", "graph_us": seen["eager_us"], "wrong_in_graph": 0}
        for size in datacheck.FULL_SIZES
    ]
    results.write_text("".join(json.dumps(record) + "\n" for record in gpus))
    assert lab.run("nccl", **given).rc == 0, lab.text()[-4000:]
    before = [{**r, "state": {**r["state"], "groups": {**r["state"]["groups"], "driver": "another"}}} for r in gpus]
    results.write_text("".join(json.dumps(record) + "\n" for record in before))
    assert lab.run("nccl", **given).rc != 0
    assert "the host has changed since it was checked: driver" in lab.text()


@pytest.mark.story
def test_no_server_starts_where_data_do_not_arrive(lab: Lab):
    given = {
        "experiment": experiment("nccl-check"),
        "sglang_server_args": ARGS,
        "nccl_profile_check_backend": "socket",
        "nccl_profile_check_world": 2,
    }
    assert lab.run("matrix", nccl_profile_check_limit_s=0.001, **given).rc != 0
    assert "do not add up" in lab.text()
    assert "profile none: hang on" in lab.text(), "the diagnosis is in the refusal"
    assert not list((lab.folder / "hosts" / "sim-1" / "boots").glob("*")) or not Results(lab.results).experiment(
        "nccl-check"
    ).measurements(), "no boot was made"
    assert lab.run("matrix", **given).rc != 0, "what hung in this state is not tried again by itself"
    assert lab.run("matrix", nccl_profile_sweep_retry=True, **given).rc == 0, lab.text()[-4000:]
    assert {m["status"] for m in Results(lab.results).experiment("nccl-check").measurements()} == {"ok"}
    checks = read_lines(lab.folder / "hosts" / "sim-1" / "nccl" / "sweeps" / "check" / "results.jsonl")
    assert lab.run("matrix", run="new", **given).rc == 0
    again = read_lines(lab.folder / "hosts" / "sim-1" / "nccl" / "sweeps" / "check" / "results.jsonl")
    assert again == checks, "once for each state of the host"
