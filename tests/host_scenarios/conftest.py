"""One set of hosts for all tests of this folder: Molecule makes, converges and verifies them, and they stay up until
the last test has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosts_lab import HostsLab, missing


@pytest.fixture(scope="session")
def molecule(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HostsLab, int, str]]:
    """(the hosts, Molecule's status, what it printed)."""
    assert not missing(), missing()
    lab = HostsLab("default", tmp_path_factory.mktemp("hosts"))
    try:
        yield lab, *lab.molecule("test", "--destroy=never")
    finally:
        lab.destroy()


@pytest.fixture(scope="session")
def lab(molecule: tuple[HostsLab, int, str]) -> HostsLab:
    """The hosts as Molecule left them: converged and verified."""
    hosts, status, _text = molecule
    assert status == 0, "the scenario failed: test_molecule.py says how"
    return hosts
