"""A bisect on disk: the entries of `<results_root>/<experiment>/bisect.jsonl`, the mixed builds' locks, the runs.

`bisect` decides what is tested next, `mixes` what a test is made of; here both meet the results tree.
"""
from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import yaml

from ..digest import digest
from ..errors import PlumblineError, unknown_name
from ..files import append_line, read_lines, write_atomic, write_json
from ..ids import ulid
from . import bisect, experiment, judge, ledger, mixes, schema, variables
from .store import Results

# Keys of every entry, left out where an entry becomes part of a document.
_ENTRY = ("event", "at", "schema", "fingerprint")


def why_not_made(action: str, result: Mapping[str, Any]) -> str:
    """Why a test cannot be made, which is an answer to it; "" if what failed has nothing to do with the test.

    ``action``: of the task that failed; ``result``: what it returned. Of the test itself are a mixed build that cannot
    be made, and arms that are refused as a server could not take them. A host that is held, a boot that was broken off
    or a plan that no longer fits are not: the test can be made later.
    """
    name = action.rsplit(".", 1)[-1]
    if name == "plumbline_build" or (name == "plumbline_plan" and result.get("refused")):
        return str(result.get("msg") or result.get("module_stderr") or "failed without a message")
    return ""


def _blocks(value: Any) -> Any:
    """An experiment's ``blocks`` from what may have been typed: a number is often text by then."""
    if isinstance(value, dict):
        return {k: int(v) for k, v in value.items()}
    try:
        return int(value)
    except (TypeError, ValueError):
        raise PlumblineError("blocks is not a number of blocks", "-e blocks", value, "a number above 0, or {min, max}",
                             "-e blocks=4") from None


