"""Comparison of states: what differs, ranked; unknowns; conditions; the table."""

from __future__ import annotations

from typing import Any

import pytest
from plumbline.state import document, impact, table
from plumbline.state.compare import compare, reduced
from plumbline.state.values import Group, absent, unknown


def state(**groups: Any) -> dict:
    """A document of groups given as identity, or (identity, condition)."""
    return document.assemble("h", [Group(n, *(g if isinstance(g, tuple) else (g, {}))) for n, g in groups.items()])


UNIT = {
    "Service.ExecStart": ["python -m sglang.launch_server"],
    "Service.LimitMEMLOCK": ["infinity"],
    "Unit.Description": ["x"],
}


@pytest.mark.parametrize(
    ("group", "item", "was", "now", "expected"),
    [
        ("models", "draft/model.safetensors", "a" * 64, "b" * 64, "invalidates"),
        ("engine_args", "args.speculative-num-steps", 2, 3, "invalidates"),
        ("engine_args", "args.attention-backend", absent(), "triton", "invalidates"),
        ("engine_args", "environment.SGLANG_X", "1", "0", "performance"),
        ("engine_args", "environment.EDITOR", "vi", "ed", "possible"),
        (
            "engine_args",
            "unit./e/x.service",
            {"sha256": "1", "directives": UNIT},
            {"sha256": "2", "directives": {**UNIT, "Service.ExecStart": ["y"]}},
            "invalidates",
        ),
        (
            "engine_args",
            "unit./e/x.service",
            {"sha256": "1", "directives": UNIT},
            {"sha256": "2", "directives": {**UNIT, "Service.LimitMEMLOCK": ["8M"]}},
            "performance",
        ),
        (
            "engine_args",
            "unit./e/x.service",
            {"sha256": "1", "directives": UNIT},
            {"sha256": "2", "directives": UNIT},
            "noise",
        ),
        (
            "engine_args",
            "unit./e/x.service.d/n.conf",
            absent(),
            {"sha256": "2", "directives": {"Service.Nice": ["5"]}},
            "performance",
        ),
        ("build", "distribution.torch", {"version": "1"}, {"version": "2"}, "performance"),
        ("build", "shared_site_packages", False, True, "noise"),
        ("files", "venv/lib/x.py", None, {"kind": "edited", "sha256": "1"}, "performance"),
        ("files", "stdlib/sitecustomize.py", None, {"kind": "startup"}, "performance"),
        ("nccl", "conf./etc/nccl.conf", absent(), {"sha256": "1", "variables": {"NCCL_PROTO": "LL"}}, "performance"),
        ("nccl", "conf./etc/nccl.conf", absent(), {"sha256": "1", "variables": {}}, "noise"),
        ("driver", "module", "580.1", "590.1", "performance"),
        ("driver", "gpu.3.power_limit", "600 W", "300 W", "performance"),
        ("driver", "p2p.read", {"0-1": "OK"}, {"0-1": "CNS"}, "performance"),
        ("driver", "gpu.0.uuid", "a", "b", "possible"),
        ("firmware_and_kernel", "kernel", "6.1", "6.2", "possible"),
        ("firmware_and_kernel", "sysctl.vm.swappiness", "60", "1", "possible"),
        ("firmware_and_kernel", "iommu", {"units": 1}, absent(), "performance"),
        ("firmware_and_kernel", "command_line", ["a", "iommu=pt"], ["a", "iommu=on"], "performance"),
        ("firmware_and_kernel", "command_line", ["a", "quiet"], ["a"], "possible"),
        ("firmware_and_kernel", "command_line", ["a", "b"], ["b", "a"], "noise"),
        ("os_packages", "package.curl", {"version": "1"}, {"version": "2"}, "possible"),
        (
            "os_packages",
            "package.libnvidia-compute-580",
            {"version": "1", "held": True},
            {"version": "1"},
            "performance",
        ),
        ("runtime", "governor", "performance", "powersave", "performance"),
        ("runtime", "shm", {"mib": 64}, {"mib": 1024}, "possible"),
        ("container", "image", "a", "b", "possible"),
        ("hardware", "gpu.count", 8, 7, "performance"),
        ("new_group", "x", 1, 2, "possible"),
    ],
)
def test_the_class_follows_from_the_kind(group: str, item: str, was: Any, now: Any, expected: str) -> None:
    found, remedy = impact.classify(group, item, was, now)
    assert found == expected and remedy


def test_gravest_first_with_all_keys() -> None:
    was = state(
        models={"t/w": "1"},
        build={"distribution.a": {"version": "1"}},
        os_packages={"package.x": {"version": "1"}},
        runtime={"governor": "performance"},
    )
    now = state(
        models={"t/w": "2"},
        build={"distribution.a": {"version": "2"}},
        os_packages={"package.x": {"version": "2"}},
        runtime={"governor": "powersave"},
    )
    found = compare(was, now)
    assert [d["impact"] for d in found["differences"]] == ["invalidates", "performance", "performance", "possible"]
    assert all(set(d) == {"group", "item", "was", "now", "impact", "remedy"} for d in found["differences"])
    assert found["result"] == "4 settings differ"


def test_same_one_and_unknown() -> None:
    a = state(runtime={"x": 1, "y": absent()})
    assert compare(a, a)["result"] == "same"
    assert compare(a, state(runtime={"x": 2, "y": absent()}))["result"] == "one setting differs"
    b = state(runtime={"x": 1, "y": unknown("root only")})
    found = compare(a, b)
    assert (
        found["result"] == "unknown: these could not be read"
        and found["differences"] == []
        and "y" in found["unverified"][0]
    )


