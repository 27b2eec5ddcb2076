"""Training blocks: packed rows of conversations, made by worker processes.

Block `k` depends on the seed and on `k` alone, so the stream is the same for any number of workers.
"""

import multiprocessing as mp
import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import chat
from data import mix

HERE = Path(__file__).resolve().parent
PAD = 0  # piece kind of padding; chat.CONTEXT and chat.ANSWER are the others


@dataclass(frozen=True)
class Plan:
    """Shape of the stream. Rows of a block are `short` or `long` tokens."""

    tokens: int = 65536  # of a block
    short: int = 2048
    long: int = 8192
    first_long: int = 300  # blocks before the first long one
    every: int = 3  # from then on each third block is long
    documents: int = 1536  # most documents of a block
    seed: int = 1

    def row(self, k):
        """Row length of block k."""
        return self.long if k >= self.first_long and k % self.every == 0 else self.short


def load_tokenizer(folder=HERE / "tokenizer"):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode(tokenizer, chats):
    """[(ids uint16, kinds uint8)] of conversations."""
    parts = [chat.pieces(c) for c in chats]
    codes = tokenizer.encode_batch_fast([t for p in parts for t, _ in p], add_special_tokens=False)
    out, at = [], 0
    for p in parts:
        ids = [c.ids for c in codes[at : at + len(p)]]
        at += len(p)
        kinds = np.repeat(np.array([k for _, k in p], np.uint8), [len(i) for i in ids])
        out.append((np.array([x for i in ids for x in i], np.uint16), kinds))
    return out


def make_block(tokenizer, plan, k):
    """(tokens uint16, positions uint16, kinds uint8), each `[rows, row length]`."""
    rng = random.Random(f"{plan.seed}:{k}")
    length = plan.row(k)
    rows = plan.tokens // length
    pad = tokenizer.token_to_id("<|endoftext|>")
    tokens = np.full((rows, length), pad, np.uint16)
    position = np.tile(np.arange(length, dtype=np.uint16), (rows, 1))
    kinds = np.zeros((rows, length), np.uint8)
    used = [0] * rows
    count = rows  # padding at the end of a row is one document

    def place(document, row):
        nonlocal count
        ids, kind = document
        a, n = used[row], len(ids)
        tokens[row, a : a + n], kinds[row, a : a + n] = ids, kind
        position[row, a : a + n] = np.arange(n)
        position[row, a + n :] = np.arange(length - a - n)
        used[row] += n
        count += 1

    if length == plan.long:
        for row in range(rows):
            while True:
                (document,) = encode(tokenizer, [mix.draw_long(rng, length)])
                if len(document[0]) <= length:
                    break
            place(document, row)
    misses = 0
    while misses < 3 and count < plan.documents - 64:
        drawn = encode(tokenizer, [mix.draw_short(rng) for _ in range(64)])
        fitted = False
        for document in sorted(drawn, key=lambda x: -len(x[0])):
            row = min(range(rows), key=used.__getitem__)
            if used[row] + len(document[0]) <= length:
                place(document, row)
                fitted = True
        misses += not fitted or sum(used) > 0.985 * plan.tokens
    return tokens, position, kinds


def _work(plan, first, workers, queue):
    os.nice(5)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = load_tokenizer()
    k = first
    while True:
        queue.put(make_block(tokenizer, plan, k))
        k += workers


class Feed:
    """Iterates over blocks first, first + 1, … made by `workers` processes."""

    def __init__(self, plan, workers, first=0, ahead=4):
        context = mp.get_context("spawn")
        self.queues = [context.Queue(ahead) for _ in range(workers)]
        self.processes = [
            context.Process(target=_work, args=(plan, first + i, workers, q), daemon=True)
            for i, q in enumerate(self.queues)
        ]
        for p in self.processes:
            p.start()
        self.k = 0

    def __next__(self):
        block = self.queues[self.k % len(self.queues)].get(timeout=300)
        self.k += 1
        return block

    def close(self):
        for p in self.processes:
            p.terminate()
