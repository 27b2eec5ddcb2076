#!/usr/bin/env python3
"""Asks a running `lily serve -m MODEL --ctx 8192` the held-out questions of `evaluate.py`, over its chat API.

  python served.py [--url http://127.0.0.1:8080] [--items 64] [--only lookup,tools] [--no-long] [--out served.json]

So the template, the sampling, the parsers and the kernels of lily are measured together with the weights.
"""

import argparse
import json
import time
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chat import answer_text, prompt_and_answer
from evaluate import items
from feed import load_tokenizer
from judge import judge


def request(chat):
    """The request that asks for the last turn of a conversation."""
    messages = [{"role": "system", "content": chat.system}] if chat.system else []
    numbers = iter(range(1000))
    waiting = []
    for turn in chat.turns[:-1]:
        if turn[0] == "tool":
            messages.append({"role": "tool", "content": turn[1], "tool_call_id": waiting.pop(0)})
        elif turn[0] == "user":
            messages.append({"role": "user", "content": turn[1]})
        else:
            _, thought, text, calls = turn
            message = {"role": "assistant", "content": text}
            if chat.think and thought:
                message["reasoning_content"] = thought
            if calls:
                waiting = [f"call-{next(numbers)}" for _ in calls]
                message["tool_calls"] = [
                    {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                    for i, (n, a) in zip(waiting, calls)
                ]
                waiting = list(waiting)
            messages.append(message)
    body = {"messages": messages, "temperature": 0, "max_tokens": 256, "enable_thinking": chat.think}
    return body | ({"tools": chat.tools} if chat.tools else {})


def ask(url, chat):
    """The text of the model's turn, put together again from the parts of the reply."""
    call = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(request(chat)).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=600) as reply:
        message = json.load(reply)["choices"][0]["message"]
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or []]
    text = answer_text(message.get("content") or "", calls)
    return f"{message.get('reasoning_content') or ''}\n</think>\n\n{text}" if chat.think else text


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--items", type=int, default=64)
    p.add_argument("--only", default="")
    p.add_argument("--no-long", action="store_true")
    p.add_argument("--seed", type=int, default=99)
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    result, wrong = {}, defaultdict(list)
    for ability, chats in items(a.items, load_tokenizer(), not a.no_long, a.seed).items():
        if a.only and ability not in a.only.split(","):
            continue
        start, marks = time.time(), defaultdict(list)
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(lambda c: ask(a.url, c), chats))
        for chat, text in zip(chats, texts):
            expected = prompt_and_answer(chat)[1].removesuffix("<|im_end|>")
            for k, v in (verdict := judge(chat, text, expected)).items():
                marks[k].append(v)
            marks["right, thinking" if chat.think else "right, not thinking"].append(verdict["right"])
            if not verdict["right"]:
                question = chat.turns[-2][1]
                wrong[ability].append({"question": question[-300:], "wanted": expected, "got": text})
        result[ability] = {k: round(sum(v) / len(v), 4) for k, v in marks.items()}
        print(f"{ability:12}", result[ability], f"{time.time() - start:.0f} s", flush=True)
        if a.out:
            a.out.write_text(json.dumps({"items": a.items, "abilities": result, "wrong": wrong}, ensure_ascii=False))


if __name__ == "__main__":
    main()
