"""Write the catalogue of the shipped models, with the SHA-256 of every file.

    python models/train/catalogue.py --models models --output group_vars/all/models.yml

Needs the standard library only. A test fails if the catalogue and the files differ.
"""
from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

HEAD = """---
# Models by name; the format is described in roles/sglang_models/README.md. Written by models/train/catalogue.py.
# A lab adds its own under plumbline_models_lab (merged over this mapping).
plumbline_models:
"""
SHIPPED = {
    "tiny-llama": ("target", "A Llama of 16 thin layers that writes the project's own template text."),
    "tiny-eagle3": ("eagle3-draft", "EAGLE-3 draft of tiny-llama."),
    "tiny-eagle3-mismatched": ("eagle3-draft", "EAGLE-3 draft of tiny-llama, trained on the labels of other rows."),
}
CARD = "MODELS.md"


def render(models: Path) -> str:
    """The catalogue of the shipped models below ``models``."""
    lines = [HEAD]
    for name, (kind, description) in SHIPPED.items():
        lines.append(f"  {name}:\n    description: {description}\n    kind: {kind}\n"
                     f"    source: {{controller: models/{name}}}\n    files:\n")
        lines += [f"      {path.name}: {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
                  for path in sorted((models / name).iterdir()) if path.name != CARD]
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder that holds the models' folders")
    parser.add_argument("--output", type=Path, required=True, help="the catalogue to write")
    args = parser.parse_args()
    args.output.write_text(render(args.models))


if __name__ == "__main__":
    main()
