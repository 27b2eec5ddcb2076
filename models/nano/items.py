"""Held-out items by ability."""

import random

from chat import prompt_and_answer
from data import mix
from data.item import Draw, Retry

LOOKUPS = {"lookup 2K": (1500, 2048), "lookup 6K": (5000, 6144)}


def lookup(rng, low, high, tokenizer):
    """A held-out question over a context with a prompt of `low` to `high` tokens."""
    while True:
        try:
            chat = mix.lookup_chat(Draw(rng, True), rng.uniform(low, high), 1)
        except Retry:
            continue
        n = len(tokenizer.encode(prompt_and_answer(chat)[0]).ids)
        if low <= n <= high:
            return chat


def items(count, tokenizer, long=True, seed=99):
    """{ability: [Chat]} of held-out conversations; `long` look-ups of each length, or as many as of the others."""
    rng = random.Random(seed)
    out = {a: [mix.draw_short(rng, True, a, single=True) for _ in range(count)] for a in mix.WEIGHTS}
    if long:
        for name, (low, high) in LOOKUPS.items():
            out[name] = [lookup(rng, low, high, tokenizer) for _ in range(count if long is True else long)]
    return out
