"""How long a step takes and how many tokens a cycle yields, from the physics.

    time  = base x batch x untuned x eager x request / speed
    speed = build x edited files x drift x boot x (1 - foreign cost)

``base`` is decode_ms, or verify_ms + steps x draft_ms for a cycle with speculation. Each part of a cycle takes its own
untuned and eager factor.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import math
import random
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

SLOT_S = 5.0  # length of a slot in which foreign load is on or off, simulated seconds


class Speculation(NamedTuple):
    """What a server speculates with; ``steps`` is 0 for NGRAM."""

    algorithm: str
    steps: int
    draft_tokens: int


def build_names(version: str) -> List[str]:
    """The names under which ``build_factor`` may list a build, most exact first."""
    public, _, local = version.partition("+")
    names = [version]
    if local:
        names += [local, local.replace(".", "-")]
    return [*names, public]


def edited_files(package: str = "sglang") -> List[str]:
    """Files of the installed package that differ from the wheel's RECORD, as paths below the package."""
    try:
        distribution = metadata.distribution(package)
        record = distribution.read_text("RECORD")
    except metadata.PackageNotFoundError:
        return []
    edited = []
    for name, digest, *_ in csv.reader((record or "").splitlines()):
        if not name.startswith(f"{package}/") or not digest.startswith("sha256="):
            continue
        path = Path(str(distribution.locate_file(name)))
        actual = (
            base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            if path.exists()
            else ""
        )
        if f"sha256={actual}" != digest:
            edited.append(name[len(package) + 1 :])
    return edited


def interpolate(points: Dict[str, float], at: float) -> float:
    """Piecewise linear between the points, held beyond the first and the last; 1 without points."""
    known = sorted((float(key), float(value)) for key, value in points.items())
    if not known:
        return 1.0
    if at <= known[0][0]:
        return known[0][1]
    for (left, low), (right, high) in zip(known, known[1:]):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return known[-1][1]


class StepModel:
    """The step times of one boot."""

    def __init__(
        self,
        physics: Dict[str, Any],
        boot: int,
        version: str,
        edited: List[str],
        tuned: bool,
        speculation: Optional[Speculation],
        graph_batch: int,
        accept_length: Optional[float] = None,
    ) -> None:
        """``graph_batch`` is the largest batch with a CUDA graph, 0 when graphs are off;
        ``accept_length`` replaces the physics' (a draft that does not fit, simulated acceptance)."""
        self.physics, self.tuned, self.speculation, self.graph_batch = physics, tuned, speculation, graph_batch
        self.entry = self._entry()
        self.accept_length = 1.0 if self.entry is None else float(accept_length or self.entry["accept_length"])
        self.build = next(
            (physics["build_factor"][name] for name in build_names(version) if name in physics["build_factor"]), 1.0
        )
        self.edited = math.prod(factor for name, factor in physics["edited_file_factor"].items() if name in edited)
        self._dice = f"{physics['seed']}/{physics['host']}"
        self.boot_speed = self._boot_speed(boot)

    def _entry(self) -> Optional[Dict[str, Any]]:
        if self.speculation is None:
            return None
        return (
            self.physics["ngram"] if self.speculation.steps == 0 else self.physics["steps"][str(self.speculation.steps)]
        )

    def _boot_speed(self, boot: int) -> float:
        noise, drift = self.physics["noise"], self.physics["drift"]
        dice = random.Random(f"{self._dice}/boot {boot}")
        spread = noise["boot_sd"] * (noise["candidate_boot_factor"] if self.speculation else 1.0)
        speed = math.exp(dice.gauss(0.0, spread)) if spread else 1.0
        if dice.random() < noise["outlier_share"]:
            speed *= 1.0 + noise["outlier"]
        if drift["step_after_boots"] is not None and boot > drift["step_after_boots"]:
            speed *= 1.0 + drift["step"]
        return speed * (1.0 + drift["first_boot"]) if boot == 1 else speed

    def request_factor(self, boot: int, number: int) -> float:
        """Factor of time of the boot's ``number``-th request."""
        spread = self.physics["noise"]["request_sd"]
        return (
            math.exp(random.Random(f"{self._dice}/boot {boot}/request {number}").gauss(0.0, spread)) if spread else 1.0
        )

    def foreign(self, now: float) -> bool:
        """Whether somebody else's requests run at simulated time ``now``."""
        share = self.physics["foreign_load"]["share"]
        return share > 0 and (share >= 1 or random.Random(f"{self._dice}/slot {int(now // SLOT_S)}").random() < share)

    def has_graph(self, batch: int) -> bool:
        """Whether a decode step (or a verify step, with speculation) at this batch has a CUDA graph."""
        return batch <= self.graph_batch and (self.entry is None or bool(self.entry["cuda_graph"]))

    def speed(self, now: float, hours: float) -> float:
        """Relative speed at simulated time ``now``, ``hours`` after the clock's origin."""
        drift = (1.0 + self.physics["drift"]["per_hour"]) ** hours
        foreign = 1.0 - self.physics["foreign_load"]["cost"] if self.foreign(now) else 1.0
        return self.build * self.edited * self.boot_speed * drift * foreign

    def decode_part(self, batch: int) -> float:
        """Milliseconds of a decode step without speculation at this batch, at speed 1."""
        untuned = 1.0 if self.tuned else self.physics["untuned_factor"]["decode"]
        eager = 1.0 if batch <= self.graph_batch else self.physics["eager_factor"]["decode"]
        return self.physics["decode_ms"] * interpolate(self.physics["batch_factor"], batch) * untuned * eager

    def parts(self, batch: int) -> Dict[str, float]:
        """Milliseconds of each part of a cycle at this batch, at speed 1: decode, or verify and draft."""
        if self.entry is None:
            return {"decode": self.decode_part(batch)}
        width = interpolate(self.physics["batch_factor"], batch)
        untuned = {"decode": 1.0, "verify": 1.0} if self.tuned else self.physics["untuned_factor"]
        eager = 1.0 if self.has_graph(batch) else self.physics["eager_factor"]["verify"]
        steps = self.speculation.steps if self.speculation else 0
        return {
            "verify": self.entry["verify_ms"] * width * untuned["verify"] * eager,
            "draft": steps * self.entry.get("draft_ms", 0.0) * width * untuned["decode"],
        }

    def cycle_s(self, batch: int, request_factor: float, now: float, hours: float) -> float:
        """Seconds of one forward cycle."""
        return sum(self.parts(batch).values()) * request_factor / self.speed(now, hours) / 1000.0

    def prefill_s(self, tokens: int, now: float, hours: float) -> float:
        """Seconds of a prefill step over ``tokens`` tokens that were not cached."""
        untuned = 1.0 if self.tuned else self.physics["untuned_factor"]["decode"]
        own = (self.physics["prefill"]["ms"] + tokens * self.physics["prefill"]["per_token_ms"]) * untuned
        return own / self.speed(now, hours) / 1000.0
