"""Rendering and checking of server arguments. The options are some of those that SGLang 0.5.23's own parser has."""
from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from plumbline.errors import PlumblineError
from plumbline.sglang import arguments

OPTIONS = json.loads((Path(__file__).parent / "options-0.5.23-some.json").read_text())
WHERE = "inventory/lab: sglang_server_args"


def errors(args: dict[Any, Any], options: Any = OPTIONS, reserved: Any = arguments.RESERVED) -> list[str]:
    return [str(error) for error in arguments.validate(args, options, WHERE, "SGLang 0.5.23", reserved)]


def test_rendered_in_a_stable_order_by_the_kind_of_the_value() -> None:
    args = {"sleep-on-idle": True, "mem-fraction-static": 0.8, "cuda-graph-bs-decode": [1, 2, 4],
            "enable-metrics": False, "attention-backend": None,
            "model-loader-extra-config": {"num_threads": 8, "enable_multithread_load": True}}
    expected = ["--cuda-graph-bs-decode", "1", "2", "4", "--mem-fraction-static", "0.8", "--model-loader-extra-config",
                '{"enable_multithread_load":true,"num_threads":8}', "--sleep-on-idle"]
    assert arguments.render(args) == expected
    assert arguments.render(dict(reversed(args.items()))) == expected
    assert errors(args) == []


def test_rendered_values_survive_argparse_whatever_they_look_like() -> None:
    values = {"a": "-x", "b": -3, "d": "two words; $(rm -rf) 'quoted'", "e": ["x", "-1"], "f": "-0.5"}
    parser = argparse.ArgumentParser()
    for name in values:
        parser.add_argument(f"--{name}", nargs="+" if name == "e" else None)
    assert vars(parser.parse_args(arguments.render(values))) == {
        "a": "-x", "b": "-3", "d": "two words; $(rm -rf) 'quoted'", "e": ["x", "-1"], "f": "-0.5"}


@pytest.mark.parametrize("value", [[], [["x"]], [None], [True], ["-x"], "a\0b", "--"])
def test_what_is_no_value_is_refused(value: Any) -> None:
    with pytest.raises(PlumblineError, match="json-model-override-args"):
        arguments.render({"json-model-override-args": value})
    assert len(errors({"json-model-override-args": value})) == 1


def test_layers_win_by_name_and_null_takes_away() -> None:
    assert arguments.merge({"a": 1, "b": 2}, None, {"b": None, "c": 3}, {"c": 4}) == {"a": 1, "c": 4}


@pytest.mark.parametrize(("args", "parts"), [
    ({"max-runing-requests": 16}, ["unknown server argument 'max-runing-requests'", "mean 'max-running-requests'"]),
    ({"max_running_requests": 16}, ["not written as SGLang writes it", "write 'max-running-requests'"]),
    ({"--enable-metrics": True}, ["not written as SGLang writes it", "write 'enable-metrics'"]),
    ({"cuda-graph-max-bs": 8}, ["no option 'cuda-graph-max-bs' any more, since 0.5", "'cuda-graph-max-bs-decode' or"]),
    ({"speculative-algo": "EAGLE3"}, ["is an abbreviation", "'speculative-algorithm'"]),
    ({"port": 1}, ["'port' is set elsewhere", "sglang_server_port"]),
    ({"config": "x.yaml"}, ["'config' is set elsewhere"]),
    ({"model": "/m"}, ["'model' is set elsewhere", "sglang_server_target"]),
    ({"attention-backend": "flashinfr"}, ["'flashinfr' is no value of 'attention-backend'", "mean 'flashinfer'"]),
    ({"speculative-attention-mode": "both"}, ["'both' is no value", "allowed: prefill, decode"]),
    ({"disable-cuda-graph": 1}, ["'disable-cuda-graph' is a bare flag", "found: 1"]),
    ({"disable-cuda-graph": "true"}, ["is a bare flag"]),
    ({"max-running-requests": True}, ["'max-running-requests' needs a value"]),
    ({"max-running-requests": [1, 2]}, ["'max-running-requests' takes one value"]),
    ({"tp-size": 8, "tensor-parallel-size": 8}, ["two names of one option"]),
    ({3: 1}, ["must be a text"]),
    ({True: 1}, ["must be a text"]),
])
def test_bad_arguments_name_the_key_and_the_remedy(args: dict[Any, Any], parts: list[str]) -> None:
    found = errors(args)
    assert len(found) == 1
    for part in [*parts, f"where: {WHERE}: "]:
        assert part in found[0]


def test_all_faults_are_told_at_once() -> None:
    assert len(errors({"x-y-z": 1, "port": 1, "enable-metrics": 2})) == 3


def test_the_effective_arguments_may_hold_what_the_roles_set() -> None:
    given = {"port": 30000, "host": "127.0.0.1", "model-path": "/m", "speculative-draft-model-path": "/d"}
    assert errors(given, reserved=arguments.NEVER) == []
    assert len(errors({"model": "/m"}, reserved=arguments.NEVER)) == 1


def test_a_plain_list_of_names_checks_names_alone() -> None:
    names = list(OPTIONS)
    assert errors({"enable-metrics": "yes"}, names) == []
    assert "any more" in errors({"cuda-graph-max-bs": 8}, names)[0]


def test_an_older_build_keeps_its_options() -> None:
    assert errors({"cuda-graph-max-bs": 8}, [*OPTIONS, "--cuda-graph-max-bs"]) == []


def test_arms_of_a_comparison_are_given_the_same_number_of_requests() -> None:
    names, name = ["baseline", "eagle3-2step"], "max-running-requests"
    assert arguments.check_alike([{name: 16}, {name: 16}], names) == []
    assert "baseline: 16, eagle3-2step: 48" in str(arguments.check_alike([{name: 16}, {name: 48}], names)[0])
    assert "missing in baseline" in str(arguments.check_alike([{}, {name: 48}], names)[0])


def test_what_the_roles_set_is_refused_from_a_person() -> None:
    found = arguments.check_reserved({"port": 1, "enable-metrics": True, "model-path": None}, WHERE)
    assert [error.remedy for error in found] == ["set it by sglang_server_port"]
