#!/usr/bin/env python3
"""Asks a server for held-out items and prints the share of right answers: the card's figures as lily gives them.

  lily serve --port 8080 --ctx 8192
  python ask.py http://127.0.0.1:8080/v1 [--items 128] [--long 32] [--out FILE.json]

Needs `tokenizers` and no torch. The prompts are the texts that training shows, so every token is the model's.
"""

import argparse
import json
import time
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from chat import prompt_and_answer
from items import items
from judge import judge

HERE = Path(__file__).resolve().parent


def complete(base, prompt):
    """What the model goes on with, the likeliest token each time, up to the end of its turn."""
    body = {"prompt": prompt, "max_tokens": 224, "temperature": 0}
    request = urllib.request.Request(
        f"{base}/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=3600) as reply:
        return json.load(reply)["choices"][0]["text"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("base")
    p.add_argument("--items", type=int, default=128)
    p.add_argument("--long", type=int, default=32, help="items of each long look-up")
    p.add_argument("--at-once", type=int, default=4)
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer/tokenizer.json"))
    groups = items(a.items, tokenizer, long=a.long)
    found = {}
    with ThreadPoolExecutor(a.at_once) as pool:
        for ability, chats in groups.items():
            start, marks = time.time(), defaultdict(list)
            pairs = [prompt_and_answer(chat) for chat in chats]
            texts = pool.map(lambda pair: complete(a.base, pair[0]), pairs)
            for chat, text, (_, expected) in zip(chats, texts, pairs):
                for measure, right in judge(chat, text, expected.removesuffix("<|im_end|>")).items():
                    marks[measure].append(right)
            found[ability] = {k: 100 * sum(v) / len(v) for k, v in marks.items()}
            shares = ", ".join(f"{k} {v:.1f} %" for k, v in found[ability].items())
            print(f"{ability:12} {len(chats):4} items  {shares}  ({time.time() - start:.0f} s)", flush=True)
    if a.out:
        a.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
