"""A workload of the catalogue as requests: which prompts, how many streams, how long an output.

A workload has a slice of a prompt file for itself (``skip``, ``take``): its first ``warmup_requests`` prompts warm the
server up, the rest are measured. So no prompt of a warm-up is measured, and workloads with disjoint slices share none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Union

from ..digest import file_digest
from ..errors import PlumblineError, unknown_name

KEYS = (
    "concurrency",
    "requests",
    "output_tokens",
    "prompts",
    "warmup_requests",
    "warmup_tokens",
    "temperature",
    "greedy_equal",
    "profiled",
    "description",
    "idle_timeout_s",
    "deadline_s",
)
PROMPT_KEYS = ("file", "sha256", "max_tokens", "skip", "take")


@dataclass(frozen=True)
class Prompt:
    """One prompt: its id within the file (or its line number) and its text."""

    id: str
    text: str


@dataclass(frozen=True)
class Workload:
    """A checked specification. Times in seconds; ``take`` None means: to the end of the file; ``profiled``: for the
    stages of a cycle (`stages`), so that its speed is not one to compare."""

    concurrency: int
    requests: int
    output_tokens: int
    warmup_requests: int
    warmup_tokens: int
    temperature: float
    sha256: Optional[str]
    skip: int
    take: Optional[int]
    idle_timeout_s: float
    deadline_s: Optional[float]
    profiled: bool = False


@dataclass(frozen=True)
class Requests:
    """What is sent: the bodies of warm-up and measurement, and the id of each measured prompt."""

    warm_up: List[Dict[str, Any]]
    measured: List[Dict[str, Any]]
    prompts: List[str]
    repeated: List[str]


def check(spec: Mapping[str, Any], where: str) -> Workload:
    """A catalogue entry as a `Workload`. Raises PlumblineError naming the key, what was found and what is allowed."""
    for key in spec:
        if key not in KEYS:
            raise unknown_name("key of a workload", str(key), KEYS, where)
    prompts = spec.get("prompts") or {}
    if not isinstance(prompts, Mapping):
        raise PlumblineError(
            "prompts must be a mapping", f"{where}: prompts", prompts, ", ".join(PROMPT_KEYS), "give file and sha256"
        )
    for key in prompts:
        if key not in PROMPT_KEYS:
            raise unknown_name("key of a workload's prompts", str(key), PROMPT_KEYS, where)
    output = _whole(spec, "output_tokens", where, 2)
    concurrency = _whole(spec, "concurrency", where, 1)
    requests = _whole(spec, "requests", where, 1)
    if requests < concurrency:
        raise PlumblineError(
            "a workload needs at least one request a stream",
            f"{where}: requests",
            requests,
            f"{concurrency} (its concurrency) or more",
            "raise requests, or lower concurrency",
        )
    warm_up = _whole(spec, "warmup_requests", where, 0, 0)
    take = None if prompts.get("take") is None else _whole(prompts, "take", f"{where}: prompts", 1)
    if take is not None and take <= warm_up:
        raise PlumblineError(
            "no prompt is left to be measured after the warm-up",
            f"{where}: prompts.take",
            take,
            f"more than warmup_requests ({warm_up})",
            "take warmup_requests + requests prompts, so that none comes twice",
        )
    return Workload(
        concurrency=concurrency,
        requests=requests,
        output_tokens=output,
        warmup_requests=warm_up,
        warmup_tokens=_whole(spec, "warmup_tokens", where, 1, min(output, 64)),
        temperature=_number(spec, "temperature", where, 0.0),
        sha256=prompts.get("sha256"),
        skip=_whole(prompts, "skip", f"{where}: prompts", 0, 0),
        take=take,
        idle_timeout_s=_number(spec, "idle_timeout_s", where, 120.0),
        deadline_s=None if spec.get("deadline_s") is None else _number(spec, "deadline_s", where, 0.0),
        profiled=_switch(spec, "profiled", where),
    )


def read_prompts(path: Union[str, Path], sha256: Optional[str] = None) -> List[Prompt]:
    """The prompts of a file, in order.

    ``.jsonl``: a line is a JSON string or an object with ``text`` (or ``prompt``) and perhaps ``id``; any other file: a
    line is a prompt. Raises PlumblineError if the file is missing, not what its digest says, or not of that form.
    """
    path = Path(path)
    if not path.is_file():
        raise PlumblineError(
            "no such prompt file", str(path), "nothing", "a file", "place the prompts on the target first"
        )
    found = file_digest(path)
    if sha256 and found != sha256.lower().partition(":")[2 if ":" in sha256 else 0]:
        raise PlumblineError(
            "the prompt file is not what the workload says",
            str(path),
            f"sha256 {found}",
            f"sha256 {sha256}",
            "place the file that the digest is of, or state the digest of this one in the workload",
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PlumblineError(
            "the prompt file is no text",
            str(path),
            f"{error.reason} at byte {error.start}",
            "UTF-8, a prompt a line",
            "convert it",
        ) from error
    prompts = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        prompts.append(_prompt(line, number, path) if path.suffix == ".jsonl" else Prompt(str(number), line))
    if not prompts:
        raise PlumblineError("the prompt file holds no prompt", str(path), "empty", "a prompt a line", "fill it")
    return prompts


def requests_of(workload: Workload, prompts: List[Prompt], where: str) -> Requests:
    """The requests of a workload. With fewer prompts than requests they come again, which is told in ``repeated``."""
    end = len(prompts) if workload.take is None else workload.skip + workload.take
    if end > len(prompts) or end <= workload.skip + workload.warmup_requests:
        raise PlumblineError(
            "the prompt file has too few prompts for this workload",
            where,
            len(prompts),
            f"more than {max(end - 1, workload.skip + workload.warmup_requests)}",
            "lower skip, take or warmup_requests, or give a longer prompt file",
        )
    first = workload.skip + workload.warmup_requests
    own = prompts[first:end]
    measured = [own[i % len(own)] for i in range(workload.requests)]
    texts = [p.text for p in prompts[workload.skip : first]]
    seen, repeated = set(texts), []
    for prompt in measured:
        if prompt.text in seen:
            repeated.append(prompt.id)
        seen.add(prompt.text)
    return Requests(
        warm_up=[body(text, workload.warmup_tokens, workload.temperature) for text in texts],
        measured=[body(prompt.text, workload.output_tokens, workload.temperature) for prompt in measured],
        prompts=[prompt.id for prompt in measured],
        repeated=repeated,
    )


def body(text: str, tokens: int, temperature: float) -> Dict[str, Any]:
    """The body of a streaming ``/generate`` request with an output of exactly ``tokens`` tokens."""
    return {
        "text": text,
        "stream": True,
        "sampling_params": {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True},
    }


def _prompt(line: str, number: int, path: Path) -> Prompt:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise PlumblineError(
            "not a line of JSON",
            f"{path}, line {number}",
            line[:60],
            'a text in quotes, or {"id": ..., "text": ...}',
            "mend the line, or name a file of plain lines otherwise than .jsonl",
        ) from error
    text = value.get("text", value.get("prompt")) if isinstance(value, dict) else value
    if not isinstance(text, str) or not text:
        raise PlumblineError(
            "a prompt without text",
            f"{path}, line {number}",
            line[:60],
            'a text in quotes, or {"id": ..., "text": ...}',
            "give each line its text",
        )
    return Prompt(str(value.get("id", number)) if isinstance(value, dict) else str(number), text)


def _whole(values: Mapping[str, Any], key: str, where: str, least: int, default: Optional[int] = None) -> int:
    value = values.get(key, default)
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise PlumblineError(
            f"{key} must be a whole number", f"{where}: {key}", value, f"{least} or more", _mend(value, key)
        )
    return value


def _switch(values: Mapping[str, Any], key: str, where: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise PlumblineError(f"{key} is no switch", f"{where}: {key}", value, "true, false", "write true or false")
    return value


def _number(values: Mapping[str, Any], key: str, where: str, default: float) -> float:
    value = values.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or number < 0:
        raise PlumblineError(f"{key} must be a number", f"{where}: {key}", value, "0 or more", _mend(value, key))
    return number


def _mend(value: Any, key: str) -> str:
    return f"add {key}" if value is None else f"give {key} an allowed value"
