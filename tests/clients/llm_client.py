"""The server through `llm`: `llm_client.py BASE_URL`, on the replies of script.jsonl.

The model is described as its users do, in `extra-openai-models.yaml`.
"""

import os
import subprocess
import sys
import tempfile

folder = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = folder.name
with open(os.path.join(folder.name, "extra-openai-models.yaml"), "w", encoding="utf-8") as file:
    file.write(
        "- model_id: lily\n  model_name: lily\n"
        f"  api_base: {sys.argv[1]}\n  supports_tools: true\n  can_stream: true\n"
    )

import llm  # noqa: E402: it reads the folder's name from the environment


def command(*arguments):
    """What the program prints."""
    program = os.path.join(os.path.dirname(sys.executable), "llm")
    done = subprocess.run([program, "-m", "lily", "--key", "none", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


assert command("Greet me.", "--no-stream").strip() == "Hello, you!"
assert command("Greet me.").strip() == "Hello, you!"

asked = []


def weather(city: str, days: int) -> str:
    """The weather of a city."""
    asked.append((city, days))
    return "21 degrees"


model = llm.get_model("lily")
for stream in (False, True):
    chain = model.chain("Weather in Paris?", tools=[weather], stream=stream, key="none")
    assert chain.text().endswith("It is 21 degrees in Paris."), chain.text()
assert asked == [("Paris", 2)] * 2, asked
print("llm passes")
