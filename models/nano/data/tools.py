"""Conversations with tool calls: what to call, with which arguments, and what to do with the result."""

from .arithmetic import SIGNS, operands
from .facts import fact
from .item import Chat
from .lexicon import CITIES, COLOURS, NAMES, NOUNS, WORDS, code, invented
from .talk import talk, unknown


def tool(name, text, /, **params):
    """A tool in the form of the OpenAI API. A parameter is (type, description) or (type, description, extra)."""
    properties, required = {}, []
    for key, p in params.items():
        optional = p[1].startswith("?")
        properties[key] = {"type": p[0], "description": p[1].lstrip("?")} | (p[2] if len(p) > 2 else {})
        if not optional:
            required.append(key)
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


CALCULATOR = [
    tool(
        "calculator", "Evaluate an arithmetic expression.", expression=("string", "The expression, for example 2 + 3.")
    ),
    tool("calculate", "Calculates the value of an expression.", expression=("string", "Arithmetic expression")),
    tool("calc", "A calculator.", expr=("string", "What to compute")),
]
WEATHER = [
    tool("get_weather", "Get the weather of a city.", city=("string", "Name of the city")),
    tool("weather", "Weather forecast for a city.", city=("string", "The city"), days=("integer", "Number of days")),
    tool(
        "get_weather",
        "Current weather.",
        location=("string", "City name"),
        unit=("string", "?Unit of temperature", {"enum": ["celsius", "fahrenheit"]}),
    ),
]
READ = [
    tool("read_file", "Read a text file.", path=("string", "Path of the file")),
    tool("read_file", "Reads the first lines of a file.", path=("string", "Path"), lines=("integer", "How many lines")),
    tool("open_file", "Opens a file and returns its content.", filename=("string", "Name of the file")),
]
LIGHT = [
    tool(
        "set_light",
        "Switch a light on or off.",
        room=("string", "The room"),
        on=("boolean", "true for on, false for off"),
    ),
    tool(
        "switch_lamp", "Turns a lamp on or off.", lamp=("string", "Which lamp"), state=("boolean", "Whether it is on")
    ),
]
TIMER = [
    tool("set_timer", "Start a timer.", minutes=("integer", "Minutes")),
    tool(
        "start_timer",
        "Starts a timer.",
        seconds=("integer", "Duration in seconds"),
        label=("string", "Name of the timer"),
    ),
]
SEND = [
    tool(
        "send_message",
        "Send a message to a person.",
        to=("string", "Name of the person"),
        text=("string", "The message"),
    ),
    tool(
        "send_email",
        "Sends an e-mail.",
        recipient=("string", "Who gets it"),
        subject=("string", "Subject"),
        body=("string", "Text"),
    ),
]
ORDER = [
    tool(
        "create_order",
        "Create an order.",
        customer=("string", "Name"),
        item=("object", "The item: name and count"),
        express=("boolean", "Fast delivery"),
    ),
    tool(
        "add_entry",
        "Adds an entry to the data base.",
        table=("string", "Name of the table"),
        record=("object", "The record to add"),
    ),
]
ALL = [CALCULATOR, WEATHER, READ, LIGHT, TIMER, SEND, ORDER]


def _keys(t):
    return list(t["function"]["parameters"]["properties"])


def _name(t):
    return t["function"]["name"]


# Each use returns (question, arguments, result, answer short, answer long, what for).


def use_calculator(d, t, l):
    op, a, b, result = operands(d)
    big = d.chance(0.5)
    if big:  # beyond what it can do by itself
        a, b = d.randint(100, 99999), d.randint(10, 9999)
        op = d.choice(["add", "sub", "mul"])
        result = {"add": a + b, "sub": a - b, "mul": a * b}[op]
        d.claim("calculator", op, a, b)
    sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[op]
    e = f"{a} {sign} {b}"
    shown = f"{a} {d.choice([sign, SIGNS[op]])} {b}"
    q = d.choice(
        {
            "en": [
                "What is {e}?",
                "Calculate {e}.",
                "Use the calculator: {e}",
                "How much is {e}?",
                "{e}",
                "Please compute {e} with the tool.",
            ],
            "de": [
                "Was ist {e}?",
                "Berechne {e}.",
                "Nutze den Rechner: {e}",
                "Wie viel ist {e}?",
                "{e}",
                "Rechne {e} mit dem Werkzeug aus.",
            ],
        }[l]
    ).format(e=shown)
    return q, {_keys(t)[0]: e}, str(result), str(result), f"{a} {SIGNS[op]} {b} = {result}.", "calculator"


