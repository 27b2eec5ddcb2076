"""Whether an output is right: reads thought, content and tool calls out of text."""

import json
import re


def split(text, think):
    """(thought or None, content) of generated text."""
    if not think:
        return None, text.strip()
    thought, end, content = text.partition("</think>")
    return thought.strip(), content.strip() if end else ""


def calls(content):
    """([(name, {key: text})], whether every call is well formed)."""
    found = []
    blocks = re.findall(r"<tool_call>\n(.*?)\n</tool_call>", content, re.S)
    whole = content.count("<tool_call>") == len(blocks) == content.count("</tool_call>")
    for block in blocks:
        m = re.fullmatch(r"<function=([^>\n]+)>\n(.*)</function>", block, re.S)
        parameters = re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", m.group(2), re.S) if m else []
        whole &= m is not None and m.group(2) == "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters)
        found.append((m.group(1) if m else "", dict(parameters)))
    return found, whole


def _typed(text, kind):
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def same_calls(got, want, tools):
    """Equal calls, with values read by the types of the tools."""
    types = {
        t["function"]["name"]: {k: p["type"] for k, p in t["function"]["parameters"]["properties"].items()}
        for t in tools
    }

    def read(calls):
        return [(n, {k: _typed(v, types.get(n, {}).get(k, "string")) for k, v in a.items()}) for n, a in calls]

    return read(got) == read(want)


def schema_valid(content, want):
    """Whether content is JSON with the keys and types of the expected object."""
    try:
        got = json.loads(content)
    except ValueError:
        return False
    return isinstance(got, dict) and list(got) == list(want) and all(type(got[k]) is type(v) for k, v in want.items())


def judge(chat, text, expected):
    """{measure: bool} of one output against the expected text of the same turn."""
    thought, content = split(text, chat.think)
    _, wanted = split(expected, chat.think)
    out = {}
    if chat.think:
        out["thought"] = bool(thought) and "</think>" in text
    if "<tool_call>" in wanted:
        (got, whole), (want, _) = calls(content), calls(wanted)
        out["well formed"] = whole and bool(got)
        out["right"] = whole and same_calls(got, want, chat.tools)
    elif chat.ability == "json":
        want = json.loads(wanted)
        out["schema"] = schema_valid(content, want)
        out["right"] = out["schema"] and json.loads(content) == want
    elif chat.exact or not chat.gold or chat.ability == "tools":
        out["right"] = content == wanted or (bool(chat.gold) and not chat.exact and contains(content, chat.gold))
    else:
        out["right"] = contains(content, chat.gold)
    return out


def contains(content, gold):
    """Whether the answer stands in the content as a whole word or number."""
    return re.search(rf"(?<![\w-])(?<!\d[.,]){re.escape(gold)}(?!\w|[.,]\d)", content) is not None
