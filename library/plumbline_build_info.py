#!/usr/bin/python
# Copyright: Plumbline contributors
# Apache License 2.0 (see LICENSE)
"""Read which SGLang builds are on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_build_info
short_description: Read which SGLang builds are on a host
description:
  - Lists the whole builds below C(<root>/builds), and gives the manifest of the one made from a lock, or of the
    current one.
  - Half-made builds are not listed.
options:
  root:
    description: Folder on the host for everything of Plumbline's (C(plumbline_root)).
    type: path
    required: true
  lock_digest:
    description: Digest of the lock whose build is wanted. Without it the current build's manifest is returned.
    type: str
attributes:
  check_mode:
    support: full
    description: Changes nothing in either mode.
  diff_mode:
    support: none
    description: Changes nothing.
author:
  - Plumbline contributors
"""

EXAMPLES = r"""
- name: See which build is current
  plumbline_build_info:
    root: /opt/plumbline
  register: build
"""

RETURN = r"""
manifest:
  description: The build's manifest (schema C(plumbline.build-manifest/1)); null if there is no such build.
  returned: success
  type: dict
build_dir:
  description: The build's folder, or null.
  returned: success
  type: str
python:
  description: The build's own Python, or null.
  returned: success
  type: str
current:
  description: Digest that C(current) points to, or null.
  returned: success
  type: str
builds:
  description: All whole builds, each with C(digest), C(name), C(engine), C(sglang_version), C(python), C(lock_digest).
  returned: success
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.build import ensure


def main() -> None:
    module = AnsibleModule(
        argument_spec={"root": {"type": "path", "required": True}, "lock_digest": {"type": "str"}},
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **ensure.info(Path(module.params["root"]), module.params["lock_digest"]))


if __name__ == "__main__":
    main()
