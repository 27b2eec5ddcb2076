"""Conversations as text: the same text that the chat template gives, in pieces with weights.

`chat_template.jinja` is the rule; `check.py` compares. Pieces are (text, kind): CONTEXT is what the
model reads, ANSWER what it must write.
"""

import json

CONTEXT, ANSWER = 1, 2


def _value(v):
    return v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)


def call_text(call):
    """A tool call in the template's form."""
    name, arguments = call
    body = "".join(f"<parameter={k}>\n{_value(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def answer_text(text, calls):
    """Content and calls of one assistant turn."""
    joined = "\n".join(map(call_text, calls))
    return f"{text}\n\n{joined}" if text and joined else text + joined


def head_text(system, tools):
    """The system turn, or nothing."""
    if tools:
        lines = "\n".join(json.dumps(t, ensure_ascii=False) for t in tools)
        out = (
            "<|im_start|>system\nTools you can call, one JSON object a line:\n<tools>\n"
            + lines
            + "\n</tools>\nTo call one, end your answer with its name and the value of each parameter:\n"
            "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
        )
        return out + (f"\n\n{system}" if system else "") + "<|im_end|>\n"
    return f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""


def pieces(chat):
    """[(text, kind)] of a whole conversation."""
    last = max(i for i, t in enumerate(chat.turns) if t[0] == "user")
    out = [(head_text(chat.system.strip(), chat.tools), CONTEXT)]
    for i, turn in enumerate(chat.turns):
        if turn[0] == "user":
            out.append((f"<|im_start|>user\n{turn[1].strip()}<|im_end|>\n", CONTEXT))
        elif turn[0] == "tool":
            first = chat.turns[i - 1][0] != "tool"
            end = i + 1 == len(chat.turns) or chat.turns[i + 1][0] != "tool"
            out.append(
                (
                    ("<|im_start|>user" if first else "")
                    + f"\n<tool_response>\n{turn[1].strip()}\n</tool_response>"
                    + ("<|im_end|>\n" if end else ""),
                    CONTEXT,
                )
            )
        else:
            _, thought, text, calls = turn
            answer = answer_text(text.strip(), calls)
            if i < last:
                out += [("<|im_start|>assistant\n", CONTEXT), (answer + "<|im_end|>", ANSWER), ("\n", CONTEXT)]
            elif chat.think:
                out += [
                    ("<|im_start|>assistant\n<think>\n", CONTEXT),
                    (f"{thought}\n</think>\n\n{answer}<|im_end|>", ANSWER),
                    ("\n", CONTEXT),
                ]
            else:
                out += [
                    ("<|im_start|>assistant\n<think>\n\n</think>\n\n", CONTEXT),
                    (answer + "<|im_end|>", ANSWER),
                    ("\n", CONTEXT),
                ]
    return [p for p in out if p[0]]


def prompt_and_answer(chat):
    """(prompt text up to the last assistant turn's first generated token, expected text)."""
    parts = pieces(chat)
    return "".join(t for t, _ in parts[:-2]), parts[-2][0]