_SKY = [
    ("sunny", "sonnig"),
    ("cloudy", "bewölkt"),
    ("rainy", "regnerisch"),
    ("windy", "windig"),
    ("snowy", "verschneit"),
    ("foggy", "neblig"),
]


def use_weather(d, t, l):
    c = d.choice(CITIES) if d.chance(0.7) else invented(d).capitalize()
    keys = _keys(t)
    args = {keys[0]: c}
    sky, temperature = d.choice(_SKY), d.randint(-15, 39)
    q = d.choice(
        {
            "en": [
                "What is the weather in {c}?",
                "How is the weather in {c}?",
                "How warm is it in {c}?",
                "Weather in {c}",
                "Is it cold in {c}?",
                "What's the temperature in {c}?",
            ],
            "de": [
                "Wie ist das Wetter in {c}?",
                "Wie warm ist es in {c}?",
                "Wetter in {c}",
                "Ist es kalt in {c}?",
                "Welche Temperatur hat es in {c}?",
            ],
        }[l]
    ).format(c=c)
    if "days" in keys:
        n = d.randint(1, 9)
        args["days"] = n
        q = d.choice(
            {
                "en": [
                    "What will the weather be in {c} for the next {n} days?",
                    "Give me the weather for {n} days in {c}.",
                    "{n}-day forecast for {c}",
                ],
                "de": [
                    "Wie wird das Wetter in {c} in den nächsten {n} Tagen?",
                    "Gib mir das Wetter für {n} Tage in {c}.",
                    "Vorhersage für {n} Tage in {c}",
                ],
            }[l]
        ).format(c=c, n=n)
    if "unit" in keys and d.chance(0.4):
        unit = d.choice(["celsius", "fahrenheit"])
        args["unit"] = unit
        q = q.rstrip("?.") + (f" in {unit}?" if l == "en" else f" in {unit.capitalize()}?")
    d.claim("weather", _name(t), *args.values())
    result = d.choice(
        [
            '{{"temperature": {n}, "sky": "{s}"}}',
            '{{"city": "{c}", "temp_c": {n}, "condition": "{s}"}}',
            "{n} degrees, {s}",
            "{s}, {n} °C",
        ]
    ).format(c=c, n=temperature, s=sky[0])
    if d.chance(0.15):  # the temperature alone
        result = d.choice(['{{"c": {n}}}', '{{"temperature": {n}}}', "{n}", "{n} °C"]).format(n=temperature)
        return (
            q,
            args,
            result,
            f"{temperature} °C.",
            f"In {c} it is {temperature} °C." if l == "en" else f"In {c} sind es {temperature} °C.",
            "weather",
        )
    word = sky[l == "de"]
    short = f"{temperature} °C, {word}."
    long = f"In {c} it is {word} at {temperature} °C." if l == "en" else f"In {c} ist es {word} bei {temperature} °C."
    return q, args, result, short, long, "weather"


def use_read(d, t, l):
    name = d.choice(WORDS) if d.chance(0.6) else invented(d)
    path = (
        d.choice(["", "", "/tmp/", "docs/", "src/", "/home/" + d.choice(NAMES).lower() + "/", "./"])
        + name
        + d.choice([".txt", ".md", ".json", ".csv", ".log", ".toml"])
    )
    keys = _keys(t)
    args = {keys[0]: path}
    if "lines" in keys:
        args["lines"] = d.randint(1, 50)
    d.claim("read", *args.values())
    content = d.choice(
        [
            lambda: " ".join(d.choice(WORDS) for _ in range(d.randint(2, 12))),
            lambda: f"{d.choice(WORDS)} = {d.number()}",
            lambda: f"{d.choice(NAMES)}: {code(d)}",
        ]
    )()
    if d.chance(0.1):
        content = "error: file not found"
    q = d.choice(
        {
            "en": [
                "Read {p}.",
                "What is in {p}?",
                "Show me the file {p}.",
                "Open {p}.",
                "What does {p} say?",
                "Print the content of {p}.",
            ],
            "de": [
                "Lies {p}.",
                "Was steht in {p}?",
                "Zeig mir die Datei {p}.",
                "Öffne {p}.",
                "Gib den Inhalt von {p} aus.",
            ],
        }[l]
    ).format(p=path)
    if "lines" in keys:
        n = args["lines"]
        q = d.choice(
            {
                "en": ["Read the first {n} lines of {p}.", "Show {n} lines of {p}."],
                "de": ["Lies die ersten {n} Zeilen von {p}.", "Zeige {n} Zeilen von {p}."],
            }[l]
        ).format(n=n, p=path)
    if content.startswith("error"):
        a = (
            f"I could not read {path}: file not found."
            if l == "en"
            else f"Ich konnte {path} nicht lesen: Datei nicht gefunden."
        )
        return q, args, content, a, a, "file"
    return (
        q,
        args,
        content,
        content,
        (f"The file {path} says: {content}" if l == "en" else f"In der Datei {path} steht: {content}"),
        "file",
    )


