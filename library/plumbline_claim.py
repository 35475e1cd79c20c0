#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_claim
short_description: Say which of the figures that somebody reports cannot all be true
version_added: "0.1.0"
description:
  - Checks reported figures against the identities that hold for any server. tok/s = streams x accept length / step
    time; speed-up = accept length / (step time / baseline step time); an accept length is at least 1 and at most
    steps + 1.
  - Prints the findings. An accept length that was read without its bonus token is recognised.
  - What is not known is left out; at least one figure is needed.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Reads and writes nothing.
  diff_mode:
    support: none
    description: Has no diff.
  action:
    support: full
    description: Runs on the controller; no host is touched.
options:
  tok_s:
    description: Tokens per second, over all streams.
    type: raw
  step_ms:
    description: Milliseconds of a whole cycle. The time of the verify step alone is a lower bound of it.
    type: raw
  accept_length:
    description: Tokens a cycle, the bonus token included.
    type: raw
  steps:
    description: Number of speculative steps.
    type: raw
  draft_tokens:
    description: Number of draft tokens a cycle, where there are no steps (NGRAM).
    type: raw
  baseline_tok_s:
    description: Tokens per second without speculation.
    type: raw
  baseline_step_ms:
    description: Milliseconds of a decode step without speculation.
    type: raw
  concurrency:
    description: Number of streams that the figures are of.
    type: raw
  strict:
    description: Fail if the figures cannot all be true.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Can that be?
  plumbline_claim:
    tok_s: 60
    step_ms: 30.6
    accept_length: 1.17
    steps: 3
    baseline_tok_s: 82.2
"""

RETURN = r"""
consistent:
  description: Whether all figures can be true together.
  returned: success
  type: bool
  sample: false
findings:
  description: What follows from the figures, contradictions among it.
  returned: success
  type: list
  elements: dict
  sample:
    - kind: contradiction
      figures: [tok_s, step_ms, accept_length]
      says: 60 tok/s at 30.6 ms a cycle means 1.84 tokens a cycle, not 1.17
implied:
  description: Figures that follow from those given.
  returned: success
  type: dict
  sample: {accept_length: 1.836}
text:
  description: The same for a terminal.
  returned: success
  type: str
  sample: these figures cannot all be true
"""
