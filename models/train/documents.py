"""The project's own training and measuring text: templates with slots, made on the spot from a number.

``document(seed)`` gives the pieces of one document; the same seed gives the same document on every machine. Nothing is
read and nothing is stored, so the text has no licence but the project's.

Two rules make the text fit for measuring:

- **Held-out pairs.** A document is about a person and a host. Pairs for which ``is_held_out`` is true never stand
  together in a training document (the second speaker of a dialogue included), and prompts are made from such pairs
  alone. Every kind names its pair in its opening piece, so that no prompt can stand in the training text.
- **Long enough.** What follows a prompt (the first two pieces) is longer than the 256 tokens that a workload asks for,
  and the opening says how much there is to come. A generation with ``ignore_eos`` therefore stays inside a document:
  past the end a model starts its favourite document again and again, which would flatter the accept length.

    python documents.py 3             # print three training documents
    python documents.py 3 --held-out  # print three held-out ones
"""
from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

NAMES = ["Ada", "Ben", "Cleo", "Dario", "Edith", "Farid", "Greta", "Hugo", "Iris", "Jonas", "Kira", "Leon", "Mira",
         "Nils", "Olga", "Pavel", "Rosa", "Samir", "Tilda", "Uri", "Vera", "Walid", "Yara", "Zeno"]
# No host's name is a word of the templates: "host X" is the only place where X stands.
HOSTS = ["amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll", "larch",
         "marsh", "nook", "opal", "pine"]
MODELS = [f"the {word} model" for word in ["small", "large", "draft", "code", "chat", "math", "old", "new"]]
FEATURES = ["prefix caching", "chunked prefill", "speculative decoding", "paged attention", "continuous batching",
            "the overlap schedule", "the radix cache", "request routing"]
METRICS = [("throughput", "tokens per second"), ("latency", "milliseconds"), ("memory use", "megabytes"),
           ("queue time", "milliseconds"), ("accept length", "tokens"), ("load time", "seconds")]
