"""Sampling during a window, with stand-ins for nvidia-smi and pynvml as this machine may have no GPU; the processes
are real.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plumbline.gpu import samples

HERE = Path(__file__).parent
BUSY = ["1980 MHz", "3201 MHz", "258.28 W", "46", "98 %", "59178 MiB", "5", "5", "16", "16", "0x0000000000000004"]
PYNVML = """
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
class _O:
    def __init__(self, **k): self.__dict__.update(k)
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlSystemGetDriverVersion(): return b"580.95.05"
def nvmlDeviceGetHandleByIndex(i): return i
def nvmlDeviceGetClockInfo(h, kind): return 1980 if kind == 1 else 3201
def nvmlDeviceGetPowerUsage(h): return 258280
def nvmlDeviceGetTemperature(h, kind): return 46
def nvmlDeviceGetUtilizationRates(h): return _O(gpu=98, memory=50)
def nvmlDeviceGetMemoryInfo(h): return _O(used=59178 << 20)
def nvmlDeviceGetCurrPcieLinkGeneration(h): return 5
def nvmlDeviceGetMaxPcieLinkGeneration(h): return 5
def nvmlDeviceGetCurrPcieLinkWidth(h): return 8 if h else 16
def nvmlDeviceGetMaxPcieLinkWidth(h): return 16
def nvmlDeviceGetCurrentClocksThrottleReasons(h): return 0x4
def nvmlDeviceGetComputeRunningProcesses(h): raise RuntimeError("not supported")
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with the stand-in for nvidia-smi. Call it with what the GPUs are to show."""
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!{sys.executable}\n" + (HERE / "standin_smi.py").read_text())
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("STANDIN", str(tmp_path / "standin.json"))

    def show(**say):
        (tmp_path / "standin.json").write_text(json.dumps({"gpus": 2, "row": BUSY, **say}))
        return str(script)

    return show


def window(sampler, seconds=0.5):
    assert sampler.start(), sampler.why
    time.sleep(seconds)
    return sampler.stop()


def test_throttling_is_the_difference_of_the_counters(machine):
    found = window(samples.Sampler(nvidia_smi=machine(counters=[5_000_000, 6_250_000]), interval_s=0.05))
    assert found["source"] == "nvidia-smi"
    assert found["event_source"] == "counters"
    assert found["event_reasons"] == {"0": {"sw_power_cap": 1.25}, "1": {"sw_power_cap": 1.25}}, (
        "not the 70 us of before"
    )
    assert found["samples"] >= 6
    assert found["gpus"]["0"]["power_w"] == {"min": 258.28, "median": 258.28, "max": 258.28}
    assert found["links"]["1"] == {"gen": 5, "gen_max": 5, "width": 16, "width_max": 16}
    assert found["wedged"] == []


def test_counters_that_did_not_move_show_nothing_even_if_a_sample_caught_a_reason(machine):
    found = window(samples.Sampler(nvidia_smi=machine(counters=[900]), interval_s=0.05))
    assert found["event_reasons"] == {"0": {}, "1": {}}


def test_without_counters_the_share_of_samples_stands_for_the_time(machine):
    found = window(samples.Sampler(nvidia_smi=machine(), interval_s=0.05), 0.4)
    assert found["event_source"] == "samples"
    assert found["event_reasons"]["0"]["sw_power_cap"] == pytest.approx(found["window_s"], abs=0.01)


def test_an_old_driver_knows_the_reasons_by_another_name(machine):
    found = window(samples.Sampler(nvidia_smi=machine(old=True), interval_s=0.05), 0.3)
    assert found["event_reasons"]["1"]


def test_the_measurements_flags_take_this_shape(machine):
    from plumbline.measure import flags

    row = [*BUSY[:6], "2", "5", "8", "16", BUSY[-1]]
    found = window(samples.Sampler(nvidia_smi=machine(row=row, counters=[0, 400_000]), interval_s=0.05))
    raised = {f["name"]: f["detail"] for f in flags._gpu(found)}
    assert set(raised) == {"throttled", "pcie_narrow"}
    assert "lanes 8 of 16" in raised["pcie_narrow"] and "generation 2 of 5" in raised["pcie_narrow"]


def test_an_idle_link_is_not_judged(machine):
    row = ["210 MHz", "405 MHz", "25.1 W", "35", "0 %", "4 MiB", "1", "5", "16", "16", "0x0000000000000001"]
    found = window(samples.Sampler(nvidia_smi=machine(row=row), interval_s=0.05), 0.3)
    assert found["links"]["0"] == {"gen": None, "gen_max": 5, "width": None, "width_max": 16}


def test_nvml_is_asked_first_through_the_builds_python(machine, tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(PYNVML)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = window(samples.Sampler(python=sys.executable, nvidia_smi=machine(counters=[0, 3]), interval_s=0.05))
    assert found["source"] == "nvml"
    assert found["links"] == {
        "0": {"gen": 5, "gen_max": 5, "width": 16, "width_max": 16},
        "1": {"gen": 5, "gen_max": 5, "width": 8, "width_max": 16},
    }
    assert found["gpus"]["1"]["power_w"]["median"] == 258.28
    assert found["event_reasons"]["0"] == {"sw_power_cap": 3e-06}


def test_without_pynvml_it_falls_back_and_without_both_it_says_why(machine, tmp_path):
    sampler = samples.Sampler(python=sys.executable, nvidia_smi=machine(), interval_s=0.05)
    assert window(sampler, 0.2)["source"] == "nvidia-smi"
    none = samples.Sampler(python=sys.executable, nvidia_smi=str(tmp_path / "none"))
    assert none.start() is False
    assert "pynvml" in none.why and "No such file" in none.why
    assert none.stop() is None
    assert samples.look(0.1, nvidia_smi=str(tmp_path / "none")) is None


def test_no_process_is_left_behind(machine):
    sampler = samples.Sampler(nvidia_smi=machine(), interval_s=0.05)
    assert sampler.start()
    pid = sampler._process.pid
    sampler.stop()
    assert not Path(f"/proc/{pid}").exists()


def test_somebody_elses_process_is_named_and_left_alone(machine):
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess as s, sys, time\n"
            "s.Popen([sys.executable, '-c', 'import time; time.sleep(30)'])\ntime.sleep(30)",
        ],
        start_new_session=True,
    )
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], start_new_session=True)
    try:
        end = time.monotonic() + 10
        while len(samples.family(server.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        child = (samples.family(server.pid) - {server.pid}).pop()
        apps = [
            ["00000000:01:00.0", child, "sglang::scheduler_TP0", "59168 MiB"],
            ["00000000:02:00.0", stranger.pid, "train.py, v2", "4000 MiB"],
        ]
        found = window(samples.Sampler(nvidia_smi=machine(apps=apps), interval_s=0.05, server_pid=server.pid), 0.2)
        assert [(p["pid"], p["name"], p["memory_mib"]) for p in found["foreign_processes"]] == [
            (stranger.pid, "train.py, v2", 4000)
        ]
        assert stranger.poll() is None
    finally:
        os.killpg(server.pid, 9)
        stranger.kill()
        server.wait()
        stranger.wait()


def test_pids_of_another_namespace_tell_nothing():
    running = [{"pid": 2**22 + 5, "gpu": "x", "name": "a", "memory_mib": 1}]
    assert samples.foreign(running, {1}) == []
    assert samples.foreign(running, set()) == running, "with nothing of ours running, a busy GPU is somebody else's"


@pytest.mark.parametrize(
    ("util", "memory", "apps", "wedged"),
    [
        ("100 %", "4 MiB", [], True),
        ("100 %", "4 MiB", [["00000000:01:00.0", 1, "x", "3 MiB"]], False),
        ("100 %", "40000 MiB", [], False),
        ("60 %", "4 MiB", [], False),
    ],
)
def test_a_wedged_gpu(machine, util, memory, apps, wedged):
    row = ["1980 MHz", "3201 MHz", "120.00 W", "46", util, memory, "5", "5", "16", "16", "0x0000000000000000"]
    found = window(samples.Sampler(nvidia_smi=machine(row=row, apps=apps, gpus=1), interval_s=0.05), 0.4)
    assert bool(found["wedged"]) is wedged
    if wedged:
        assert "needs a GPU reset or a reboot" in found["wedged"][0]["detail"]
        assert "at 120 W" in found["wedged"][0]["detail"]


def test_a_measurements_sampler_counts_from_the_first_tick_to_the_last(machine, monkeypatch, tmp_path):
    script = machine(counters=[1_000_000, 5_000_000, 5_500_000])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sampler = samples.WindowSampler(nvidia_smi=script)
    sampler.sampler.interval_s = 0.05
    assert sampler.on
    time.sleep(0.3)
    for _ in range(3):
        sampler.tick(0.0)
        time.sleep(0.5)
    found = sampler.result()
    # The first reading of the counters was at the start, the second at the first tick, the third after the window.
    assert found["event_reasons"]["0"] == {"sw_power_cap": 0.5}
    assert 0.9 < found["window_s"] < 1.6
    assert found["samples"] >= 2
    assert sampler.result() is None
    never = samples.WindowSampler(nvidia_smi=script)
    assert never.result() is None, "no window, no figures"
    assert samples.for_engine("sglang-cpu") is None and samples.for_engine("simulator") is None
    assert samples.for_engine("sglang-cuda").result() is None
