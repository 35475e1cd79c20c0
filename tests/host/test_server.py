"""Build, models, NCCL profile and the production server, as the host's variables ask for them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytestmark = [pytest.mark.groups("serving"), pytest.mark.remedy("ansible-playbook playbooks/site.yml")]
LARGE = 64 << 20  # a file above this is not read whole by a test; its digest was checked when it was placed


def _unit(expected: dict[str, Any]) -> str:
    if not expected["unit"]["managed"]:
        pytest.skip("plumbline_server_manager is not systemd")
    return str(expected["unit"]["name"])


def test_build_is_the_locks(host: Any, expected: dict[str, Any]) -> None:
    build = expected["build"]
    assert build["manifest"], f"there is no build of the lock {build['lock']}"
    assert host.file(f"{expected['root']}/builds/current").linked_to == build["dir"], "builds/current is another build"
    manifest = json.loads(host.file(f"{build['dir']}/plumbline-build.json").content_string)
    assert manifest == build["manifest"], "the manifest on the host is another"


@pytest.mark.remedy("compare.yml names the files that differ; remove the build's folder and run playbooks/site.yml")
def test_build_has_its_distributions(host: Any, expected: dict[str, Any]) -> None:
    """As the build's own Python sees them, not as the manifest says."""
    build = expected["build"]
    names = "{d.metadata['Name']: d.version for d in m.distributions()}"
    program = f"import json; from importlib import metadata as m; print(json.dumps({names}))"
    found = json.loads(host.check_output("%s -I -c %s", f"{build['dir']}/venv/bin/python", program))
    installed = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found.items()}
    wanted = {
        re.sub(r"[-_.]+", "-", name).lower(): version for name, version in build["manifest"]["distributions"].items()
    }
    differs = {n: (installed.get(n), v) for n, v in wanted.items() if installed.get(n) != v}
    assert not differs, f"other versions than the build was made with (found, expected): {differs}"


@pytest.mark.each("models")
@pytest.mark.remedy("ansible-playbook playbooks/site.yml -e sglang_models_reread=true")
def test_model(host: Any, expected: dict[str, Any], item: tuple[str, str]) -> None:
    name, folder = item
    files = (expected["catalogue"][name].get("files") or {}).items()
    assert host.file(folder).is_directory, f"{folder} is not there"
    for path, digest in files:
        file = host.file(f"{folder}/{path}")
        assert file.exists, f"{path} is missing"
        if file.size <= LARGE:
            assert file.sha256sum == digest, f"{path} has other contents than the catalogue says"


@pytest.mark.each("nccl.variables")
def test_nccl_variable(host: Any, expected: dict[str, Any], item: tuple[str, Any]) -> None:
    """What the delivered profile holds; that NCCL reads it is for playbooks/nccl.yml to prove."""
    nccl = expected["nccl"]
    folder = f"{expected['root']}/nccl/{nccl['profile']}-{nccl['delivery']}"
    name = {"env_file": "nccl.env", "nccl_conf": "nccl.conf", "sitecustomize": "profile.json"}[nccl["delivery"]]
    text = host.file(f"{folder}/{name}").content_string
    value = re.escape(str(item[1]))
    assert re.search(rf'(?m)^\s*"?{item[0]}"?\s*[=:]\s*"?{value}"?,?$', text), (
        f"{name} does not set {item[0]} to {item[1]}"
    )


def test_nothing_else_sets_nccl(host: Any, expected: dict[str, Any]) -> None:
    for path in ("/etc/nccl.conf", "/root/.nccl.conf", f"/var/lib/{expected['unit']['user']}/.nccl.conf"):
        assert not host.file(path).exists, f"{path} sets NCCL variables, too"


def test_unit_runs(host: Any, expected: dict[str, Any]) -> None:
    service = host.service(_unit(expected))
    assert service.is_running and service.is_enabled, "the unit does not run, or not after a boot"
    assert host.socket(f"tcp://127.0.0.1:{expected['unit']['port']}").is_listening, "nothing listens on its port"
    needs = host.check_output("systemctl show -P NeedDaemonReload %s", _unit(expected))
    assert needs == "no", "the unit's file has changed since systemd read it"


def test_unit_is_confined(host: Any, expected: dict[str, Any]) -> None:
    """As the kernel shows the process, not as the unit's file says."""
    unit = _unit(expected)
    pid = host.check_output("systemctl show -P MainPID %s", unit)
    status = dict(
        line.split(":\t", 1) for line in host.file(f"/proc/{pid}/status").content_string.split("\n") if ":\t" in line
    )
    user = host.check_output("id -u %s", expected["unit"]["user"])
    assert status["Uid"].split() == [user] * 4, "it runs as another user"
    assert status["NoNewPrivs"].strip() == "1", "it may gain privileges"
    assert int(status["CapBnd"], 16) == 0, "it has capabilities"
    shown = host.check_output("systemctl show -p KillMode -p LimitMEMLOCK -p LimitNOFILE %s", unit)
    found = dict(line.split("=", 1) for line in shown.split("\n"))
    nofile = str(expected["unit"]["nofile"])
    assert found == {"KillMode": "control-group", "LimitMEMLOCK": "infinity", "LimitNOFILE": nofile}, f"it has {found}"
    cgroup = host.file(f"/proc/{pid}/cgroup").content_string
    assert cgroup.strip().endswith(f"/{unit}"), "it is in another control group"


@pytest.mark.remedy(
    "put it into sglang_server_unit_secrets, under a name that says it is a secret; then playbooks/site.yml"
)
def test_no_secret_is_readable(host: Any, expected: dict[str, Any]) -> None:
    from plumbline.state.redact import redact_argv, secret_name

    unit = _unit(expected)
    pid = host.check_output("systemctl show -P MainPID %s", unit)
    argv = host.file(f"/proc/{pid}/cmdline").content_string.rstrip("\0").split("\0")
    assert redact_argv(argv) == argv, "a secret stands on the command line"
    stem = unit.removesuffix(".service")
    env = host.file(f"{expected['unit']['folder']}/{stem}.env")
    names = [line.partition("=")[0] for line in env.content_string.split("\n")]
    assert not [n for n in names if n and secret_name(n)], "a secret stands in the readable environment file"
    secrets = host.file(f"{expected['unit']['folder']}/{stem}.secrets.env")
    assert not secrets.exists or secrets.mode == 0o600, "others can read the secrets"


def test_server_answers(host: Any, expected: dict[str, Any]) -> None:
    """One real generation, asked for on the host itself."""
    _unit(expected)
    program = (
        "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{}/health_generate', timeout=60).status)".format(
            expected["unit"]["port"]
        )
    )
    assert host.check_output("python3 -c %s", program) == "200", "the server does not generate"
