"""What a sweep says, as sentences, table and plot; and how proofs and sweeps reach the results tree."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from plumbline.analysis import nccl_records, nccl_report
from plumbline.errors import PlumblineError
from plumbline.files import read_lines


def spread(median, by=0.05):
    return {"median": median, "min": round(median * (1 - by), 3), "max": round(median * (1 + by), 3)}


def record(profile, size, us, mode="as-is", **given):
    return {
        "schema": "plumbline.nccl-sweep/1",
        "sweep": "s",
        "host": "gpu-01",
        "at": "2026-11-29T19:00:00Z",
        "key": f"{profile}{mode}",
        "profile": profile,
        "variables": {},
        "mode": mode,
        "world": 2,
        "backend": "nccl",
        "bytes": size,
        "elements": size // 2,
        "eager_us": spread(us * 2),
        "graph_us": spread(us),
        "wrong": 0,
        "wrong_in_graph": 0,
        "ranks": 2,
        "wrong_ranks": [],
        "status": "ok",
        "algo": "RING",
        "proto": "LL",
        "channels": 1,
        "device": "NVIDIA H200",
        "nccl": "2.28.9",
        "torch": "2.11.0",
        "fault": None,
        **given,
    }


HANG = {
    **{
        k: v
        for k, v in record("ll128", 1, 1).items()
        if k in ("schema", "sweep", "host", "at", "key", "profile", "variables", "mode", "world", "backend")
    },
    "bytes": None,
    "status": "hang",
    "diagnosis": {"what": "the collective hung: rank 1 did not arrive", "ranks": [], "missing": [1], "remedy": "see"},
}
# Medians of a run on two H200: in a graph, the default against LL/Ring with 16 channels, with P2P.
REAL = {
    8192: (10.8, 10.9),
    65536: (11.8, 11.5),
    1048576: (19.6, 22.0),
    8388608: (47.0, 91.0),
    67108864: (249.0, 879.0),
}


def real():
    return [
        record(name, size, both[i]) for size, both in REAL.items() for i, name in enumerate(("none", "pcie-ll-ring"))
    ]


def test_neutral_at_decode_and_dear_at_prefill():
    rows = {r["bytes"]: r for r in nccl_report.ratios(real()) if r["profile"] == "pcie-ll-ring"}
    assert {size: rows[size]["verdict"] for size in rows} == {
        8192: "same",
        65536: "same",
        1048576: "slower",
        8388608: "slower",
        67108864: "slower",
    }
    assert rows[67108864]["ratio"] == 3.53
    (said,) = nccl_report.conclusions(real())
    assert said == (
        "gpu-01, as-is, pcie-ll-ring: decode sizes 0.97 to 1.12 times the reference's time "
        "(0 faster, 2 same, 1 slower); "
        "prefill sizes 1.94 to 3.53 times the reference's time (0 faster, 0 same, 2 slower)"
    )


def test_spreads_that_touch_claim_nothing():
    rows = nccl_report.ratios([record("none", 4096, 10.0), record("a", 4096, 9.2)])
    assert rows[1]["verdict"] == "same"
    rows = nccl_report.ratios([record("none", 4096, 10.0), record("a", 4096, 8.0)])
    assert (rows[1]["verdict"], rows[1]["ratio"]) == ("faster", 0.8)
    assert nccl_report.ratios([record("a", 4096, 8.0)])[0]["verdict"] is None, "no reference, no verdict"


def test_wrong_data_and_hangs_are_said_and_have_no_ratio():
    wrong = record("ll128", 65536, 5.0, eager_us=None, graph_us=None, wrong=24, wrong_ranks=[1], status="wrong_data")
    records = [record("none", 65536, 11.0), wrong, HANG]
    assert nccl_report.conclusions(records) == [
        "gpu-01, as-is, ll128: wrong data at 64 KiB",
        "gpu-01, as-is, ll128: hang: the collective hung: rank 1 did not arrive",
    ]
    assert "**wrong_data**" in nccl_report.markdown(records)
    # Wrong data of the reference is no reference.
    assert nccl_report.ratios([{**wrong, "profile": "none"}, record("a", 65536, 5.0)])[1]["ratio"] is None


def test_the_newest_record_counts():
    old, new = record("none", 4096, 10.0), record("none", 4096, 20.0)
    assert [r["us"] for r in nccl_report.ratios([old, new])] == [20.0]


def test_the_plot_is_wellformed_and_holds_every_profile():
    tree = ET.fromstring(nccl_report.svg(real(), "gpu-01", "as-is"))
    texts = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"none", "pcie-ll-ring", "8 KiB", "64 MiB"} <= set(texts)
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}circle"))) == 10
    assert nccl_report.svg(real(), "gpu-01", "no-p2p") == ""
    one = nccl_report.svg([record("<none>", 4096, 10.0)], "gpu-01", "as-is")
    assert "&lt;none&gt;" in one and ET.fromstring(one) is not None


def test_a_sweep_in_the_results_tree(tmp_path):
    done = nccl_records.write_sweep(str(tmp_path), "s", [*real(), HANG])
    folder = tmp_path / "nccl-sweeps" / "s"
    assert sorted(p.name for p in folder.iterdir()) == ["gpu-01-as-is.svg", "records.jsonl", "sweep.md"]
    assert len(done["written"]) == 3
    assert nccl_records.write_sweep(str(tmp_path), "s", [*real(), HANG])["written"] == []
    more = [*real(), HANG, record("p2p-sys", 8192, 10.0)]
    assert nccl_records.write_sweep(str(tmp_path), "s", more, dry=True)["written"], "said,"
    assert len(read_lines(folder / "records.jsonl")) == 11, "not done"
    nccl_records.write_sweep(str(tmp_path), "s", more)
    assert len(read_lines(folder / "records.jsonl")) == 12
    with pytest.raises(PlumblineError, match="profil"):
        nccl_records.write_sweep(str(tmp_path), "s", [{k: v for k, v in HANG.items() if k != "profile"}])
