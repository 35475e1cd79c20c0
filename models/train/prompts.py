"""Write the measuring prompts as JSON lines ``{"id", "kind", "text"}``.

    python models/train/prompts.py --output models/prompts/tiny.jsonl

Needs the standard library only. The digest that it prints belongs into ``group_vars/all/workloads.yml``.
"""
from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import documents

FOR_EACH_KIND = 32


def render(for_each_kind: int = FOR_EACH_KIND) -> str:
    """The text of the prompt file."""
    return "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in documents.prompts(for_each_kind))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    data = render().encode()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_bytes(data)
    print(hashlib.sha256(data).hexdigest(), args.output)


if __name__ == "__main__":
    main()
