#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.server.spool."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_spool
short_description: Read the finished measurements that a host still keeps, and let it forget them
description:
  - A host writes each finished measurement to C(ROOT/spool) before the task that measured returns, and keeps it until
    the controller has stored the record and confirms it. A connection that breaks in between loses nothing.
version_added: "0.1.0"
options:
  root:
    description: The root of Plumbline on the host (C(plumbline_root)).
    type: path
    required: true
  state:
    description: C(listed) returns what is kept, C(confirmed) removes I(ids).
    type: str
    choices: [listed, confirmed]
    default: listed
  ids:
    description:
      - Ids of measurements that the controller has stored. One that the host does not keep was confirmed before.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Removes nothing.
    support: full
  diff_mode:
    description: Shows the ids kept before and after.
    support: full
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Collect what an interrupted run left behind
  plumbline_spool:
    root: /opt/plumbline
  register: kept

- name: Let the host forget what is stored
  plumbline_spool:
    root: /opt/plumbline
    state: confirmed
    ids: "{{ kept.results | map(attribute='id') }}"
"""

RETURN = r"""
results:
  description: The measurements that are kept, oldest first, as M(plumbline_throughput) returned them.
  returned: when I(state=listed)
  type: list
  elements: dict
damaged:
  description: Files in the spool that hold no whole measurement, and why. They are left where they are.
  returned: when I(state=listed)
  type: list
  elements: dict
  sample: [{file: /opt/plumbline/spool/01KB7QA4D0E8T1XMV2R7S9WZ3C.json, why: "Unterminated string"}]
confirmed:
  description: Ids that were removed.
  returned: when I(state=confirmed)
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.server import spool


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["listed", "confirmed"], "default": "listed"},
            "ids": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    p = module.params
    try:
        kept = spool.listed(p["root"])
        if p["state"] == "listed":
            module.exit_json(changed=False, **kept)
        removed = spool.confirm(p["root"], p["ids"], dry=module.check_mode)
    except PlumblineError as e:
        module.fail_json(msg=str(e), error=e.as_dict())
    before = [entry["id"] for entry in kept["results"]]
    module.exit_json(changed=bool(removed), confirmed=removed, diff={
        "before": {"spool": before}, "after": {"spool": [name for name in before if name not in removed]}})


if __name__ == "__main__":
    main()
