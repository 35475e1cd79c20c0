#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.rebuild.strays."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_rebuild_files
short_description: Move files aside that a state does not have, write those again that it has
description:
  - A file that the state does not have is moved below C(ROOT/aside/TIME/), never deleted.
version_added: "0.1.0"
options:
  root:
    description: The root of Plumbline on the host (C(plumbline_root)).
    type: path
    required: true
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path, C(~/...), or C(stdlib/NAME) for the standard library of the current build's Python.
        type: str
        required: true
      content:
        description: Its whole text. Left out, there shall be no such file.
        type: str
      link:
        description: The path is to be a link to there, and what it leads to has the text.
        type: str
  home:
    description: Home of the user that runs the server. Left out, that of the user that runs the module.
    type: path
attributes:
  check_mode:
    description: Says what would be moved and written.
    support: full
  diff_mode:
    description: Shows each file before and after.
    support: full
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Take a conf file away that the state does not have
  plumbline_rebuild_files:
    root: /opt/plumbline
    files:
      - path: ~/.nccl.conf
"""

RETURN = r"""
moved:
  description: What was moved, and where to.
  returned: success
  type: list
  elements: dict
  sample: [{path: /root/.nccl.conf, to: /opt/plumbline/aside/20261129T120000Z/root/.nccl.conf}]
written:
  description: Files that were written.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.rebuild import strays
from ansible.module_utils.plumbline.state.redact import redact, redact_diff


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "str", "required": True},
                    "content": {"type": "str"},
                    "link": {"type": "str"},
                },
            },
            "home": {"type": "path"},
        },
        supports_check_mode=True,
    )
    p = module.params
    shown = {"module_args": redact(p)}  # Ansible shows the arguments at -vvv, and a file can hold a token
    try:
        done = strays.tidy(Path(p["root"]), p["files"], p["home"], module.check_mode)
    except PlumblineError as e:
        module.fail_json(invocation=shown, msg=str(e), error=e.as_dict())
    module.exit_json(invocation=shown, **{**done, "diff": redact_diff(done["diff"])})


if __name__ == "__main__":
    main()
