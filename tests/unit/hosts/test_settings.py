"""Files, sysctls and values below /sys: what differs, and that only that is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from plumbline.errors import PlumblineError
from plumbline.host import settings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in {
        "proc/sys/vm/swappiness": "60\n", "proc/sys/net/core/somaxconn": "4096\n",
        "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "sys/policy0/scaling_governor": "performance\n", "sys/policy1/scaling_governor": "powersave\n",
        "sys/thp/enabled": "always [madvise] never\n",
    }.items():  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_only_what_is_not_in_force_differs(root: Path) -> None:
    wanted = {
        "vm.swappiness": 10,
        "net.core.somaxconn": 4096,
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "-kernel.numa_balancing": 0,
    }
    assert [(d["name"], d["was"], d["now"]) for d in settings.sysctl_differences(wanted, root)] == [
        ("vm.swappiness", "60", "10")
    ]


def test_a_key_that_the_kernel_lacks_is_an_error_unless_marked(root: Path) -> None:
    with pytest.raises(PlumblineError, match=r"-kernel\.numa_balancing"):
        settings.sysctl_differences({"kernel.numa_balancing": 0}, root)


def test_patterns_below_sys_and_choices_in_brackets(root: Path) -> None:
    wanted = {"/sys/policy*/scaling_governor": "performance", "/sys/thp/enabled": "madvise", "/sys/none*/x": "1"}
    assert [d["name"] for d in settings.sysfs_differences(wanted, root)] == [f"{root}/sys/policy1/scaling_governor"]


def test_apply_mends_and_then_nothing_differs(root: Path) -> None:
    files = [{"path": "/etc/new.conf", "content": "a\n", "mode": "0600"},
             {"path": "/proc/sys/vm/gone", "content": None},
             {"path": "/sys/thp/enabled", "content": None}]  # fmt: skip
    folders = [{"path": "/opt/here", "mode": "0750"}, {"path": "/opt/here/below"}]
    differences = {
        "folders": settings.folder_differences(folders, root),
        "files": settings.file_differences(files, root),
        "values": settings.sysctl_differences({"vm.swappiness": 10}, root),
    }
    settings.apply(differences)
    assert (root / "etc/new.conf").read_text() == "a\n" and (root / "etc/new.conf").stat().st_mode & 0o777 == 0o600
    assert [d["was"] for d in differences["folders"]] == ["absent", "absent"]
    assert (root / "opt/here").stat().st_mode & 0o777 == 0o750 and (root / "opt/here/below").is_dir()
    assert settings.folder_differences(folders, root) == []
    assert (
        settings.file_differences(files, root) == [] and settings.sysctl_differences({"vm.swappiness": 10}, root) == []
    )


def test_another_mode_is_a_difference(root: Path) -> None:
    (root / "x").write_text("a")
    (root / "x").chmod(0o644)
    assert settings.file_differences([{"path": "/x", "content": "a", "mode": "0600"}], root)


def test_a_folder_of_another_mode_and_a_file_in_its_place(root: Path) -> None:
    (root / "d").mkdir(0o700)
    (root / "f").write_text("")
    assert settings.folder_differences([{"path": "/d", "mode": "0755"}], root) == [
        {"path": f"{root}/d", "was": "0700", "now": "0755"}
    ]
    with pytest.raises(PlumblineError, match="not a folder"):
        settings.folder_differences([{"path": "/f"}], root)


def test_sysctls_of_an_earlier_run_stay_in_their_file(root: Path) -> None:
    path = root / "90.conf"
    path.write_text(settings.sysctl_text({"vm.swappiness": 10, "-kernel.x": 1, "vm.gone": 5}))
    known = {"vm.swappiness": "20", "kernel.x": "1", "vm.other": "3"}
    assert settings.sysctls_kept(path, known) == {"vm.swappiness": "20", "kernel.x": "1"}
    assert settings.sysctls_kept(root / "none.conf", known) == {}
