"""Binds the tests of this folder to hosts: each runs on every host of the groups that its marker names.

`playbooks/verify.yml` writes what each host's own variables ask for to a folder and names it in PLUMBLINE_EXPECTED;
without it there is nothing to test, and nothing is collected. There is no second list of expected values here.

A test takes ``host`` (testinfra's), ``expected`` (the host's document) and maybe ``item``, for which
``@pytest.mark.each("dotted.path")`` gives one test for each entry of that part of the document.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import testinfra

FOLDER = os.environ.get("PLUMBLINE_EXPECTED", "")
collect_ignore_glob = [] if FOLDER else ["test_*.py"]
_hosts: dict[str, Any] = {}
_outcomes: dict[str, dict[str, list[str]]] = {}


def documents() -> dict[str, dict[str, Any]]:
    """What is expected, by host."""
    if not FOLDER:
        return {}
    names = json.loads((Path(FOLDER) / "hosts.json").read_text())
    return {name: json.loads((Path(FOLDER) / "expected" / f"{name}.json").read_text()) for name in names}


EXPECTED = documents()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "groups(*names): inventory groups whose hosts the tests are for")
    config.addinivalue_line("markers", "each(path): one test for each entry of that part of what is expected")
    config.addinivalue_line("markers", "remedy(text): what mends a host that fails")


def _part(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = (document or {}).get(key)
    return document


def _entries(part: Any) -> list[tuple[str, Any]]:
    if isinstance(part, dict):
        return [(str(key), (key, value)) for key, value in part.items()]
    return [
        (str(entry.get("check", i) if isinstance(entry, dict) else entry), entry) for i, entry in enumerate(part or [])
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "expected" not in metafunc.fixturenames:
        return
    groups = {name for mark in metafunc.definition.iter_markers("groups") for name in mark.args}
    each = metafunc.definition.get_closest_marker("each")
    cases, ids = [], []
    for name, document in EXPECTED.items():
        if groups and not groups & {*document["groups"], name}:
            continue
        if each is None:
            cases.append((name, None))
            ids.append(name)
            continue
        for label, entry in _entries(_part(document, each.args[0])):
            cases.append((name, entry))
            ids.append(f"{name}-{label}")
    metafunc.parametrize("case", cases, ids=ids)


@pytest.fixture
def expected(case: tuple[str, Any]) -> dict[str, Any]:
    return EXPECTED[case[0]]


@pytest.fixture
def item(case: tuple[str, Any]) -> Any:
    return case[1]


@pytest.fixture
def host(case: tuple[str, Any]) -> Any:
    """The host over the connection that Ansible uses; one connection for all tests of a host."""
    name = case[0]
    if name not in _hosts:
        sources = os.environ.get("PLUMBLINE_INVENTORY", "").split(",")
        _hosts[name] = testinfra.get_host(f"ansible://{name}", ansible_inventory=sources[0])
    return _hosts[name]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Every failure says what mends it."""
    outcome: Any = yield
    report = outcome.get_result()
    case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    if not isinstance(case, tuple):  # pytest's own skip of a test that no host has an entry for
        return
    name, entry = case
    if report.when != "call" and report.passed:
        return
    kind = "passed" if report.passed else "skipped" if report.skipped else "failed"
    said = ""
    if kind == "failed":
        mark = item.get_closest_marker("remedy")
        remedy = mark.args[0] if mark else "ansible-playbook playbooks/site.yml"
        what = str(call.excinfo.value).split("\n")[0] if call.excinfo else ""
        if isinstance(entry, dict) and entry.get("remedy"):
            remedy = entry["remedy"]
        said = f"{name}: {item.name}: {what}; remedy: {remedy}"
        report.longrepr = said
    _outcomes.setdefault(name, {}).setdefault(kind, []).append(said)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    failures = [line for kinds in _outcomes.values() for line in kinds.get("failed", [])]
    terminalreporter.write_line("== failures ==")
    for line in failures:
        terminalreporter.write_line(line)
    terminalreporter.write_line("== end ==")
    terminalreporter.write_line("== table ==")
    width = max((len(name) for name in _outcomes), default=4)
    terminalreporter.write_line(f"{'host':<{width}}  passed  failed  skipped")
    for name, kinds in sorted(_outcomes.items()):
        counts = "  ".join(f"{len(kinds.get(k, [])):>{len(k)}}" for k in ("passed", "failed", "skipped"))
        terminalreporter.write_line(f"{name:<{width}}  {counts}")
