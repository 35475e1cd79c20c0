"""A profile is refused before anything starts, with what is wrong and what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from plumbline.errors import PlumblineError
from plumbline.nccl import known, lists
from plumbline.nccl.profile import engine_overrides, remarks, validate, values

STORY = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": 16,
    "NCCL_BUFFSIZE": 16777216,
    "NCCL_NTHREADS": 512,
}
VERSIONS = ["2.21.5", "2.26.2", "2.27.5", "2.28.9", "2.29.7", "2.30.7"]


def texts(variables, version="2.28.9", **context):
    return [str(error) for error in validate({"variables": variables}, version, context)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("delivery", ["env_file", "sitecustomize"])
def test_the_storys_profile_is_legal_in_every_version(version, delivery):
    assert texts(STORY, version, delivery=delivery) == []


def test_every_profile_of_the_catalogue_is_legal_for_the_pinned_versions():
    catalogue = yaml.safe_load(Path("group_vars/all/nccl_profiles.yml").read_text())["plumbline_nccl_profiles"]
    assert set(catalogue) >= {"none", "pcie-ll-ring"}
    assert catalogue["none"]["variables"] == {}
    assert catalogue["pcie-ll-ring"]["variables"] == {k: str(v) for k, v in STORY.items()}
    for name, profile in catalogue.items():
        assert [str(e) for e in validate(profile, "2.28.9", {"delivery": "nccl_conf"})] == [], name
        assert [str(e) for e in validate(profile, "2.30.7", {"delivery": "env_file"})] == [], name


@pytest.mark.parametrize(
    ("variables", "version", "says"),
    [
        ({"NCCL_MAX_NCHANNEL": "16"}, "2.28.9", "did you mean 'NCCL_MAX_NCHANNELS'?"),
        ({"nccl_proto": "LL"}, "2.28.9", "did you mean 'NCCL_PROTO'?"),
        ({"NCCL_WORK_FIFO_DEPTH": "64"}, "2.28.9", "NCCL 2.21.5 to 2.21.5 know it"),
        ({"NCCL_SHM_USE_CUDA_MEMCPY": "1"}, "2.30.7", "does not know"),
        ({"NCCL_PARAM_FLAG_CACHED": "1"}, "2.30.7", "does not know"),
        ({"NCCL_PROTO": "LL64"}, "2.28.9", "'LL64' is unknown, did you mean 'LL'?"),
        ({"NCCL_ALGO": "Rong"}, "2.28.9", "did you mean 'Ring'?"),
        ({"NCCL_PROTO": "LL;Simple"}, "2.28.9", "every entry but the first needs a function"),
        ({"NCCL_ALGO": "ring;allgather2:ring"}, "2.28.9", "'allgather2' is no function"),
        ({"NCCL_ALGO": "ring;allreduce:tree"}, "2.23.4", "not understood before NCCL 2.24"),
        ({"NCCL_ALGO": "PAT"}, "2.21.5", "'PAT' is unknown"),
        ({"NCCL_PROTO": "LL,,Simple"}, "2.28.9", "'' is unknown"),
        ({"NCCL_PROTO": "^LL,LL128,Simple"}, "2.28.9", "leaves nothing"),
        ({"NCCL_P2P_LEVEL": "sys"}, "2.28.9", "did you mean 'SYS'?"),
        ({"NCCL_P2P_LEVEL": "NODE"}, "2.28.9", "did you mean 'PHB'?"),
        ({"NCCL_P2P_LEVEL": "4"}, "2.28.9", "by number is refused"),
        ({"NCCL_P2P_LEVEL": "C2C"}, "2.21.5", "no such level"),
        ({"NCCL_P2P_LEVEL": "SYS,PHB"}, "2.28.9", "no such level"),
        ({"NCCL_NTHREADS": "0512"}, "2.28.9", "octal: 330"),
        ({"NCCL_NTHREADS": "0x100"}, "2.28.9", "hexadecimal: 256"),
        ({"NCCL_BUFFSIZE": "16M"}, "2.28.9", "silently read it as 16"),
        ({"NCCL_BUFFSIZE": "lots"}, "2.28.9", "silently read it as 0"),
        ({"NCCL_BUFFSIZE": ""}, "2.28.9", "empty value as not set"),
        ({"NCCL_NTHREADS": "512 "}, "2.28.9", "silently read it as 512"),
        ({"NCCL_NTHREADS": 300}, "2.28.9", "a multiple of 32 from 64 to 512"),
        ({"NCCL_NTHREADS": 1024}, "2.28.9", "a multiple of 32 from 64 to 512"),
        ({"NCCL_BUFFSIZE": -5}, "2.28.9", "chunks of 0 bytes"),
        ({"NCCL_MAX_NCHANNELS": 999}, "2.28.9", "1 to 64"),
        ({"NCCL_MAX_NCHANNELS": 48}, "2.21.5", "1 to 32"),
        ({"NCCL_MIN_NCHANNELS": 32, "NCCL_MAX_NCHANNELS": 16}, "2.28.9", "is larger than NCCL_MAX_NCHANNELS"),
        ({"NCCL_MAX_NRINGS": 8, "NCCL_MAX_NCHANNELS": 16}, "2.28.9", "old name of NCCL_MAX_NCHANNELS"),
        ({"NCCL_P2P_DISABLE": "yes"}, "2.28.9", "silently read it as 0"),
        ({"NCCL_P2P_DISABLE": 2}, "2.28.9", "0 to 1"),
        ({"NCCL_DEBUG": "INFO"}, "2.28.9", "set by Plumbline itself"),
        ({"OMP_NUM_THREADS": "1"}, "2.28.9", "environment of the variant"),
        ({"NCCL_GRAPH_FILE": "graph.xml"}, "2.28.9", "absolute path"),
        ({"NCCL_SOCKET_IFNAME": "'eth0'"}, "2.28.9", "quotes"),
        ({"NCCL_PROTO": True}, "2.28.9", "neither text nor a whole number"),
        ({"NCCL_BUFFSIZE": 1.5}, "2.28.9", "neither text nor a whole number"),
        ({"NCCL_BUFFSIZE": str(2**64)}, "2.28.9", "does not fit 64 bits"),
    ],
)
def test_refused_with_what_is_wrong(variables, version, says):
    found = texts(variables, version)
    assert len(found) == 1
    assert says in found[0]


@pytest.mark.parametrize("value", ["LL128", "LL,LL128", "^LL", "^Simple", "LL;allreduce:LL128", "ll128"])
def test_ll128_is_refused_unless_checked_or_on_nvlink(value):
    assert "LL128" in texts({"NCCL_PROTO": value})[0]
    assert "LL128" in texts({"NCCL_PROTO": value}, interconnect="pcie")[0]
    assert texts({"NCCL_PROTO": value}, interconnect="nvlink") == []
    assert texts({"NCCL_PROTO": value}, data_check_passed=True) == []


@pytest.mark.parametrize(
    "value", ["LL", "^LL128", "ll,simple", "LL,Simple;allreduce:^LL,LL128", "Simple;allreduce:LL"]
)
def test_lists_without_ll128_are_legal(value):
    assert texts({"NCCL_PROTO": value}) == []


def test_lists_are_read_as_nccl_reads_them():
    on, wrong = lists.token_lists(
        "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring", known.algorithms("2.28.9"), "2.28.9"
    )
    assert wrong == []
    assert on["Reduce"] == {"Ring", "CollnetDirect"}
    assert on["AllReduce"] == {"Tree", "CollnetDirect"}
    assert on["Broadcast"] == {"Ring"}


def test_the_engines_own_variables():
    for name in ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"):
        assert "SGLang puts it into the environment first" in texts({name: 1}, delivery="nccl_conf")[0]
        assert texts({name: 1}, delivery="env_file") == []
        assert texts({name: 1}, delivery="sitecustomize") == []
    assert "NCCL does not read it" in texts({"CUDA_DEVICE_MAX_CONNECTIONS": 32}, delivery="nccl_conf")[0]
    said = remarks({"variables": {"CUDA_DEVICE_MAX_CONNECTIONS": 32}}, "0.5.23")
    assert [r["detail"].split(":")[0] for r in said] == ["profile asks 32, engine set 8"]
    assert engine_overrides("0.4.6.post5")["CUDA_DEVICE_MAX_CONNECTIONS"] == "4"
    assert engine_overrides("0.5.0rc2")["NCCL_CUMEM_ENABLE"] == "0"
    assert "NCCL_CUMEM_ENABLE" not in engine_overrides("0.5.15.post1")


def test_a_level_beside_p2p_off_is_remarked_not_refused():
    both = {"NCCL_P2P_DISABLE": 1, "NCCL_P2P_LEVEL": "SYS"}
    assert texts(both) == []
    assert "not even read" in remarks({"variables": both}, "0.5.23")[0]["detail"]


def test_deterministic_inference_with_a_profile_is_refused_and_without_one_is_not():
    args = {"enable-deterministic-inference": True}
    assert "deterministic inference overwrites" in texts(STORY, server_args=args)[0]
    assert texts({}, server_args=args) == []


def test_delivery_and_version():
    assert "does not read NCCL_CONF_FILE" in texts(STORY, "2.22.3", delivery="nccl_conf")[0]
    assert texts(STORY, "2.23.4", delivery="nccl_conf") == []
    assert "unknown delivery" in texts(STORY, delivery="conf")[0]
    assert "no NCCL" in str(validate({"variables": STORY}, "", {})[0])
    assert validate({"variables": {}}, "", {"delivery": "env_file"}) == []
    with pytest.raises(PlumblineError, match="not an NCCL version"):
        known.parse_version("latest")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("2.28.9", (2, 28, 9)),
        ("2.28.9+cuda13.0", (2, 28, 9)),
        (22809, (2, 28, 9)),
        (2804, (2, 8, 4)),
        ("v2.30.7-1", (2, 30, 7)),
        ("2.28", (2, 28, 0)),
    ],
)
def test_versions(given, wanted):
    assert known.parse_version(given) == wanted


@pytest.mark.parametrize(
    ("wanted", "list_of", "count"),
    [
        ("2.21.5", "2.21.5", 121 - 1),
        ("2.20.3", "2.21.5", 120),
        ("2.26.5", "2.26.2", 155),
        ("2.28.3", "2.27.5", 170),
        ("2.28.9", "2.28.9", 187),
        ("2.99.0", "2.30.7", 245),
    ],
)
def test_the_nearest_list_that_is_not_newer(wanted, list_of, count):
    used, names = known.variables(wanted)
    assert (used, len(names)) == (list_of, count)
    assert "NCCL_PARAM_FLAG_NONE" not in names


def test_conf_files_are_read_as_nccl_reads_them():
    text = "# NCCL_ALGO=Tree\nNCCL_PROTO=LL\nNCCL_PROTO=Simple\n NCCL_BUFFSIZE = 4\n"
    text += "export NCCL_X=1\nnonsense\nNCCL_Y=a=b\n"
    assert known.parse_conf(text) == {
        "NCCL_PROTO": "LL",
        " NCCL_BUFFSIZE ": " 4",
        "export NCCL_X": "1",
        "NCCL_Y": "a=b",
    }
    assert known.parse_conf(text, comments=False)["# NCCL_ALGO"] == "Tree"


def test_values_are_text():
    assert values({"variables": {"NCCL_NTHREADS": 512}}) == {"NCCL_NTHREADS": "512"}
    assert values({}) == {}
    with pytest.raises(PlumblineError, match="no mapping"):
        values({"variables": ["NCCL_PROTO=LL"]})
