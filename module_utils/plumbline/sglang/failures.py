"""Why a server did not start, or died: a ranked classifier over its log (and kernel log lines, where they are in it).

The exit status says next to nothing: SGLang's main process kills its own tree, itself included, so it ends by SIGKILL
whatever the cause. The last lines say little more: eight ranks print, and the last to speak are victims. So the whole
log is searched for the most specific cause first: `failure_rules.RULES` is ranked, and the first with a match
anywhere decides. ``secondary`` (another rank failed first, and this log does not show it) is only given if nothing
else is found."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import phases
from .failure_rules import RULES, WEAK, Rule
from .loglines import lines_of

EVIDENCE_LINES = 6
_LONGEST_LINE = 400


@dataclass
class Failure:
    """A classified failure.

    ``phase`` one of `phases.PHASES`, ``arguments`` or ``serving``, or None if the log does not show it; ``exit_code``
    as far as the log names one (negative: a signal); ``lines`` the evidence; ``facts`` what the lines say besides,
    under the names that the rules give (``found_cuda``, ``variable``, ``token``, ``xid``, ``gpu``, ...)."""

    cls: str
    detail: str
    lines: List[str]
    remedy: str
    phase: Optional[str] = None
    exit_code: Optional[int] = None
    facts: Dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> Dict[str, Any]:
        """For a module's result: ``{class, detail, lines, remedy, phase, exit_code, ...facts}``."""
        return {
            **self.facts,
            "class": self.cls,
            "detail": self.detail,
            "lines": self.lines,
            "remedy": self.remedy,
            "phase": self.phase,
            "exit_code": self.exit_code,
        }


CLASSES = (*(rule.cls for rule in RULES), "exception", *(rule.cls for rule in WEAK), "killed", "unknown")

# Exceptions at the end of a traceback that only say that another process went away.
_CONSEQUENCE = re.compile(
    r"EOFError|KeyboardInterrupt|SystemExit|BrokenPipeError|Connection(?:Reset|Refused)Error|CancelledError"
    r"|scheduler died during initialization|scheduler is dead|could finish the model loading"
    r"|ProcessLookupError|asyncio\.exceptions"
)
_EXCEPTION = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)?)(?:: (?P<text>.*))?$"
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_EXIT_CODE = (
    re.compile(r"[Ee]xit(?:ed with)?[ _]?code[:=]? ?(-?\d+)"),
    re.compile(r"code=(killed|exited|dumped), status=(\d+)"),
    re.compile(r"exitcode[=:] ?(-?\d+)"),
)
_FRAME_PHASES = (
    (
        "graph_capture",
        re.compile(r"cuda_graph_runner|graph_runner\.py|Capture cuda graph failed|capture_graph|init_device_graphs"),
    ),
    ("kv_pool", re.compile(r"memory_pool|init_memory_pool|profile_max_num_token|kv_cache_configurator")),
    ("weight_load", re.compile(r"load_model\b|model_loader|load_weights|weight_utils")),
    (
        "distributed_init",
        re.compile(r"init_torch_distributed|parallel_state\.py|pynccl|init_process_group|init_distributed_environment"),
    ),
    ("serving", re.compile(r"run_event_loop|event_loop_\w+|forward_batch_generation|process_batch_result")),
    ("arguments", re.compile(r"server_args\.py|prepare_server_args|__post_init__")),
)


def classify(text: str) -> Optional[Failure]:
    """The failure that a log shows, or None if it shows none.

    A log with several starts (a journal that was not cut) is judged by its last start that shows a failure; one whose
    last start became ready after that failure shows none."""
    for begin, part in reversed(_starts(list(lines_of(text)))):
        found = _classify(part)
        if found:
            return found
        if begin and phases.is_ready("\n".join(part)):
            return None
    return None


def classify_exit(text: str, exit_status: Optional[int]) -> Failure:
    """The failure of a server that ended: as `classify`, else ``killed`` or ``unknown`` with the log's last lines.

    ``exit_status`` as ``subprocess`` gives it (negative: a signal), None if nobody saw it.
    """
    found = classify(text)
    if found:
        if found.exit_code is None and exit_status is not None:
            found.exit_code = exit_status
        return found
    last = [line for line in lines_of(text[-20000:]) if line.strip()][-EVIDENCE_LINES:]
    killed = exit_status is not None and (exit_status < 0 or exit_status > 128)
    how = f"with status {exit_status}" if exit_status is not None else "(nobody saw its status)"
    if exit_status is not None and killed:
        how = f"by signal {-exit_status if exit_status < 0 else exit_status - 128}"
    events = phases.read_phases(text)
    return Failure(
        "killed" if killed else "unknown",
        f"the server ended {how} and its log shows no known cause",
        [_cut(line) for line in last],
        "look for the OOM killer in the kernel log (dmesg -T | grep -i oom)" if killed else "read the server's log",
        events[-1].phase if events else None,
        exit_status,
    )


