"""Sets of hosts, each made by Molecule and kept up until its last test has ended.

A set belongs to one file of tests: files run beside one another.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosts_lab import PLANTED, HostsLab, missing

Ran = tuple[HostsLab, int, str]


def _hosts(scenario: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    assert not missing(), missing()
    lab = HostsLab(scenario, tmp_path_factory.mktemp(scenario))
    try:
        yield lab, *lab.molecule("test", "--destroy=never")
    finally:
        lab.destroy()


@pytest.fixture(scope="session")
def molecule(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """The scenario `default`, whole: (the hosts, Molecule's status, what it printed)."""
    yield from _hosts("default", tmp_path_factory)


@pytest.fixture(scope="module")
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsLab]:
    """The host of the file's SCENARIO as site.yml has left it, its state captured as `known`; secrets are in reach of
    whoever looks."""
    for lab, status, text in _hosts(request.module.SCENARIO, tmp_path_factory):
        assert status == 0, text[-8000:]
        assert lab.play("capture", request.module.HOST, cmdline="-vvv", state="known") == 0, lab.text()
        assert PLANTED not in lab.text()
        yield lab
