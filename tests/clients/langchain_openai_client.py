"""The server through LangChain: `langchain_openai_client.py BASE_URL`, on the replies of script.jsonl."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    base_url=sys.argv[1], api_key="none", model="lily", max_retries=0, stream_usage=True, use_responses_api=False
)
whole = model.invoke("Greet me.")
assert whole.content == "Hello, you!", whole
assert whole.response_metadata["finish_reason"] == "stop", whole
usage = whole.usage_metadata
# LangChain leaves the thought itself out, and counts it.
assert usage["output_token_details"]["reasoning"] > 0, whole

pieces = list(model.stream("Greet me."))
texts = [piece.content for piece in pieces if piece.content]
assert "".join(texts) == whole.content and len(texts) > 1, texts
streamed = pieces[0]
for piece in pieces[1:]:
    streamed += piece
assert streamed.usage_metadata["output_tokens"] == usage["output_tokens"], streamed


@tool
def weather(city: str, days: int) -> str:
    """The weather of a city."""
    assert (city, days) == ("Paris", 2), (city, days)
    return "21 degrees"


def streamed_answer(messages):
    answer = None
    for piece in able.stream(messages):
        answer = piece if answer is None else answer + piece
    return answer


able = model.bind_tools([weather])
for ask in (able.invoke, streamed_answer):
    messages = [HumanMessage("Weather in Paris?")]
    reply = ask(messages)
    assert reply.response_metadata["finish_reason"] == "tool_calls", reply
    (call,) = reply.tool_calls
    assert call["name"] == "weather" and call["args"] == {"city": "Paris", "days": 2}, call
    messages += [reply, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    last = ask(messages)
    assert last.content == "It is 21 degrees in Paris.", last
    assert last.usage_metadata["input_tokens"] > reply.usage_metadata["input_tokens"]
print("LangChain passes")
