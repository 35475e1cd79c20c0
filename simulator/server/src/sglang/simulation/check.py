"""The part of JSON Schema that ``physics.schema.json`` uses, in the standard library.

A host that runs the simulator has no index to install a validator from. The project's tests hold this one against the
``jsonschema`` package.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, Dict, List

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def problems(value: Any, schema: Dict[str, Any], root: Dict[str, Any], where: str = "") -> List[str]:
    """Every way in which ``value`` breaks ``schema``, each as a sentence that names the key."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return problems(value, root["$defs"][name], root, where)
    if "anyOf" in schema:
        return _any_of(value, schema["anyOf"], root, where)
    label = where or "the physics file"
    if "const" in schema and value != schema["const"]:
        return [f"{label}: found {value!r}; allowed: {schema['const']!r}"]
    if "enum" in schema:
        return (
            []
            if value in schema["enum"]
            else [f"{label}: found {value!r}; allowed: {', '.join(map(str, schema['enum']))}"]
        )
    kinds = schema.get("type")
    if kinds and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        wanted = kinds if isinstance(kinds, str) else " or ".join(kinds)
        return [f"{label}: found {value!r}; allowed: {wanted}"]
    found: List[str] = []
    if _is(value, "number"):
        found += _range(value, schema, label)
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{label}: found {value!r}; allowed: {schema['pattern']}")
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            found += problems(item, schema["items"], root, f"{where}[{index}]")
    if isinstance(value, dict):
        found += _object(value, schema, root, where)
    return found


def _is(value: Any, kind: str) -> bool:
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "integer":
        return _is(value, "number") and float(value).is_integer()
    return isinstance(value, TYPES[kind])


def _range(value: float, schema: Dict[str, Any], label: str) -> List[str]:
    rules = (
        ("minimum", value >= schema.get("minimum", value), "at least"),
        ("maximum", value <= schema.get("maximum", value), "at most"),
        ("exclusiveMinimum", "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"], "more than"),
        ("exclusiveMaximum", "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"], "less than"),
    )
    return [f"{label}: found {value}; allowed: {words} {schema[rule]}" for rule, good, words in rules if not good]


def _object(value: Dict[str, Any], schema: Dict[str, Any], root: Dict[str, Any], where: str) -> List[str]:
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    prefix = f"{where}." if where else ""
    found = [f"{prefix}{key}: is missing" for key in schema.get("required", []) if key not in value]
    for key, item in value.items():
        path = f"{prefix}{key}"
        matching = [rule for pattern, rule in patterns.items() if re.search(pattern, str(key))]
        if key in known:
            found += problems(item, known[key], root, path)
        elif matching:
            found += problems(item, matching[0], root, path)
        elif isinstance(schema.get("additionalProperties"), dict):
            found += problems(item, schema["additionalProperties"], root, path)
        elif schema.get("additionalProperties") is False:
            guess = difflib.get_close_matches(str(key), list(known), n=1)
            allowed = ", ".join(known) or ", ".join(patterns)
            found.append(
                f"{path}: is not a key here; allowed: {allowed}" + (f"; did you mean {guess[0]}?" if guess else "")
            )
    return found


def _any_of(value: Any, choices: List[Dict[str, Any]], root: Dict[str, Any], where: str) -> List[str]:
    results = [problems(value, choice, root, where) for choice in choices]
    if any(not result for result in results):
        return []
    # The choice of the right type has the most to say about what is wrong.
    for choice, result in zip(choices, results):
        if "type" in choice and _is(value, choice["type"]):
            return result
    return [f"{where}: found {value!r}; allowed: " + " or ".join(str(choice.get("type")) for choice in choices)]
