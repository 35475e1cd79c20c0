"""The filters, as a playbook calls them."""
from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from filter_plugins.plumbline_sglang import FilterModule

FILTERS = FilterModule().filters()


def test_argv_and_its_error() -> None:
    assert FILTERS["plumbline_argv"]({"b": 1, "a": True}) == ["--a", "--b", "1"]
    with pytest.raises(AnsibleFilterError, match="empty list"):
        FILTERS["plumbline_argv"]({"a": []})


def test_layers() -> None:
    assert FILTERS["plumbline_server_args"]([{"a": 1, "b": 1}, {"b": None}]) == {"a": 1}


@pytest.mark.parametrize(("host", "url"), [
    ("127.0.0.1", "http://127.0.0.1:30000"), ("0.0.0.0", "http://127.0.0.1:30000"), ("::", "http://[::1]:30000"),
    ("10.0.0.7", "http://10.0.0.7:30000"), ("gpu-1", "http://gpu-1:30000")])
def test_where_a_server_is_reached_from_its_own_machine(host: str, url: str) -> None:
    assert FILTERS["plumbline_base_url"]("30000", host) == url


def test_what_the_roles_set_is_refused_by_hand_only() -> None:
    errors = FILTERS["plumbline_argument_errors"]
    assert errors({"port": 1}, ["--port"], "inventory") == []
    assert len(errors({"port": 1}, ["--port"], "inventory", given_by_hand=True)) == 1
