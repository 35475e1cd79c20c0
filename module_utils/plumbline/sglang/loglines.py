"""SGLang's ``Decode batch`` and ``Prefill batch`` lines, of every version since 0.4.4, as data.

A line is found by its head and split into ``name: value`` pairs, never read by position: fields were added, swapped
and renamed from version to version (docs/measuring.md has the table). What stands before the head is free: SGLang's
own ``[time TPn]`` tag, one that a logging configuration replaced, or what journald, Docker, Compose or Kubernetes put
first.

A decode line's ``gen throughput`` is tokens since the last decode line over the wall time since then. It counts idle
and prefill time, so not every line says something about speed: `rows_of` marks each with ``use`` and, if not,
``why``."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

Value = Union[int, float, bool, str, None]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_HEAD = re.compile(r"\b(Decode|Prefill) batch(?:(\.)|(,)|\s*\[(\d+)\]\s*,?)\s")
_STAMP = re.compile(
    r"\[(?P<at>(?:\d{4}-)?\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(?:[.,]\d{1,6})?)Z?(?P<tags>(?: [A-Z_]+\d+)*)\]"
)
_TAG = re.compile(r"([A-Z_]+)(\d+)")
_PAIR = re.compile(r"(?:^|,)\s*(?P<name>#?[A-Za-z][^:,]*?):\s*(?P<value>[^,]*)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan\b|inf\b)")
_COLLECTORS = (
    re.compile(r"^\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) [FP] "),  # Kubernetes CRI
    re.compile(
        r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ [^\s\[\]:]+(?:\[\d+\])?: "
    ),  # journald, syslog
    re.compile(r"^[\w./-]+\s+\| "),  # docker compose
    re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:?\d\d) "),  # docker/kubectl --timestamps
)

#: What a field of the log is called in a row, where the name differs from the field's own in lower case with
#: underscores.
ALIASES = {
    "running_req": "running",
    "queue_req": "queue",
    "gen_throughput_token/s": "gen_throughput",
    "input_throughput_token/s": "input_throughput",
    "new_seq": "new_seq",
    "new_token": "new_token",
    "cached_token": "cached_token",
    "pending_token": "pending_token",
}


class Line(NamedTuple):
    """One decode or prefill line.

    ``head`` is ``.``, ``,`` or ``[]`` (an iteration number in brackets); ``at`` seconds of the line's own time stamp
    (a local wall clock without zone, so only differences mean something); ``tags`` ranks such as ``{"DP": 0, "TP":
    0}``; ``fields`` the values by SGLang's own names; ``comma`` whether the line ends in a comma, which tells
    versions apart."""

    kind: str
    head: str
    iteration: Optional[int]
    at: Optional[float]
    tags: Tuple[Tuple[str, int], ...]
    fields: Dict[str, Value]
    comma: bool
    text: str


def clean(line: str) -> str:
    """A line without ANSI codes and without what a log collector put before it (JSON wrappers of Docker and loggers
    included)."""
    line = _ANSI.sub("", line).rstrip("\r\n")
    if line.lstrip().startswith("{"):
        try:
            wrapped = json.loads(line)
        except ValueError:
            wrapped = None
        if isinstance(wrapped, dict):
            for key in ("log", "message", "msg", "MESSAGE", "text", "event"):
                if isinstance(wrapped.get(key), str):
                    return clean(wrapped[key].rstrip("\n"))
    for collector in _COLLECTORS:
        line = collector.sub("", line, count=1)
    return line


def lines_of(text: str) -> Iterator[str]:
    """The cleaned lines of a log. A carriage return (progress bars) ends a line as well."""
    for line in re.split(r"\r\n|\n|\r", text):
        yield clean(line)


def stamp_of(line: str) -> Optional[float]:
    """Seconds of the SGLang time stamp in a line, or None. Without a year (a custom format) the year 2000 is taken."""
    found = _STAMP.search(line)
    return _seconds(found.group("at")) if found else None


def _seconds(stamp: str) -> Optional[float]:
    stamp = stamp.replace(",", ".").replace("T", " ")
    if len(stamp.split(" ", 1)[0]) == 5:
        stamp = f"2000-{stamp}"
    whole, _, fraction = stamp.partition(".")
    try:
        at = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
    return at + (float(f"0.{fraction}") if fraction else 0.0)


def _value(text: str) -> Value:
    text = text.strip()
    word = re.match(r"(True|False|None)\b", text)
    if word:
        return {"True": True, "False": False, "None": None}[word.group(1)]
    number = _NUMBER.match(text)
    if not number:
        return text
    digits = number.group()
    return int(digits) if re.fullmatch(r"[-+]?\d+", digits) else float(digits)


def parse(line: str) -> List[Line]:
    """The decode and prefill lines in one (cleaned) physical line: mostly none or one; two where writers ran into
    each other."""
    out = []
    heads = list(_HEAD.finditer(line))
    for i, head in enumerate(heads):
        start = heads[i - 1].end() if i else 0
        stamps = list(_STAMP.finditer(line, start, head.start()))
        stamp = stamps[-1] if stamps else None
        end = heads[i + 1].start() if i + 1 < len(heads) else len(line)
        after = _STAMP.search(line, head.end(), end)
        body = line[head.end() : after.start() if after else end]
        fields = {pair.group("name").strip(): _value(pair.group("value")) for pair in _PAIR.finditer(body)}
        if not fields:
            continue
        out.append(
            Line(
                kind=head.group(1).lower(),
                head=head.group(2) or head.group(3) or "[]",
                iteration=int(head.group(4)) if head.group(4) else None,
                at=_seconds(stamp.group("at")) if stamp else None,
                tags=tuple((name, int(number)) for name, number in _TAG.findall(stamp.group("tags"))) if stamp else (),
                fields=fields,
                comma=body.rstrip().endswith(","),
                text=line[stamp.start() if stamp else head.start() : head.end()] + body.rstrip(),
            )
        )
    return out


def read(text: str) -> List[Line]:
    """Every decode and prefill line of a log, in order."""
    if "batch" not in text:
        return []
    return [found for line in lines_of(text) if "batch" in line for found in parse(line)]


def row_of(line: Line) -> Dict[str, Any]:
    """A line as a row: SGLang's fields under steady names, None where this version or this server does not print one.

    Decode: ``gen_throughput`` tokens/s, ``accept_len`` tokens a verify step with the bonus token, ``accept_rate``
    (its definition changed in 0.5.11: see `rate_definition`), ``running`` and ``queue`` requests, ``graph`` whether a
    captured graph was replayed, ``graph_label`` ``cuda``, ``cpu`` or ``npu``. Prefill: ``new_seq``, ``new_token``,
    ``cached_token``, ``input_throughput``. Fields of hybrid models keep their names: ``full_token``,
    ``swa_token_usage``, ..."""
    row: Dict[str, Any] = {
        "kind": line.kind,
        "at": line.at,
        "iteration": line.iteration,
        "running": None,
        "queue": None,
        "token": None,
        "graph": None,
        "graph_label": None,
        "cuda_graph": None,
    }
    row.update(
        {"gen_throughput": None, "accept_len": None, "accept_rate": None}
        if line.kind == "decode"
        else {"new_seq": None, "new_token": None, "cached_token": None, "input_throughput": None}
    )
    for name, rank in line.tags:
        row[f"{name.lower()}_rank"] = rank
    for name, value in line.fields.items():
        key = re.sub(r"[()]", "", name.lower().lstrip("#")).strip().replace("-", "_").replace(".", "").replace(" ", "_")
        row[ALIASES.get(key, key)] = value
        label = re.fullmatch(r"(\w+) graph", name)
        if label:
            row["graph"], row["graph_label"] = value, label.group(1)
    return row


def rows_of(lines: Iterable[Line], log_idle_s: float = 5.0) -> List[Dict[str, Any]]:
    """The decode lines as rows, each with ``use`` (does its throughput say how fast decoding was?) and ``why`` not.

    Reasons: ``first`` (no decode line before it: the interval reaches back into idle time), ``prefill`` (a prefill
    ran in the interval), ``running_changed``, ``idle`` (the time stamps show a pause, for servers that print no
    prefill lines), ``eager`` (``cuda graph: False``: true for this step, but not the speed of the captured decode
    step; ``cpu graph`` is always False and no reason). Ranks of a data-parallel server are told apart by their tags.
    """
    out: List[Dict[str, Any]] = []
    last: Dict[Tuple, Dict[str, Any]] = {}
    prefill: Dict[Tuple, bool] = {}
    gaps: Dict[Tuple, List[float]] = {}
    for line in lines:
        if line.kind == "prefill":
            prefill[line.tags] = True
            continue
        row = row_of(line)
        before = last.get(line.tags)
        why = []
        if before is None:
            why.append("first")
        if prefill.get(line.tags):
            why.append("prefill")
        if before is not None and before["running"] != row["running"]:
            why.append("running_changed")
        if before is not None and before["at"] is not None and row["at"] is not None:
            gap = row["at"] - before["at"]
            seen = sorted(gaps.setdefault(line.tags, []))
            # Stamps have a resolution of a second: only a pause that is long by itself and beside the others counts.
            if gap > log_idle_s and seen and gap > 3 * max(1.0, seen[len(seen) // 2]):
                why.append("idle")
            else:
                gaps[line.tags].append(gap)
        if row["cuda_graph"] is False:
            why.append("eager")
        row["use"], row["why"] = not why, why
        out.append(row)
        last[line.tags], prefill[line.tags] = row, False
    return out


def clean_rows(rows: Iterable[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The rows whose interval holds decoding alone. Eager rows stay: they say truly how fast this server decoded."""
    return [row for row in rows if all(reason == "eager" for reason in row["why"])]