def _starts(lines: List[str]) -> List[Tuple[int, List[str]]]:
    """The log cut at each start. Lines before the first ``server_args=`` belong to it (argparse speaks before that
    line)."""
    marks = [i for i, line in enumerate(lines) if re.search(r"\bserver_args=(?:ServerArgs\(|\{)", line)]
    bounds = [0, *marks[1:], len(lines)]
    return [(begin, lines[begin:end]) for begin, end in zip(bounds, bounds[1:])]


def _classify(lines: List[str]) -> Optional[Failure]:
    whole = [line.strip() for line in lines]
    for rule in RULES:
        found = _by_rule(rule, lines, whole)
        if found:
            return found
    raised = _exception(lines)
    if raised:
        return raised
    for rule in WEAK:
        found = _by_rule(rule, lines, whole)
        if found:
            return found
    return None


def _by_rule(rule: Rule, lines: List[str], stripped: List[str]) -> Optional[Failure]:
    hits = []
    for i, line in enumerate(stripped):
        match = rule.pattern.search(line)
        if match and not (rule.not_in and rule.not_in.search(line)):
            hits.append((i, match))
    # An indented line is source code that a traceback quotes: evidence only where there is no other.
    hits = [hit for hit in hits if not lines[hit[0]].startswith(("  ", "\t"))] or hits
    if len(hits) < rule.least:
        return None
    at, match = hits[0]
    facts = rule.facts(match, stripped) if rule.facts else {}
    exit_code = facts.pop("exit_code", None)
    rank = re.search(r"\bTP ?(?:rank )?(\d+)\b|\b[Rr]ank (\d+)", match.string)
    if rank:
        facts.setdefault("rank", int(rank.group(1) or rank.group(2)))
    return Failure(
        rule.cls,
        rule.detail,
        _unique([match.string for _, match in hits]),
        rule.remedy,
        rule.phase or _phase(lines, at),
        exit_code if exit_code is not None else _exit_code(lines, at),
        facts,
    )


def _exception(lines: List[str]) -> Optional[Failure]:
    """The last line of the first traceback that is a cause, for failures that no rule knows."""
    inside = False
    for i, line in enumerate(lines):
        if _TRACEBACK.search(line):
            inside = True
            continue
        if not inside or not line.strip() or line.startswith((" ", "\t")):
            continue
        raised = _EXCEPTION.match(line.strip())
        if not raised:
            inside = bool(re.match(r"\[[^\]]*\]", line))  # another process' line in the middle of the traceback
            continue
        inside = False
        if _CONSEQUENCE.search(line):
            continue
        text = raised.group("text") or ""
        return Failure(
            "exception",
            _cut(f"{raised.group('name')}: {text}" if text else raised.group("name")),
            [_cut(line.strip())],
            "read the traceback in the server's log",
            _phase(lines, i),
            _exit_code(lines, i),
            {"exception": raised.group("name").rpartition(".")[2]},
        )
    return None


def _phase(lines: List[str], at: int) -> Optional[str]:
    """Where the server was at line ``at``: by the words of the line and the frames above it, else by the phase lines
    before."""
    near = lines[max(0, at - 60) : at + 1]
    for i in range(len(near) - 1, -1, -1):
        if _TRACEBACK.search(near[i]):
            near = near[i:]
            break
    else:
        near = near[-1:]
    by_lines = phases.read_phases("\n".join(lines[:at])) if at else []
    last = by_lines[-1].phase if by_lines else None
    if last == "ready":
        return "serving"
    # Frames are from the outermost to the innermost: the innermost known one tells best.
    for line in reversed(near):
        for phase, pattern in _FRAME_PHASES:
            if pattern.search(line):
                return phase
    return last


def _exit_code(lines: List[str], at: int) -> Optional[int]:
    for line in list(lines[at:]) + list(lines[:at]):
        for pattern in _EXIT_CODE:
            found = pattern.search(line)
            if found and pattern.groups == 2:
                return int(found.group(2)) if found.group(1) == "exited" else -int(found.group(2))
            if found:
                return int(found.group(1))
    return None


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "..."


def _unique(lines: Sequence[str]) -> List[str]:
    seen = []
    for line in lines:
        cut = _cut(line)
        if cut not in seen:
            seen.append(cut)
    return seen[:EVIDENCE_LINES]