class Search:
    """One bisect between two states on one host."""

    def __init__(self, results: Results, *, good: str, bad: str, host: str, workload: str, variant: str,
                 catalogues: dict[str, dict], blocks: Any, margin: Any, confidence: Any, lock_folders: list[Path],
                 source_folders: list[Path], build: str = "", build_folders: Sequence[str] = ()) -> None:
        """``blocks``: of each test, as an experiment's key of that name: a number, or {min, max}.
        ``build`` and ``build_folders``: the host's build lock and lock folders, for what the states leave open.
        ``catalogues``: {variants, nccl_profiles, workloads, models}. Raises PlumblineError on what is unknown."""
        self.good = mixes.read(good, lock_folders, source_folders)
        self.bad = mixes.read(bad, lock_folders, source_folders)
        for kind, wanted in (("workload", workload), ("variant", variant)):
            if wanted not in catalogues[f"{kind}s"]:
                raise unknown_name(kind, wanted, catalogues[f"{kind}s"], f"-e {kind}={wanted}")
        self.results, self.host, self.workload, self.variant = results, host, workload, variant
        self.catalogues, self.blocks = catalogues, _blocks(blocks)
        self.build, self.build_folders = build, build_folders
        self.margin = variables.fraction("margin", margin)
        self.confidence = variables.fraction("confidence", confidence)
        self.units, self.cannot = mixes.units(self.good, self.bad)
        names = f"{self.good.name}-{self.bad.name}"
        self.name = "bisect-" + re.sub(r"[^a-z0-9._-]+", "-", names.lower())
        self.store = results.experiment(self.name)
        self.path = self.store.folder / "bisect.jsonl"
        self.fingerprint = digest({"good": self.good.lock, "bad": self.bad.lock,
                                   "files": [self.good.files, self.bad.files], "host": self.host,
                                   "variant": self.variant, "margin": self.margin,
                                   "load": self.catalogues["workloads"][self.workload]})

    @property
    def count(self) -> int:
        """How many entries there are."""
        return len(read_lines(self.path))

    def advance(self, failed: str = "") -> dict:
        """Read the answer of the open test, if its run has ended, and say what is next.

        ``failed``: why the open test could not be made. Returns {test: {run, experiment, lock_folders, build,
        catalogues} or None, found: the end or None, said: lines for a person}.
        """
        said: list[str] = []
        book = self._open(said)
        last = book["tests"][-1] if book["tests"] else None
        if last and last["answer"] is None:
            answer = self._answer(last["test"], book, failed)
            if answer is None:
                return {"test": self._prepared(last["test"]), "found": None, "said": said}
            self._append({"event": "answer", **answer})
            figure = f" ({answer['ratio']:.3f}x of {self.good.name})" if answer["ratio"] else f": {answer['detail']}"
            said.append(f"bisect: {', '.join(last['test']['units'])}: {answer['result']}{figure}")
            book = self._book()
        step = bisect.next_step(book, self.margin)
        if "end" in step:
            self._append({"event": "ended", **step["end"]})
            document = self.document()
            write_json(self.store.folder / "bisect.json", document)
            said.append(f"bisect {self.good.name} -> {self.bad.name} on {self.host}: {step['end']['outcome']}: "
                        f"{step['end']['text']}")
            return {"test": None, "found": document, "said": said}
        test = {"event": "test", "number": len(book["tests"]) + 1, "units": step["test"], "margin": step["margin"],
                "reason": step["reason"], "run": ulid()}
        self._append(test)
        said.append(f"bisect: test {test['number']}: {step['reason']}")
        return {"test": self._prepared(test), "found": None, "said": said}

    def document(self) -> dict:
        """The search as one document: what was asked, each test with its answer, what was found."""
        book = self._book()
        begun, ended = book["begun"], book["ended"]
        tests = [{**{k: t["test"][k] for k in ("number", "units", "margin", "reason", "run")},
                  "answer": t["answer"] and {k: v for k, v in t["answer"].items() if k not in _ENTRY}}
                 for t in book["tests"]]
        return {**{k: begun[k] for k in ("schema", "good", "bad", "host", "workload", "variant", "units",
                                         "cannot_change")}, "experiment": self.name, "tests": tests,
                **{k: v for k, v in (ended or {}).items() if k not in _ENTRY}}

    # entries

    def _book(self) -> dict:
        return bisect.fold(read_lines(self.path), self.fingerprint)

    def _append(self, entry: dict) -> None:
        entry = {"schema": bisect.SCHEMA, "at": judge.now_text(), "fingerprint": self.fingerprint, **entry}
        schema.validate("bisect", entry, "bisect")
        append_line(self.path, entry)

    def _open(self, said: list[str]) -> dict:
        """The search under way if it asks the same, or a new one."""
        book = self._book()
        if book["begun"] is None or book["ended"] is not None:
            self._append({"event": "begun", "good": self.good.name, "bad": self.bad.name, "host": self.host,
                          "workload": self.workload, "variant": self.variant, "units": self.units,
                          "cannot_change": self.cannot})
            said.append(f"bisect {self.good.name} -> {self.bad.name}: can be changed: "
                        + (", ".join(u["name"] for u in self.units) or "nothing")
                        + ("; cannot be changed: " + ", ".join(f"{c['group']}.{c['item']}" for c in self.cannot)
                           if self.cannot else ""))
            book = self._book()
        return book

    def _answer(self, test: dict, book: dict, failed: str) -> Optional[dict]:
        """The answer of a test whose run has ended, None while it has not."""
        out: dict[str, Any] = {"number": test["number"], "run": test["run"], "result": bisect.UNRESOLVED,
                               "verdict": None, "ratio": None, "ci": None, "boots": None, "detail": failed}
        planned = self._planned(test)
        finished = bool(planned) and ledger.fold(planned, self.host, test["run"]).finished is not None
        if not finished:
            return out if failed else None
        document = judge.judge(self.results, self.store, test["run"])
        found = next((c for c in document["comparisons"] if c["host"] == self.host), None)
        if found is None:
            return {**out, "detail": failed or document["hosts"][0]["reason"]}
        whole = [u["name"] for u in self.units]
        first = next((t["answer"] for t in book["tests"] if t["test"]["units"] == whole and t["answer"]), None)
        change = float(first["ratio"]) if first and test["units"] != whole else None
        return {**out, "result": bisect.read_answer(found, change), "verdict": found["verdict"],
                "ratio": found["ratio"], "ci": found["ci"], "boots": found["boots"],
                "detail": failed or "; ".join(found["reasons"])}

    # a test

    def _planned(self, test: dict) -> list[dict]:
        """The entries of the plan of a test's run, [] before it began."""
        return [e for e in self.store.plan() if e["run"] == test["run"] and e["host"] == self.host]

    def _prepared(self, test: dict) -> dict:
        """Everything that a run of this test needs; the mixed builds' locks are written below the experiment.

        A run that has begun keeps its experiment, whatever is asked for by now."""
        every = [u["name"] for u in self.units]
        sides = {"reference": mixes.mix(self.good, self.bad, [], every),
                 "candidate": mixes.mix(self.good, self.bad, test["units"], every)}
        catalogues = {**self.catalogues, "variants": dict(self.catalogues["variants"]),
                      "nccl_profiles": dict(self.catalogues["nccl_profiles"])}
        arms = {side: self._arm(parts, catalogues) for side, parts in sides.items()}
        axes = {axis: [value] for axis, value in arms["candidate"].items() if value != arms["reference"].get(axis)}
        if not axes:
            raise PlumblineError("a test that changes nothing", f"bisect {self.good.name} -> {self.bad.name}",
                                 ", ".join(test["units"]), remedy="the two states' locks differ in their names alone")
        document = self.store.experiment_of(test["run"]) if self._planned(test) else experiment.normalise({
            "schema": experiment.SCHEMA, "name": self.name,
            "description": f"{self.good.name} with {', '.join(test['units'])} of {self.bad.name}",
            "reference": {k: v for k, v in arms["reference"].items() if v is not None}, "axes": axes,
            "workloads": [self.workload], "blocks": self.blocks,
            "margin": round(test["margin"], 6), "confidence": self.confidence, "seed": test["number"]}, self.name)
        return {"number": test["number"], "run": test["run"], "units": test["units"], "experiment": document,
                "lock_folders": [str(self._locks), *map(str, self.build_folders)],
                "build": arms["reference"].get("build") or self.build, "catalogues": catalogues}

    @property
    def _locks(self) -> Path:
        return self.store.folder / "mixes"

    def _arm(self, parts: dict, catalogues: dict) -> dict[str, Any]:
        """{variant, nccl_profile, build} of a mix, entered into the catalogues."""
        arm: dict[str, Any] = {"variant": self.variant}
        if parts["args"] is not None or parts["environment"] is not None:
            base = catalogues["variants"][self.variant]
            arm["variant"] = f"mix-{digest([parts['args'], parts['environment']])[:12]}"
            catalogues["variants"][arm["variant"]] = {
                **base, "args": {**(base.get("args") or {}), **(parts["args"] or {})},
                "environment": {**(base.get("environment") or {}), **(parts["environment"] or {})}}
        if parts["nccl"] is not None:
            arm["nccl_profile"] = f"mix-{digest(parts['nccl'])[:12]}"
            catalogues["nccl_profiles"][arm["nccl_profile"]] = {
                "description": f"between {self.good.name} and {self.bad.name}", "variables": parts["nccl"]}
        if parts["build"] is not None:
            arm["build"] = self._write_lock(**parts["build"])
        return arm

    def _write_lock(self, lock: dict, patch: Optional[str]) -> str:
        """Write a mixed build's lock and its patch; returns its name."""
        if patch is not None:
            file = f"{lock['name']}.patch"
            write_atomic(self._locks / file, patch)
            lock = {**lock, "patches": [{"file": file, "sha256": hashlib.sha256(patch.encode()).hexdigest()}]}
        write_atomic(self._locks / f"{lock['name']}.yml", yaml.safe_dump(lock, sort_keys=False))
        return str(lock["name"])
