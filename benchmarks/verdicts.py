"""How good the verdicts are: thousands of simulated labs, without real time, as Markdown tables.

    python benchmarks/verdicts.py            under ten minutes on one core; writes its section of benchmarks/RESULTS.md
    python benchmarks/verdicts.py --quick    a look in half a minute, which writes nothing

The rule is `decide`'s, run vectorised (`fastlab.py`, shown equal to the real code by a test) beside four named designs;
families of candidates, baselines over time and speed use the real code itself.
"""
from __future__ import annotations

import argparse
import math
import random
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from plumbline.analysis import baselines, plan, times
from scipy import special

from benchmarks import fastlab
from benchmarks import run as results
from benchmarks.fastlab import Cell, Draw, Rule
from benchmarks.labs import Lab, World, make_experiment

RATIOS = (0.74, 0.9, 0.97, 0.99, 1.0, 1.01, 1.03, 1.06, 1.3)
SDS = (0.005, 0.01, 0.03)
DRIFTS: dict[str, dict[str, Any]] = {
    "none": {}, "2 %/h": {"drift": 0.02}, "10 %/h": {"drift": 0.10}, "steps 3 %": {"step": 0.03},
    "steps 10 %": {"step": 0.10}, "ramp": {"ramp": 0.03}}
PAIRS_BOOTS = 20
TITLE = "Verdicts over simulated labs"
# What was printed, and for each aim: what was wanted, what came out, whether it is met.
SAID: list[str] = []
AIMS: list[tuple[str, str, bool]] = []
SEED = 0


def say(text: str) -> None:
    """Print, and keep for the results."""
    print(text, flush=True)
    SAID.append(text)


def aim(wanted: str, found: str, met: bool) -> None:
    AIMS.append((wanted, found, met))


def rule(d: Draw) -> fastlab.Array:
    """Plumbline's verdicts."""
    return fastlab.run(d).verdict


def one_each(d: Draw) -> fastlab.Array:
    """One boot of each, and the sign."""
    return _sign(_y(d, 1, True) - _y(d, 0, False))


def best_of_three(d: Draw) -> fastlab.Array:
    """Three boots of each, one after the other; the best of each is compared."""
    base = np.stack([_y(d, i, False) for i in range(3)], 1)
    own = np.stack([_y(d, i, True) for i in range(3, 6)], 1)
    return _sign(own.max(1) - base.max(1))


def five_then_five(d: Draw) -> fastlab.Array:
    """Five of the baseline, then five of the candidate; Welch's t at 95 %."""
    base = np.stack([_y(d, i, False) for i in range(5)], 1)
    own = np.stack([_y(d, i, True) for i in range(5, 10)], 1)
    a, b = base.var(1, ddof=1) / 5, own.var(1, ddof=1) / 5
    df = (a + b) ** 2 / ((a * a + b * b) / 4)
    return _interval(own.mean(1) - base.mean(1), np.sqrt(a + b) * special.stdtrit(df, 0.975))


def ten_pairs(d: Draw) -> fastlab.Array:
    """Ten interleaved pairs, baseline first; the paired t at 95 %."""
    x = np.stack([_y(d, 2 * i + 1, True) - _y(d, 2 * i, False) for i in range(10)], 1)
    return _interval(x.mean(1), x.std(1, ddof=1) / math.sqrt(10) * special.stdtrit(9, 0.975))


def _y(d: Draw, slot: int, candidate: bool) -> fastlab.Array:
    return d.level[:, slot] + (d.candidate if candidate else d.reference)[:, slot]


def _sign(x: fastlab.Array) -> fastlab.Array:
    return np.where(x > 0, 1, -1)


def _interval(theta: fastlab.Array, hw: fastlab.Array, margin: float = 0.02) -> fastlab.Array:
    high, low = math.log1p(margin), math.log1p(-margin)
    out = np.full(len(theta), 9)
    out[(theta - hw >= low) & (theta + hw <= high)] = 0
    out[(theta - hw > 0) & (theta > high)] = 1
    out[(theta + hw < 0) & (theta < low)] = -1
    return out


Design = Callable[[Draw], fastlab.Array]
DESIGNS: dict[str, Design] = {
    "one boot each": one_each, "best of three": best_of_three, "five then five, Welch": five_then_five,
    "ten interleaved pairs": ten_pairs, "Plumbline": rule}


