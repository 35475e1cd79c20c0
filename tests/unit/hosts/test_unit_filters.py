"""How argv and environment reach systemd: read back with systemd's own rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from filter_plugins import plumbline_host as filters

AWKWARD = {
    "A": "plain",
    "B": "two words",
    "C": 'a "quoted" $HOME `x` \\ back',
    "D": "50%",
    "E": "",
    "F": "ünïcode",
    "G": "#no comment",
}


def test_environment_is_read_back_by_a_shell_as_it_was(tmp_path: Path) -> None:
    """A POSIX shell reads double quotes by the same escapes as systemd.exec(5) describes."""
    file = tmp_path / "env"
    file.write_text(filters.unit_environment(AWKWARD))
    for name, value in AWKWARD.items():
        shown = subprocess.run(
            ["sh", "-c", f'. "{file}"; printf %s "${name}"'], check=True, capture_output=True, text=True
        ).stdout
        assert shown == value


@pytest.mark.parametrize("variables", [{"A": "two\nlines"}, {"a b": "1"}])
def test_what_no_environment_file_can_hold_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(AnsibleFilterError):
        filters.unit_environment(variables)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_command(tmp_path: Path) -> None:
    command = filters.unit_command(["/bin/echo", "--json", '{"a": "50% of $x"}', "two words", "back\\slash", ""])
    assert command == '/bin/echo --json "{\\"a\\": \\"50%% of $$x\\"}" "two words" "back\\\\slash" ""'
    unit = tmp_path / "x.service"
    unit.write_text(f"[Service]\nType=oneshot\nExecStart={command}\n")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert "ExecStart" not in done.stderr and "Failed to parse" not in done.stderr, done.stderr


def test_secrets_are_known_by_name() -> None:
    assert filters.secret_names({"HF_TOKEN": "x", "api-key": "y", "max-total-tokens": 1, "admin-api-key": None}) == [
        "HF_TOKEN",
        "api-key",
    ]
