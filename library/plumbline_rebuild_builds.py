#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.rebuild.builds."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_rebuild_builds
short_description: Set an altered build aside, put it back, or go back to the build that was current before
description:
  - An altered build is kept beside its place when it is made anew. C(current) never points to a half-made build;
    meanwhile it points to the altered one.
  - Refuses to move a build from which a process runs.
version_added: "0.1.0"
options:
  root:
    description: The root of Plumbline on the host (C(plumbline_root)).
    type: path
    required: true
  state:
    description:
      - C(prepared) notes which build is current and sets the build I(digest) aside, if one is given.
      - C(restored) puts the build I(digest) back if it could not be made anew.
      - C(rolled_back) points C(current) to the build that was current before.
    type: str
    choices: [prepared, restored, rolled_back]
    required: true
  digest:
    description: Digest of the build.
    type: str
    default: ""
  name:
    description: Name of the state that is rebuilt, for the history.
    type: str
    default: ""
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Shows where C(current) points.
    support: full
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Set the altered build aside
  plumbline_rebuild_builds:
    root: /opt/plumbline
    state: prepared
    digest: "{{ plan.anew }}"
    name: known-good
"""

RETURN = r"""
kept:
  description: Where the altered build is now; null if none was moved.
  returned: with I(state=prepared)
  type: str
current:
  description: What C(current) pointed to; null if there was no such link.
  returned: with I(state=prepared)
  type: str
was:
  description: Digest of the build that was current.
  returned: with I(state=rolled_back)
  type: str
now:
  description: Digest of the build that is current now.
  returned: with I(state=rolled_back)
  type: str
name:
  description: Name of that build.
  returned: with I(state=rolled_back)
  type: str
says:
  description: Both builds for a person, each with the first twelve digits of its digest, its name and its version of SGLang.
  returned: with I(state=rolled_back)
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.rebuild import builds


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["prepared", "restored", "rolled_back"], "required": True},
            "digest": {"type": "str", "default": ""},
            "name": {"type": "str", "default": ""},
        },
        required_if=[("state", "restored", ["digest"])],
        supports_check_mode=True,
    )
    p, root, check = module.params, Path(module.params["root"]), module.check_mode
    try:
        if p["state"] == "prepared":
            done = builds.prepare(root, p["digest"] or None, p["name"], check)
        elif p["state"] == "restored":
            done = builds.restore(root, p["digest"], check)
        else:
            done = builds.roll_back(root, check)
            done["diff"] = {"before": f"current -> {done['was']}\n", "after": f"current -> {done['now']}\n"}
    except PlumblineError as e:
        module.fail_json(msg=str(e), error=e.as_dict())
    module.exit_json(**done)


if __name__ == "__main__":
    main()
