"""Answers in JSON for a small schema."""

import json

from .item import Item
from .lexicon import CITIES, COLOURS, JOBS, NAMES, SURNAMES, WORDS, code

# name of the field -> (type, drawn value, English and German phrase)
FIELDS = {
    "name": ("string", lambda d: d.choice(NAMES), "name {v}", "Name {v}"),
    "surname": ("string", lambda d: d.choice(SURNAMES), "surname {v}", "Nachname {v}"),
    "age": ("integer", lambda d: d.randint(1, 99), "age {v}", "Alter {v}"),
    "city": ("string", lambda d: d.choice(CITIES), "lives in {v}", "wohnt in {v}"),
    "colour": ("string", lambda d: d.choice(COLOURS)[0], "colour {v}", "Farbe {v}"),
    "job": ("string", lambda d: d.choice(JOBS)[0], "works as {v}", "arbeitet als {v}"),
    "price": ("integer", lambda d: d.randint(1, 999), "costs {v} euros", "kostet {v} Euro"),
    "count": ("integer", lambda d: d.randint(0, 99), "{v} pieces", "{v} Stück"),
    "item": ("string", lambda d: d.choice(WORDS), "item {v}", "Artikel {v}"),
    "code": ("string", code, "code {v}", "Code {v}"),
    "active": ("boolean", lambda d: d.chance(0.5), "active: {v}", "aktiv: {v}"),
    "paid": ("boolean", lambda d: d.chance(0.5), "paid: {v}", "bezahlt: {v}"),
    "tags": ("array", lambda d: [d.choice(WORDS) for _ in range(d.randint(1, 3))], "tags {v}", "Stichwörter {v}"),
    "year": ("integer", lambda d: d.randint(1900, 2030), "year {v}", "Jahr {v}"),
    "email": ("string", lambda d: f"{d.choice(NAMES).lower()}@{d.choice(WORDS)}.com", "e-mail {v}", "E-Mail {v}"),
}


def _say(v, lang):
    if isinstance(v, bool):
        return ("yes" if v else "no") if lang == "en" else ("ja" if v else "nein")
    return ", ".join(v) if isinstance(v, list) else str(v)


def _schema(d, names):
    """The schema as a user may write it."""
    kind = d.randint(0, 2)
    types = {n: FIELDS[n][0] for n in names}
    if kind == 0:
        return "{" + ", ".join(f'"{n}": {t}' for n, t in types.items()) + "}"
    props = {n: {"type": t} | ({"items": {"type": "string"}} if t == "array" else {}) for n, t in types.items()}
    schema = {"type": "object", "properties": props, "required": list(names)}
    if d.chance(0.3):
        schema["additionalProperties"] = False
    return json.dumps(schema, indent=2 if kind == 2 else None)


def structured(d, ql, al):
    """The text says some fields, the schema asks for some of them, in its own order."""
    en = ql == "en"
    names = d.sample(list(FIELDS), d.randint(2, 5))
    values = {n: FIELDS[n][1](d) for n in names}
    d.claim("json", *map(str, values.values()))
    asked = d.sample(names, d.randint(max(1, len(names) - 2), len(names)))
    text = ", ".join(FIELDS[n][2 if en else 3].format(v=_say(values[n], ql)) for n in names) + "."
    text = text[0].upper() + text[1:]
    schema = _schema(d, asked)
    q = d.choice(
        {
            "en": [
                "Answer in JSON with this schema: {s}\n{t}",
                "Extract as JSON {s} from: {t}",
                "{t}\nGive this as JSON: {s}",
                "Return JSON matching {s}\n\nText: {t}",
                "Turn this into JSON with the schema {s}: {t}",
                "Text: {t}\nSchema: {s}\nReply only with JSON.",
            ],
            "de": [
                "Antworte in JSON nach diesem Schema: {s}\n{t}",
                "Lies als JSON {s} aus: {t}",
                "{t}\nGib das als JSON: {s}",
                "Gib JSON nach {s} zurück\n\nText: {t}",
                "Text: {t}\nSchema: {s}\nAntworte nur mit JSON.",
            ],
        }[ql]
    ).format(s=schema, t=text)
    answer = json.dumps({n: values[n] for n in asked}, ensure_ascii=False)
    return Item(q, answer, answer, ("Fields: " if al == "en" else "Felder: ") + ", ".join(asked) + ".", exact=True)
