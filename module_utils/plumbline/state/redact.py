"""Secrets out of everything that is recorded: by the name that a value is given under, and by the shape of the value.

A secret's digest is not kept either: short secrets can be found from it. ``[redacted]`` stands in every place, so a
rotated token does not change a state.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence

REDACTED = "[redacted]"

# A name is split into words; "tokens" (max-total-tokens) and "token" in the middle (token-map) are no secrets.
_INSIDE = re.compile(
    r"(?i)secret|passw|passphrase|passcode|credential|api_?key|private_?key|authorization|bearer|access_?token"
)
_LAST = {"token", "key", "pwd", "pass", "auth", "cookie", "pat", "jwt", "apitoken", "hftoken", "creds", "dsn"}
_PAIRS = {("access", "key"), ("api", "key"), ("private", "key"), ("auth", "token"), ("signing", "key")}
_NOT_SECRET = {
    ("eos", "token"),
    ("bos", "token"),
    ("pad", "token"),
    ("unk", "token"),
    ("mask", "token"),
    ("per", "token"),
    ("next", "token"),
    ("first", "token"),
    ("public", "key"),
    ("cache", "key"),
    ("stop", "token"),
    ("sort", "key"),
    ("primary", "key"),
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_SHAPES = [
    re.compile(p)
    for p in (
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
        r"\bhf_[A-Za-z0-9]{8,}",
        r"\b(?:api_org|api)_[A-Za-z0-9]{34,}\b",
        r"\bsk-[A-Za-z0-9_-]{8,}",
        r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}",
        r"\bgh[pousr]_[A-Za-z0-9]{16,}",
        r"\bgithub_pat_[A-Za-z0-9_]{16,}",
        r"\bglpat-[A-Za-z0-9_-]{16,}",
        r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
        r"\bnvapi-[A-Za-z0-9_-]{16,}",
        r"\bAIza[0-9A-Za-z_-]{30,}",
        r"\bya29\.[0-9A-Za-z_-]{16,}",
        r"\bnpm_[A-Za-z0-9]{30,}",
        r"\bpypi-[A-Za-z0-9_-]{16,}",
        r"\bwandb_v1_[A-Za-z0-9_]{16,}",
        r"\bdckr_pat_[A-Za-z0-9_-]{16,}",
        r"\bhvs\.[A-Za-z0-9_-]{16,}",
        r"\beyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*",
    )
]
_SHAPES[0] = re.compile(_SHAPES[0].pattern, re.S)
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}")
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)([^/\s:@'\"]*):([^/\s@'\"]+)@")
_URL_TOKEN = re.compile(r"(?i)\b(https?://)([^/\s:@'\"]{12,})@")
# NAME=value of an environment file or a command line (also inside JSON and behind dashes); value may be quoted.
_ASSIGN = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?P<eq>\"?'?\s*[=:]\s*)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&}\"'\n]+)"
)
_FLAG = re.compile(r"(?P<flag>--?[A-Za-z][A-Za-z0-9_-]*)(?P<gap>\s+)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'-]\S*)")
_HINT = re.compile(
    r"(?i)token|secret|passw|passp|key|cred|auth|bearer|basic|pwd|pass|cookie|jwt|pat|dsn|://|hf_|sk-|AKIA|ASIA|AROA|AIDA"
    r"|gh[pousr]_|glpat|xox|nvapi|AIza|ya29|npm_|pypi-|wandb|dckr|hvs\.|eyJ|api_"
)


def secret_name(name: str) -> bool:
    """Whether a value given under this name (variable, option, key) is a secret by its name."""
    words = [w.lower() for w in _WORD.findall(name) if not w.isdigit()]
    if not words:
        return False
    pairs = list(zip(words, words[1:]))
    if pairs and pairs[-1] in _NOT_SECRET:
        return False
    return bool(_INSIDE.search(name)) or any(p in _PAIRS for p in pairs) or words[-1] in _LAST


def _shapes(text: str) -> str:
    text = _URL.sub(lambda m: f"{m.group(1)}{REDACTED}@", text)
    text = _URL_TOKEN.sub(lambda m: f"{m.group(1)}{REDACTED}@", text)
    text = _BEARER.sub(lambda m: f"{m.group(1)}{m.group(2)}{REDACTED}", text)
    for shape in _SHAPES:
        text = shape.sub(REDACTED, text)
    return text


def redact_text(text: str, code: bool = False) -> str:
    """The text without secrets. In program code (``code``) only quoted literals under a secret name are taken out, so
    that a line such as ``next_token = tokens[i]`` stays readable as evidence."""
    if not _HINT.search(text):
        return text

    def assignment(match: re.Match[str]) -> str:
        value = match.group("value")
        quote = value[0] if value[0] in "\"'" else ""
        if not secret_name(match.group("name")) or (code and (not quote or len(value) < 6)):
            return match.group(0)
        return f"{match.group('name')}{match.group('eq')}{quote}{REDACTED}{quote}"

    def flag(match: re.Match[str]) -> str:
        return (
            f"{match.group('flag')}{match.group('gap')}{REDACTED}"
            if secret_name(match.group("flag"))
            else match.group(0)
        )

    text = _shapes(text)
    text = _ASSIGN.sub(assignment, text)
    return text if code else _FLAG.sub(flag, text)


def redact_argv(argv: Sequence[str]) -> List[str]:
    """An argument list without secrets: the value after ``--api-key`` as well as ``--api-key=value`` and secret
    shapes."""
    out: List[str] = []
    hide = False
    for argument in argv:
        if hide and not argument.startswith("--"):
            out.append(REDACTED)
            hide = False
            continue
        name, eq, _value = argument.partition("=")
        secret = argument.startswith("-") and secret_name(name)
        out.append(f"{name}={REDACTED}" if secret and eq else redact_text(argument))
        hide = secret and not eq
    return out


def redact(value: Any, name: str = "", secret: bool = False) -> Any:
    """Any JSON value without secrets: what a key names as a secret loses every value in it, strings lose secret shapes;
    keys too."""
    secret = secret or bool(name and secret_name(name))
    if isinstance(value, dict):
        return {_key(key): redact(inner, str(key), secret) for key, inner in value.items()}
    if isinstance(value, list):
        if not secret and value and all(isinstance(v, str) for v in value):
            return redact_argv(value)
        return [redact(v, secret=secret) for v in value]
    if secret and value is not None and not isinstance(value, bool) and value != "":
        return REDACTED
    return redact_text(value) if isinstance(value, str) else value


def redact_diff(entries: Sequence[Mapping[str, str]]) -> List[Dict[str, str]]:
    """A task's ``diff`` without secrets in what was and what will be; Ansible shows it with ``--diff`` and at -vvv."""
    return [{k: redact_text(v) if k in ("before", "after") else v for k, v in e.items()} for e in entries]


def redact_shapes(value: Any) -> Any:
    """Any JSON value without secret shapes, whatever the names: for a document whose names are packages and files."""
    if isinstance(value, dict):
        return {_key(key): redact_shapes(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact_shapes(v) for v in value]
    return _shapes(value) if isinstance(value, str) and _HINT.search(value) else value


def _key(key: object) -> str:
    text = str(key)
    return _shapes(text) if _HINT.search(text) else text
