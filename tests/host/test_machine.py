"""Driver and settings of a machine, as its variables ask for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = [pytest.mark.groups("serving"), pytest.mark.remedy("ansible-playbook playbooks/site.yml")]


def _managed(expected: dict[str, Any], driver: bool = False) -> None:
    """Ends the test where nothing is asked of this host."""
    if not expected["managed"]:
        pytest.skip("plumbline_host_manage is off")
    if driver and not expected["driver"]:
        pytest.skip("no driver is asked for")


@pytest.mark.each("findings")
@pytest.mark.usefixtures("expected")
def test_fit_to_serve(item: dict[str, Any]) -> None:
    """The findings of preflight, with their own remedies."""
    assert item["level"] != "error", f"{item['what']}; found: {item['found']}; expected: {item['expected']}"


@pytest.mark.each("driver.names")
def test_driver_package(host: Any, expected: dict[str, Any], item: str) -> None:
    _managed(expected, driver=True)
    version = expected["driver"]["version"]
    found = host.run("dpkg-query --show --showformat='${db:Status-Abbrev}|${Version}' %s", item).stdout
    assert re.fullmatch(rf".i *\|{re.escape(version)}-.*", found), (
        f"{item} is {found or 'not installed'}, expected {version}"
    )
    if expected["driver"]["hold"]:
        assert found.startswith("h"), f"{item} is not held"


@pytest.mark.remedy("ansible-playbook playbooks/site.yml; apt-cache policy PACKAGE shows which pins fit")
def test_driver_stays(host: Any, expected: dict[str, Any]) -> None:
    """What apt would take next is the wanted version, and NVIDIA's pinning package stands for it."""
    _managed(expected, driver=True)
    driver = expected["driver"]
    policy = host.check_output(f"apt-cache policy {' '.join(driver['names'])}")
    for name in driver["names"]:
        candidate = re.search(rf"(?m)^{re.escape(name)}:\n  Installed: .*\n  Candidate: (\S+)", policy)
        right = candidate and candidate.group(1).startswith(f"{driver['version']}-")
        assert right, f"apt would take {name} {candidate and candidate.group(1)}"
    pins = host.run(
        "dpkg-query --show --showformat='${Package} ${db:Status-Status}\\n' 'nvidia-driver-pinning-*'"
    ).stdout.split("\n")
    installed = [line.split()[0] for line in pins if line.endswith(" installed")]
    assert installed == ([driver["pinning"]] if driver["pin"] else []), f"pinning packages: {installed}"


def test_no_kernel_module_in_a_container(host: Any, expected: dict[str, Any]) -> None:
    _managed(expected, driver=True)
    if expected["kind"] != "container":
        pytest.skip("the machine owns its modules")
    listed = host.check_output("dpkg-query --show --showformat='${Package} ${db:Status-Status}\\n'").split("\n")
    modules = [x for x in listed if re.match(r"nvidia-(dkms|kernel)\S* installed", x)]
    assert not modules, f"packages with kernel modules: {modules}"


def test_unattended_upgrades_leave_it_alone(host: Any, expected: dict[str, Any]) -> None:
    """As apt itself reads its configuration."""
    _managed(expected, driver=True)
    dump = host.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    patterns = re.findall(r'::Package-Blacklist:: "(.*)";', dump)
    left = [n for n in expected["driver"]["names"] if not any(re.match(p, n) for p in patterns)]
    assert not left, f"unattended upgrades may upgrade {', '.join(left)}"


def test_nouveau_is_off(host: Any, expected: dict[str, Any]) -> None:
    _managed(expected, driver=True)
    if expected["kind"] != "bare":
        pytest.skip("the machine below owns the modules")
    shown = host.check_output("modprobe --showconfig")
    assert "blacklist nouveau" in shown.split("\n"), "modprobe would load nouveau"
    loaded = host.run("cat /proc/modules").stdout.split("\n")  # there is no such file where the kernel takes no modules
    assert "nouveau" not in [line.split()[0] for line in loaded if line], "nouveau is loaded"


