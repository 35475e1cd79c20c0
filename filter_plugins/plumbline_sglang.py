"""Filters over SGLang's server arguments.

- ``plumbline_argv``: a mapping of long option names as an argv list.
- ``plumbline_server_args``: layers of mappings (a list, the later wins, null takes away) as one mapping.
- ``plumbline_argument_errors``: texts of what is wrong with a mapping, against a build's option list.
- ``plumbline_base_url``: where a server that was told to listen on a host and port is reached from its own machine.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from plumbline.errors import PlumblineError
from plumbline.sglang import arguments

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def argv(args: Mapping[str, Any]) -> list[str]:
    try:
        return arguments.render(args)
    except PlumblineError as error:
        raise AnsibleFilterError(str(error)) from error


def server_args(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return arguments.merge(*layers)


def argument_errors(args: Mapping[str, Any], options: Any, where: str, version: str = "the pinned version",
                    given_by_hand: bool = False) -> list[str]:
    reserved = arguments.RESERVED if given_by_hand else arguments.NEVER
    return [str(error) for error in arguments.validate(args, options, where, version, reserved)]


def base_url(port: Any, host: str = "127.0.0.1") -> str:
    address = _EVERYWHERE.get(host, host)
    return f"http://{f'[{address}]' if ':' in address else address}:{int(port)}"


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"plumbline_argv": argv, "plumbline_server_args": server_args,
                "plumbline_argument_errors": argument_errors, "plumbline_base_url": base_url}
