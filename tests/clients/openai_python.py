"""The server through the `openai` package: `openai_python.py BASE_URL`."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
QUESTION = [{"role": "user", "content": "Hi"}]
# Ends of turn and thought in the tiny model's vocabulary, made impossible.
GO_ON = {str(token): -100 for token in (499, 500, 501, 502, 503, 509, 510, 511)}

models = client.models.list().data
assert len(models) == 1 and models[0].owned_by == "lily", models
name = models[0].id
assert client.models.retrieve(name).id == name

asked = dict(model=name, messages=QUESTION, seed=5, max_tokens=24, logit_bias=GO_ON)
whole = client.chat.completions.create(**asked)
assert whole.choices[0].finish_reason == "length"
assert whole.choices[0].message.content == ""
thought = whole.choices[0].message.reasoning_content
assert thought and whole.usage.completion_tokens == 24
assert whole.usage.completion_tokens_details.reasoning_tokens == 24

streamed, usages, reasons = "", [], []
for chunk in client.chat.completions.create(
    **asked, stream=True, stream_options={"include_usage": True}
):
    if chunk.usage:
        usages.append(chunk.usage)
    for choice in chunk.choices:
        streamed += getattr(choice.delta, "reasoning_content", None) or ""
        reasons.append(choice.finish_reason)
assert streamed == thought, (streamed, thought)
assert [r for r in reasons if r] == ["length"] and usages == [whole.usage]

answer = client.chat.completions.create(**asked, reasoning_effort="none")
assert answer.choices[0].message.content
assert not hasattr(answer.choices[0].message, "reasoning_content")
# What came back can be sent again.
replay = QUESTION + [answer.choices[0].message, QUESTION[0]]
client.chat.completions.create(**{**asked, "messages": replay})

# The answer, and a text that goes on, are the same streamed and not.
pieces = client.chat.completions.create(**asked, reasoning_effort="none", stream=True)
streamed = "".join(choice.delta.content or "" for chunk in pieces for choice in chunk.choices)
assert streamed == answer.choices[0].message.content, (streamed, answer)
going_on = dict(model=name, prompt="abc", seed=5, max_tokens=24, logit_bias=GO_ON)
text = client.completions.create(**going_on)
assert text.object == "text_completion" and text.usage.prompt_tokens == 3
pieces = client.completions.create(**going_on, stream=True)
streamed = "".join(choice.text for chunk in pieces for choice in chunk.choices)
assert streamed == text.choices[0].text, (streamed, text)

for wrong, kind in [
    ({"n": 33}, openai.BadRequestError),
    ({"model": "gpt-4o"}, openai.NotFoundError),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, openai.BadRequestError),
    ({"extra_body": {"no_such_field": 1}}, openai.BadRequestError),
]:
    try:
        client.chat.completions.create(**{**asked, **wrong})
    except kind as error:
        assert error.body["message"], error
    else:
        raise AssertionError(f"{wrong} was accepted")

# Several choices, and tools that are not called.
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
several = client.chat.completions.create(**asked, n=3, tools=[tool], tool_choice="auto")
assert [choice.index for choice in several.choices] == [0, 1, 2], several

# A client that leaves: the next request is answered.
stream = client.chat.completions.create(**{**asked, "max_tokens": 100_000}, stream=True)
next(iter(stream))
stream.close()
client.with_options(timeout=20).chat.completions.create(**asked)
print("openai for Python", openai.__version__, "passes")
