"""What playbooks/compare.yml does on the controller: references to states, their comparison, and its record.

A reference is ``state:NAME`` (a lock, or the first characters of a recorded state's digest), ``host:NAME`` (a host of
the inventory as it is now; a group's name stands for each of its hosts) or ``measurement:ID`` (the state that a
measurement was made in).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional, Sequence

from ..errors import PlumblineError, unknown_name
from ..state.compare import compare, ranked, result
from . import lock as locks
from . import project, schema
from .rebuild import lock_checks
from .store import Results

SCHEMA = "plumbline.compare/1"
KINDS = ("state", "host", "measurement")
# What is given to a boot, not to a host: a look at a host without a boot cannot be compared with a measurement in
# these.
_OF_A_BOOT = {
    "engine_args": ("args.", "environment."),
    "nccl": ("profile", "delivery", "variable.", "environment."),
    "models": ("",),
}


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its reference, and a state document, or a lock with the digest of its build lock."""

    ref: str
    kind: str
    state: Optional[dict] = None
    lock: Optional[dict] = None
    lock_build: Optional[str] = None

    @property
    def build(self) -> Optional[str]:
        """Digest of the lock that the build is made from; None if there is no build or it does not say."""
        if self.lock is not None:
            return self.lock_build
        found = ((self.state or {})["groups"].get("build") or {}).get("condition", {}).get("lock_digest")
        return found if isinstance(found, str) else None

    @property
    def by_hand(self) -> bool:
        """A lock written by hand: it names what to build, not what came of it."""
        return self.lock is not None and not self.lock.get("captured")

    def describe(self) -> dict[str, Any]:
        """``{digest, host, observed_at}`` for the record."""
        if self.lock is not None:
            meant = locks.expected(self.lock)
            return {"digest": meant["digest"], "host": meant["host"], "observed_at": meant["observed_at"]}
        assert self.state is not None
        return {k: self.state[k] for k in ("digest", "host", "observed_at")}


def split(ref: str, where: str) -> tuple[str, str]:
    """(kind, name) of a reference. Raises PlumblineError."""
    kind, colon, name = (ref or "").partition(":")
    if not colon or kind not in KINDS or not name:
        raise PlumblineError(
            "not a reference to a state",
            where,
            ref or "nothing",
            "state:NAME, host:NAME or measurement:ID",
            "ansible-playbook playbooks/compare.yml -e was=state:NAME -e now=host:NAME",
        )
    return kind, name


