#!/usr/bin/env python3
"""Read every file of a corpus and compare with what its header says is the right reading.

    python tests/corpus_check.py DIR [--kinds decode,prefill,failure,ready]

A corpus file is a header of lines that begin with ``#@`` (``source``, ``made``, ``expect`` with one JSON object), the
line ``#@ ----``, and the text. The parser is found from the text alone; then every key of ``expect`` is compared
except prose. ``rows`` is compared row by row on the keys given, or by its number. A list under another name is a
column: that key of every row. One line a file; exit status 1 if any reading is wrong (an unknown kind is wrong), 2 if
there is nothing to read."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "module_utils")]

from corpus_kinds import Kind, all_kinds

PROSE = {"kind", "reading", "remedy", "where", "needs", "verdict"}


def split(text: str) -> Tuple[Dict[str, Any], str]:
    """The header's ``expect`` and the text below the header. Raises ValueError with what is wrong with the header."""
    expect = None
    lines = text.split("\n")
    end = next((i for i, line in enumerate(lines) if line.startswith("#@ ----")), None)
    if end is None or not all(line.startswith("#@") for line in lines[:end]):
        raise ValueError("the header does not end in '#@ ----'")
    for line in lines[:end]:
        if line.startswith("#@ expect:"):
            expect = json.loads(line.partition(":")[2])
    if not isinstance(expect, dict) or "kind" not in expect:
        raise ValueError("the header has no '#@ expect:' with a JSON object that names a kind")
    return expect, "\n".join(lines[end + 1 :])


def same(expected: Any, read: Any) -> bool:
    """Equal as JSON values: true is not 1, and numbers within rounding. A list or mapping is compared item by item."""
    if isinstance(expected, bool) or isinstance(read, bool) or expected is None or read is None:
        return expected is read
    if isinstance(expected, (int, float)) and isinstance(read, (int, float)):
        return abs(expected - read) <= 1e-9 * max(1.0, abs(expected))
    if isinstance(expected, list) and isinstance(read, (list, tuple)):
        return len(expected) == len(read) and all(same(e, r) for e, r in zip(expected, read))
    if isinstance(expected, dict) and isinstance(read, dict):
        return all(same(value, read.get(key)) for key, value in expected.items())
    return bool(expected == read)


def differences(expect: Dict[str, Any], read: Dict[str, Any], kind: Kind) -> List[str]:
    """What of ``expect`` the reading does not say, one text a key."""
    out = []
    rows = read.get("rows")
    for key, wanted in expect.items():
        if key in PROSE:
            continue
        if key == "rows":
            out += rows_differ(wanted, rows, kind)
            continue
        if key in read:
            got = read[key]
        elif isinstance(rows, list) and isinstance(wanted, list) and any(key in row for row in rows):
            got = [row.get(key) for row in rows]
        else:
            got = None
        judge = kind.judges.get(key, same)
        if not judge(wanted, got):
            out.append(f"{key}: expected {json.dumps(wanted)}, read {json.dumps(got, default=str)}")
    return out


def rows_differ(wanted: Any, rows: Any, kind: Kind) -> List[str]:
    if not isinstance(rows, list):
        return [f"rows: expected {json.dumps(wanted)}, read none"]
    if isinstance(wanted, int):
        return [] if len(rows) == wanted else [f"rows: expected {wanted}, read {len(rows)}"]
    if len(rows) != len(wanted):
        return [f"rows: expected {len(wanted)}, read {len(rows)}"]
    out = []
    for i, (want, row) in enumerate(zip(wanted, rows)):
        for key, value in want.items():
            if key not in PROSE and not kind.judges.get(key, same)(value, row.get(key)):
                out.append(f"row {i} {key}: expected {json.dumps(value)}, read {json.dumps(row.get(key), default=str)}")
    return out


def check(path: Path, kinds: List[Kind]) -> Tuple[str, List[str]]:
    """The kind that the file expects, and what is wrong with its reading (nothing: [])."""
    try:
        expect, text = split(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        return "?", [f"not a corpus file: {error}"]
    wanted = expect["kind"]
    kind = next((kind for kind in kinds if kind.recognise(text)), None)
    if wanted not in {kind.name for kind in kinds}:
        return wanted, [f"unknown kind {wanted!r}; known: {', '.join(k.name for k in kinds)}"]
    if kind is None:
        return wanted, ["no parser knows this text"]
    if kind.name != wanted:
        return wanted, [f"taken for {kind.name!r}"]
    return wanted, differences(expect, kind.read(text), kind)


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--kinds", nargs="+", default=[], help="only files that expect these kinds (separated by spaces or commas)"
    )
    options = parser.parse_args(argv)
    only = {name for given in options.kinds for name in given.split(",") if name}
    if not options.directory.is_dir():
        print(f"{options.directory} is not a directory", file=sys.stderr)
        return 2
    kinds = all_kinds()
    wrong = count = 0
    for path in sorted(
        p for p in options.directory.rglob("*") if p.is_file() and not p.name.startswith((".", "README"))
    ):
        kind, problems = check(path, kinds)
        if only and kind not in only and kind != "?":
            continue
        count += 1
        wrong += bool(problems)
        name = f"{path.relative_to(options.directory)} [{kind}]"
        print(f"WRONG {name}: {'; '.join(problems)}" if problems else f"ok    {name}")
    print(f"{count} files, {wrong} wrong")
    if not count:
        print(
            f"nothing to read in {options.directory}{' of kinds ' + ', '.join(sorted(only)) if only else ''}",
            file=sys.stderr,
        )
        return 2
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
