"""NCCL proofs and sweeps in the results tree: ``proofs/<id>.json`` with its logs beside it,
``nccl-sweeps/<sweep>/``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import append_line, read_lines, write_atomic
from . import nccl_report, schema
from .store import Results


def write_proof(results_root: str, proof: dict, logs: Mapping[str, str], dry: bool = False) -> list[str]:
    """Validate and write a proof, and the debug logs that it was read from below ``proofs/<id>/``. Returns what was
    written.
    """
    schema.validate("proof", proof, "NCCL proof")
    folder = Path(results_root) / "proofs"
    paths = {folder / proof["id"] / Path(name).name: text for name, text in logs.items()}
    if not dry:
        Results(results_root).write_proof(proof)
        for path, text in paths.items():
            write_atomic(path, text)
    return [str(folder / f"{proof['id']}.json"), *map(str, paths)]


def write_sweep(results_root: str, sweep: str, records: Sequence[dict], dry: bool = False) -> dict[str, Any]:
    """Append the records that are new, and write table and plots again from all: ``{written: [paths], conclusions:
    [sentences]}``.

    ``nccl-sweeps/<sweep>/records.jsonl``, ``sweep.md``, ``<host>-<mode>.svg``.
    """
    folder = Path(results_root) / "nccl-sweeps" / sweep
    for record in records:
        schema.validate("nccl-sweep", record, f"record of sweep {sweep}")
    have = read_lines(folder / "records.jsonl")
    known = {json.dumps(record, sort_keys=True) for record in have}
    fresh = [record for record in records if json.dumps(record, sort_keys=True) not in known]
    everything = [*have, *fresh]
    files = {folder / "sweep.md": nccl_report.markdown(everything)}
    for host, mode in dict.fromkeys((r["host"], r["mode"]) for r in everything):
        plot = nccl_report.svg(everything, host, mode)
        if plot:
            files[folder / f"{host}-{mode}.svg"] = plot
    changed = [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
    if not dry:
        for record in fresh:
            append_line(folder / "records.jsonl", record)
        for path in changed:
            write_atomic(path, files[path])
    written = [str(folder / "records.jsonl")] if fresh else []
    return {"written": [*written, *map(str, changed)], "conclusions": nccl_report.conclusions(everything)}
