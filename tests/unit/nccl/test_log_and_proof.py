"""The reader and the proof on logs that NCCL 2.28.9 wrote on two GPUs, for every way of delivery and for bad
values.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plumbline.analysis import schema
from plumbline.nccl import allreduce, log, proof

CAPTURES = Path(__file__).parent / "captures"
STORY = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
ON_TIME = [
    "d01_shell",
    "d02_sitecustomize",
    "d03_conffile",
    "d04_etc_nccl_conf",
    "d06_parent_after_spawn",
    "d07_worker_pre_init",
    "d09_fork_after",
]


def logs(pattern):
    found = sorted(CAPTURES.glob(pattern))
    assert found, pattern
    return [path.read_text() for path in found]


def prove(pattern, asked, texts=None, **given):
    document = proof.prove(
        profile="p",
        asked=asked,
        delivery="env_file",
        logs=logs(pattern) if texts is None else texts,
        expected_ranks=given.pop("expected_ranks", 2),
        sglang_version="0.5.15.post1",
        **given,
    )
    schema.validate("proof", document, "proof")
    assert json.loads(json.dumps(document)) == document
    return document


def names(document, verdict):
    return [[v["name"] for v in rank[verdict]] for rank in document["ranks"]]


@pytest.mark.parametrize("capture", ON_TIME)
def test_each_delivery_in_time_is_proven_on_both_ranks(capture):
    document = prove(f"nccl-delivery/{capture}.*.log", STORY, sources=[{"name": "conf", "variables": STORY}])
    assert document["profile_in_force"] is True
    assert document["reasons"] == []
    assert [r["rank"] for r in document["ranks"]] == [0, 1]
    assert [set(n) for n in names(document, "taken")] == [set(STORY)] * 2
    assert {v["source"] for r in document["ranks"] for v in r["taken"]} == {"conf"}
    assert document["nccl_version"] == "2.28.9"
    assert document["ranks"][0]["channels"] == {"coll": 16, "collnet": 16, "nvls": 0, "p2p": 16, "p2p_per_peer": 16}
    assert document["ranks"][0]["transports"] == {"0->1": {"P2P/CUMEM": 16}}
    plans = document["ranks"][0]["patterns"]
    assert [(p["pattern"], p["channels"], p["bw_intra"], p["type_intra"]) for p in plans] == [
        (4, 12, 30.0, "NVL"),
        (1, 12, 60.0, "NVL"),
    ]
    assert [r["init_complete"] for r in document["ranks"]] == [True, True]


def test_set_after_the_first_communicator():
    document = prove("nccl-delivery/d08_worker_post_init.*.log", STORY)
    assert document["profile_in_force"] is False
    assert [set(n) for n in names(document, "missing")] == [set(STORY)] * 2
    assert document["reasons"] == [
        "ranks 0, 1 of 2: nothing of the profile reached it in time; NCCL_PROTO, NCCL_ALGO came with a later "
        "communicator: set after the first was made"
    ]


def test_a_conf_file_that_loses_to_the_environment_and_who_wins():
    sources = [
        {"name": "unit's Environment=", "variables": {"NCCL_PROTO": "Simple"}},
        {"name": "conf", "variables": STORY},
    ]
    document = prove("nccl-delivery/d10_conf_vs_env.*.log", STORY, sources=sources)
    assert document["profile_in_force"] is False
    assert names(document, "overridden") == [["NCCL_PROTO"]] * 2
    lost = document["ranks"][0]["overridden"][0]
    assert (lost["asked"], lost["in_force"], lost["by"]) == ("LL", "Simple", "unit's Environment=")
    assert [len(n) for n in names(document, "taken")] == [5, 5]


def test_nothing_delivered():
    document = prove("nccl-delivery/d13_default.*.log", STORY)
    assert document["profile_in_force"] is False
    assert names(document, "taken") == [[], []]
    assert document["reasons"] == ["ranks 0, 1 of 2: nothing of the profile reached it in time"]


def test_one_rank_of_two_without_the_profile_is_named():
    mixed = [*logs("nccl-delivery/d01_shell.2502.log"), *logs("nccl-delivery/d13_default.3406.log")]
    document = prove("", STORY, texts=mixed)
    assert document["profile_in_force"] is False
    assert document["reasons"] == ["rank 1 of 2: nothing of the profile reached it in time"]


def test_a_rank_that_wrote_nothing_is_named():
    document = prove("nccl-delivery/d01_shell.2502.log", STORY)
    assert document["profile_in_force"] is False
    assert document["missing_ranks"] == [1]
    assert document["reasons"] == ["rank 1 of 2 wrote no NCCL log: it did not arrive"]


def test_a_rank_that_hangs_in_init_is_named():
    whole = logs("nccl-delivery/d01_shell.2503.log")[0]
    cut = whole[: whole.index("NCCL INFO NCCL_BUFFSIZE")]
    document = prove("", STORY, texts=[*logs("nccl-delivery/d01_shell.2502.log"), cut])
    assert document["profile_in_force"] is False
    assert document["ranks"][1]["init_complete"] is False
    assert any("rank 1 of 2: its communicator was never complete" in reason for reason in document["reasons"])
    # What NCCL had not come to yet is not called missing.
    assert names(document, "missing")[1] == []
    assert set(names(document, "not_read")[1]) == {"NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_PROTO", "NCCL_ALGO"}


def test_no_line_is_not_always_ignored():
    asked = {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}
    document = prove("nccl-delivery/d14_nop2p.*.log", asked)
    assert document["profile_in_force"] is True
    assert names(document, "taken") == [["NCCL_P2P_DISABLE"]] * 2
    unread = document["ranks"][0]["not_read"][0]
    assert (unread["name"], unread["certain"]) == ("NCCL_P2P_LEVEL", True)
    assert "NCCL_P2P_DISABLE=1 decides" in unread["why"]
    assert document["ranks"][0]["transports"] == {"0->1": {"SHM/direct/direct": 4}}
    # The same variable without a line and without a reason is missing.
    assert (
        names(prove("nccl-delivery/d13_default.*.log", {"NCCL_P2P_LEVEL": "SYS"}), "missing")
        == [["NCCL_P2P_LEVEL"]] * 2
    )


def test_a_variable_of_which_nobody_knows_when_it_is_read_leaves_the_proof_open():
    document = prove("nccl-delivery/d01_shell.*.log", {**STORY, "NCCL_GRAPH_MIXING_SUPPORT": "0"})
    assert document["profile_in_force"] is None
    assert "cannot be told" in document["reasons"][0]


def test_rules_of_not_needed():
    asked = {"NCCL_IB_HCA": "mlx5_0", "NCCL_SHM_DISABLE": "0", "NCCL_P2P_NET_CHUNKSIZE": "131072"}
    document = prove("nccl-delivery/d01_shell.*.log", asked)
    assert document["profile_in_force"] is True
    assert [len(n) for n in names(document, "not_read")] == [3, 3]
    # Without P2P shared memory is tried, so NCCL_SHM_DISABLE would have to be read: no rule says that it is not
    # needed.
    assert prove("nccl-delivery/d14_nop2p.*.log", {"NCCL_SHM_DISABLE": "0"})["profile_in_force"] is None


def test_bad_values_of_all_sorts():
    asked = {
        "NCCL_PROTO": "FOO",
        "NCCL_ALGO": "Rong",
        "NCCL_P2P_LEVEL": "ABC",
        "NCCL_NTHREADS": "300",
        "NCCL_BUFFSIZE": "-5",
        "NCCL_MAX_NCHANNELS": "999",
        "NCCL_NOT_A_VAR": "1",
    }
    document = prove("nccl-delivery/d11_bad_values.*.log", asked)
    rank = document["ranks"][0]
    why = {v["name"]: v["why"] for v in rank["ignored"]}
    assert set(why) == {"NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_NTHREADS", "NCCL_NOT_A_VAR"}
    assert "case-sensitive" in why["NCCL_P2P_LEVEL"]
    assert "multiple of 32" in why["NCCL_NTHREADS"]
    assert 'Unrecognized element token "FOO"' in why["NCCL_PROTO"]
    assert "does not know this name" in why["NCCL_NOT_A_VAR"]
    assert rank["overridden"][0]["in_force"] == "64"
    assert [v["name"] for v in rank["not_read"]] == ["NCCL_ALGO"]
    assert any("chunk size 0" in note for note in rank["notes"])
    assert rank["init_complete"] is False
    assert document["profile_in_force"] is False


@pytest.mark.parametrize(
    ("pattern", "asked", "verdict"),
    [
        ("nccl-bad-values/b1_algo.*.log", {"NCCL_ALGO": "Rong"}, "ignored"),
        ("nccl-bad-values/b3_nthreads.*.log", {"NCCL_NTHREADS": "300"}, "ignored"),
        ("nccl-bad-values/b5_maxch999.*.log", {"NCCL_MAX_NCHANNELS": "999"}, "overridden"),
        ("nccl-bad-values/b7_proto_list.*.log", {"NCCL_PROTO": "LL,Simple"}, "taken"),
        ("nccl-delivery/d01_shell.*.log", {**STORY, "NCCL_MAX_NCHANNELSS": "16"}, "ignored"),
        ("nccl-delivery/d13_default.*.log", {"NCCL_P2P_LEVEL": "sys"}, "ignored"),
    ],
)
def test_bad_values_one_by_one(pattern, asked, verdict):
    document = prove(pattern, asked)
    assert names(document, verdict) == [[list(asked)[-1]] if verdict != "taken" else list(asked)] * 2
    assert document["profile_in_force"] is (verdict == "taken")


def test_profile_none_is_in_force_only_if_nothing_else_is():
    assert prove("nccl-delivery/d13_default.*.log", {})["profile_in_force"] is True
    document = prove("nccl-delivery/d01_shell.*.log", {}, sources=[{"name": "/etc/nccl.conf", "variables": STORY}])
    assert document["profile_in_force"] is False
    assert {(v["name"], v["source"]) for v in document["ranks"][1]["additional"]} == {
        (n, "/etc/nccl.conf") for n in STORY
    }
    assert "NCCL_PROTO=LL (from /etc/nccl.conf)" in document["reasons"][0]


def test_sglang_makes_two_communicators_and_reduces_by_pynccl():
    server = (CAPTURES / "baseline/server.log").read_text()
    document = prove("baseline/nccl.*.log", {}, server_log=server)
    assert document["profile_in_force"] is True
    assert [c["function"] for c in document["ranks"][1]["communicators"]] == [
        "ncclCommInitRank",
        "ncclCommInitRankConfig",
    ]
    assert document["allreduce"] == "pynccl"
    assert document["matters_at_decode"] is True
    assert document["custom_all_reduce"] == {"engaged": False, "why": "switched off by --disable-custom-all-reduce"}
    row = next(a for a in document["algorithms"] if a["bytes"] == 16384)
    assert (row["function"], row["algo"], row["proto"], row["channels"]) == ("AllReduce", "RING", "LL", 2)


def test_what_the_engine_sets_first_is_named():
    document = prove("eagle3-2step/nccl.*.log", {"NCCL_CUMEM_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "32"})
    by = {v["name"]: (v["by"], v["in_force"]) for v in document["ranks"][0]["overridden"]}
    assert by == {"NCCL_CUMEM_ENABLE": ("engine", "0"), "CUDA_DEVICE_MAX_CONNECTIONS": ("engine", "8")}
    assert document["profile_in_force"] is False
    alone = prove("eagle3-2step/nccl.*.log", {"CUDA_DEVICE_MAX_CONNECTIONS": "32"})
    assert alone["profile_in_force"] is True, "not a variable of NCCL: reported, no reason against the profile"


def test_no_communicator_proves_nothing():
    assert prove("", STORY, texts=[], expected_ranks=1)["profile_in_force"] is None
    assert "with one rank NCCL is not used" in prove("", STORY, texts=[], expected_ranks=1)["reasons"][0]
    assert prove("", STORY, texts=["no NCCL here"], expected_ranks=8)["profile_in_force"] is None


def test_a_proof_expires_with_the_state():
    made = prove("nccl-delivery/d01_shell.*.log", STORY, state="a" * 64)
    want = {"state": "a" * 64, "profile": "p", "delivery": "env_file"}
    assert proof.expired(made, **want) is None
    now = proof.for_measurement([made], **want)
    assert (now["profile_in_force"], now["proof"], now["ranks"]) == (True, made["id"], 2)
    for change in ({"state": "b" * 64}, {"profile": "q"}, {"delivery": "nccl_conf"}, {"state": None}):
        later = proof.for_measurement([made], **{**want, **change})
        assert (later["profile_in_force"], later["proof"]) == (None, None), change
        assert later["reason"], change
    unbound = prove("nccl-delivery/d01_shell.*.log", STORY)
    assert proof.expired(unbound, state=None, profile="p", delivery="env_file"), "two unknown states are not equal"


def test_one_proof_speaks_for_all_variants_but_not_for_another_way_of_reducing():
    groups = {"driver": "1", "nccl": "2", "engine_args": "3", "models": "4"}
    args = {"tp-size": 2, "disable-custom-all-reduce": True, "max-running-requests": 16}
    made = prove("nccl-delivery/d01_shell.*.log", STORY, state="a" * 64, groups=groups, server_args=args)
    assert made["engine_args"] == {"tensor-parallel-size": 2, "disable-custom-all-reduce": True}
    eagle = {**args, "speculative-algorithm": "EAGLE3", "tp_size": 2}
    want = {"state": "b" * 64, "profile": "p", "delivery": "env_file"}
    other = {**groups, "engine_args": "5", "models": "6"}
    found = proof.for_measurement([made], **want, groups=other, server_args=eagle)
    assert (found["proof"], found["profile_in_force"]) == (made["id"], True)
    assert proof.expired(made, **want) is not None, "without the groups the digest decides"
    assert "it differs in driver" in proof.expired(made, **want, groups={**other, "driver": "9"}, server_args=eagle)
    assert "the proof had" in proof.expired(made, **want, groups=other, server_args={**eagle, "enable-mscclpp": True})
    assert "the proof had" in proof.expired(made, **want, groups=other, server_args={"tp": 4})
    assert proof.ranks_of({"tp": 8}) == 8 and proof.ranks_of({}) == 1


def test_the_newest_valid_proof_speaks():
    old = prove("nccl-delivery/d01_shell.*.log", STORY, state="a" * 64)
    new = prove("nccl-delivery/d10_conf_vs_env.*.log", STORY, state="a" * 64)
    new["id"], old["id"] = max(old["id"], new["id"]), min(old["id"], new["id"])
    found = proof.for_measurement([new, old], state="a" * 64, profile="p", delivery="env_file")
    assert found["proof"] == new["id"]
    assert found["profile_in_force"] is False
    assert found["overridden"] == ["rank 0: NCCL_PROTO", "rank 1: NCCL_PROTO"]


@pytest.mark.parametrize(
    ("server_log", "args", "allreduce_is", "engaged"),
    [
        ("FlashInfer PCIe-IPC all-reduce enabled (world=8, max=...)", {}, "pcie_ipc", False),
        ("[x TP0] Registering 2135 cuda graph addresses", {}, "custom", True),
        (
            "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.\n"
            "sglang is using nccl==2.28.9",
            {},
            "pynccl",
            False,
        ),
        ("sglang is using nccl==2.28.9", {"disable-custom-all-reduce": True}, "pynccl", False),
        ("sglang is using nccl==2.28.9", {}, None, None),
    ],
)
def test_which_all_reduce_runs(server_log, args, allreduce_is, engaged):
    used = allreduce.implementation(server_log, [], args)
    assert used["allreduce"] == allreduce_is
    assert used["custom"]["engaged"] is engaged
    assert used["matters_at_decode"] is (None if allreduce_is is None else allreduce_is == "pynccl")


def test_a_journal_with_broken_lines_of_many_processes():
    text = (
        "NCCL version 2.21.5+cuda12.4\n"
        "Jan 01 10:00:00 node-a sglang[1]: node-a:11:21 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 8388608.\n"
        "node-a:11:21 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC"
        "node-a:12:22 [1] NCCL INFO NCCL_PROTO set by environment to LL\n"
        "[Rank 0] node-a:11:21 [0] NCCL INFO comm 0xab rank 0 nranks 8 cudaDev 0 busId 3b000 - Init COMPLETE\n"
        "node-a:12:22 [1] NCCL INFO 65536 Bytes -> Algo 1 proto 0 time 37.700001\n"
        "node-a:12:22 [1] NCCL INFO Channel 03/0 : 1[1] -> 2[2] [send] via NET/IB/0/GDRDMA(PXN)\n"
        "node-a:12:22 [1] NCC"
    )
    document = log.parse(text)
    assert [p["pid"] for p in document["processes"]] == [11, 12]
    first, second = document["processes"]
    assert first["env"] == [{"name": "NCCL_BUFFSIZE", "value": "8388608", "after_communicators": 0}]
    assert first["communicators"][0]["nranks"] == 8
    assert first["transports"] == {"0->1": {"P2P/IPC": 1}}, "cut where the other process breaks in"
    assert second["env"][0]["value"] == "LL"
    assert second["transports"] == {"1->2": {"NET/IB": 1}}
    row = second["tuning"][0]
    assert (row["function"], row["bytes"], row["algo"], row["proto"], row["time_us"]) == (
        None,
        65536,
        "RING",
        "LL",
        37.700001,
    )
    assert log.summary(document)["nccl"] == "2.21.5"


def test_what_is_enabled_is_read_from_the_matrix():
    process = log.parse(logs("nccl-delivery/d01_shell.2502.log")[0])["processes"][0]
    assert process["p2p_type"] == {"all_direct": True, "direct_mode": False, "all_cuda": True}
    assert process["patterns"][0]["type_intra"] == "NVL"
    assert process["patterns"][0]["bw_intra"] == 30.0
