"""Questions over a given table or passage, from a few lines up to thousands of tokens.

Every answer begins with what was looked up: a value is found far more surely behind its key than behind the question,
and that there is none is seen there too.
"""

from .item import Item, Retry
from .lexicon import CITIES, COLOURS, JOBS, NAMES, NOUNS, SURNAMES, WORDS, code, invented

UNKNOWN = {"en": "that is not in the text", "de": "das steht nicht im Text"}


def missing(question, al, wanted):
    """The question for something that the text does not have."""
    answer = f"{wanted}: {UNKNOWN[al]}."
    return Item(question, answer, answer, f"{wanted}: -", gold=UNKNOWN[al], kind="missing")


def _keys(d, n):
    """n distinct keys of one kind."""
    kind = d.randint(0, 5)
    keys = {}
    for _ in range(40 * n):  # dictionaries keep the order of first use
        if len(keys) == n:
            break
        if kind == 0:
            k = code(d)
        elif kind == 1:
            k = invented(d)
        elif kind == 2:
            k = f"{d.choice(NAMES)} {d.choice(SURNAMES)}"
        elif kind == 3:
            k = d.choice(WORDS) if n < 150 else f"{d.choice(WORDS)}_{d.choice(WORDS)}"
        elif kind == 4:
            k = str(d.randint(100, 9999))
        else:
            k = f"{d.choice(WORDS)}.{d.choice(WORDS)}"
        keys[k] = None
    return list(keys)


def _value(d, kind):
    if kind == 0:
        return str(d.number())
    if kind == 1:
        return d.choice(WORDS)
    if kind == 2:
        return d.choice(CITIES)
    if kind == 3:
        return code(d)
    if kind == 4:
        return d.choice(COLOURS)[0]
    return str(d.randint(1000, 99999))


def table(d, rows):
    """(text, {key: value}, {value: [keys]}) of a key-value table."""
    keys = _keys(d, rows)
    kind = d.randint(0, 5)
    pairs = {k: _value(d, kind) for k in keys}
    form = d.randint(0, 7)
    if form == 6:
        text = "| key | value |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in pairs.items())
    elif form == 7:
        text = "{" + ", ".join(f'"{k}": "{v}"' for k, v in pairs.items()) + "}"
    else:
        join = (": ", " = ", " -> ", ",", "\t", " is ")[form]
        text = "\n".join(f"{k}{join}{v}" for k, v in pairs.items())
    back = {}
    for k, v in pairs.items():
        back.setdefault(v, []).append(k)
    return text, pairs, back


INTRO = {
    "en": ["Here is a table:", "Use this table:", "Given:", "Read this list:", "Data:", ""],
    "de": ["Hier ist eine Tabelle:", "Nutze diese Tabelle:", "Gegeben:", "Lies diese Liste:", "Daten:", ""],
}
ASK_VALUE = {
    "en": [
        "What is the value of {k}?",
        "What is {k}?",
        "Look up {k}.",
        "Which value belongs to {k}?",
        "{k}?",
        "What does the table say for {k}?",
        "Give me the entry for {k}.",
        "Find {k}.",
    ],
    "de": [
        "Was ist der Wert von {k}?",
        "Was ist {k}?",
        "Schlage {k} nach.",
        "Welcher Wert gehört zu {k}?",
        "{k}?",
        "Was steht in der Tabelle bei {k}?",
        "Gib mir den Eintrag zu {k}.",
    ],
}
ASK_KEY = {
    "en": ["Which key has the value {v}?", "Whose value is {v}?", "Which entry says {v}?"],
    "de": ["Welcher Schlüssel hat den Wert {v}?", "Zu welchem Eintrag gehört {v}?", "Welcher Eintrag ist {v}?"],
}


def ask_table(d, ql, al, pairs, back):
    """One question over a table."""
    r = d.random()
    if r < 0.08:
        k = code(d) if d.chance(0.5) else invented(d)
        if k not in pairs:
            d.claim("missing", k)
            return missing(d.choice(ASK_VALUE[ql]).format(k=k), al, k)
    if r < (0.2 if d.held else 0.45):  # harder to learn than to ask for: the key stands before what is asked
        once = [v for v, ks in back.items() if len(ks) == 1]
        if once:
            v = d.choice(once)
            k = back[v][0]
            d.claim("key", k, v)
            long = f"{v} belongs to {k}." if al == "en" else f"{v} gehört zu {k}."
            return Item(d.choice(ASK_KEY[ql]).format(v=v), f"{v}: {k}", long, f"{v}: {k}.", gold=k, kind="key")
    k = d.choice(list(pairs))
    v = pairs[k]
    d.claim("value", k, v)
    return Item(d.choice(ASK_VALUE[ql]).format(k=k), f"{k}: {v}", f"{k}: {v}.", f"{k}: {v}.", gold=v, kind="value")


