"""Sets of hosts, each made by Molecule and kept up until its last test has ended.

A set belongs to one file of tests: files run beside one another.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosts_lab import HostsLab, missing

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


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsLab]:
    """A host of its own for the tests of a known state, as site.yml has left it."""
    for hosts, status, text in _hosts("known", tmp_path_factory):
        assert status == 0, text[-8000:]
        yield hosts
