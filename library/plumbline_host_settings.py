#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.host.settings."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_host_settings
short_description: Have folders, configuration files, sysctls and values below /sys on a host, kept and in force
description:
  - Looks at all of them in one call, writes the files that differ and sets the values that are not in force.
  - A sysctl that somebody has changed by hand is set again even if its file is as it should be.
version_added: "0.1.0"
options:
  folders:
    description: Folders, made with those above them.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      mode:
        description: Its mode.
        type: str
        default: "0755"
  files:
    description: Files with their whole text.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      content:
        description: The file's text. Left out, there shall be no such file.
        type: str
      mode:
        description: Its mode.
        type: str
        default: "0644"
  sysctls:
    description:
      - Values by name. A dash before the name leaves it out on kernels that do not have it.
      - Left out, I(sysctl_file) is left alone; empty, it is removed.
    type: dict
  sysctls_kept:
    description: Values of names that may stand in I(sysctl_file) already. Those that do stay there, with these values.
    type: dict
    default: {}
  sysctl_file:
    description: Where the sysctls are kept.
    type: path
    default: /etc/sysctl.d/90-plumbline.conf
  sysfs:
    description:
      - Values by path or pattern below /sys. A pattern that fits nothing asks for nothing.
      - Left out, I(tmpfiles_file) is left alone; empty, it is removed.
    type: dict
  tmpfiles_file:
    description: Where values below /sys are kept (systemd-tmpfiles writes them at each boot).
    type: path
    default: /etc/tmpfiles.d/plumbline.conf
attributes:
  check_mode:
    description: Says what would change.
    support: full
  diff_mode:
    description: Shows each file, and each value as a line.
    support: full
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Keep swap for need, and clocks up
  plumbline_host_settings:
    sysctls: {vm.swappiness: 10, -kernel.numa_balancing: 0}
    sysfs: {/sys/devices/system/cpu/cpufreq/policy*/scaling_governor: performance}
    files:
      - {path: /etc/modprobe.d/plumbline.conf, content: "options nvidia_uvm uvm_disable_hmm=1\n"}
"""

RETURN = r"""
changed_files:
  description: Paths that were, or in check mode would be, written or removed.
  returned: success
  type: list
  elements: str
changed_folders:
  description: Folders that were, or in check mode would be, made or given another mode.
  returned: success
  type: list
  elements: str
created:
  description: Those of the files that were not there.
  returned: success
  type: list
  elements: str
values:
  description: Values that were not in force, each with C(name), C(was) and C(now).
  returned: success
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.host import settings
from ansible.module_utils.plumbline.state.redact import redact, redact_diff


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folders": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "mode": {"type": "str", "default": "0755"},
                },
            },
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str"},
                    "mode": {"type": "str", "default": "0644"},
                },
            },
            "sysctls": {"type": "dict"},
            "sysctls_kept": {"type": "dict", "default": {}},
            "sysctl_file": {"type": "path", "default": "/etc/sysctl.d/90-plumbline.conf"},
            "sysfs": {"type": "dict"},
            "tmpfiles_file": {"type": "path", "default": "/etc/tmpfiles.d/plumbline.conf"},
        },
        supports_check_mode=True,
    )
    p = module.params
    shown = {"module_args": redact(p)}  # Ansible shows the arguments at -vvv, and a file can hold a token
    files, sysctls = list(p["files"]), p["sysctls"]
    if sysctls is not None:
        sysctls = {**settings.sysctls_kept(Path(p["sysctl_file"]), p["sysctls_kept"]), **sysctls}
        files.append({"path": p["sysctl_file"], "content": settings.sysctl_text(sysctls) if sysctls else None})
    if p["sysfs"] is not None:
        files.append({"path": p["tmpfiles_file"], "content": settings.tmpfiles_text(p["sysfs"]) if p["sysfs"] else None})
    try:
        differences = {
            "folders": settings.folder_differences(p["folders"]),
            "files": settings.file_differences(files),
            "values": [*settings.sysctl_differences(sysctls or {}), *settings.sysfs_differences(p["sysfs"] or {})],
        }
        if not module.check_mode:
            settings.apply(differences)
    except PlumblineError as error:
        module.fail_json(invocation=shown, msg=str(error), error=error.as_dict())
    diff = [
        {"before": e["was"] or "", "after": e["now"] or "", "before_header": e["path"], "after_header": e["path"]}
        for e in differences["files"]
    ] + [
        {"before": f"{e['was']}\n", "after": f"{e['now']}\n", "before_header": e["path"], "after_header": e["path"]}
        for e in differences["folders"]
    ] + [
        {"before": f"{e['was']}\n", "after": f"{e['now']}\n", "before_header": e["name"], "after_header": e["name"]}
        for e in differences["values"]
    ]
    module.exit_json(
        invocation=shown,
        changed=bool(diff),
        diff=redact_diff(diff),
        changed_folders=[e["path"] for e in differences["folders"]],
        changed_files=[e["path"] for e in differences["files"]],
        created=[e["path"] for e in differences["files"] if e["was"] is None],
        values=[{k: e[k] for k in ("name", "was", "now")} for e in differences["values"]],
    )


if __name__ == "__main__":
    main()
