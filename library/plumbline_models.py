#!/usr/bin/python
"""Ansible module: models at their places on a host. The work is done by plumbline.models."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_models
short_description: Place models on a host and check their digests
version_added: "0.1.0"
description:
  - Places models at C(<root>/models/<name>-<digest12>/), from a folder on the host, from the controller, or from a
    Hugging Face hub at a commit.
  - A model is put together out of sight, the SHA-256 of every file is checked, and one rename makes it visible. A wrong
    digest is an error that leaves nothing in place.
  - One call places all models. A model that is there already costs one C(stat) a file; a file whose size, inode or
    times moved is read again, and a damaged model is replaced.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Says what would be placed. Digests of files that are not on the host yet are not known then.
  diff_mode:
    support: full
    description: Shows the digest of each file as it was and as it is to be.
  action:
    support: full
    description: An action plugin of the same name sends the files of models that come from the controller.
options:
  root:
    description: The host's plumbline root.
    type: path
    required: true
  names:
    description: Names of the models to place.
    type: list
    elements: str
    required: true
  catalogue:
    description: Models by name, as in C(plumbline_models).
    type: dict
    required: true
  controller_root:
    description: Folder on the controller that relative paths of sources V(controller) start from.
    type: path
  reread:
    description: Read every file again, even if nothing says that it has changed.
    type: bool
    default: false
  hub_python:
    description: A Python on the host that has huggingface_hub; a build's own does.
    type: path
    default: python3
  hub_endpoint:
    description: Address of the hub; empty for the public one, or what E(HF_ENDPOINT) says on the host.
    type: str
    default: ""
  hub_token:
    description: Token for private and gated repositories. It stands on no command line and in no result.
    type: str
    default: ""
  hub_timeout_s:
    description: Seconds after which a download is given up. What was fetched is kept for the next attempt.
    type: int
    default: 21600
  bundle:
    description: A tar on the host with the files of models that come from the controller. Set by the action plugin.
    type: path
"""

EXAMPLES = r"""
- name: Place target and draft
  plumbline_models:
    root: /opt/plumbline
    names: [tiny-llama, tiny-eagle3]
    catalogue: "{{ plumbline_models }}"
    controller_root: "{{ playbook_dir }}/.."

- name: Place a model from a hub at a commit, with the huggingface_hub of the current build
  plumbline_models:
    root: /opt/plumbline
    names: [my-model]
    catalogue:
      my-model:
        kind: target
        source: {hub: owner/name, revision: 0123456789abcdef0123456789abcdef01234567}
    hub_python: /opt/plumbline/builds/current/venv/bin/python
    hub_token: "{{ vault_hub_token }}"
"""

RETURN = r"""
paths:
  description: Folder on the host of each named model.
  returned: success
  type: dict
  sample: {tiny-llama: /opt/plumbline/models/tiny-llama-0123456789ab}
models:
  description: What is known of each named model.
  returned: success
  type: dict
  contains:
    path:
      description: Folder on the host.
      type: str
      returned: success
    digest:
      description: SHA-256 that identifies the content.
      type: str
      returned: success
    kind:
      description: The catalogue's kind.
      type: str
      returned: success
    changed:
      description: Whether it was placed, or would be.
      type: bool
      returned: success
    was:
      description: V(whole), V(absent), or the faults by file.
      type: raw
      returned: success
    config:
      description: The model's config.json; null where it is not there (check mode).
      type: dict
      returned: success
needs:
  description: Names of models whose files have to be sent by the controller. Used by the action plugin.
  returned: success
  type: list
  elements: str
error:
  description: What is wrong, where, what was found, what is allowed and how to mend it.
  returned: failure
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.models.catalogue import select
from ansible.module_utils.plumbline.models.present import present


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "catalogue": {"type": "dict", "required": True},
            "controller_root": {"type": "path"},
            "reread": {"type": "bool", "default": False},
            "hub_python": {"type": "path", "default": "python3"},
            "hub_endpoint": {"type": "str", "default": ""},
            "hub_token": {"type": "str", "default": "", "no_log": True},
            "hub_timeout_s": {"type": "int", "default": 21600},
            "bundle": {"type": "path"},
        },
        supports_check_mode=True)
    p = module.params
    try:
        done = present(p["root"], select(p["names"], p["catalogue"]), reread=p["reread"],
                       check=module.check_mode, bundle=p["bundle"], python=p["hub_python"], endpoint=p["hub_endpoint"],
                       token=p["hub_token"], timeout_s=p["hub_timeout_s"])
    except PlumblineError as e:
        module.fail_json(msg=str(e), error=e.as_dict())
    except OSError as e:
        module.fail_json(msg=f"cannot place the models: {e.strerror}: {e.filename}")
    module.exit_json(**done)


if __name__ == "__main__":
    main()
