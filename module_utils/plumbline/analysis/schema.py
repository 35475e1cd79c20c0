"""Validation of documents against the project's JSON Schemas (`analysis/schemas/<name>.schema.json`)."""
from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from ..errors import PlumblineError, nearest

# Keywords whose value in the schema is by itself what is allowed.
_SELF_EXPLAINING = ("enum", "const", "type", "pattern", "minimum", "maximum", "exclusiveMinimum", "minItems", "format")

FOLDER = Path(__file__).parent / "schemas"


@cache
def load(name: str) -> dict:
    """The schema ``name`` as a mapping."""
    return json.loads((FOLDER / f"{name}.schema.json").read_text())


@cache
def _validator(name: str) -> jsonschema.protocols.Validator:
    document = load(name)
    cls = jsonschema.validators.validator_for(document)
    cls.check_schema(document)
    return cls(document)


def errors(name: str, document: Any, where: str) -> list[PlumblineError]:
    """All violations of schema ``name``, each naming the key, what was found and what is allowed there."""
    found = _validator(name).iter_errors(document)
    return [_explain(e, where) for e in sorted(found, key=lambda e: list(map(str, e.absolute_path)))]


def validate(name: str, document: Any, where: str) -> None:
    """Raise a PlumblineError that names every violation of schema ``name``."""
    found = errors(name, document, where)
    if len(found) == 1:
        raise found[0]
    if found:
        raise PlumblineError("\n".join(str(e) for e in found))


def _explain(error: jsonschema.ValidationError, where: str) -> PlumblineError:
    key = ".".join(str(p) for p in error.absolute_path)
    place = f"{where}, key {key}" if key else where
    schema: Any = error.schema
    expected: Any = error.validator_value
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        allowed = sorted(schema.get("properties", {}))
        patterns = schema.get("patternProperties", {})
        unknown = [k for k in error.instance if k not in allowed and not any(_matches(p, k) for p in patterns)]
        guesses = [f"{k!r} -> {nearest(str(k), allowed)!r}" for k in unknown if nearest(str(k), allowed)]
        return PlumblineError("unknown key", place, ", ".join(map(str, unknown)), ", ".join(allowed),
                              f"did you mean {'; '.join(guesses)}?" if guesses else "remove it")
    if error.validator == "required":
        instance: Any = error.instance
        present = sorted(map(str, instance))
        missing = [k for k in expected if k not in present]
        return PlumblineError("missing key", place, ", ".join(present), f"must have {', '.join(missing)}", "add it")
    found = error.instance if len(str(error.instance)) < 200 else f"{str(error.instance)[:200]}..."
    allowed_value = expected if error.validator in _SELF_EXPLAINING else error.message
    return PlumblineError(f"wrong value ({error.validator})", place, found, allowed_value, "give an allowed value")


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None