def test_two_unknowns_are_never_equal() -> None:
    a = state(runtime={"x": unknown("root only")})
    assert a["digest"] == state(runtime={"x": unknown("other reason")})["digest"]
    assert compare(a, a)["result"] == "unknown: these could not be read"


def test_absent_equals_itself_and_an_item_that_is_not_listed() -> None:
    assert compare(state(build={"a": absent()}), state(build={}))["result"] == "same"


def test_a_file_that_is_not_listed_is_as_recorded() -> None:
    item = {"kind": "edited", "sha256": "1", "recorded": "0"}
    (difference,) = compare(state(files={"x.py": item}), state(files={}))["differences"]
    assert difference["now"] == "as recorded" and difference["was"] == item


def test_a_group_that_was_not_observed_is_unverified() -> None:
    found = compare(state(build={}, files={}), state(build={}))
    assert found["result"] == "unknown: these could not be read" and found["unverified"] == [
        "files: was not observed in the second"
    ]


def test_what_is_meant_to_differ_is_left_out() -> None:
    was, now = (
        state(nccl={"profile": "a", "variable.NCCL_PROTO": "LL"}, build={"x": 1}),
        state(nccl={"profile": "b"}, build={"x": 2}),
    )
    assert [d["group"] for d in compare(was, now, ["nccl"])["differences"]] == ["build"]
    assert compare(was, now, ["nccl", "build: x"])["result"] == "same"


def test_what_follows_from_another_difference_is_not_listed() -> None:
    found = compare(
        state(firmware_and_kernel={"kernel": "6.1", "kernel.build": "#1"}),
        state(firmware_and_kernel={"kernel": "6.2", "kernel.build": "#2"}),
    )
    assert [d["item"] for d in found["differences"]] == ["kernel"]
    found = compare(
        state(nccl={"profile": "a", "variable.NCCL_PROTO": "LL"}),
        state(nccl={"profile": "b", "variable.NCCL_PROTO": "Simple"}),
    )
    assert [d["item"] for d in found["differences"]] == ["variable.NCCL_PROTO"]
    renamed = compare(
        state(nccl={"profile": "a", "variable.NCCL_PROTO": "LL"}),
        state(nccl={"profile": "b", "variable.NCCL_PROTO": "LL"}),
    )
    assert [(d["item"], d["impact"]) for d in renamed["differences"]] == [("profile", "noise")]


def test_noise_counts_only_when_there_is_nothing_else() -> None:
    was, now = (
        state(build={"shared_site_packages": False, "distribution.x": 1}),
        state(build={"shared_site_packages": True, "distribution.x": 2}),
    )
    assert compare(was, now)["result"] == "one setting differs"
    assert (
        compare(state(build={"shared_site_packages": False}), state(build={"shared_site_packages": True}))["result"]
        == "one setting differs"
    )


def test_conditions_are_judged_by_tolerance_and_are_no_differences() -> None:
    was = state(runtime=({}, {"memory_available_mib": 1000, "foreign_load": 0.01, "uptime_s": 5, "swap_used_mib": 0}))
    now = state(runtime=({}, {"memory_available_mib": 900, "foreign_load": 0.05, "uptime_s": 9, "swap_used_mib": 400}))
    found = compare(was, now)
    assert found["result"] == "same" and [c["item"] for c in found["conditions"]] == ["swap_used_mib"]


def test_only_what_differs_is_shown() -> None:
    assert reduced({"a": 1, "b": {"c": 1, "d": 2}}, {"a": 1, "b": {"c": 1, "d": 3}}) == (
        {"b": {"d": 2}},
        {"b": {"d": 3}},
    )
    assert reduced(["x", "y", "y"], ["x", "y", "z"]) == (["y"], ["z"])
    assert reduced(absent(), {"a": 1}) == (absent(), {"a": 1})


def test_the_table_names_everything_once_and_folds_noise() -> None:
    was = state(
        models={"t/w": "a" * 64},
        os_packages={f"package.p{i}": {"version": "1"} for i in range(40)},
        build={"shared_site_packages": False},
    )
    now = state(
        models={"t/w": "b" * 64},
        os_packages={f"package.p{i}": {"version": "2"} for i in range(40)},
        build={"shared_site_packages": True},
    )
    text = table.render(compare(was, now), "state:a", "host:b")
    assert text.splitlines()[0] == "state:a -> host:b: 41 settings differ"
    assert "aaaaaaaaaaaa " in text and "a" * 13 not in text
    assert "... 15 more of class possible" in text and "... 1 of class noise, folded" in text
    assert text.count("hold it") == 1, "each remedy once"
    only_noise = table.render(
        compare(state(build={"shared_site_packages": False}), state(build={"shared_site_packages": True})), "a", "b"
    )
    assert "shared_site_packages" in only_noise


def test_roles_that_can_mend() -> None:
    assert (
        impact.role_for("files", "venv/x.py") == "sglang_build" and impact.role_for("driver", "module") == "gpu_driver"
    )
    assert (
        impact.role_for("hardware", "cpu.model") == "" and impact.role_for("firmware_and_kernel", "bios_version") == ""
    )
    assert impact.role_for("firmware_and_kernel", "sysctl.vm.swappiness") == "gpu_host"