_ROOMS = [
    ("kitchen", "Küche"),
    ("bedroom", "Schlafzimmer"),
    ("garage", "Garage"),
    ("garden", "Garten"),
    ("hall", "Flur"),
    ("cellar", "Keller"),
    ("office", "Büro"),
    ("bathroom", "Bad"),
]


def use_light(d, t, l):
    room = d.choice(_ROOMS)[l == "de"] if d.chance(0.7) else d.choice(NOUNS)[l == "de"].split()[-1]
    on = d.chance(0.5)
    d.claim("light", _name(t), room, on)
    keys = _keys(t)
    q = d.choice(
        {
            "en": [
                "Turn {s} the light: {r}.",
                "Switch {s} the {r} light.",
                "Turn the {r} light {s}.",
                "Light {s}: {r}",
                "Please switch the {r} light {s}.",
            ],
            "de": ["Mach das Licht {s}: {r}.", "Schalte das Licht {s}: {r}", "Licht {s}: {r}", "Bitte Licht {s}, {r}."],
        }[l]
    ).format(r=room, s=("on" if on else "off") if l == "en" else ("an" if on else "aus"))
    short = "Done." if l == "en" else "Erledigt."
    long = (
        f"The {room} light is {'on' if on else 'off'} now."
        if l == "en"
        else f"Das Licht ({room}) ist jetzt {'an' if on else 'aus'}."
    )
    return q, {keys[0]: room, keys[1]: on}, d.choice(["ok", "done", '{"ok": true}']), short, long, "light"


def use_timer(d, t, l):
    n = d.randint(1, 240)
    keys = _keys(t)
    args = {keys[0]: n}
    unit = ("minutes", "Minuten") if keys[0] == "minutes" else ("seconds", "Sekunden")
    u = unit[l == "de"]
    q = d.choice(
        {
            "en": ["Set a timer for {n} {u}.", "Start a {n} {u} timer.", "Timer: {n} {u}", "Remind me in {n} {u}."],
            "de": ["Stelle einen Timer auf {n} {u}.", "Timer: {n} {u}", "Erinnere mich in {n} {u}."],
        }[l]
    ).format(n=n, u=u)
    if "label" in keys:
        args["label"] = d.choice(WORDS)
        q = q.rstrip(".") + (f", named {args['label']}." if l == "en" else f", Name {args['label']}.")
    d.claim("timer", *args.values())
    return (
        q,
        args,
        d.choice(["ok", "started", '{"ok": true}']),
        "Done." if l == "en" else "Erledigt.",
        f"The timer runs for {n} {u}." if l == "en" else f"Der Timer läuft {n} {u}.",
        "timer",
    )


def use_send(d, t, l):
    n = d.choice(NAMES)
    words = " ".join(d.choice(WORDS) for _ in range(d.randint(1, 6)))
    keys = _keys(t)
    d.claim("send", n, words)
    if len(keys) == 2:
        q = d.choice(
            {
                "en": ["Send {n} the message '{w}'.", "Tell {n}: {w}", "Message {n}: {w}", "Write to {n}: {w}"],
                "de": ["Schick {n} die Nachricht '{w}'.", "Sag {n}: {w}", "Schreib an {n}: {w}"],
            }[l]
        ).format(n=n, w=words)
        args = {keys[0]: n, keys[1]: words}
    else:
        s = d.choice(WORDS)
        q = d.choice(
            {
                "en": ["Send an e-mail to {n} with the subject {s}: {w}", "E-mail {n}, subject {s}, text: {w}"],
                "de": ["Schick eine E-Mail an {n} mit dem Betreff {s}: {w}", "E-Mail an {n}, Betreff {s}, Text: {w}"],
            }[l]
        ).format(n=n, w=words, s=s)
        args = {keys[0]: n, keys[1]: s, keys[2]: words}
    return (
        q,
        args,
        d.choice(["sent", "ok", '{"sent": true}']),
        "Done." if l == "en" else "Erledigt.",
        f"I sent it to {n}." if l == "en" else f"Ich habe es an {n} geschickt.",
        "message",
    )