ASK_SEVERAL = {
    "en": ["Look up: {x}", "Give me the values of {x}.", "What are the values of {x}?"],
    "de": ["Schlage nach: {x}", "Gib mir die Werte von {x}.", "Was sind die Werte von {x}?"],
}
ASK_KEYS = {
    "en": ["Which keys have the values {x}?", "Find the keys of {x}.", "Whose values are {x}?"],
    "de": ["Welche Schlüssel haben die Werte {x}?", "Finde die Schlüssel von {x}.", "Zu welchen Einträgen gehören {x}?"],
}


def several(d, ql, al):
    """Many keys, or the keys of many values, out of one table at once."""
    text, pairs, back = table(d, d.randint(2, d.choice((4, 8, 16, 32, 50))))
    keys = d.chance(0.7)
    known = {v: ks[0] for v, ks in back.items() if len(ks) == 1} if keys else pairs
    if len(known) < 2:
        raise Retry
    asked = d.sample(list(known), d.randint(2, min(len(known), 6 if d.held else 50)))
    d.claim("several", keys, *asked[:2])
    question = d.choice((ASK_KEYS if keys else ASK_SEVERAL)[ql]).format(x=", ".join(asked))
    answer = "\n".join(f"{x}: {known[x]}" for x in asked)
    thought = f"{len(asked)} entries." if al == "en" else f"{len(asked)} Einträge."
    kind = "keys" if keys else "values"
    return Item(f"{text}\n\n{question}", answer, answer, thought, gold=answer, exact=True, kind=kind)


# Columns of a record table: (drawn value, English and German name).
COLUMNS = {
    "age": (lambda d: str(d.randint(1, 99)), "age", "Alter"),
    "city": (lambda d: d.choice(CITIES), "city", "Stadt"),
    "colour": (lambda d: d.choice(COLOURS)[0], "colour", "Farbe"),
    "code": (code, "code", "Code"),
    "price": (lambda d: str(d.randint(1, 999)), "price", "Preis"),
    "count": (lambda d: str(d.randint(0, 500)), "count", "Anzahl"),
    "item": (lambda d: d.choice(WORDS), "item", "Artikel"),
    "phone": (lambda d: str(d.randint(10000, 99999)), "phone", "Telefon"),
    "room": (lambda d: str(d.randint(1, 400)), "room", "Raum"),
    "status": (lambda d: d.choice(("open", "closed", "new", "done")), "status", "Status"),
}


def records(d, lang, rows):
    """(text, {key: {column: value}}, columns) of a table with several columns."""
    columns = d.sample(list(COLUMNS), d.randint(2, 4))
    table = {k: {c: COLUMNS[c][0](d) for c in columns} for k in _keys(d, rows)}
    head = [("name", "Name")[lang == "de"]] + [COLUMNS[c][1 + (lang == "de")] for c in columns]
    lines = [[k, *v.values()] for k, v in table.items()]
    form = d.randint(0, 3)
    if form == 0:
        text = "\n".join("| " + " | ".join(x) + " |" for x in [head, ["---"] * len(head), *lines])
    elif form == 1:
        text = "\n".join(",".join(x) for x in [head, *lines])
    elif form == 2:
        text = "\n".join("{" + ", ".join(f'"{h}": "{x}"' for h, x in zip(head, line)) + "}" for line in lines)
    else:
        text = "\n".join(f"{line[0]}: " + ", ".join(f"{h} {x}" for h, x in zip(head[1:], line[1:])) for line in lines)
    return text, table, columns


ASK_FIELD = {
    "en": [
        "What is the {c} of {k}?",
        "Which {c} does {k} have?",
        "{c} of {k}?",
        "Give me the {c} for {k}.",
        "Tell me {k}'s {c}.",
        "What {c} is listed for {k}?",
    ],
    "de": [
        "Was ist bei {k} eingetragen unter {c}?",
        "{c} von {k}?",
        "Welcher Eintrag steht bei {k} unter {c}?",
        "Gib mir {c} von {k}.",
        "{k}: {c}?",
    ],
}