def test_persistence_at_boot(host: Any, expected: dict[str, Any]) -> None:
    _managed(expected, driver=True)
    if expected["kind"] != "bare" or not expected["driver"]["persistence"]:
        pytest.skip("not asked for")
    assert host.service("nvidia-persistenced").is_enabled, "nvidia-persistenced does not start at boot"


@pytest.mark.each("settings.sysctls")
def test_sysctl(host: Any, expected: dict[str, Any], item: tuple[str, Any]) -> None:
    """In force now, and kept for the next boot."""
    _managed(expected)
    name, value = item[0].lstrip("-"), str(item[1])
    path = "/proc/sys/" + name.replace(".", "/")
    if item[0].startswith("-") and not host.file(path).exists:
        pytest.skip("this kernel has no such setting")
    assert host.file(path).content_string.split() == value.split(), (
        f"{name} is {host.file(path).content_string.strip()}, expected {value}"
    )
    kept = host.run("systemd-analyze cat-config sysctl.d").stdout
    lines = re.findall(rf"(?m)^-?{re.escape(name)}\s*=\s*(.*?)\s*$", kept)
    assert lines and lines[-1] == value, f"the next boot sets {name} to {lines[-1] if lines else 'nothing'}"


@pytest.mark.each("settings.sysfs")
def test_value_below_sys(host: Any, expected: dict[str, Any], item: tuple[str, Any]) -> None:
    _managed(expected)
    for path in host.run(f"ls -d {item[0]} 2>/dev/null").stdout.split():
        found = host.file(path).content_string
        assert item[1] in (found.strip(), *re.findall(r"\[(\w+)\]", found)), (
            f"{path} is {found.strip()}, expected {item[1]}"
        )


@pytest.mark.each("settings.kernel_parameters")
@pytest.mark.remedy("ansible-playbook playbooks/site.yml -e allow_reboot=true")
def test_kernel_parameter(host: Any, expected: dict[str, Any], item: str) -> None:
    _managed(expected)
    assert item in host.file("/proc/cmdline").content_string.split(), f"the kernel was not started with {item}"


@pytest.mark.each("settings.modprobe_options")
def test_module_option(host: Any, expected: dict[str, Any], item: tuple[str, Any]) -> None:
    _managed(expected)
    assert f"options {item[0]} {item[1]}" in host.check_output("modprobe --showconfig").split("\n"), (
        f"modprobe knows no {item[1]} for {item[0]}"
    )


def test_limits_of_sessions(host: Any, expected: dict[str, Any]) -> None:
    """What PAM would give a new session."""
    _managed(expected)
    settings = expected["settings"]
    text = host.file("/etc/security/limits.d/90-plumbline.conf").content_string
    for who in ("*", "root"):
        assert f"{who} - memlock {settings['memlock']}" in text, f"{who} has no limit of locked memory there"
        assert f"{who} - nofile {settings['nofile']}" in text, f"{who} has no limit of open files there"


def test_shared_memory(host: Any, expected: dict[str, Any]) -> None:
    _managed(expected)
    size = expected["settings"]["shm_size"]
    if not size:
        pytest.skip("left to the kernel")
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    wanted = int(size[:-1]) << units[size[-1].upper()]
    found = int(host.check_output("findmnt --noheadings --bytes --output SIZE /dev/shm"))
    assert abs(found - wanted) < 1 << 20, f"/dev/shm is {found >> 20} MiB, expected {wanted >> 20}"


def test_acs_is_off(host: Any, expected: dict[str, Any]) -> None:
    _managed(expected)
    if not expected["settings"]["acs_off"]:
        pytest.skip("not asked for")
    assert host.service("plumbline-acs-off").is_enabled, "ACS comes back at the next boot"
    assert "on now: none" in host.check_output("/usr/local/sbin/plumbline-acs-off --report"), "ACS is on"


@pytest.mark.each("settings.packages")
def test_package(host: Any, expected: dict[str, Any], item: str) -> None:
    _managed(expected)
    assert host.package(item).is_installed, f"{item} is not installed"