def use_order(d, t, l):
    n, thing, k = d.choice(NAMES), d.choice(WORDS), d.randint(1, 60)
    if _name(t) == "create_order":
        fast = d.chance(0.5)
        d.claim("order", n, thing, k, fast)
        q = d.choice(
            {
                "en": ["Order {k} {x} for {n}, {f}.", "Create an order for {n}: {k} {x}, {f}."],
                "de": ["Bestelle {k} {x} für {n}, {f}.", "Lege eine Bestellung für {n} an: {k} {x}, {f}."],
            }[l]
        ).format(
            k=k,
            x=thing,
            n=n,
            f=("express" if fast else "not express") if l == "en" else ("express" if fast else "nicht express"),
        )
        args = {"customer": n, "item": {"name": thing, "count": k}, "express": fast}
        long = f"I ordered {k} {thing} for {n}." if l == "en" else f"Ich habe {k} {thing} für {n} bestellt."
    else:
        place, c = d.choice(CITIES), d.choice(WORDS)
        record = {"name": n, "age": k, "city": place}
        if d.chance(0.4):
            record = {"name": n, "colour": d.choice(COLOURS)[0]}
        d.claim("record", c, *record.values())
        said = ", ".join(f"{a} {b}" for a, b in record.items())
        q = d.choice(
            {
                "en": ["Add to the table {c}: {s}.", "Store in {c}: {s}"],
                "de": ["Füge in die Tabelle {c} ein: {s}.", "Speichere in {c}: {s}"],
            }[l]
        ).format(c=c, s=said)
        args = {"table": c, "record": record}
        long = f"I added it to {c}." if l == "en" else f"Ich habe es in {c} eingefügt."
    return (
        q,
        args,
        d.choice(["ok", '{"id": %d}' % d.randint(1, 99), "stored"]),
        "Done." if l == "en" else "Erledigt.",
        long,
        "order",
    )


# Tools that nobody has seen: invented names and parameters, described by themselves.
_VERBS = ["get", "find", "set", "make", "load", "check", "run", "show", "list", "book", "play", "delete", "move"]
_PARAMS = [
    "name",
    "count",
    "size",
    "level",
    "target",
    "source",
    "mode",
    "flag",
    "id",
    "title",
    "limit",
    "colour",
    "user",
    "force",
    "topic",
    "page",
    "width",
]


def _argument(d, kind):
    """(type in the schema, value)."""
    return {
        "string": lambda: d.choice(
            (d.choice(WORDS), code(d), d.choice(NAMES), invented(d), f"{d.choice(WORDS)} {d.choice(WORDS)}")
        ),
        "integer": lambda: d.number(),
        "boolean": lambda: d.chance(0.5),
        "object": lambda: {d.choice(_PARAMS): d.choice((d.choice(WORDS), d.number())) for _ in range(d.randint(1, 3))},
    }[kind]()


def invented_tool(d, l):
    """(tool, use) of a tool that does not exist."""
    thing = d.choice(WORDS) if d.chance(0.6) else invented(d)
    name = f"{d.choice(_VERBS)}_{thing}"
    params = {
        p: d.choices(["string", "integer", "boolean", "object"], [45, 25, 20, 10])[0]
        for p in d.sample(_PARAMS, d.randint(1, 3))
    }
    t = tool(
        name,
        d.choice([f"{name.split('_')[0].capitalize()} a {thing}.", f"Tool for {thing}.", f"{name.replace('_', ' ')}"]),
        **{p: (k, d.choice([f"The {p}", p.capitalize(), f"{p} of the {thing}"])) for p, k in params.items()},
    )

    def use(d, t, l):
        args = {p: _argument(d, k) for p, k in params.items()}
        d.claim("invented", name, *map(str, args.values()))
        said = ", ".join(f"{p} {_said(v, l)}" for p, v in args.items())
        q = d.choice(
            {
                "en": ["Call {t} with {s}.", "Use {t}: {s}", "{t}: {s}", "{v} {x} with {s}."],
                "de": ["Rufe {t} auf mit {s}.", "Nutze {t}: {s}", "{t}: {s}", "{v} {x} mit {s}."],
            }[l]
        ).format(t=name, s=said, v=name.split("_")[0].capitalize(), x=thing)
        result = d.choice((code(d), str(d.number()), d.choice(WORDS)))
        return (
            q,
            args,
            result,
            result,
            (f"The result is {result}." if l == "en" else f"Das Ergebnis ist {result}."),
            thing,
        )

    return t, use


