"""The parsers on real output and on what must be refused. Readings of whole files are in tests/corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
from plumbline.gpu import acs, nccl_tests, query, smi, topology, xid

CAPTURES = Path(__file__).parent / "captures"
CORPUS = Path("tests/corpus")


def body(name):
    return (CORPUS / f"{name}.txt").read_text().split("#@ ----\n", 1)[1]


def test_topology_of_two_h200():
    found = topology.parse_matrix((CAPTURES / "topo_m.txt").read_text())
    assert found["classes"] == {"NV18": 1}
    assert found["cpu_affinity"] == {"GPU0": "0-31", "GPU1": "0-31"}
    assert topology.pairs_within(found, "NVL") == 1
    assert topology.parse_p2p((CAPTURES / "topo_p2p_r.txt").read_text())["status"] == "OK"


def test_which_pairs_may_talk_peer_to_peer_at_a_level():
    found = topology.parse_matrix(body("40_topo_two_sockets_switch_pairs"))
    assert [topology.pairs_within(found, level) for level in ("PIX", "PXB", "PHB", "SYS")] == [4, 4, 12, 28]
    assert (topology.distance("NODE"), topology.distance("NV4"), topology.distance("?")) == ("PHB", "NVL", None)


@pytest.mark.parametrize(
    "parse", [topology.parse_matrix, topology.parse_p2p, smi.parse_query, nccl_tests.parse, acs.parse]
)
@pytest.mark.parametrize("text", ["", "hello", "Decode batch, #running-req: 1", "GPU0\tGPU1\nGPU0\t X \tPIX\n"])
def test_other_text_is_refused(parse, text):
    with pytest.raises(ValueError):
        parse(text)


def test_a_table_that_was_cut_is_refused():
    text = (CAPTURES / "topo_m.txt").read_text()
    with pytest.raises(ValueError, match="a row for every GPU"):
        topology.parse_matrix(text[: text.index("GPU1\tNV18")])


def test_a_loop_of_samples_of_two_h200():
    rows = query.parse_csv((CAPTURES / "smi_loop.csv").read_text())
    assert {row["index"] for row in rows} == {0, 1}
    assert rows[0]["reasons"] == ["gpu_idle"]
    assert rows[0]["power.draw"] == 81.18
    assert rows[0]["clocks.current.sm"] == 345


def test_reasons_by_bit():
    assert smi.reasons_of(0x4C) == ["sw_power_cap", "hw_slowdown", "hw_thermal_slowdown"]
    assert smi.reasons_of(0) == []


def test_text_and_xml_of_a_gpu_have_the_same_fields():
    text = smi.parse_query(body("74_smi_q_old_driver_thermal"))["gpus"][1]
    real = smi.parse_query(body("77_smi_q_xml_two_h200"))["gpus"][1]
    assert set(text) == set(real)
    assert text["counters_us"] == {} and real["counters_us"]["sw_power_cap"] == 0
    assert real["max_clocks_mhz"] == {"sm": 1980, "memory": 3201}
    assert text["persistence"] is True and text["mig"]["current"] is None


def test_what_a_driver_does_not_print_is_null_and_not_zero():
    gpu = smi.parse_query(body("43_smi_q_idle"))["gpus"][0]
    assert gpu["memory_mib"] == {"total": 97887, "reserved": 636, "used": None, "free": None}
    assert gpu["power_w"]["draw"] is None
    assert smi.idle(gpu) is True


def test_wrong_data_and_unchecked_data_of_nccl_tests():
    assert nccl_tests.parse(body("66_nccl_tests_wrong_data"))["ok"] is False
    assert nccl_tests.parse(body("67_nccl_tests_not_checked"))["ok"] is None
    good = nccl_tests.parse(body("65_nccl_tests_new_form_graph"))
    assert good["ok"] is True
    assert nccl_tests.row_of(good, 65536)["in_place"]["us"] == 18.1
    assert nccl_tests.row_of(good, 7) is None


def test_xid_lines():
    (one,) = xid.parse(body("82_dmesg_xid79"))
    assert (one["gpu"], one["xid"], one["pid"], one["name"], one["at"]) == (
        "0000:a7:00",
        79,
        None,
        None,
        86400.234567,
    )
    assert "fallen off the bus" in one["meaning"]
    (two,) = xid.parse(body("47_dmesg_xid8"))
    assert (two["pid"], two["name"], two["suspect"]) == (4242, "python3", "driver or application")
    assert xid.parse("NVRM: loading NVIDIA UNIX Open Kernel Module") == []
    # Old drivers print no "PCI:"; a journal has no kernel time.
    (old,) = xid.parse("[   12.3] NVRM: Xid (0000:01:00): 8, Channel 0000003e")
    assert (old["gpu"], old["xid"], old["at"]) == ("0000:01:00", 8, 12.3)
    (new,) = xid.parse(
        "Nov 29 20:00:00 node-a kernel: NVRM: Xid (PCI:0000:81:00.0): 119, pid=3344, name=sglang::schedul, Timeout"
    )
    assert (new["xid"], new["pid"], new["name"], new["at"]) == (119, 3344, "sglang::schedul", None)