def rate_definition(accept_len: Optional[float], accept_rate: Optional[float]) -> Optional[str]:
    """``old`` (up to 0.5.10: accept length / draft tokens) or ``new`` (from 0.5.11: (accept length - 1) / (draft
    tokens - 1)).

    Told by which of the two gives a whole number of draft tokens within what two decimals allow; None if both or
    neither do."""
    if not accept_len or not accept_rate:
        return None

    def whole(numerator: float, plus: int) -> bool:
        low = (numerator - 0.005) / (float(accept_rate or 0) + 0.005) + plus
        high = (numerator + 0.005) / max(float(accept_rate or 0) - 0.005, 1e-9) + plus
        return any(low <= n <= high for n in range(max(2, int(low)), int(high) + 2))

    old, new = whole(accept_len, 0), whole(accept_len - 1.0, 1)
    return None if old == new else ("old" if old else "new")


# (head, ends in a comma) -> [(first version, last version), ...] narrowed below by the fields. An open end is None.
Range = Tuple[str, Optional[str]]


def versions(line: Line) -> Range:
    """The first and last SGLang version whose line looks like this one. The last is None where it is still printed
    so."""
    fields = line.fields
    graph = any(name.endswith(" graph") for name in fields)
    if line.kind == "prefill":
        if "#pending-token" in fields:
            return ("0.5.11", None)
        if "input throughput (token/s)" in fields:
            names = list(fields)
            graph_at = next((i for i, name in enumerate(names) if name.endswith(" graph")), len(names))
            return (
                ("0.5.10", "0.5.10.post1")
                if graph_at < names.index("input throughput (token/s)")
                else ("0.5.9", "0.5.9")
            )
        if line.head == ".":
            return ("0.4.4", "0.5.3.post3")
        return ("0.5.4", "0.5.4.post3") if line.head == "[]" else ("0.5.5", "0.5.8.post1")
    if line.head == ".":
        if not graph:
            return ("0.4.4", "0.4.6.post4")
        if not line.comma:
            return ("0.4.6.post5", "0.5.0rc1")
        if "accept rate" in fields:
            return ("0.5.3.post1", "0.5.3.post3")
        return ("0.5.0rc2", "0.5.3" if "accept len" in fields else "0.5.3.post3")
    first, last = ("0.5.4" if line.head == "[]" else "0.5.5", "0.5.8.post1") if line.comma else ("0.5.9", None)
    rate = rate_definition(_number(fields.get("accept len")), _number(fields.get("accept rate")))
    if rate == "old" and last is None:
        last = "0.5.10.post1"
    if rate == "new" and first == "0.5.9":
        first = "0.5.11"
    return (first, last)