def errors(cell: Cell, design: Design, n: int, ratios: tuple[float, ...] = RATIOS) -> list[float]:
    """[wrong direction, faster or slower at 1.0, `same` at 3 % off or more], in percent, the worst of the ratios."""
    wrong = false = same = 0.0
    for ratio in ratios:
        found = design(fastlab.draw(replace(cell, ratio=ratio), n, np.random.default_rng(_seed(cell, ratio))))
        if ratio == 1.0:
            false = max(false, 100 * float(np.mean(np.abs(found) == 1)))
        else:
            wrong = max(wrong, 100 * float(np.mean(found == (-1 if ratio > 1 else 1))))
        if abs(ratio - 1) > 0.0299:
            same = max(same, 100 * float(np.mean(found == 0)))
    return [wrong, false, same]


def _seed(cell: Cell, ratio: float) -> list[int]:
    return [SEED, int(ratio * 100), int(cell.boot_sd * 10000), int(cell.noise * 10), int(cell.heavy * 100)]


def table(head: list[str], rows: list[list[Any]]) -> None:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in row) + " |" for row in rows]
    say("\n".join(lines) + "\n")


def cell_text(values: list[float]) -> str:
    return " / ".join(f"{v:.2f}" for v in values)


CAPS = (0.5, 1.0, 1.0)
ERRORS = ("wrong direction at most 0.5 %", "`faster` or `slower` at a true ratio of 1.0 at most 1 %",
          "`same` at 3 % off at most 1 %")


def error_aims(where: str, worst: list[float]) -> None:
    for wanted, cap, found in zip(ERRORS, CAPS, worst):
        aim(f"{wanted}: {where}", f"{found:.2f} %", found <= cap)


def worse(a: list[float], b: list[float]) -> list[float]:
    return [max(pair) for pair in zip(a, b)]


def designs(n: int, ratios: tuple[float, ...]) -> None:
    say(f"### Errors, worst of {len(DRIFTS)} drifts and of all ratios\n\n"
        "Wrong direction / faster or slower at 1.0 / `same` at 3 % off or more, in percent. No history. "
        f"{n} labs a cell. Aims: 0.5 / 1 / 1.\n")
    rows = []
    for name, design in DESIGNS.items():
        row: list[Any] = [name]
        worst = [0.0, 0.0, 0.0]
        for heavy in (0.0, 0.05):
            for sd in SDS:
                found = [errors(Cell(boot_sd=sd, heavy=heavy, **d), design, n, ratios) for d in DRIFTS.values()]
                here = [max(column) for column in zip(*found)]
                row.append(cell_text(here))
                worst = worse(worst, here)
        rows.append(row)
        if design is rule:
            error_aims("drifts, steps, ramps and heavy tails, equal noise, no history", worst)
    table(["design", *(f"{tails} {sd:.1%}" for tails in ("normal", "heavy") for sd in SDS)], rows)


def hard_labs(n: int) -> None:
    say("### Noisy candidates and wrong histories\n")
    say(f"The same three errors, of Plumbline's rule, at 0.97, 1.0 and 1.06; {n} labs a cell. History: of both arms, "
        "of the baseline alone, or none.\n")
    rows = []
    worst: dict[str, list[float]] = {}
    for noise in (1.0, 2.0, 5.0, 10.0):
        for history, wrong in (("none", 1.0), ("baseline", 1.0), ("both", 1.0), ("both", 0.5), ("both", 2.0),
                               ("baseline", 0.5)):
            found = [errors(Cell(boot_sd=sd, noise=noise, history=history, wrong=wrong), rule, n, (0.97, 1.0, 1.06))
                     for sd in SDS]
            kind = "no history" if history == "none" else "a right history" if wrong == 1.0 else "a wrong history"
            for here in found:
                worst[kind] = worse(worst.get(kind, [0.0, 0.0, 0.0]), here)
            text = {1.0: "right", 0.5: "half the truth", 2.0: "double the truth"}[wrong] if history != "none" else "-"
            rows.append([f"{noise:g}x", history, text, *(cell_text(f) for f in found)])
    for kind, values in worst.items():
        error_aims(f"candidates up to ten times as noisy, {kind}, worst of its cells", values)
    table(["candidate noise", "history", "its sd", *(f"boot sd {sd:.1%}" for sd in SDS)], rows)
    rows = [[f"{request:.1%}", *(cell_text(errors(Cell(boot_sd=sd, request_sd=request / 4), rule, n, (0.97, 1.0, 1.06)))
                                 for sd in SDS)] for request in (0.002, 0.02, 0.05)]
    table(["request sd (16 requests)", *(f"boot sd {sd:.1%}" for sd in SDS)], rows)


