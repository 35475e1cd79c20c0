#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.measure.measurement."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_throughput
short_description: Measure one workload on a running server
description:
  - Sends a workload's requests to SGLang's C(/generate) over loopback, streaming, and computes throughput, latencies,
    step time and accept length from the arrival of each chunk. Requests of the warm-up are not counted, and the
    prefix cache is flushed after them.
  - Each figure is checked against another source (the server's decode lines, its counters, its own request times), and
    whatever a reader of the figures must know is said as a flag.
  - The result lies in the spool (C(ROOT/spool/ID.json)) before the module returns. A measurement that is in the spool
    already is returned, not made again.
  - A server that dies, hangs, refuses or answers garbage gives a measurement with C(status) C(failed) and a class; the
    task does not fail for it. It fails for bad input (a workload, a prompt file).
version_added: "0.1.0"
options:
  root:
    description: The root of Plumbline on the host (C(plumbline_root)).
    type: path
    required: true
  boot:
    description: Id of the boot that is measured.
    type: str
    required: true
  base_url:
    description: Where the server answers.
    type: str
    required: true
  measurement:
    description: Id of the measurement (a ULID), given by the plan.
    type: str
    required: true
  workload:
    description:
      - The workload as in the catalogue (C(plumbline_workloads)). C(prompts) gives C(sha256), C(skip) and C(take) of
        the slice of the prompt file that is this workload's own; its first C(warmup_requests) prompts warm up, the
        rest are measured.
    type: dict
    required: true
  workload_name:
    description: The workload's name, for the record.
    type: str
    default: ""
  repeat:
    description: The how-manieth measurement of this workload on this boot it is.
    type: int
    default: 1
  prompts:
    description: The prompt file on the target; C(.jsonl) with C(id) and C(text) in each line, or a prompt a line.
    type: path
    required: true
  engine:
    description: What serves.
    type: str
    choices: [sglang-cuda, sglang-cpu, simulator]
    required: true
  speculation:
    description:
      - C(steps) and C(draft_tokens) of the arm, or null without speculation. Only used where the server does not say
        itself whether it speculates.
    type: dict
  log_path:
    description: The server's log. Left out, it is C(server.log) of the boot.
    type: path
  lease:
    description:
      - The lease to renew while measuring, as M(plumbline_lease) returns it. If it is lost, the measurement fails.
    type: dict
  context:
    description:
      - What the controller knows of the boot. It is kept with the measurement in the spool, so that a controller that
        was killed before it recorded the measurement can record it when it goes on.
    type: dict
    default: {}
  api_key:
    description: The server's C(--api-key).
    type: str
attributes:
  check_mode:
    description: Checks the workload and measures nothing.
    support: full
  diff_mode:
    description: Changes nothing but the spool, so has no difference to show.
    support: none
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Measure a workload
  plumbline_throughput:
    root: /opt/plumbline
    boot: 01KB7QA4D0E8T1XMV2R7S9WZ3C
    base_url: http://127.0.0.1:30000
    measurement: 01KB7QB1M6W3C9Y5T0N8XK2R7D
    workload: "{{ plumbline_workloads['one-stream'] }}"
    workload_name: one-stream
    prompts: /opt/plumbline/prompts/tiny.jsonl
    engine: sglang-cpu
    lease: "{{ held.lease }}"
  register: measured

- name: Show the speed of one stream
  ansible.builtin.debug:
    msg: "{{ ansible_facts.plumbline_throughput.decode_tok_s }} tok/s"
"""

RETURN = r"""
ansible_facts:
  description: The figures, so that a later task can use them.
  returned: always
  type: dict
  contains:
    plumbline_throughput:
      description:
        - The metrics of the measurement, with its C(id), C(workload), C(status) and the names of its C(flags).
          Metrics that could not be measured are null.
      type: dict
      sample:
        id: 01KB7QB1M6W3C9Y5T0N8XK2R7D
        workload: one-stream
        status: ok
        flags: [past_eos]
        output_tok_s: 157.2
        decode_tok_s: 160.1
        ttft_ms: {mean: 21.4, p50: 21.1, p90: 23.0, p99: 24.9}
        itl_ms: {mean: 6.2, p50: 6.0, p90: 8.9, p99: 17.7}
        step_ms: 17.8
        accept_length: 2.84
        verify_ms: null
        draft_ms: null
        graph_share: null
        requests: 12
        completion_tokens: 3072
        errors: 0
measurement:
  description:
    - The whole measurement as it lies in the spool; null in check mode. C(metrics), C(checks), C(flags),
      C(conditions), C(samples) (one a request, with the generated tokens), C(log_window), C(server_info), C(status),
      and C(failure) with C(class) and C(detail) if it failed.
  returned: always
  type: dict
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.measure import measurement, workload


def facts(result: Dict[str, Any]) -> Dict[str, Any]:
    """The figures of a measurement as a fact."""
    about = {"id": result["id"], "workload": result["workload"], "status": result["status"]}
    return {**about, "flags": [flag["name"] for flag in result["flags"]], **result["metrics"]}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "boot": {"type": "str", "required": True},
            "base_url": {"type": "str", "required": True},
            "measurement": {"type": "str", "required": True},
            "workload": {"type": "dict", "required": True},
            "workload_name": {"type": "str", "default": ""},
            "repeat": {"type": "int", "default": 1},
            "prompts": {"type": "path", "required": True},
            "engine": {"type": "str", "required": True, "choices": ["sglang-cuda", "sglang-cpu", "simulator"]},
            "speculation": {"type": "dict"},
            "log_path": {"type": "path"},
            "lease": {"type": "dict"},
            "context": {"type": "dict", "default": {}},
            "api_key": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        if module.check_mode:
            workload.check(given["workload"], f"workload {given['workload_name'] or given['measurement']}")
            module.exit_json(changed=True, measurement=None, ansible_facts={"plumbline_throughput": None})
        result, new = measurement.from_parameters(given)
    except PlumblineError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    module.exit_json(changed=new, measurement=result, ansible_facts={"plumbline_throughput": facts(result)})


if __name__ == "__main__":
    main()
