"""Server arguments: a mapping becomes an argv list, and is checked against the options that a build really has.

A mapping is of SGLang's long option names without dashes. ``true`` gives the bare flag; ``false`` and null leave it
out; a list gives several values; a mapping becomes a JSON string; anything else is one value. Nothing passes through a
shell. Names are compared by equality: SGLang's parser takes abbreviations, so a removed flag can silently mean a longer
one.
"""
from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ..errors import PlumblineError, nearest

Args = Mapping[str, Any]
Options = Union[Mapping[str, Mapping[str, Any]], Sequence[str]]

# Set by the roles from the host's variables and the catalogues, so a second value would win or lose silently.
RESERVED = {
    "served-model-name": "sglang_server_target",
    "host": "sglang_server_host", "port": "sglang_server_port",
    "model-path": "sglang_server_target", "model": "sglang_server_target",
    "speculative-draft-model-path": "the variant's draft and sglang_server_drafts",
    "speculative-draft-model": "the variant's draft and sglang_server_drafts",
    "config": "sglang_server_args (a file of arguments means different things in different versions)"}
# Refused even in the effective arguments of an arm, in which the roles have set the others.
NEVER = ("config", "model", "speculative-draft-model")
# Options that SGLang took away or renamed: {name: (since, successors)}. `since` is the first version without it.
REMOVED: Dict[str, Tuple[str, Tuple[str, ...]]] = {
    "cuda-graph-max-bs": ("0.5.20", ("cuda-graph-max-bs-decode", "cuda-graph-max-bs-prefill")),
    "cuda-graph-bs": ("0.5.20", ("cuda-graph-bs-decode", "cuda-graph-bs-prefill")),
    "speculative-skip-dp-mlp-sync": ("0.5.23", ()),
}
# What differs silently with and without speculation, so that both arms of a comparison must give it.
ALIKE = "max-running-requests"
_NUMBER = re.compile(r"-(\d+|\d*\.\d+)")


def merge(*layers: Optional[Args]) -> Dict[str, Any]:
    """The effective mapping: later layers win by name; a null in a later layer takes the option away."""
    out: Dict[str, Any] = {}
    for layer in layers:
        out.update(layer or {})
    return {name: value for name, value in out.items() if value is not None}


def render(args: Args) -> List[str]:
    """The argv list, options in the order of their names: equal mappings give equal lists.

    Raises PlumblineError for a value that cannot be an argument (an empty list, a list in a list, a NUL)."""
    argv: List[str] = []
    for name in sorted(args):
        value = args[name]
        if value is None or value is False:
            continue
        if value is True:
            argv.append(f"--{name}")
        elif isinstance(value, (list, tuple)):
            values = [_text(name, entry) for entry in value]
            if not values:
                raise PlumblineError(f"an empty list is no value of {name!r}", "server arguments", value, "values")
            if any(_like_option(text) for text in values):
                raise PlumblineError(f"a value in the list of {name!r} looks like an option", "server arguments", value,
                                     "values that do not begin with a dash")
            argv += [f"--{name}", *values]
        else:
            text = _text(name, value)
            # argparse takes "-x" after an option for another option; joined by "=" it cannot.
            argv += [f"--{name}={text}"] if _like_option(text) else [f"--{name}", text]
    return argv


def validate(args: Args, options: Options, where: str, version: str = "the pinned version",
             reserved: Iterable[str] = NEVER) -> List[PlumblineError]:
    """Everything that is wrong with a mapping, against a build's option list.

    ``options`` is a manifest's ``options`` ({"--flag": {takes_value, choices, nargs, dest, deprecated}}, the last three
    optional) or a plain list of names, with which only names can be checked. ``where`` is the file and key that the
    mapping stands in. ``reserved``: names refused because a variable of its own sets them: `NEVER` for an arm's
    effective arguments, `RESERVED` for a mapping as a person gives it.
    """
    known: Dict[str, Optional[Mapping[str, Any]]] = (
        {name: dict(details) for name, details in options.items()} if isinstance(options, Mapping)
        else dict.fromkeys(options))
    refused = set(reserved)
    errors: List[PlumblineError] = []
    by_destination: Dict[str, str] = {}
    for name in sorted(args, key=str):
        at = f"{where}: {name}"
        if not isinstance(name, str) or f"--{name}" not in known or name in refused:
            errors.append(_bad_name(name, known, at, version, refused))
            continue
        details = known[f"--{name}"]
        if details is None:
            continue
        destination = str(details.get("dest") or name)
        if args[name] not in (None, False) and destination in by_destination:
            errors.append(PlumblineError(
                f"{name!r} and {by_destination[destination]!r} are two names of one option", at, name,
                f"one of {by_destination[destination]!r} and {name!r}", "give one of them"))
        by_destination.setdefault(destination, name)
        error = _bad_value(name, args[name], details, at)
        if error:
            errors.append(error)
    return errors


