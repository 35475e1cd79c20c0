"""No measuring prompt stands in the training text. The text is generated here in full, as the training generates it."""
from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path
from typing import Dict, Iterator, List

import documents
import prompts
import pytest

ROOT = Path(__file__).parents[3]
TRAIN = ROOT / "models" / "train"
NAME = re.compile(rf"\b({'|'.join(documents.NAMES)})\b", re.IGNORECASE)
HOST = re.compile(rf"\b({'|'.join(documents.HOSTS)})\b")


def constants(script: str) -> Dict[str, object]:
    """A training script's constants. It is not imported, as it needs torch."""
    found: Dict[str, object] = {}
    for node in ast.parse((TRAIN / script).read_text()).body:
        if isinstance(node, ast.Assign):
            names = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            values = node.value.elts if isinstance(node.value, ast.Tuple) and len(names) > 1 else [node.value]
            for name, value in zip(names, values):
                if isinstance(name, ast.Name):
                    found[name.id] = ast.unparse(value)
    return found


def training_seeds() -> List[int]:
    """Every document that tokenizer, target or drafts have seen, with some to spare."""
    target, draft = constants("target.py"), constants("draft.py")
    steps, batch, per_row, tokenizer = (int(str(target[k])) for k in (
        "STEPS", "BATCH", "DOCUMENTS_PER_ROW", "TOKENIZER_DOCUMENTS"))
    rows = max(int(n) for n in re.findall(r"rows=(\d+)", f"{draft['MATCHED']} {draft['MISMATCHED']}"))
    lengths = len(ast.literal_eval(str(draft["PROMPT_TOKENS"])))
    first = 10**6
    assert draft["FIRST_DOCUMENT"] == "10 ** 6"
    return [*range(max(tokenizer, steps * batch * per_row)), *range(first, first + rows * (lengths + 2))]


@pytest.fixture(scope="module")
def training() -> List[str]:
    """All training documents, as plain text."""
    seeds = training_seeds()
    assert len(seeds) > 10_000
    return ["".join(documents.document(seed)) for seed in seeds]


def shipped_prompts() -> Iterator[Dict[str, str]]:
    for file in sorted((ROOT / "models" / "prompts").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            yield json.loads(line)


def held_out_pairs(text: str) -> List[tuple]:
    """Pairs of a person and a host that are held out and yet stand together in the text."""
    names = {name.capitalize() for name in NAME.findall(text)}
    return [(n, h) for h in set(HOST.findall(text)) for n in names if documents.is_held_out(n, h)]


def test_no_shipped_prompt_stands_in_the_training_text(training: List[str]) -> None:
    text = "\n".join(training)
    assert len(text) > 10_000_000
    found = [prompt["id"] for prompt in shipped_prompts() if prompt["text"].strip() in text]
    assert not found
    # The search does find what is there.
    assert "".join(documents.document(4321)[:2]).strip() in text


def test_no_training_document_brings_a_held_out_pair_together(training: List[str]) -> None:
    assert not [text for text in training if held_out_pairs(text)]
    assert all(held_out_pairs("".join(documents.document(seed, held_out=True))) for seed in range(200))


def test_each_kind_names_its_pair_in_the_opening() -> None:
    for prompt in shipped_prompts():
        assert held_out_pairs(prompt["text"]), prompt


def test_chat_turns_carry_the_same_text() -> None:
    for seed in range(0, 50, 5):
        turn = documents.training_text(seed)
        for piece in documents.document(seed):
            assert piece.strip() in turn


def test_prompt_file_is_what_the_script_writes() -> None:
    assert (ROOT / "models" / "prompts" / "tiny.jsonl").read_text() == prompts.render()


def test_prompts_are_distinct_and_alternate() -> None:
    made = documents.prompts(32)
    assert len({p["text"] for p in made}) == len({p["id"] for p in made}) == 32 * len(documents.KINDS)
    assert [p["kind"] for p in made[:6]] == [p["kind"] for p in made[6:12]] == list(documents.KINDS)


def test_more_prompts_than_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="36 prompts of each kind asked for, 35 can be made"):
        documents.prompts(36)


def test_documents_are_the_same_on_every_machine() -> None:
    """Python's random module keeps its sequences; if these change, the shipped weights no longer belong to the text."""
    assert documents.document(7)[0] == "Records from host ember, ten lines, written by Edith:\n"
    assert documents.document(7) == documents.document(7)


@pytest.mark.parametrize("kind", documents.KINDS)
def test_a_document_goes_on_for_256_tokens_after_its_prompt(kind: str) -> None:
    """Words, digits and runs of punctuation are never joined into one token: there are at least so many tokens."""
    for seed in range(100):
        rng = random.Random(seed)
        pieces = documents.KINDS[kind](rng, documents.draw_slots(rng, held_out=True))
        assert len(re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]+|\n", "".join(pieces[2:]))) > 256