def cost(n: int, ratios: tuple[float, ...]) -> None:
    say("### What a verdict costs\n")
    say("Median candidate boots; median of all boots; inconclusive at the end in percent (by ten candidate boots, or "
        f"before if hopeless). Ten interleaved pairs take {PAIRS_BOOTS} boots. {n} labs a cell.\n")
    rows = []
    for history in ("both", "none"):
        words = "with history" if history == "both" else "without history"
        for sd in SDS:
            row: list[Any] = [history, f"{sd:.1%}"]
            shares, large = [], []
            for ratio in ratios:
                cell = Cell(boot_sd=sd, history=history, ratio=ratio)
                found = fastlab.run(fastlab.draw(cell, n, np.random.default_rng(_seed(cell, ratio))))
                own, lost = float(np.median(found.candidate_boots)), 100 * float(np.mean(found.verdict == 9))
                shares.append(float(np.median(found.boots)) / PAIRS_BOOTS)
                if abs(ratio - 1) > 0.0599:
                    large.append(shares[-1])
                row.append(f"{own:.0f}; {np.median(found.boots):.0f}; {lost:.0f}")
                if (sd, ratio) == (0.01, 1.06):
                    wanted = 2 if history == "both" else 4
                    aim(f"1 % boot sd, 6 % effect: {wanted} candidate boots (median) {words}", f"{own:.0f}",
                        own <= wanted)
                if (sd, ratio) == (0.03, 0.9):
                    aim(f"3 % boot sd, 10 % effect: 4 candidate boots (median), {words}",
                        f"{own:.0f} ({lost:.0f} % inconclusive)", own <= 4)
            rows.append([*row, f"{100 * float(np.mean(shares)):.0f} %"])
            if sd == 0.01:
                mean, most = 100 * float(np.mean(shares)), 100 * max(large)
                aim(f"1 % boot sd: at most 60 % of the boots of ten pairs, mean over the ratios, {words}",
                    f"{mean:.0f} %", mean <= 60)
                aim(f"1 % boot sd: at most 50 % at effects of 6 % and more, {words}", f"{most:.0f} %", most <= 50)
    table(["history", "boot sd", *map(str, ratios), "of ten pairs, mean"], rows)


def _judged_once(once: Rule) -> Design:
    return lambda d: fastlab.run(d, once).verdict


def fixed_blocks(n: int) -> None:
    say("### A fixed number of blocks, judged once\n")
    say("The three errors, and the share decided at 6 % off, in percent.\n")
    rows = []
    for blocks in (3, 5):
        for noise in (1.0, 5.0):
            row: list[Any] = [blocks, f"{noise:g}x"]
            for sd in SDS:
                cell = Cell(boot_sd=sd, noise=noise)
                once = Rule(least=blocks, most=blocks)
                found = errors(cell, _judged_once(once), n, (0.97, 1.0, 1.06))
                power = fastlab.run(fastlab.draw(replace(cell, ratio=1.06), n, np.random.default_rng(3)), once)
                row.append(f"{cell_text(found)}; {100 * np.mean(power.verdict == 1):.0f}")
            rows.append(row)
    table(["blocks", "candidate noise", *(f"boot sd {sd:.1%}" for sd in SDS)], rows)


