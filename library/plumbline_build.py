#!/usr/bin/python
# Copyright: Plumbline contributors
# Apache License 2.0 (see LICENSE)
"""Make sure that an SGLang build is on a host. The action plugin of the same name reads the lock and calls this on
the target."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_build
short_description: Make an immutable SGLang environment from a lock, or find it made already
description:
  - Makes C(<root>/builds/<digest>/) from a build lock (schema C(plumbline.build/1)), where the digest is over the
    lock and the Python minor version. A build that is there whole is reused; one that an interrupted run left
    half-made is removed and made again.
  - All that can be checked is checked before anything is made. Each file that pip installs must have a digest of the
    lock.
  - On an error nothing is left of the build but its log, C(<root>/builds/<digest>.failed.log).
  - Works together with an action plugin, which reads and validates the lock, packs local source trees and carries
    files to the host.
options:
  lock:
    description: Name of a lock (C(<folder>/<name>.yml) in one of I(lock_folders)) or path of its file, on the
      controller.
    type: str
    required: true
  lock_folders:
    description: Folders on the controller that hold locks, searched before the project's own.
    type: list
    elements: path
    default: []
  search:
    description: Folders on the controller in which a lock's relative paths are looked up, after the lock's own and
      before the project's.
    type: list
    elements: path
    default: []
  root:
    description: Folder on the host for everything of Plumbline's (C(plumbline_root)).
    type: path
    required: true
  python:
    description: Python to build with, a path or a command's name. Without it one is looked for.
    type: str
  wheelhouse:
    description: Folder with the lock's files, in place of a package index.
    type: path
  wheelhouse_location:
    description: Where the wheelhouse is. From the C(controller) only the files that the build needs are carried to
      the host.
    type: str
    choices: [target, controller]
    default: target
  pip_environment:
    description: Environment of pip and git, for an index or a proxy of the lab's own, e.g. C(PIP_INDEX_URL).
    type: dict
    default: {}
  pip_secrets:
    description: The part of I(pip_environment) that must not be shown; taken out of it by the action plugin.
    type: dict
    default: {}
  current:
    description: Point C(<root>/builds/current) to the build, in one step. Older builds are kept.
    type: bool
    default: true
  document:
    description: The validated lock; given by the action plugin.
    type: dict
  staged:
    description: Folder on the host with what the controller carried there; given by the action plugin. Without it
      nothing is made.
    type: path
  wheels:
    description: The packed local source trees in I(staged), each with C(name), C(version), C(sha256); given by the
      action plugin.
    type: list
    elements: dict
    default: []
attributes:
  check_mode:
    support: full
    description: Says what would be made, after the same checks.
  diff_mode:
    support: full
    description: Shows the distributions that differ from those of the current build.
author:
  - Plumbline contributors
"""

EXAMPLES = r"""
- name: Have the CPU engine
  plumbline_build:
    lock: sglang-0.5.23-cpu
    root: "{{ plumbline_root }}"
  register: build

- name: Have it on a host that reaches no index
  plumbline_build:
    lock: sglang-0.5.23-cpu
    root: /opt/plumbline
    wheelhouse: /srv/wheels
    wheelhouse_location: controller
"""

RETURN = r"""
build_dir:
  description: The build's folder; where it would be in check mode.
  returned: success
  type: str
  sample: /opt/plumbline/builds/2b1c...
python:
  description: The build's own Python.
  returned: success
  type: str
  sample: /opt/plumbline/builds/2b1c.../venv/bin/python
present:
  description: True if the build is there when the task ends.
  returned: success
  type: bool
manifest:
  description: The build's manifest (schema C(plumbline.build-manifest/1)); null in check mode for a build that is not
    there yet.
  returned: success
  type: dict
interpreter:
  description: The Python that the build is or would be made with, and what it was found to be.
  returned: when the build was not there
  type: dict
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [make build 2b1c77aa02f4 of sglang-0.5.23-cpu with Python 3.11.7, point current to 2b1c77aa02f4]
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.build import ensure
from ansible.module_utils.plumbline.errors import PlumblineError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "str", "required": True},
            "lock_folders": {"type": "list", "elements": "path", "default": []},
            "search": {"type": "list", "elements": "path", "default": []},
            "root": {"type": "path", "required": True},
            "python": {"type": "str"},
            "wheelhouse": {"type": "path"},
            "wheelhouse_location": {"type": "str", "choices": ["target", "controller"], "default": "target"},
            "pip_environment": {"type": "dict", "default": {}},
            # Every value of a no_log option is blotted out wherever it occurs in the result: nothing but secrets in it.
            "pip_secrets": {"type": "dict", "default": {}, "no_log": True},
            "current": {"type": "bool", "default": True},
            "document": {"type": "dict"},
            "staged": {"type": "path"},
            "wheels": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    p = module.params
    if p["document"] is None:
        module.fail_json(msg="the lock was not read: call plumbline_build as a task, so that its action plugin runs")
    try:
        result = ensure.ensure(
            Path(p["root"]),
            p["document"],
            p["lock"],
            python=p["python"],
            wheelhouse=Path(p["wheelhouse"]) if p["wheelhouse"] else None,
            wheelhouse_is_here=p["wheelhouse_location"] == "target",
            pip_environment={**p["pip_environment"], **p["pip_secrets"]},
            current=p["current"],
            staged=Path(p["staged"]) if p["staged"] else None,
            wheels=p["wheels"],
            check=module.check_mode,
        )
    except PlumblineError as e:
        module.fail_json(msg=str(e), error=e.as_dict())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