def hosts_of(refs: Sequence[str], groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The hosts of the inventory that each ``host:`` reference means, by reference. Raises PlumblineError for an
    unknown name."""
    out: dict[str, list[str]] = {}
    for ref in refs:
        kind, name = split(ref, "was or now")
        if kind == "host":
            known = {h for members in groups.values() for h in members} | {"localhost"}
            if name in groups and name not in known:
                out[ref] = list(groups[name])
            elif name in known:
                out[ref] = [name]
            else:
                raise unknown_name("host or group", name, [*known, *groups], f"{ref}, the inventory")
    return out


def resolve(
    ref: str,
    *,
    where: str,
    results: Results,
    states_folders: Iterable[Path],
    hosts: Mapping[str, dict],
    members: Mapping[str, Sequence[str]],
) -> list[Side]:
    """The sides that a reference means: one, or one for each host of a group.

    ``hosts``: state documents by host, as observed in this play; ``members``: as `hosts_of` returned it.
    """
    kind, name = split(ref, where)
    if kind == "host":
        missing = [h for h in members[ref] if h not in hosts]
        if missing:
            raise PlumblineError(
                "hosts could not be observed",
                f"{where}={ref}",
                ", ".join(missing),
                None,
                "see the failed task above; leave them out with a group of your own, or mend them first",
            )
        return [Side(f"host:{h}", kind, state=hosts[h]) for h in members[ref]]
    if kind == "measurement":
        return [Side(ref, kind, state=_of_measurement(name, where, results))]
    if re.fullmatch(r"[0-9a-f]{8,64}", name):
        found = [d for digest, d in results.states().items() if digest.startswith(name)]
        if len(found) == 1:
            return [Side(ref, kind, state=found[0])]
    lock = locks.read(locks.find(name, states_folders))
    if lock.get("captured"):  # it names what the build held
        return [Side(ref, kind, lock=lock)]
    build = lock_checks.read(name, states_folders, project.SOURCES)["build_digest"]
    return [Side(ref, kind, lock=lock, lock_build=build)]


def _of_measurement(name: str, where: str, results: Results) -> dict:
    record = results.find_measurement(name)
    if record is None:
        raise PlumblineError(
            "no such measurement",
            f"{where}=measurement:{name}",
            name,
            f"ids in {results.root}/*/measurements.jsonl",
            "give -e results_root=DIR if its records lie elsewhere",
        )
    digest = record["state"]["digest"]
    state = results.state(digest) if digest else None
    if state is None:
        raise PlumblineError(
            "the state of that measurement is not recorded",
            f"{where}=measurement:{name}",
            digest or "no digest",
            f"a file in {results.root}/states",
        )
    return state


def compare_sides(was: Side, now: Side, at: Optional[datetime] = None) -> dict[str, Any]:
    """The record of a comparison (schema ``plumbline.compare/1``)."""
    skip, left_out = _not_of_both(was, now)
    if was.lock is not None and now.lock is not None:
        found = compare(locks.expected(was.lock), locks.expected(now.lock), skip)
    elif was.lock is not None and now.state is not None:
        found = locks.compare_with(was.lock, now.state, skip)
    elif now.lock is not None and was.state is not None:
        found = turned(locks.compare_with(now.lock, was.state, skip))
    else:
        assert was.state is not None and now.state is not None
        found = compare(was.state, now.state, skip)
    if (was.by_hand or now.by_hand) and was.build and now.build:
        rows = [*locks.other_build(was.build, now.build), *found["differences"]]
        found = {**found, "differences": ranked(rows), "result": result(rows, found["unverified"])}
    when = (at or datetime.now(timezone.utc)).isoformat(timespec="seconds").replace("+00:00", "Z")
    document = {
        "schema": SCHEMA,
        "was": was.ref,
        "now": now.ref,
        "sides": {"was": was.describe(), "now": now.describe()},
        "compared_at": when,
        **found,
        "not_compared": left_out,
    }
    schema.validate("compare", document, f"comparison of {was.ref} with {now.ref}")
    return document


def turned(found: dict[str, Any]) -> dict[str, Any]:
    """A comparison with its sides exchanged."""

    def swap(rows: list[dict]) -> list[dict]:
        return [{**r, "was": r["now"], "now": r["was"]} for r in rows]

    return {**found, "differences": swap(found["differences"]), "conditions": swap(found["conditions"])}


def _not_of_both(was: Side, now: Side) -> tuple[list[str], list[str]]:
    """What is left out between a measurement's state and one that knows no boot, as `state.compare` takes it, and in
    words."""
    if (was.kind == "measurement") == (now.kind == "measurement"):
        return [], []
    skip = []
    for side in (was, now):
        groups = side.state["groups"] if side.state is not None else locks.expected(side.lock or {})["groups"]
        for group, prefixes in _OF_A_BOOT.items():
            skip += [
                f"{group}: {item}"
                for item in (groups.get(group) or {}).get("identity", {})
                if item.startswith(prefixes)
            ]
    words = [
        "engine_args, nccl: arguments, environment and NCCL profile belong to the measurement's boot, not to the host",
        "models: the measurement's state has those of its boot only",
    ]
    return skip, words


def save(document: dict[str, Any], results: Results) -> Path:
    """Write the comparison into the results tree."""
    return results.write_compare(document["was"].replace("/", "_"), document["now"].replace("/", "_"), document)
