"""Answers depend on the prompt alone, whatever the speculation; prefixes are cached as a radix cache would."""

from __future__ import annotations

import pytest
from sglang.simulation import tokens
from sglang.srt.managers.schedule_batch import Req


def request(
    limit: int, salt: str = "", text: str = "A prompt", eos_after: int | None = None, ignore: bool = True
) -> Req:
    return Req(tokens.encode(text), limit, ignore, salt, eos_after, lambda _request: None)


def run(one: Req, accept_length: float = 0.0, most: int = 1, carry: float = 0.5) -> float:
    """Decode to the end; returns what is left of the carry."""
    one.take(1)
    if accept_length:
        carry = one.share_out(accept_length, most, carry)
    while one.finish is None:
        if accept_length:
            one.cycle(False)
        else:
            one.take(1)
    return carry


def test_speculation_changes_no_token() -> None:
    plain = request(200)
    run(plain)
    for accept_length, most in ((1.0, 3), (2.1, 3), (2.16, 4), (3.0, 3)):
        fast = request(200)
        run(fast, accept_length, most)
        assert fast.ids == plain.ids and fast.finish == plain.finish
        assert max(index + 1 for index, count in enumerate(fast.histogram) if count) <= most
    other = request(200, text="Another prompt")
    run(other)
    assert other.ids[:20] != plain.ids[:20]


@pytest.mark.parametrize(("accept_length", "most"), [(1.0, 3), (1.62, 2), (2.1, 3), (2.16, 4), (1.5, 8), (2.9, 3)])
def test_accept_lengths_are_right_on_average(accept_length: float, most: int) -> None:
    carry, made, cycles = 0.5, 0, 0
    for limit in (256, 256, 300, 64, 256, 511):
        one = request(limit)
        carry = run(one, accept_length, most, carry)
        made += len(one.ids) - 1
        cycles += one.verify_ct
        assert sum(one.histogram) == one.verify_ct
    assert made / cycles == pytest.approx(accept_length, rel=0.002)


def test_ends() -> None:
    one = request(50, eos_after=10)
    run(one)
    assert len(one.ids) == 50 and one.ids[9] == tokens.EOS and one.finish == {"type": "length", "length": 50}
    one = request(50, eos_after=10, ignore=False)
    run(one, 2.1, 3)
    assert len(one.ids) == 10 and one.finish == {"type": "stop", "matched": tokens.EOS}


def test_text_needs_no_escaping_and_is_never_empty() -> None:
    for token in range(tokens.FIRST, tokens.FIRST + tokens.VOCABULARY, 7):
        text = tokens.decode(token)
        assert text.startswith(" ") and text[1:].isalpha() and text.isascii()


def test_prefixes() -> None:
    cache = tokens.PrefixCache()
    first, second = tokens.encode("one two three four"), tokens.encode("one two other words here")
    assert cache.match(first) == 0
    cache.insert(first)
    assert cache.match(first) == len(first) - 1, "the last token is always computed"
    assert cache.match(second) == 3 and cache.match(tokens.encode("else")) == 1, "the BOS token is shared"
    cache.clear()
    assert cache.match(first) == 0
