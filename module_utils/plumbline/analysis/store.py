"""The results tree on the controller: the one place that knows where records lie and that validates what is written.

Layout (see docs/records.md):

    <experiment>/plan.jsonl  measurements.jsonl  runs/<run>.json  evidence/<measurement id>/
    <experiment>/verdict.json  report.html  report.md  measurements.csv
    baselines/<host>.jsonl   states/<digest>.json   proofs/<id>.json   compare/<was>--<now>.json
"""
from __future__ import annotations

import fcntl
import getpass
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Optional

from ..errors import PlumblineError
from ..files import append_line, read_lines, write_atomic, write_json
from ..ids import is_ulid, ulid
from . import schema


class Results:
    """A results tree. Folders are made when something is written to them, so that looking leaves no trace."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).expanduser().resolve()

    def experiment(self, name: str) -> ExperimentResults:
        return ExperimentResults(self, name)

    def check_writable(self) -> None:
        """Raise PlumblineError if nothing could be written here; the folder itself need not be there yet."""
        there = next(p for p in (self.root, *self.root.parents) if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            what = "is not a folder" if not there.is_dir() else f"cannot be written by {getpass.getuser()}"
            raise PlumblineError("results cannot be written", "plumbline_results_root, -e results_root=DIR",
                                 f"{self.root}: {there} {what}", "a folder that you may write to, or make",
                                 "give another folder: -e results_root=DIR")

    def experiments(self) -> list[str]:
        """Names of the experiments that have a plan or measurements, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(p.name for p in self.root.iterdir()
                      if (p / "plan.jsonl").exists() or (p / "measurements.jsonl").exists())

    # states

    def write_state(self, document: dict) -> Path:
        """Keep a state document under its digest. The first one of a digest stays: their identity items are equal."""
        schema.validate("state", document, "state document")
        path = self.root / "states" / f"{document['digest']}.json"
        if not path.exists():
            write_json(path, document)
        return path

    def state(self, digest: str) -> Optional[dict]:
        path = self.root / "states" / f"{digest}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def states(self) -> dict[str, dict]:
        """All state documents by digest."""
        folder = self.root / "states"
        return {p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))} if folder.is_dir() else {}

    # baselines

    def baselines(self, host: str) -> list[dict]:
        return read_lines(self.root / "baselines" / f"{host}.jsonl")

    def all_baselines(self) -> dict[str, list[dict]]:
        folder = self.root / "baselines"
        return {p.stem: read_lines(p) for p in sorted(folder.glob("*.jsonl"))} if folder.is_dir() else {}

    def append_baseline(self, host: str, record: dict) -> None:
        schema.validate("baseline", record, f"baseline of {host}")
        append_line(self.root / "baselines" / f"{host}.jsonl", record)

    # other documents

    def proofs(self) -> dict[str, dict]:
        folder = self.root / "proofs"
        return {p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))} if folder.is_dir() else {}

    def write_proof(self, document: dict) -> Path:
        schema.validate("proof", document, "NCCL proof")
        path = self.root / "proofs" / f"{document['id']}.json"
        write_json(path, document)
        return path

    def write_compare(self, was: str, now: str, document: dict) -> Path:
        path = self.root / "compare" / f"{was}--{now}.json"
        write_json(path, document)
        return path

    def find_measurement(self, measurement: str) -> Optional[dict]:
        """The record of that id, whatever its experiment."""
        for name in self.experiments():
            for record in self.experiment(name).measurements():
                if record["id"] == measurement:
                    return record
        return None