def families(labs: int) -> None:
    say("### Three candidates a block, through the real planner\n")
    say("One of three candidates is 6 % faster, boot sd 1 %, "
          "loads of 5 to 9 minutes. False: the share of labs with a `faster` or `slower` for one of the other two.\n")
    rows = []
    for noise in (1.0, 5.0):
        false = found = boots = 0
        for i in range(labs):
            boot_h = random.Random(i).uniform(5, 9) / 60
            lab = Lab(World(ratio={"candidate-1": 1.06}, candidate_noise=noise, boot_h=boot_h), make_experiment(3),
                      seed=i)
            run, _ = lab.run()
            said = {c["candidate"]: c["verdict"] for c in lab.verdict(run)["comparisons"]}
            false += any(said[c] in ("faster", "slower") for c in ("candidate-2", "candidate-3"))
            found += said["candidate-1"] == "faster"
            boots += len(lab.boots)
        aim(f"three candidates a block, candidates {noise:g}x as noisy: false in at most 1 % of labs",
            f"{100 * false / labs:.1f} %", false <= 0.01 * labs)
        rows.append([f"{noise:g}x", labs, f"{100 * false / labs:.1f} %",
                     f"{100 * found / labs:.0f} %", f"{boots / labs:.1f}"])
    table(["candidate noise", "labs", "false", "the 6 % found", "boots, mean"], rows)


def drift(labs: int) -> None:
    say("### Baselines over time, through the real statuses\n")
    say("Three new boots against k boots of the reference and none other. After a step of -7 %: `drifted`. Without: "
        f"`stable`, `uncertain`, and false alarms (`drifted` or `improved`), those of 100 nightly looks, too. "
        f"In percent, {labs} labs a cell.\n")
    rows = []
    seen: dict[tuple[float, float], list[tuple[float, float, float]]] = {}
    for heavy in (0.0, 0.05):
        for sd in SDS:
            row: list[Any] = ["heavy" if heavy else "normal", f"{sd:.1%}"]
            for k in (3, 5, 8):
                rng = random.Random(f"{SEED} {k} {sd} {heavy}")
                after = [_status(rng, k, sd, math.log(0.93), heavy) for _ in range(labs)]
                quiet = [_status(rng, k, sd, 0.0, heavy) for _ in range(labs)]
                found, stable, unsure = (100 * x / labs for x in (after.count("drifted"), quiet.count("stable"),
                                                                  quiet.count("uncertain")))
                alarms = 100 * sum(status in ("drifted", "improved") for status in quiet) / labs
                seen.setdefault((heavy, sd), []).append((found, unsure, alarms))
                row.append(f"{found:.1f}; {stable:.1f}, {unsure:.1f}, {alarms:.2f}")
            rows.append(row)
    table(["tails", "boot sd", "k = 3", "k = 5", "k = 8"], rows)
    one, noisy = seen[0.0, 0.01], seen[0.0, 0.03]
    least, most = min(f for f, _, _ in one), max(a for _, _, a in one)
    aim("a 7 % step found at the first re-measurement in at least 99 %, 1 % boot sd, 3 boots of history or more",
        f"{least:.1f} % at worst", least >= 99)
    aim("false alarms at most 1 in 200 looks there", f"{most:.2f} % at worst", most <= 0.5)
    heavy_most = max(a for sd in (0.005, 0.01) for _, _, a in seen[0.05, sd])
    aim("false alarms at most 1 in 50 with heavy tails, boot sd up to 1 %", f"{heavy_most:.2f} % at worst",
        heavy_most <= 2)
    aim("at 3 % boot sd it says `uncertain`", ", ".join(f"{u:.0f} %" for _, u, _ in noisy)
        + " of unchanged hosts, alarms " + ", ".join(f"{a:.2f} %" for _, _, a in noisy),
        all(u >= 50 and a <= 0.5 for _, u, a in noisy))


def _status(rng: random.Random, k: int, sd: float, shift: float, heavy: float) -> str:
    def row(run: str, i: int, y: float) -> dict:
        return {"kind": "measured", "at": times.text(1.7e9 + 500 * i), "run": run, "measurement": f"{run}{i}",
                "boot": f"{run}{i}", "engine": "simulator", "variant": "baseline", "nccl_profile": "t", "build": "b",
                "workload": "w", "load": "l", "tok_s": 88.8 * math.exp(y), "accept_length": 1.0,
                "step_ms": 11.3 / math.exp(y), "usable": True, "why": None, "flags": [],
                "state": {"digest": "d", "groups": {}, "unverified": []}}

    def noise() -> float:
        return rng.gauss(0, sd) + (math.log1p(-0.10) if rng.random() < heavy else 0.0)

    rows = [row("A", i, noise()) for i in range(k)] + [row("B", 1000 + i, noise() + shift) for i in range(3)]
    return str(baselines.status(rows, baselines.series_key(rows[0]), "B", 0.02)["status"])