def _number(value: Value) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def version_key(version: str) -> Tuple:
    """A key that sorts SGLang's versions: 0.5.0rc2 < 0.5.0 < 0.5.0.post1."""
    numbers = [int(n) for n in re.match(r"[\d.]*\d", version).group().split(".")] if re.match(r"\d", version) else []  # type: ignore[union-attr]
    pre = re.search(r"(?:a|b|rc)(\d+)", version)
    post = re.search(r"post(\d+)", version)
    return (*([*numbers, 0, 0, 0])[:4], (-1, int(pre.group(1))) if pre else (0, 0), int(post.group(1)) if post else 0)


def in_range(version: str, span: Range) -> bool:
    """Is a version within a span as `versions` gives it?"""
    key = version_key(version)
    return version_key(span[0]) <= key and (span[1] is None or key <= version_key(span[1]))


def common_range(lines: Iterable[Line]) -> Optional[Range]:
    """The versions that could have printed all of the lines, or None if no one version prints them so."""
    first, last = "0.0.0", None
    for line in lines:
        low, high = versions(line)
        first = max(first, low, key=version_key)
        if high is not None:
            last = high if last is None else min(last, high, key=version_key)
    if first == "0.0.0" or (last is not None and version_key(first) > version_key(last)):
        return None
    return (first, last)
