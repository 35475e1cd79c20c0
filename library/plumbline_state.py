#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.state.document."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_state
short_description: Observe what a host that serves an LLM is
description:
  - Reads the host and returns a state document (schema C(plumbline.state/1)) in named groups, each with a digest.
  - Items are of two kinds. C(identity) items enter the digest (versions, edited files, settings, model digests).
    C(condition) items never do (boot id, clocks, temperatures, free memory, load).
  - What this host does not have is C({"absent":true}); what could not be read is C({"unknown":why}),
    is left out of the digest and listed in C(unverified).
  - Secrets are taken out by the name that they are given under and by their shape.
  - Nothing on the host is changed, apart from remembered digests of files below C(ROOT/cache);
    in check mode not even these.
version_added: "0.1.0"
options:
  root:
    description: The root of Plumbline on the host (C(plumbline_root)).
    type: path
    required: true
  build:
    description: The build to look at. Left out, it is the root's C(builds/current).
    type: dict
    suboptions:
      dir:
        description: Folder of the build, or of a virtual environment made by hand.
        type: path
      manifest:
        description: The build's manifest; left out, its C(plumbline-build.json).
        type: dict
  models:
    description: Folders of models by name; every file in them is digested.
    type: dict
    default: {}
  args:
    description: Server arguments of the boot, a mapping of long option names.
    type: dict
    default: {}
  environment:
    description: Environment of the server of the boot.
    type: dict
    default: {}
  nccl:
    description: The NCCL profile of the boot.
    type: dict
    suboptions:
      profile:
        description: Name of the profile.
        type: str
      delivery:
        description: How its variables reach the server.
        type: str
        choices: [env_file, sitecustomize, nccl_conf]
      variables:
        description: The profile's variables.
        type: dict
        default: {}
  host_kind:
    description: Whether this is a machine of its own or a container; C(auto) finds out.
    type: str
    choices: [auto, bare, container]
    default: auto
  host:
    description: Name of the host in the document; left out, the node's own name.
    type: str
    default: ""
  home:
    description:
      - Home of the user that runs the server, where a conf file of NCCL and caches of compiled code are looked for.
      - Left out, that of the user that observes.
    type: path
  groups:
    description: Groups to observe, or C(all).
    type: list
    elements: str
    default: [all]
  full:
    description: Read every file again in place of trusting digests remembered by inode, size and times.
    type: bool
    default: false
  evidence:
    description:
      - Also return, for each deviating text file of the build, a diff against the original where a copy is to be had,
        else its text.
    type: bool
    default: false
attributes:
  check_mode:
    description: Observes alike in check mode and writes no cache.
    support: full
  diff_mode:
    description: Changes nothing, so has no difference to show.
    support: none
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Observe the state before a start
  plumbline_state:
    root: /opt/plumbline
    models:
      kimi-k2.5: /opt/plumbline/models/kimi-k2.5-0a1b2c3d4e5f
    args:
      tensor-parallel-size: 8
    nccl:
      profile: pcie-ll-ring
      delivery: env_file
      variables:
        NCCL_PROTO: LL
  register: observed

- name: Look at the files of an environment that was made by hand, with diffs
  plumbline_state:
    root: /opt/plumbline
    build:
      dir: /opt/venv
    groups: [build, files]
    evidence: true
"""

RETURN = r"""
state:
  description: The state document.
  returned: success
  type: dict
  sample:
    schema: plumbline.state/1
    host: gpu-1
    observed_at: "2026-11-29T12:00:00.000Z"
    digest: 5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9
    groups:
      files:
        digest: 6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b
        identity:
          venv/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py:
            kind: edited
            sha256: d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35
            recorded: 4e07408562bedb8b60ce05c1decfe3ad16b72230967de01f640b7e4729b49fce
        condition:
          checked: {files: 53241, deviating: 1}
    unverified: []
evidence:
  description:
    - By path of group C(files), C(kind) (C(diff) or C(text)), C(original) (where the original is from, or null)
      and C(text).
  returned: success
  type: dict
cost:
  description: Files and bytes that had to be read to digest them.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.state.document import observe
from ansible.module_utils.plumbline.state.redact import redact


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "build": {"type": "dict", "options": {"dir": {"type": "path"}, "manifest": {"type": "dict"}}},
            "models": {"type": "dict", "default": {}},
            "args": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}, "no_log": False},
            "nccl": {
                "type": "dict",
                "options": {
                    "profile": {"type": "str"},
                    "delivery": {"type": "str", "choices": ["env_file", "sitecustomize", "nccl_conf"]},
                    "variables": {"type": "dict", "default": {}},
                },
            },
            "host_kind": {"type": "str", "choices": ["auto", "bare", "container"], "default": "auto"},
            "host": {"type": "str", "default": ""},
            "home": {"type": "path"},
            "groups": {"type": "list", "elements": "str", "default": ["all"]},
            "full": {"type": "bool", "default": False},
            "evidence": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    p = module.params
    build = p["build"] or {}
    shown = {"module_args": redact(p)}  # Ansible shows the arguments at -vvv
    try:
        found = observe(
            p["root"],
            build_dir=build.get("dir"),
            manifest=build.get("manifest"),
            model_paths=p["models"],
            args=p["args"],
            environment=p["environment"],
            profile=p["nccl"],
            host_kind=p["host_kind"],
            groups="all" if p["groups"] == ["all"] else p["groups"],
            full=p["full"],
            evidence=p["evidence"],
            host=p["host"],
            home=p["home"],
            cache_writable=not module.check_mode,
        )
    except PlumblineError as e:
        module.fail_json(msg=str(e), error=e.as_dict(), invocation=shown)
    module.exit_json(changed=False, invocation=shown, **found)


if __name__ == "__main__":
    main()