def speed() -> None:
    say("### Planning and deciding for 30 hosts x 20 candidates x 5 workloads x 10 blocks\n")
    document = make_experiment(20, workloads=[f"load-{i}" for i in range(5)], blocks=10)
    labs = [Lab(World(), document, seed=i, host=f"sim-{i}") for i in range(30)]
    planning, deciding, boots = 0.0, 0.0, 0
    for lab in labs:
        started = time.process_time()
        run = lab.begin()
        answer = lab.ask(run)
        planning += time.process_time() - started
        ledger_positions = sorted({p["position"]: p for b in lab.entries[0]["blocks"] for p in b}.items())
        for number, place in ledger_positions:
            lab.measure(_boot_at(answer["boot"], lab, number, place))
        boots += len(lab.boots)
        started = time.process_time()
        stop = lab.ask(run)
        lab.verdict(run)
        deciding += time.process_time() - started
        assert stop["kind"] == "blocks"
        lab.measurements.clear()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table(["boots", "planning, CPU s", "deciding, CPU s", "peak MB"],
          [[boots, planning, deciding, f"{peak:.0f}"]])
    aim("planning and deciding of that under 5 s and 500 MB on one core",
        f"{planning + deciding:.1f} s, {peak:.0f} MB", planning + deciding < 5 and peak < 500)


def _boot_at(template: dict, lab: Lab, number: int, place: dict) -> dict:
    """The boot of a planned position, made without asking for each: 6000 questions are not what is timed."""
    planned = lab.entries[0]
    arm = planned["arms"][place["arm"]]
    return {**template, "id": plan.ulid(times.seconds(lab.now()), number.to_bytes(10, "big")), "block": place["block"],
            "position": number, "role": place["role"],
            "arm": {"name": place["arm"], **{k: arm[k] for k in ("variant", "nccl_profile", "build")}},
            "workloads": [{"id": plan.measurement_id(planned, number, 1, w, 1), "name": w, "repeat": 1, "spec": spec}
                          for w, spec in planned["workloads"].items()]}


def main() -> None:
    """Make every table, and write them if nothing was left out."""
    global SEED
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few labs: a look, not a result")
    parser.add_argument("--labs", type=int, help="labs a cell (default 4000, quick 200)")
    parser.add_argument("--seed", type=int, default=20261129, help="another seed makes up other labs")
    parser.add_argument("--only", choices=["designs", "hard", "cost", "fixed", "families", "drift", "speed"])
    options = parser.parse_args()
    n = options.labs or (200 if options.quick else 4000)
    SEED = options.seed
    ratios = (0.9, 0.97, 1.0, 1.06) if options.quick else RATIOS
    parts: dict[str, Callable[[], None]] = {
        "speed": speed, "designs": lambda: designs(n // 2, ratios), "hard": lambda: hard_labs(n),
        "cost": lambda: cost(n // 2, ratios), "fixed": lambda: fixed_blocks(n // 2),
        "families": lambda: families(n // 20), "drift": lambda: drift(n // 2)}
    started = time.process_time()
    for name, part in parts.items():
        if options.only in (None, name):
            part()
    cpu = time.process_time() - started
    head = (f"`benchmarks/verdicts.py`, {results.machine()}; seed {SEED}, {cpu:.0f} CPU seconds. Simulated labs, no "
            "real boots. The worst of many cells is itself a little high by chance.")
    lines = ["| aim | found | met |", "|---|---|---|",
             *(f"| {wanted} | {found} | {'yes' if met else '**no**'} |" for wanted, found, met in AIMS)]
    missed = [f"- {wanted}: found {found}" for wanted, found, met in AIMS if not met]
    summary = "### Aims\n\n" + "\n".join(lines) + "\n\n" + (
        f"Missed, {len(missed)} of {len(AIMS)}:\n\n" + "\n".join(missed) if missed else "None is missed.")
    print(f"{head}\n\n{summary}")
    if not (options.quick or options.only or options.labs):
        results.write({**results.sections(), TITLE: "\n\n".join([head, summary, *(t.strip() for t in SAID)])})


if __name__ == "__main__":
    main()