def _said(v, l):
    if isinstance(v, bool):
        return ("true" if v else "false") if l == "en" else ("wahr" if v else "falsch")
    if isinstance(v, dict):
        return "{" + ", ".join(f"{a}: {b}" for a, b in v.items()) + "}"
    return str(v)


USES = list(zip(ALL, [use_calculator, use_weather, use_read, use_light, use_timer, use_send, use_order]))


def toolbox(d, l, used):
    """Tools on offer: the used ones and up to three others, shuffled."""
    out = list(used)
    names = {_name(t) for t in out}
    for _ in range(d.randint(0, 3)):
        t = d.choice(d.choice(ALL)) if d.chance(0.7) else invented_tool(d, l)[0]
        if _name(t) not in names:
            out.append(t)
            names.add(_name(t))
    d.shuffle(out)
    return out


def pick(d, l):
    if d.chance(0.3):
        return invented_tool(d, l)
    forms, use = d.choices(USES, [4, 4, 4, 2, 2, 2, 2])[0]
    return d.choice(forms), use


def thought_for(name, args, l):
    """What to think before a call."""
    said = ", ".join(_said(v, l) for v in args.values())
    return f"I call {name} with {said}." if l == "en" else f"Ich rufe {name} auf mit {said}."


def tool_chat(d, ql, al, long, think):
    """A conversation with tools; it ends with a call or with the answer that uses the results."""
    kind = d.choices(["one", "two", "chain", "none"], [60, 20, 10, 10])[0]
    if kind == "none":  # tools are there, but the question needs none
        item = d.choices([fact, talk, unknown], [50, 30, 20])[0](d, ql, al)
        return Chat(
            [("user", item.question), ("assistant", item.thought, item.long if long else item.short, [])],
            think,
            tools=toolbox(d, ql, []),
            ability="tools",
            gold=item.gold,
        )
    t, use = pick(d, ql)
    q, args, result, short, full, _ = use(d, t, ql)
    call = (_name(t), args)
    if kind == "one":
        used = [t]
        turns = [("user", q), ("assistant", thought_for(*call, al), "", [call])]
        results, answers = [result], (short, full)
    else:
        t2, use2 = (t, use) if d.chance(0.4) else pick(d, ql)
        if t2 is not t and _name(t2) == _name(t):
            t2, use2 = t, use
        q2, args2, result2, short2, full2, _ = use2(d, t2, ql)
        call2 = (_name(t2), args2)
        used = [t] if t2 is t else [t, t2]
        join = d.choice(
            {"en": [" And: ", " Then: ", "\n", " Also: "], "de": [" Und: ", " Danach: ", "\n", " Außerdem: "]}[ql]
        )
        turns = [("user", q + join + q2)]
        if kind == "two":
            first = thought_for(*call, al) + " " + thought_for(*call2, al)
            turns.append(("assistant", first, "", [call, call2]))
            results = [result, result2]
        else:
            turns += [
                ("assistant", thought_for(*call, al), "", [call]),
                ("tool", result),
                ("assistant", thought_for(*call2, al), "", [call2]),
            ]
            results = [result2]
        answers = (f"{short.rstrip('.')}; {short2}", f"{full} {full2}")
    chat = Chat(turns, think, tools=toolbox(d, ql, used), ability="tools")
    # In the query language: the answer repeats what the question said.
    if d.held and d.chance(0.6):
        return chat  # the last turn is the call itself
    turns += [("tool", r) for r in results]
    turns.append(
        (
            "assistant",
            "I have the result." if al == "en" else "Ich habe das Ergebnis.",
            answers[1] if long else answers[0],
            [],
        )
    )
    return chat