class ExperimentResults:
    """The part of a results tree that belongs to one experiment."""

    def __init__(self, results: Results, name: str) -> None:
        self.results, self.name = results, name
        self.folder = results.root / name

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Serialise writers of this experiment (the hosts' workers are processes of their own)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            yield

    # plan

    def plan(self) -> list[dict]:
        return read_lines(self.folder / "plan.jsonl")

    def append_plan(self, entry: dict) -> None:
        schema.validate("plan", entry, f"plan of {self.name}")
        append_line(self.folder / "plan.jsonl", entry)

    def runs(self) -> list[str]:
        """Ids of all runs, oldest first (ULIDs sort by time)."""
        return sorted({entry["run"] for entry in self.plan()})

    def is_complete(self, run: str) -> bool:
        """Whether every host that the run was planned for has finished it."""
        entries = [e for e in self.plan() if e["run"] == run]
        planned = {e["host"] for e in entries if e["event"] == "planned"}
        return bool(planned) and planned <= {e["host"] for e in entries if e["event"] == "finished"}

    def choose_run(self, wish: str = "") -> tuple[str, bool]:
        """(run id, whether it goes on with an older one).

        ``wish``: ``new``, ``resume``, a run's id, or empty: go on with the newest run if it is incomplete,
        else a new one.
        """
        runs = self.runs()
        if wish == "new" or (not wish and (not runs or self.is_complete(runs[-1]))):
            return ulid(), False
        if wish in ("", "resume"):
            if runs and not self.is_complete(runs[-1]):
                return runs[-1], True
            raise PlumblineError(f"no incomplete run of experiment {self.name!r} to resume", "-e run=resume",
                                 f"runs: {', '.join(runs) or 'none'}", "an incomplete run", "start without run=resume")
        if not is_ulid(wish):
            raise PlumblineError(f"{wish!r} is no run", "-e run", wish,
                                 ", ".join(["new", "resume", *runs]), "give one of these, or leave run out")
        if wish not in runs:
            raise PlumblineError(f"experiment {self.name!r} has no such run", "-e run", wish,
                                 ", ".join(["new", *runs]), "give one of these, or leave run out")
        return wish, True

    # the experiment as it was when a run began

    def write_experiment(self, run: str, document: dict) -> None:
        write_json(self.folder / "runs" / f"{run}.json", document)

    def experiment_of(self, run: str) -> dict:
        """The experiment that ``run`` executes, with every default filled in."""
        path = self.folder / "runs" / f"{run}.json"
        if not path.exists():
            raise PlumblineError("nothing is known of this run", str(path), run, ", ".join(self.runs()) or "no run",
                                 "name an experiment that was measured (-e experiment=NAME) and one of its runs")
        return json.loads(path.read_text())

    # measurements

    def measurements(self, run: Optional[str] = None) -> list[dict]:
        records = read_lines(self.folder / "measurements.jsonl")
        return records if run is None else [r for r in records if r["run"] == run]

    def append_measurement(self, record: dict) -> bool:
        """Append a record unless one of its id is there; says whether it was appended."""
        schema.validate("measurement", record, f"measurement {record.get('id')}")
        with self.lock():
            if any(r["id"] == record["id"] for r in self.measurements()):
                return False
            append_line(self.folder / "measurements.jsonl", record)
            return True

    def evidence_folder(self, measurement: str) -> Path:
        return self.folder / "evidence" / measurement

    def write_evidence(self, measurement: str, files: dict[str, Any]) -> list[str]:
        """Write ``{file name: text or JSON value}`` into the measurement's evidence folder.

        Returns the names relative to the experiment's folder.
        """
        folder = self.evidence_folder(measurement)
        for name, content in files.items():
            if isinstance(content, str):
                write_atomic(folder / name, content)
            else:
                write_json(folder / name, content)
        return [f"evidence/{measurement}/{name}" for name in files]

    def samples(self, measurement: str) -> list[dict]:
        path = self.evidence_folder(measurement) / "samples.json"
        return json.loads(path.read_text()) if path.exists() else []

    # verdict

    def write_verdict(self, document: dict) -> Path:
        schema.validate("verdict", document, f"verdict of {self.name}")
        path = self.folder / "verdict.json"
        write_json(path, document)
        return path

    def verdict(self) -> Optional[dict]:
        path = self.folder / "verdict.json"
        return json.loads(path.read_text()) if path.exists() else None