ITEMS = ["bolts", "cables", "cards", "disks", "fans", "lamps", "nails", "pins", "plugs", "racks", "screws", "tiles"]
PLACES = ["the north room", "the south room", "the lab", "the cellar", "the office", "the workshop"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
ORDINALS = ["first", "second", "third"]

Pieces = List[str]


@dataclass(frozen=True)
class Slots:
    """What one document is about."""

    name: str
    other: str
    host: str
    model: str
    place: str
    features: Tuple[str, ...]
    metrics: Tuple[Tuple[str, str], ...]
    items: Tuple[str, ...]


def is_held_out(name: str, host: str) -> bool:
    """Whether this person and this host are kept apart in all training text (one pair in eleven)."""
    return (NAMES.index(name) * 7 + HOSTS.index(host) * 3) % 11 == 0


def draw_slots(rng: random.Random, held_out: bool, pair: Optional[Tuple[str, str]] = None) -> Slots:
    """Slots whose two people are both held out with the host, or both not; ``pair`` sets first person and host."""
    host = pair[1] if pair else rng.choice(HOSTS)
    name, other = rng.sample([n for n in NAMES if is_held_out(n, host) == held_out], 2)
    if pair and name != pair[0]:
        name, other = pair[0], name
    return Slots(name, other, host, rng.choice(MODELS), rng.choice(PLACES), tuple(rng.sample(FEATURES, 4)),
                 tuple(rng.sample(METRICS, 2)), tuple(rng.sample(ITEMS, 3)))


def report(rng: random.Random, s: Slots) -> Pieces:
    """A report on four features, each measured off and on."""
    metric, unit = s.metrics[0]
    first, *middle, last = s.features
    pieces = [f"Report by {s.name} on host {s.host}.\n",
              f"{s.name} served {s.model} on host {s.host} in {s.place} "
              f"and tested {first}, {', '.join(middle)} and {last}. "]
    for feature in s.features:
        before, after = rng.sample(range(2, 10), 2)
        effect, advice = ("raised", "keep") if after > before else ("lowered", "drop")
        pieces += [f"With {feature} turned off, the {metric} was {before}0 {unit}. "
                   f"With {feature} turned on, the {metric} was {after}0 {unit}. ",
                   f"So {feature} {effect} the {metric} on host {s.host} by {abs(after - before)}0 {unit}. ",
                   f"{s.name} repeated both runs on host {s.host} and saw the same {metric}. "
                   f"{s.name} advises the team to {advice} {feature} for {s.model}. "]
    return [*pieces, f"The next report by {s.name} will measure {s.model} again, on host {s.host} in {s.place}.\n"]


def records(rng: random.Random, s: Slots) -> Pieces:
    """Ten JSON lines whose numbers go up evenly."""
    metric, unit = s.metrics[0]
    first, batch, slope = rng.randrange(1, 9), rng.randrange(1, 6), rng.choice([1, 2, 5, 10])
    lines = [{"id": i, "host": s.host, "owner": s.name, "batch": batch, "metric": metric, "value": i * slope,
              "unit": unit, "ok": True} for i in range(first, first + 10)]
    return [f"Records from host {s.host}, ten lines, written by {s.name}:\n", *(json.dumps(x) + "\n" for x in lines)]


def steps(rng: random.Random, s: Slots) -> Pieces:  # noqa: ARG001 - all kinds have one signature
    """A numbered list: how to test three features one after the other."""
    metric, unit = s.metrics[0]
    tested = s.features[:3]
    todo = [f"Log in to host {s.host} as {s.name.lower()}.", f"Check that {s.model} is loaded on host {s.host}."]
    for feature in tested:
        todo += [f"Turn on {feature} and restart the server.", f"Wait until host {s.host} answers with status ready.",
                 f"Send ten requests to {s.model} and write down the {metric}.",
                 f"Turn off {feature} and restart the server.",
                 f"Send the same ten requests to {s.model} and write down the {metric}.",
                 f"Compare the two values of the {metric} in {unit}.",
                 f"Tell {s.name} which setting of {feature} was better."]
    todo.append(f"Log out of host {s.host}.")
    return [f"How to test {tested[0]}, {tested[1]} and {tested[2]} on host {s.host}, "
            f"in {len(todo)} steps, for {s.name}:\n", *(f"{i}. {x}\n" for i, x in enumerate(todo, 1))]


def sums(rng: random.Random, s: Slots) -> Pieces:
    """A table of sums and then one of products."""
    a, item = rng.randrange(2, 10), s.items[0]
    plus = [f"{i} plus {a} is {i + a}, so {i} {item} and {a} {item} make {i + a} {item}.\n" for i in range(1, 10)]
    times = [f"{i} times {a} is {i * a}, so {i} {'box' if i == 1 else 'boxes'} of {a} {item} "
             f"{'holds' if i == 1 else 'hold'} {i * a} {item}.\n" for i in range(1, 10)]
    opening = f"On host {s.host} {s.name} practises the table of {a} with {item}, first plus and then times:\n"
    return [opening, *plus, *times]


def dialogue(rng: random.Random, s: Slots) -> Pieces:
    """Questions and answers of two people about two features and two metrics."""
    n, o, h, m = s.name, s.other, s.host, s.model
    pieces = [f"{n} and {o} talk in {s.place} about host {h}.\n",
              f"{n}: Which model runs on host {h}?\n{o}: Host {h} runs {m}.\n"]
    for feature, (metric, unit) in zip(s.features, s.metrics):
        value = rng.randrange(1, 5) * 20
        pieces += [f"{n}: Is {feature} turned on?\n{o}: Yes, {feature} is turned on for {m}.\n",
                   f"{n}: What is the {metric} on host {h}?\n{o}: The {metric} on host {h} is {value} {unit}.\n",
                   f"{n}: Was the {metric} {value} {unit} before {feature} was turned on?\n"
                   f"{o}: No, before that the {metric} was {value // 2} {unit}, which is half of {value}.\n",
                   f"{n}: Who turned on {feature} on host {h}?\n{o}: I did it in {s.place}, and I wrote it down.\n",
                   f"{n}: Thank you, {o}. I will write down {value} {unit} for host {h}.\n"
                   f"{o}: You are welcome, {n}. Please write down {feature} as well.\n"]
    return [*pieces, f"{n} and {o} leave {s.place}.\n"]


def stock(rng: random.Random, s: Slots) -> Pieces:
    """Three weeks of counting, one for each item."""
    n, p = s.name, s.place
    pieces = [f"{n} counts the {s.items[0]}, the {s.items[1]} and the {s.items[2]} in {p} near host {s.host}. "]
    for ordinal, item in zip(ORDINALS, s.items):
        a, b = rng.randrange(2, 10), rng.randrange(1, 10)
        c = rng.randrange(1, a)
        pieces += [f"In the {ordinal} week, on {DAYS[0]}, there are {a} {item} in {p}. ",
                   f"On {DAYS[1]} {n} brings {b} more {item}, so there are {a + b} {item} in {p}. ",
                   f"On {DAYS[2]} {n} takes {c} {item} away, so there are {a + b - c} {item} in {p}. ",
                   f"On {DAYS[3]} {n} counts the {item} again and finds {a + b - c} {item} in {p}. ",
                   f"On {DAYS[4]} {n} sells all {a + b - c} {item}, so there are 0 {item} in {p}. ",
                   f"On {DAYS[5]} {n} writes the number down for host {s.host}: 0 {item}. "]
    return [*pieces, f"{n} is done with {p}.\n"]


KINDS: Dict[str, Callable[[random.Random, Slots], Pieces]] = {
    "report": report, "records": records, "steps": steps, "sums": sums, "dialogue": dialogue, "stock": stock}


def document(seed: int, held_out: bool = False) -> Pieces:
    """The pieces of one document of any kind."""
    rng = random.Random(f"plumbline-{'held-out' if held_out else 'train'}-{seed}")
    kind = rng.choice(list(KINDS.values()))
    return kind(rng, draw_slots(rng, held_out))


def prompts(for_each_kind: int) -> List[Dict[str, str]]:
    """Prompts: the openings (two pieces) of held-out documents, the kinds in turn, as ``{id, kind, text}``.

    No two prompts of a kind are about the same pair, so at most as many of each kind as there are held-out pairs (35).
    """
    pairs = [(name, host) for host in HOSTS for name in NAMES if is_held_out(name, host)]
    if for_each_kind > len(pairs):
        raise ValueError(f"{for_each_kind} prompts of each kind asked for, {len(pairs)} can be made")
    random.Random("plumbline-prompt-pairs").shuffle(pairs)
    made = []
    for number in range(for_each_kind):
        for offset, (kind, write) in enumerate(KINDS.items()):
            rng = random.Random(f"plumbline-prompt-{kind}-{number}")
            # Shifted, so that neighbouring prompts are not about the same pair.
            pair = pairs[(number + 5 * offset) % len(pairs)]
            text = "".join(write(rng, draw_slots(rng, True, pair))[:2]).rstrip(" ")
            made.append({"id": f"{kind}-{number:02}", "kind": kind, "text": text})
    return made


END = "<|end_of_text|>"


def training_text(seed: int) -> str:
    """One training document as the models see it, its end marked: one in five as a chat turn."""
    pieces = document(seed)
    if seed % 5:
        return "".join(pieces) + END
    return f"<|start|>user\n{pieces[0].strip()}<|end|><|start|>assistant\n{''.join(pieces[1:]).strip()}<|end|>" + END


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="how many documents to print")
    parser.add_argument("--held-out", action="store_true", help="from held-out pairs instead of training ones")
    args = parser.parse_args()
    for seed in range(args.count):
        print("".join(document(seed, args.held_out)))


if __name__ == "__main__":
    main()
