"""Read the physics file: defaults, overrides of the host, and everything that a schema cannot say."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any, Dict, List, Optional

from .check import problems

SCHEMA_FILE = Path(__file__).with_name("physics.schema.json")
PHYSICS_VARIABLE = "PLUMBLINE_SIMULATOR_PHYSICS"
HOST_VARIABLE = "PLUMBLINE_SIMULATOR_HOST"


class PhysicsError(ValueError):
    """The physics file cannot be used; the text names each key that is wrong."""


def host_name() -> str:
    """The inventory name of this host, else what the system calls it."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def load(path: Optional[str] = None, host: Optional[str] = None) -> Dict[str, Any]:
    """The whole physics of a host: every key present. Raises PhysicsError.

    ``path`` is JSON, or YAML where PyYAML can be imported; by default PLUMBLINE_SIMULATOR_PHYSICS names it.
    The key ``digest`` is added: SHA-256 of the file's content as sorted JSON.
    """
    source = path or os.environ.get(PHYSICS_VARIABLE)
    if not source:
        raise PhysicsError(f"no physics: set {PHYSICS_VARIABLE} to a physics file; the simulator has none of its own")
    try:
        text = Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise PhysicsError(f"physics file {source} cannot be read: {error.strerror}") from error
    return resolve(_parse(text, source), host or host_name(), source)


def resolve(document: Any, host: str, where: str = "physics") -> Dict[str, Any]:
    """Check ``document``, merge the host's overrides and fill in the defaults."""
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    document = _string_keys(document)
    found = problems(document, schema, schema)
    # What a host overrides is checked as a whole, merged: an override alone may leave out what a key requires.
    for name in [] if found else document.get("hosts", {}):
        found += [f"hosts.{name}: {text}" for text in problems(_for_host(document, name), schema, schema)]
    if found:
        raise PhysicsError(f"{where}: " + "; ".join(found))
    digest = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    merged = _for_host(document, host)
    physics = {
        key: _filled(merged.get(key), rule) if key in merged else _default(rule)
        for key, rule in schema["$defs"].items()
    }
    found = _meaning(physics)
    if found:
        raise PhysicsError(f"{where}: " + "; ".join(found))
    physics["digest"], physics["host"] = digest, host
    return physics


def _for_host(document: Dict[str, Any], host: str) -> Dict[str, Any]:
    merged = {key: value for key, value in document.items() if key not in ("hosts", "schema")}
    _merge(merged, document.get("hosts", {}).get(host, {}))
    return merged


def _parse(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        try:
            import yaml
        except ImportError:
            raise PhysicsError(f"physics file {source} is not JSON ({error}), and PyYAML is not installed") from error
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as fault:
            raise PhysicsError(f"physics file {source} is neither JSON nor YAML: {fault}") from fault


def _string_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _string_keys(item) for key, item in value.items()}
    return [_string_keys(item) for item in value] if isinstance(value, list) else value


def _merge(target: Dict[str, Any], override: Dict[str, Any]) -> None:
    for key, value in override.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            target[key] = dict(target[key])
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def _default(rule: Dict[str, Any]) -> Any:
    if "default" in rule:
        return copy.deepcopy(rule["default"])
    return {key: _default(item) for key, item in rule.get("properties", {}).items()}


def _filled(value: Any, rule: Dict[str, Any]) -> Any:
    """``value`` with the defaults of the keys that it leaves out."""
    for choice in rule.get("anyOf", []):
        if isinstance(value, dict) and choice.get("type") == "object":
            return _filled(value, choice)
    if isinstance(value, list) and "items" in rule:
        return [_filled(item, rule["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    result = {}
    for key, item in value.items():
        inner = rule.get("properties", {}).get(key)
        if inner is None:
            inner = next(iter(rule.get("patternProperties", {}).values()), {})
        result[key] = _filled(item, inner)
    for key, item in rule.get("properties", {}).items():
        if key not in result and ("default" in item or item.get("type") == "object"):
            result[key] = _default(item)
    return result


def _meaning(physics: Dict[str, Any]) -> List[str]:
    found = []
    for steps, entry in physics["steps"].items():
        most = int(steps) + 1
        if entry["accept_length"] > most:
            found.append(
                f"steps.{steps}.accept_length: found {entry['accept_length']}; allowed: at most {most}, steps + 1"
            )
    for index, fault in enumerate(physics["faults"]):
        if ("every" in fault) == ("boot" in fault):
            found.append(f"faults[{index}]: give either every or boot")
        if fault["rank"] >= physics["ranks"]:
            found.append(f"faults[{index}].rank: found {fault['rank']}; allowed: less than ranks, {physics['ranks']}")
    without = physics["rank_without_profile"]
    physics["rank_without_profile"] = (
        [] if without is None else [without] if isinstance(without, int) else list(without)
    )
    found += [
        f"rank_without_profile: found {rank}; allowed: less than ranks, {physics['ranks']}"
        for rank in physics["rank_without_profile"]
        if rank >= physics["ranks"]
    ]
    return found
