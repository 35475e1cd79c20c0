"""The collective on real processes that reduce over loopback: right and wrong data, a rank that does not arrive, a
crash, an interruption.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plumbline.errors import PlumblineError
from plumbline.nccl import collective, collective_worker

ENV = {"PATH": os.environ["PATH"]}


def run(folder, sizes=(4096, 16384), world=3, **given):
    given = {"environment": ENV, "limit_s": 30.0, "iterations": 3, **given}
    return collective.run(
        python=sys.executable, world=world, sizes=list(sizes), folder=folder, backend="socket", **given
    )


def nothing_left(folder):
    """No process of this run is alive: each carries the folder in its command line."""
    mark = str(folder).encode()
    return [
        p for p in Path("/proc").iterdir() if p.name.isdigit() and p.name != str(os.getpid()) and mark in _command(p)
    ] == []


def _command(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_right_data_is_checked_and_timed(tmp_path):
    done = run(tmp_path / "c")
    assert done["status"] == "ok"
    assert done["diagnosis"] is None
    assert [(r["bytes"], r["elements"], r["wrong"], r["ranks"]) for r in done["results"]] == [
        (4096, 2048, 0, 3),
        (16384, 8192, 0, 3),
    ]
    assert all(0 < r["eager_us"]["min"] <= r["eager_us"]["median"] <= r["eager_us"]["max"] for r in done["results"])
    assert done["facts"]["backend"] == "socket"
    assert nothing_left(tmp_path)


def test_wrong_data_is_found_and_has_no_time(tmp_path):
    done = run(tmp_path / "c", fault={"rank": 2, "do": "wrong", "at": 16384})
    assert done["status"] == "wrong_data"
    small, large = done["results"]
    assert (small["wrong"], large["wrong"], large["wrong_ranks"]) == (0, 1, [2])
    assert small["eager_us"] and large["eager_us"] is None
    assert done["diagnosis"]["what"] == "the all-reduce gave wrong data: 1 of 8192 elements at 16384 bytes, rank 2"


@pytest.mark.parametrize(("do", "state"), [("hang", "sleeping"), ("freeze", "stopped")])
def test_a_rank_that_does_not_arrive_is_named(tmp_path, do, state):
    began = time.monotonic()
    done = run(tmp_path / "c", limit_s=3.0, fault={"rank": 1, "do": do, "at": 16384})
    assert time.monotonic() - began < 10
    assert done["status"] == "hang"
    said = done["diagnosis"]
    assert said["missing"] == [1]
    assert "rank 1 did not arrive: it is in 'eager' of 4096 bytes" in said["what"]
    assert f"is {state}" in said["what"]
    assert [r["bytes"] for r in done["results"]] == [4096], "what all ranks had finished is kept"
    assert nothing_left(tmp_path)


def test_a_rank_that_hangs_before_the_first_communicator_is_named(tmp_path):
    done = run(tmp_path / "c", limit_s=2.0, fault={"rank": 2, "do": "hang", "at": "init"})
    assert (done["status"], done["diagnosis"]["missing"], done["results"]) == ("hang", [2], [])
    assert "rank 2 did not arrive: it is in 'start'" in done["diagnosis"]["what"]


def test_all_ranks_in_the_same_place_is_said_as_such():
    ranks = [
        {
            "rank": r,
            "pid": r,
            "step": 5,
            "phase": "eager",
            "bytes": 8192,
            "since_s": 9.0,
            "exit": None,
            "state": "running",
            "tail": "",
        }
        for r in (0, 1)
    ]
    said = collective._hang(ranks, 60.0, {})
    assert (
        said["what"]
        == "the collective hung: not over after 60 s; all ranks are in 'eager' of 8192 bytes and none comes back"
    )
    assert "P2P is on" in said["remedy"] and "ACS" in said["remedy"]
    assert "P2P is off" in collective._hang(ranks, 60.0, {"NCCL_P2P_DISABLE": "1"})["remedy"]


def test_a_crash_ends_the_wait_and_names_rank_and_words(tmp_path):
    began = time.monotonic()
    done = run(tmp_path / "c", fault={"rank": 0, "do": "crash", "at": 4096})
    assert time.monotonic() - began < 12, "not the whole limit"
    assert done["status"] == "crash"
    assert done["diagnosis"]["what"] == "rank 0 ended with exit status 7 in 'ready': RuntimeError: asked to crash"
    assert nothing_left(tmp_path)


def test_the_ranks_die_with_the_process_that_started_them(tmp_path):
    code = (
        "import sys; sys.path.insert(0, 'module_utils'); from plumbline.nccl import collective; "
        f"collective.run(python=sys.executable, world=2, sizes=[4096], folder={str(tmp_path / 'c')!r}, "
        "backend='socket', environment={}, "
        "limit_s=60, fault={'rank': 1, 'do': 'hang', 'at': 4096})"
    )
    driver = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 20
    while not (tmp_path / "c" / "rank1.heartbeat").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not nothing_left(tmp_path / "c")
    driver.kill()
    driver.wait()
    end = time.monotonic() + 10
    while not nothing_left(tmp_path / "c") and time.monotonic() < end:
        time.sleep(0.05)
    assert nothing_left(tmp_path / "c")


def test_what_is_refused(tmp_path):
    with pytest.raises(PlumblineError, match="two ranks"):
        run(tmp_path / "c", world=1)
    with pytest.raises(PlumblineError, match="cannot be started"):
        collective.run(
            python="/nowhere/python", world=2, sizes=[8], folder=tmp_path / "d", environment={}, backend="socket"
        )
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "rank0.results").write_text("")
    with pytest.raises(PlumblineError, match="not empty"):
        run(tmp_path / "e")
    with pytest.raises(PlumblineError, match="nccl, gloo, socket"):
        collective.run(
            python=sys.executable, world=2, sizes=[8], folder=tmp_path / "f", environment={}, backend="mpi"
        )


def test_every_place_and_rank_counts_in_the_data():
    """A result in the wrong place, or one rank left out, must show: sums differ from place to place and with the
    ranks.
    """
    for world in (2, 3, 4, 8):
        sums = [collective_worker.total(place, world) for place in range(5)]
        assert len(set(sums)) > 1 or world % 5 == 0
        assert max(abs(s) for s in sums) <= 2 * world < 256, "exact in bfloat16"
        for left_out in range(world):
            without = [sum(collective_worker.value(p, r) for r in range(world) if r != left_out) for p in range(5)]
            assert without != sums


def test_the_sizes_cover_decode_and_prefill():
    assert (collective.DECODE_SIZES[0], collective.DECODE_SIZES[-1]) == (4096, 1 << 20)
    assert collective.PREFILL_SIZES[-1] == 64 << 20
