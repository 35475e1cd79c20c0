"""SGLang's server log: failures, decode lines, readiness, prefill lines."""

from __future__ import annotations

from typing import Any, Callable, Dict

from plumbline.sglang import failures, loglines, phases

from . import Kind


def _last_index(text: str, kind: str) -> int:
    found = [i for i, line in enumerate(loglines.lines_of(text)) for part in loglines.parse(line) if part.kind == kind]
    return found[-1] if found else -1


def _ready_index(text: str) -> int:
    found = [i for i, line in enumerate(loglines.lines_of(text)) if phases.phase_of(line) == "ready"]
    return found[-1] if found else -1


def is_failure(text: str) -> bool:
    failure = failures.classify(text)
    if failure is None:
        return False
    # A line of a start before the one that became ready is history, not this log's outcome.
    lines = [line.strip() for line in loglines.lines_of(text)]
    last = max(
        (
            i
            for i, line in enumerate(lines)
            for evidence in failure.lines
            if line.startswith(evidence.rstrip(".")[:380])
        ),
        default=len(lines),
    )
    return last > _ready_index(text)


def is_decode(text: str) -> bool:
    return _last_index(text, "decode") > _ready_index(text)


def is_ready(text: str) -> bool:
    return _ready_index(text) >= 0


def is_prefill(text: str) -> bool:
    return _last_index(text, "prefill") >= 0


def read_failure(text: str) -> Dict[str, Any]:
    failure = failures.classify(text)
    return {"ready": False, **failure.as_dict()} if failure else {}


def _batch(text: str, kind: str) -> Dict[str, Any]:
    lines = loglines.read(text)
    wanted = [line for line in lines if line.kind == kind]
    rows = loglines.rows_of(lines) if kind == "decode" else [loglines.row_of(line) for line in wanted]
    for row, line in zip(rows, wanted):
        row.update({name.lower(): rank for name, rank in line.tags})
    return {
        "rows": rows,
        "version": loglines.common_range(wanted),
        "versions": [loglines.versions(line) for line in wanted],
    }


def read_decode(text: str) -> Dict[str, Any]:
    return _batch(text, "decode")


def read_prefill(text: str) -> Dict[str, Any]:
    return _batch(text, "prefill")


def read_ready(text: str) -> Dict[str, Any]:
    return {"phase": "ready", **(phases.ready_reading(text) or {})}


def _version(expected: Any, read: Any) -> bool:
    return read is not None and loglines.in_range(str(expected), read)


def _versions(expected: Any, read: Any) -> bool:
    return len(expected) == len(read) and all(loglines.in_range(str(e), r) for e, r in zip(expected, read))


JUDGES: Dict[str, Callable[[Any, Any], bool]] = {"version": _version, "versions": _versions}
KINDS = [
    Kind("failure", 10, is_failure, read_failure),
    Kind("decode", 20, is_decode, read_decode, JUDGES),
    Kind("ready", 30, is_ready, read_ready),
    Kind("prefill", 40, is_prefill, read_prefill, JUDGES),
]