def ask_records(d, ql, al, table, columns):
    """One question over a record table."""
    c = d.choice(columns)
    name, own = COLUMNS[c][1 + (ql == "de")], COLUMNS[c][1 + (al == "de")]
    if d.chance(0.08):
        k = code(d) if d.chance(0.5) else f"{d.choice(NAMES)} {d.choice(SURNAMES)}"
        if k not in table:
            d.claim("missing", k)
            return missing(d.choice(ASK_FIELD[ql]).format(k=k, c=name), al, k)
    k = d.choice(list(table))
    v = table[k][c]
    d.claim("field", k, c, v)
    long = f"{k} has the {own} {v}." if al == "en" else f"Bei {k} steht unter {own}: {v}."
    short = f"{k}, {own}: {v}"
    return Item(d.choice(ASK_FIELD[ql]).format(k=k, c=name), short, long, f"{short}.", gold=v, kind="field")


# Facts about people in a passage: sentence, question and sentence of the answer; {n} the person, {v} the value.
_CITY, _JOB, _PET, _COLOUR, _AGE, _HOBBY, _FOOD, _ROOM = range(8)
FIELDS = {
    "en": {
        _CITY: (
            ["{n} lives in {v}.", "{n} has a flat in {v}."],
            ["Where does {n} live?", "In which city does {n} live?"],
            "{n} lives in {v}.",
        ),
        _JOB: (
            ["{n} works as a {v}.", "{n} is a {v}."],
            ["What is {n}'s job?", "What does {n} work as?"],
            "{n} is a {v}.",
        ),
        _PET: (
            ["{n} keeps a {v} at home.", "{n} owns a {v}."],
            ["What does {n} own?", "What does {n} have at home?"],
            "{n} has a {v}.",
        ),
        _COLOUR: (
            ["{n} likes {v} best of all colours.", "{n}'s favourite colour is {v}."],
            ["What is {n}'s favourite colour?", "Which colour does {n} like best?"],
            "{n}'s favourite colour is {v}.",
        ),
        _AGE: (
            ["{n} is {v} years old.", "{n} has just turned {v}."],
            ["How old is {n}?", "What is {n}'s age?"],
            "{n} is {v} years old.",
        ),
        _HOBBY: (
            ["{n} collects {v}s.", "On Sundays {n} draws a {v}."],
            ["What does {n} collect or draw?", "What is {n}'s hobby about?"],
            "{n} likes the {v}.",
        ),
        _FOOD: (
            ["{n} eats a {v} every morning.", "{n} cannot live without {v}."],
            ["What does {n} like to eat?", "Which food does {n} love?"],
            "{n} loves {v}.",
        ),
        _ROOM: (
            ["{n} sits in room {v}.", "The office of {n} is room {v}."],
            ["In which room is {n}?", "What is the room of {n}?"],
            "{n} is in room {v}.",
        ),
    },
    "de": {
        _CITY: (
            ["{n} wohnt in {v}.", "{n} hat eine Wohnung in {v}."],
            ["Wo wohnt {n}?", "In welcher Stadt wohnt {n}?"],
            "{n} wohnt in {v}.",
        ),
        _JOB: (
            ["{n} arbeitet als {v}.", "{n} ist von Beruf {v}."],
            ["Was ist {n} von Beruf?", "Als was arbeitet {n}?"],
            "{n} ist {v}.",
        ),
        _PET: (
            ["{n} besitzt etwas Besonderes: {v}.", "Zu Hause hat {n} Folgendes: {v}."],
            ["Was besitzt {n}?", "Was hat {n} zu Hause?"],
            "{n} besitzt: {v}.",
        ),
        _COLOUR: (
            ["{n} mag von allen Farben {v} am liebsten.", "Die Lieblingsfarbe von {n} ist {v}."],
            ["Was ist die Lieblingsfarbe von {n}?", "Welche Farbe mag {n} am liebsten?"],
            "Die Lieblingsfarbe von {n} ist {v}.",
        ),
        _AGE: (
            ["{n} ist {v} Jahre alt.", "{n} ist gerade {v} geworden."],
            ["Wie alt ist {n}?", "Welches Alter hat {n}?"],
            "{n} ist {v} Jahre alt.",
        ),
        _HOBBY: (
            ["{n} sammelt Bilder mit diesem Motiv: {v}.", "Sonntags malt {n} immer dasselbe: {v}."],
            ["Was malt oder sammelt {n}?", "Worum geht es beim Hobby von {n}?"],
            "{n} mag dieses Motiv: {v}.",
        ),
        _FOOD: (
            ["{n} isst jeden Morgen dasselbe: {v}.", "{n} kann nicht leben ohne {v}."],
            ["Was isst {n} gern?", "Welches Essen liebt {n}?"],
            "{n} liebt {v}.",
        ),
        _ROOM: (
            ["{n} sitzt in Zimmer {v}.", "Das Büro von {n} ist Zimmer {v}."],
            ["In welchem Zimmer ist {n}?", "Was ist das Zimmer von {n}?"],
            "{n} ist in Zimmer {v}.",
        ),
    },
}
FILLER = {
    "en": [
        "The weather was mild that week.",
        "Nobody knew why.",
        "It had been a long day.",
        "The street was quiet.",
        "A train passed in the distance.",
        "This went on for years.",
        "Later they all met again.",
        "The coffee was cold by then.",
        "Some people in town still talk about it.",
        "There is not much more to say.",
    ],
    "de": [
        "Das Wetter war mild in jener Woche.",
        "Niemand wusste warum.",
        "Es war ein langer Tag gewesen.",
        "Die Straße war ruhig.",
        "In der Ferne fuhr ein Zug vorbei.",
        "So ging es jahrelang.",
        "Später trafen sich alle wieder.",
        "Der Kaffee war da schon kalt.",
        "Manche in der Stadt reden noch davon.",
        "Mehr gibt es dazu nicht zu sagen.",
    ],
}


