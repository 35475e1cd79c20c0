"""NCCL as the ranks imitate it: numbers, files, levels, lists, log."""

from __future__ import annotations

from pathlib import Path

import pytest
from plumbline.nccl import log, proof
from sglang.srt.distributed.device_communicators import pynccl

PROFILE = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
TALK = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING"}


def write(folder: Path, variables: dict[str, str], ranks: int = 8, version: str = "2.30.7") -> list[str]:
    """What each rank writes."""
    texts = []
    for rank in range(ranks):
        file = folder / f"nccl.{rank}.log"
        pynccl.Communicator(rank, ranks, version, {**TALK, "NCCL_DEBUG_FILE": str(file), **variables})
        # One process stands for all ranks here; a real rank has a pid of its own.
        texts.append(file.read_text().replace(f":{pynccl.os.getpid()}:", f":{1000 + rank}:"))
    return texts


@pytest.mark.parametrize(
    ("text", "value"),
    [("16", 16), ("8x", 8), ("abc", 0), ("010", 8), ("0x10", 16), ("-5", -5), (" 7", 7), ("", 0)],
)
def test_numbers_are_read_as_c_reads_them(text: str, value: int) -> None:
    assert pynccl.number(text) == value


def test_conf_files_stand_behind_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, user = tmp_path / "own.conf", tmp_path / ".nccl.conf"
    own.write_text("# NCCL_ALGO=Tree\nNCCL_ALGO=Ring\nNCCL_PROTO = LL\nexport NCCL_NTHREADS=64\nNCCL_BUFFSIZE=1 \n")
    user.write_text("NCCL_ALGO=Tree\nNCCL_MAX_NCHANNELS=4\n")
    for name in list(pynccl.os.environ):
        if name.startswith("NCCL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NCCL_BUFFSIZE", "9")
    with monkeypatch.context() as patch:
        patch.setattr(pynccl.os, "environ", dict(pynccl.os.environ))
        found = pynccl.read_environment()
        assert (found["NCCL_ALGO"], found["NCCL_MAX_NCHANNELS"], found["NCCL_BUFFSIZE"]) == ("Tree", "4", "9")
    with monkeypatch.context() as patch:
        patch.setattr(pynccl.os, "environ", {**pynccl.os.environ, "NCCL_CONF_FILE": str(own)})
        found = pynccl.read_environment()
        assert found["NCCL_ALGO"] == "Ring" and "NCCL_MAX_NCHANNELS" not in found, "it replaces ~/.nccl.conf"
        assert "NCCL_PROTO" not in found and found["NCCL_PROTO "] == " LL", "nothing is trimmed"
        assert "NCCL_NTHREADS" not in found


@pytest.mark.parametrize(
    ("change", "whole"),
    [
        ({}, True),
        ({"NCCL_PROTO": "ll", "NCCL_ALGO": "ring", "NCCL_BUFFSIZE": "0x1000000"}, True),
        ({"NCCL_P2P_LEVEL": "sys"}, False),
        ({"NCCL_MAX_NCHANNELS": "8"}, False),
        ({"NCCL_PROTO": "LL,Simple"}, False),
    ],
)
def test_whether_a_profile_is_in_force(change: dict[str, str], whole: bool) -> None:
    assert pynccl.in_force({**PROFILE, **change}, PROFILE) is whole
    assert not pynccl.in_force({}, PROFILE)


def test_the_projects_proof_believes_the_log(tmp_path: Path) -> None:
    texts = write(tmp_path, PROFILE)
    found = proof.prove(
        profile="p", asked=PROFILE, delivery="env_file", logs=texts, expected_ranks=8, nccl_version="2.30.7"
    )
    assert found["profile_in_force"] is True, found["reasons"]
    document = log.merge([log.parse(text) for text in texts])
    assert document["version"] == "2.30.7+cuda13.0" and set(log.transports(document)) == {"P2P"}
    without = write(tmp_path, {name: value for name, value in PROFILE.items() if name != "NCCL_ALGO"}, 8)
    found = proof.prove(
        profile="p", asked=PROFILE, delivery="env_file", logs=texts[:5] + without[5:6] + texts[6:], expected_ranks=8
    )
    assert found["profile_in_force"] is False and any("rank 5 of 8" in reason for reason in found["reasons"])


def test_paths_follow_the_level(tmp_path: Path) -> None:
    def via(**variables: str) -> dict[str, int]:
        return log.transports(log.merge([log.parse(text) for text in write(tmp_path, variables)]))

    assert set(via()) == {"SHM"}, "PXB is the default, and no pair of GPUs is that near"
    assert set(via(NCCL_P2P_LEVEL="SYS")) == {"P2P"}
    assert set(via(NCCL_P2P_LEVEL="4")) == {"P2P"}
    assert set(via(NCCL_P2P_LEVEL="PHB")) == {"P2P", "SHM"}
    assert set(via(NCCL_P2P_LEVEL="ABC")) == {"SHM"}
    assert set(via(NCCL_P2P_DISABLE="1", NCCL_P2P_LEVEL="SYS")) == {"SHM"}
    assert set(via(NCCL_P2P_LEVEL="SYS", NCCL_CUMEM_ENABLE="1")) == {"P2P"}


def test_what_is_not_read_is_not_said(tmp_path: Path) -> None:
    text = write(tmp_path, {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS", "NCCL_UNKNOWN": "1"}, 2)[0]
    assert "NCCL_P2P_DISABLE set by environment to 1" in text
    assert "NCCL_P2P_LEVEL" not in text and "NCCL_UNKNOWN" not in text
    text = write(tmp_path, {"NCCL_P2P_LEVEL": "ABC", "NCCL_NTHREADS": "300"}, 2)[0]
    assert "NCCL_P2P_LEVEL" not in text and "Invalid NCCL_NTHREADS 300 (must be a multiple of 32)" in text
    assert "set by environment" not in write(tmp_path, {"NCCL_DEBUG_SUBSYS": "INIT", **PROFILE}, 2)[0].replace(
        "NCCL_P2P_LEVEL set by environment", ""
    )
    assert write(tmp_path, {"NCCL_DEBUG": "WARN", **PROFILE}, 2)[0] == ""


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NCCL_PROTO": "FOO"}, 'Unrecognized element token "FOO" when parsing "FOO"'),
        ({"NCCL_ALGO": "Rong"}, 'Unrecognized element token "Rong" when parsing "Rong"'),
        ({"NCCL_ALGO": "all:tree"}, 'Unrecognized prefix token "all"'),
        ({"NCCL_ALGO": "ring;tree"}, "All entries except the first must have a prefix"),
    ],
)
def test_wrong_tokens_are_fatal(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    with pytest.raises(pynccl.NcclError, match="invalid usage"):
        write(tmp_path, variables, 2)
    assert words in (tmp_path / "nccl.0.log").read_text()


def test_lists_with_prefixes_and_exclusions(tmp_path: Path) -> None:
    for variables in ({"NCCL_ALGO": "ring;allreduce:tree,ring;broadcast:ring"}, {"NCCL_PROTO": "^LL128"}):
        assert "Init COMPLETE" in write(tmp_path, variables, 2)[0]
    assert "-> Algo TREE" in write(tmp_path, {"NCCL_ALGO": "allreduce:tree"}, 2)[0]
