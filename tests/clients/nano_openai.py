"""lily-nano through the `openai` package: `nano_openai.py BASE_URL`. What is asserted is what an answer means."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
MODEL = "lily-nano"
WITHOUT_THOUGHT = {"reasoning_effort": "none"}

assert [model.id for model in client.models.list()] == [MODEL]


def function(name, description, **parameters):
    """A tool; each parameter is its schema."""
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def ask(messages, **options):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return client.chat.completions.create(model=MODEL, messages=messages, **options).choices[0]


def streamed(messages, **options):
    """(thought, content, finish reason) of the same question in pieces."""
    thought, content, reason = "", "", None
    pieces = client.chat.completions.create(model=MODEL, messages=messages, stream=True, **options)
    for choice in (choice for piece in pieces for choice in piece.choices):
        thought += getattr(choice.delta, "reasoning_content", None) or ""
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
    return thought, content, reason


# An answer with a thought, and one without.
question = [{"role": "user", "content": "What is 17 + 26?"}]
choice = ask(question)
assert choice.message.content.strip() == "43" and choice.finish_reason == "stop", choice
thought = choice.message.reasoning_content
assert thought.strip() and "think>" not in thought, choice
assert streamed(question) == (thought, choice.message.content, "stop")
choice = ask(question, **WITHOUT_THOUGHT)
assert choice.message.content.strip() == "43", choice
assert not getattr(choice.message, "reasoning_content", None), choice

# A tool is called, its result is used.
calculator = function(
    "calculator",
    "Evaluate an arithmetic expression.",
    expression={"type": "string", "description": "The expression, for example 2 + 3."},
)
weather = function("get_weather", "Get the weather of a city.", city={"type": "string", "description": "Name of the city"})
light = function(
    "set_light",
    "Switch a light on or off.",
    room={"type": "string", "description": "The room"},
    on={"type": "boolean", "description": "true for on, false for off"},
)


def sky(city):
    assert city == "Paris", city
    return '{"temperature": 21, "sky": "sunny"}'


FUNCTIONS = {
    "calculator": lambda expression: str(eval(expression, {"__builtins__": {}})),
    "get_weather": sky,
    "set_light": lambda room, on: f"ok {room} {on}",
}


def loop(text, tools, **options):
    """(the last answer, [(name, arguments)] of all calls): calls tools until the model answers."""
    messages, called = [{"role": "user", "content": text}], []
    for _ in range(4):
        choice = ask(messages, tools=tools, **options)
        if choice.finish_reason != "tool_calls":
            return choice.message.content, called
        messages.append(choice.message)
        for call in choice.message.tool_calls:
            arguments = json.loads(call.function.arguments)
            called.append((call.function.name, arguments))
            result = FUNCTIONS[call.function.name](**arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError(f"no answer after {called}")


for options in ({}, WITHOUT_THOUGHT):
    answer, called = loop("What is 4321 + 1234?", [calculator, weather], **options)
    assert [name for name, _ in called] == ["calculator"], called
    assert "5555" in answer, answer
    answer, called = loop("What is the weather in Paris?", [calculator, weather], **options)
    assert called == [("get_weather", {"city": "Paris"})], called
    assert "21" in answer and "sunny" in answer, answer
answer, called = loop("Switch off the kitchen light.", [light, weather], **WITHOUT_THOUGHT)
assert called == [("set_light", {"room": "kitchen", "on": False})], called

# JSON by a schema that stands in the question, and by one that the server keeps.
fields = {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}
schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
text = f"Answer in JSON with this schema: {json.dumps(schema)}\nName Anna, age 34, lives in Berlin."
wanted = {"name": "Anna", "age": 34, "city": "Berlin"}
answer = ask(text, **WITHOUT_THOUGHT).message.content
assert json.loads(answer) == wanted, answer
kept = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
answer = ask(text, response_format=kept, **WITHOUT_THOUGHT).message.content
assert json.loads(answer) == wanted, answer
answer = ask(text, response_format=kept).message.content
assert json.loads(answer) == wanted, answer

# A turn before is remembered, and a system line is followed.
messages = [
    {"role": "system", "content": "Answer in German."},
    {"role": "user", "content": "What is the capital of France?"},
]
answer = ask(messages, **WITHOUT_THOUGHT).message.content
assert "Paris" in answer, answer
messages = [{"role": "user", "content": "My name is Anna."}]
messages.append(ask(messages, **WITHOUT_THOUGHT).message)
messages.append({"role": "user", "content": "What is my name?"})
answer = ask(messages, **WITHOUT_THOUGHT).message.content
assert "Anna" in answer, answer
print("lily-nano through openai for Python passes")