def _field_value(d, f, lang):
    i = lang == "de"
    noun = lambda: d.choice(NOUNS)[i].split()[-1]
    return {
        _CITY: lambda: d.choice(CITIES),
        _JOB: lambda: d.choice(JOBS)[i],
        _PET: noun,
        _COLOUR: lambda: d.choice(COLOURS)[i],
        _AGE: lambda: str(d.randint(5, 99)),
        _HOBBY: noun,
        _FOOD: noun,
        _ROOM: lambda: str(d.randint(1, 499)),
    }[f]()


def passage(d, lang, people):
    """(text, [(person, field, value)]) of a passage about `people` persons."""
    names = {}
    while len(names) < people:
        names[d.choice(NAMES) if people < 20 else f"{d.choice(NAMES)} {d.choice(SURNAMES)}"] = None
    facts, sentences = [], []
    for n in names:
        for f in d.sample(range(8), d.randint(1, 4)):
            v = _field_value(d, f, lang)
            facts.append((n, f, v))
            sentences.append(d.choice(FIELDS[lang][f][0]).format(n=n, v=v))
            if d.chance(0.25):
                sentences.append(d.choice(FILLER[lang]))
    if d.chance(0.5):
        d.shuffle(sentences)
    out, line = [], []
    for s in sentences:
        line.append(s)
        if d.chance(0.12):
            out.append(" ".join(line))
            line = []
    out.append(" ".join(line))
    return "\n\n".join(x for x in out if x), facts


def ask_passage(d, lang, al, facts):
    """One question over a passage in `lang`."""
    if d.chance(0.1):
        n, f = d.choice(facts)[0], d.randint(0, 7)
        if not any(x[:2] == (n, f) for x in facts):
            d.claim("missing", n, f, lang)
            return missing(d.choice(FIELDS[lang][f][1]).format(n=n), al, n)
    n, f, v = d.choice(facts)
    d.claim("passage", lang, n, f, v)
    long = FIELDS[al][f][2].format(n=n, v=v)
    return Item(d.choice(FIELDS[lang][f][1]).format(n=n), f"{n}: {v}", long, f"{n}: {v}.", gold=v, kind="passage")


PASSAGE_INTRO = {
    "en": ["Read this text:", "Here is a story.", "Text:", ""],
    "de": ["Lies diesen Text:", "Hier ist eine Geschichte.", "Text:", ""],
}


def context(d, ql, al, size):
    """A table or passage of about `size` tokens: (text, function that makes the next question)."""
    r = d.random()
    if r < 0.22:
        text, rows, columns = records(d, ql, max(2, int(size / d.choice((20, 26, 32)))))
        ask = lambda e: ask_records(e, ql, al, rows, columns)
        intro = d.choice(INTRO[ql])
    elif r < 0.65:
        text, pairs, back = table(d, max(2, int(size / d.choice((8, 10, 12)))))
        ask = lambda e: ask_table(e, ql, al, pairs, back)
        intro = d.choice(INTRO[ql])
    else:
        text, facts = passage(d, ql, max(2, int(size / 32)))
        ask = lambda e: ask_passage(e, ql, al, facts)
        intro = d.choice(PASSAGE_INTRO[ql])
    return (f"{intro}\n{text}" if intro else text), ask
