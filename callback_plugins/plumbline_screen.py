"""Ansible's own output on the screen, but a refusal is shown once and can be read."""
from __future__ import annotations

import re
from typing import Any

from ansible.plugins.callback.default import CallbackModule as AnsiblesOwn

DOCUMENTATION = """
name: plumbline_screen
type: stdout
short_description: Ansible's own output, a refusal once and line by line
description:
  - A task that fails with what is wrong, where, what was found, what is allowed and how to mend it, shows just that.
    Ansible shows such a message twice, and the parts of C(error) as JSON beside it.
  - Everything else is as Ansible shows it; with C(-v) a refusal is, too.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout in configuration
"""

# Between the parts of a PlumblineError's text, and of what roles say in the same form.
_PARTS = re.compile(r"; (?=(?:where|found|expected|allowed|remedy): )")


def refusal(result: Any) -> list[str]:
    """The lines of a failed task that says what is wrong; none if it failed in another way."""
    message = result.get("msg")
    if not isinstance(message, str) or not (isinstance(result.get("error"), dict) or _PARTS.search(message)):
        return []
    # Several findings in one message have a line each already.
    return message.strip().split("\n") if "\n" in message.strip() else _PARTS.split(message.strip())


class CallbackModule(AnsiblesOwn):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "plumbline_screen"

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()
        self._failed = False

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._leave_to_dump(result)
        super().v2_runner_on_failed(result, ignore_errors)
        self._failed = False

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._leave_to_dump(result)
        super().v2_runner_item_on_failed(result)
        self._failed = False

    def _leave_to_dump(self, result: Any) -> None:
        """Take out what Ansible would show before the result: the same message, and where the task is written."""
        self._failed = True
        if not self._display.verbosity and refusal(result.result):
            result.result.pop("exception", None)

    def _dump_results(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        lines = refusal(result) if self._failed and not self._display.verbosity else []
        if not lines:
            return super()._dump_results(result, *args, **kwargs)
        # A rescue that ends for the reason it was called for, or the same on many hosts.
        if str(lines) in self._said:
            return f"{lines[0]} (as above)"
        self._said.add(str(lines))
        return "".join(f"\n  {line}" for line in lines)
