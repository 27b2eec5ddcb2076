"""Renders conversations with jinja2, set up as the transformers library sets it up.

usage: render.py TEMPLATE CONVERSATIONS

Prints a JSON list with one object for each conversation: {"text": ...}, {"raised": message} if the template called
raise_exception, or {"failed": message} for any other error.
"""

import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Raised(TemplateError):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        template = env.from_string(file.read())
    with open(sys.argv[2], encoding="utf-8") as file:
        conversations = json.load(file)
    results = []
    for case in conversations:
        variables = {"add_generation_prompt": True, **case.get("options", {})}
        try:
            text = template.render(messages=case["messages"], tools=case.get("tools"), **variables)
            results.append({"text": text})
        except Raised as error:
            results.append({"raised": str(error)})
        except Exception as error:
            results.append({"failed": f"{type(error).__name__}: {error}"})
    json.dump(results, sys.stdout)


main()