def check_alike(arms: Sequence[Args], names: Sequence[str], where: str = "sglang_server_args",
                name: str = ALIKE) -> List[PlumblineError]:
    """Whether all arms of a comparison, called ``names``, give the same ``name``.

    With speculation SGLang sets max-running-requests to 48 if it is not given, and to thousands without: compared at
    some concurrency, the arms would differ in more than what is varied.
    """
    given = {arm: args.get(name) for arm, args in zip(names, arms)}
    missing = sorted(arm for arm, value in given.items() if value in (None, False, True))
    if missing:
        return [PlumblineError(
            f"{name!r} is not given for every arm", where, f"missing in {', '.join(missing)}",
            "the same number in all arms",
            f"set {name} in sglang_server_args: SGLang's default differs with and without speculation")]
    if len({str(value) for value in given.values()}) > 1:
        return [PlumblineError(
            f"the arms have different values of {name!r}", where,
            ", ".join(f"{arm}: {value}" for arm, value in sorted(given.items())), "the same number in all arms",
            f"set {name} once, in sglang_server_args")]
    return []


def check_reserved(args: Args, where: str) -> List[PlumblineError]:
    """The names in a person's mapping that the roles set themselves, each with the variable to use."""
    return [_bad_name(name, {}, f"{where}: {name}", "", RESERVED) for name in sorted(args, key=str)
            if isinstance(name, str) and name in RESERVED and args[name] is not None]


def _text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, (list, tuple)) or value is None or isinstance(value, bool):
        raise PlumblineError(f"the list of {name!r} holds something that is not one value", "server arguments", value,
                             "texts and numbers")
    text = str(value)
    if "\0" in text or text == "--":  # no argv can hold the one, argparse drops the other
        raise PlumblineError(f"this text cannot be a value of {name!r}", "server arguments", repr(text), "another text")
    return text


def _like_option(text: str) -> bool:
    return text.startswith("-") and not _NUMBER.fullmatch(text)


def _bad_name(name: Any, known: Mapping[str, Any], at: str, version: str, refused: Iterable[str]) -> PlumblineError:
    if not isinstance(name, str):
        return PlumblineError("the name of a server argument must be a text", at, repr(name), "a long option's name",
                              "put it in quotes")
    bare = name.lstrip("-").replace("_", "-")
    if bare in refused:
        return PlumblineError(f"server argument {name!r} is set elsewhere", at, name, None,
                              f"set it by {RESERVED.get(bare, 'its own variable')}")
    if bare in REMOVED and f"--{bare}" not in known:
        since, successors = REMOVED[bare]
        left = [successor for successor in successors if f"--{successor}" in known]
        return PlumblineError(
            f"SGLang has no option {name!r} any more, since {since}", at, name, f"the options of {version}",
            f"use {' or '.join(repr(entry) for entry in left)}" if left else "leave it out")
    names = [option[2:] for option in known if option.startswith("--") and option[2:] not in set(refused)]
    if bare in names:
        return PlumblineError(f"server argument {name!r} is not written as SGLang writes it", at, name,
                              "long option names without dashes in front, words joined by dashes", f"write {bare!r}")
    longer = sorted(option for option in names if option.startswith(bare))
    if len(bare) > 2 and longer:
        shown = ", ".join(repr(entry) for entry in longer[:4])
        return PlumblineError(f"server argument {name!r} is an abbreviation", at, name, f"the options of {version}",
                              f"write it in full: {shown}")
    guess = nearest(bare, names)
    return PlumblineError(f"unknown server argument {name!r}", at, name, f"the options of {version}",
                          f"did you mean {guess!r}?" if guess else "see the build's 'sglang serve --help'")


def _bad_value(name: str, value: Any, details: Mapping[str, Any], at: str) -> Optional[PlumblineError]:
    if value is None or value is False:
        return None
    takes, nargs, choices = bool(details.get("takes_value")), details.get("nargs"), details.get("choices")
    if not takes:
        return None if value is True else PlumblineError(
            f"{name!r} is a bare flag and takes no value", at, value, "true, false or null")
    if value is True:
        return None if nargs in ("?", "*") else PlumblineError(f"{name!r} needs a value", at, "true", "a value or null")
    several = isinstance(value, (list, tuple))
    if several and "nargs" in details and nargs in (None, "?"):
        return PlumblineError(f"{name!r} takes one value", at, list(value), "one value, not a list")
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if isinstance(nargs, int) and len(values) != nargs:
        return PlumblineError(f"{name!r} takes {nargs} values", at, value, f"a list of {nargs}")
    if choices:
        for entry in values:
            if str(entry) not in choices:
                guess = nearest(str(entry), choices)
                return PlumblineError(f"{entry!r} is no value of {name!r}", at, entry, ", ".join(choices),
                                      f"did you mean {guess!r}?" if guess else "")
    try:
        render({name: value})
    except PlumblineError as error:
        return PlumblineError(error.what, at, error.found, error.allowed, error.remedy)
    return None
