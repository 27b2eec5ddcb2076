"""Spelling, counting, sorting, copying: what can be done with the words of the question."""

import re

from .facts import DEFINITIONS, MORE
from .item import Item
from .lexicon import CITIES, NAMES, SURNAMES, WORDS, WORDS_DE, code, invented

# All words that the facts are made of, and names: letters of many pieces of text have to be known for spelling.
OTHERS = sorted({*re.findall(r"[A-Za-zÄÖÜäöüß]{2,}", DEFINITIONS + MORE), *NAMES, *SURNAMES, *CITIES})


def a_word(d, ql):
    kind = d.random()
    if kind < 0.35:
        return invented(d)
    if kind < 0.5:
        w = d.choice(OTHERS)
        return w.lower() if d.chance(0.3) else w
    w = d.choice(WORDS if ql == "en" else WORDS_DE)
    return w.capitalize() if ql == "en" and d.chance(0.15) else w


def spell(d, ql, al):
    w = a_word(d, ql)
    kind = d.choices(["spell", "reverse", "ends", "upper"], [55, 15, 20, 10])[0]
    d.claim("spell", kind, w.lower())
    letters = "-".join(w)
    quote = d.choice(["'{w}'", '"{w}"', "{w}", "the word {w}" if ql == "en" else "das Wort {w}"]).format(w=w)
    if kind == "spell":
        q = d.choice(
            {
                "en": [
                    "Spell {w}.",
                    "How do you spell {w}?",
                    "Spell out {w}.",
                    "Write the letters of {w}.",
                    "spell {w}",
                ],
                "de": ["Buchstabiere {w}.", "Wie buchstabiert man {w}?", "Schreibe die Buchstaben von {w}."],
            }[ql]
        )
        return Item(
            q.format(w=quote).replace("von das Wort", "vom Wort"),
            letters,
            f"{w}: {letters}." if al == "en" else f"{w}: {letters}.",
            f"{w}.",
            gold=letters,
        )
    if kind == "reverse":
        q = d.choice(
            {
                "en": ["Write {w} backwards.", "Reverse {w}.", "What is {w} spelled backwards?"],
                "de": ["Schreibe {w} rückwärts.", "Drehe {w} um.", "Wie lautet {w} rückwärts?"],
            }[ql]
        )
        return Item(q.format(w=quote), w[::-1], f"{w[::-1]}.", f"{letters}, {'-'.join(w[::-1])}.", gold=w[::-1])
    if kind == "upper":
        q = d.choice(
            {
                "en": ["Write {w} in capital letters.", "Put {w} in upper case."],
                "de": ["Schreibe {w} in Großbuchstaben.", "Setze {w} in Großbuchstaben."],
            }[ql]
        )
        return Item(q.format(w=quote), w.upper(), f"{w.upper()}.", f"{letters}.", gold=w.upper())
    first = d.chance(0.5)
    letter = w[0] if first else w[-1]
    if ql == "en":
        q = d.choice(["What is the {p} letter of {w}?", "Which letter does {w} {v} with?"]).format(
            p="first" if first else "last", v="begin" if first else "end", w=quote
        )
    else:
        q = (
            d.choice(["Was ist der {p} Buchstabe von {w}?", "Mit welchem Buchstaben {v} {w}?"])
            .format(p="erste" if first else "letzte", v="beginnt" if first else "endet", w=quote)
            .replace("von das Wort", "vom Wort")
        )
    long = (
        f"The {'first' if first else 'last'} letter is {letter}."
        if al == "en"
        else f"Der {'erste' if first else 'letzte'} Buchstabe ist {letter}."
    )
    return Item(q, letter, long, f"{letters}.", gold=letter)


def count(d, ql, al):
    kind = d.choices(["letter", "letters", "words", "items", "times", "numbers"], [25, 20, 15, 15, 10, 15])[0]
    en = ql == "en"
    if kind == "letter":
        w = a_word(d, ql).lower()
        c = d.choice(w) if d.chance(0.85) else d.choice("abcdefghijklmnoprstuvw")
        d.claim("count", w, c)
        n = w.count(c)
        q = d.choice(
            [
                "How many {c}'s are in {w}?",
                "How often does the letter {c} occur in '{w}'?",
                "Count the letter {c} in {w}.",
                "How many times is {c} in the word {w}?",
                "How many {c} in {w}?",
            ]
            if en
            else [
                "Wie viele {c} sind in {w}?",
                "Wie oft kommt der Buchstabe {c} in '{w}' vor?",
                "Zähle den Buchstaben {c} in {w}.",
                "Wie oft steht {c} im Wort {w}?",
            ]
        ).format(c=c, w=w)
        steps, seen = [], 0
        for x in w:
            seen += x == c
            steps.append(f"{x}{seen}" if x == c else x)
        return Item(q, str(n), f"'{w}': {n}× {c}.", "-".join(steps) + ".", gold=str(n))
    if kind == "letters":
        w = a_word(d, ql)
        d.claim("length", w)
        q = d.choice(
            ["How many letters does {w} have?", "How long is the word '{w}'?", "Count the letters of {w}."]
            if en
            else ["Wie viele Buchstaben hat {w}?", "Wie lang ist das Wort '{w}'?", "Zähle die Buchstaben von {w}."]
        ).format(w=w)
        long = f"{w} has {len(w)} letters." if al == "en" else f"{w} hat {len(w)} Buchstaben."
        return Item(q, str(len(w)), long, " ".join(f"{c}{i + 1}" for i, c in enumerate(w)) + ".", gold=str(len(w)))
    if kind == "numbers":
        a = d.randint(0, 60)
        b = a + d.randint(2, 14)
        down = d.chance(0.25)
        d.claim("from", a, b, down)
        if down:
            a, b = b, a
        q = d.choice(
            ["Count from {a} to {b}.", "Please count from {a} to {b}.", "List the numbers from {a} to {b}."]
            if en
            else ["Zähle von {a} bis {b}.", "Zähl bitte von {a} bis {b}.", "Nenne die Zahlen von {a} bis {b}."]
        ).format(a=a, b=b)
        out = ", ".join(map(str, range(a, b + (1 if b > a else -1), 1 if b > a else -1)))
        return Item(q, out, out + ".", f"{a} → {b}.", gold=out)
    pool = WORDS if en else WORDS_DE
    things = [d.choice(pool) if d.chance(0.8) else invented(d) for _ in range(d.randint(2, 10))]
    if kind == "times":
        w = d.choice(things)
        for _ in range(d.randint(0, 3)):
            things.insert(d.randint(0, len(things)), w)
        d.claim("times", w, *things)
        n = things.count(w)
        text = d.choice([", ", " ", "; "]).join(things)
        q = (
            f"How often does '{w}' occur in this list: {text}?"
            if en
            else f"Wie oft kommt '{w}' in dieser Liste vor: {text}?"
        )
        return Item(
            q,
            str(n),
            (f"'{w}' occurs {n} times." if n != 1 else f"'{w}' occurs once.")
            if al == "en"
            else f"'{w}' kommt {n}-mal vor.",
            " ".join(str(things[: i + 1].count(w)) if x == w else "-" for i, x in enumerate(things)) + ".",
            gold="" if n == 1 else str(n),
        )
    d.claim(kind, *things)
    n = len(things)
    steps = " ".join(f"{x} {i + 1}" for i, x in enumerate(things)) + "."
    if kind == "words":
        text = " ".join(things)
        q = d.choice(
            ["How many words are in '{t}'?", "Count the words: {t}", "How many words does this have: {t}"]
            if en
            else ["Wie viele Wörter sind in '{t}'?", "Zähle die Wörter: {t}", "Wie viele Wörter hat das: {t}"]
        ).format(t=text)
        return Item(q, str(n), f"There are {n} words." if al == "en" else f"Es sind {n} Wörter.", steps, gold=str(n))
    text = d.choice([", ", "; ", "\n- "]).join(things)
    q = d.choice(
        ["How many items are in this list: {t}", "Count the items: {t}", "How many things are these: {t}?"]
        if en
        else ["Wie viele Einträge hat diese Liste: {t}", "Zähle die Einträge: {t}", "Wie viele Dinge sind das: {t}?"]
    ).format(t=text)
    return Item(q, str(n), f"There are {n} items." if al == "en" else f"Es sind {n} Einträge.", steps, gold=str(n))


def sort(d, ql, al):
    en = ql == "en"
    numbers = d.chance(0.6)
    n = d.randint(2, 8)
    if numbers:
        things = d.sample(range(d.choice((20, 100, 1000))), n)
    else:
        things = d.sample(WORDS if en else [w.lower() for w in WORDS_DE if w.isascii()], min(n, 6))
        if d.chance(0.2):
            things = d.sample(NAMES, min(n, 6))
    d.claim("sort", *things)
    text = ", ".join(map(str, things))
    up = sorted(things)
    kind = d.choices(["up", "down", "max", "min", "ends"], [50, 20, 12, 12, 6])[0]
    if kind in ("up", "ends"):
        how = (
            (
                [
                    "Sort {t}.",
                    "Sort these in ascending order: {t}",
                    "Put in order: {t}",
                    "Sort from smallest to largest: {t}",
                    "sort {t}",
                ]
                if numbers
                else ["Sort {t}.", "Sort alphabetically: {t}", "Put these words in alphabetical order: {t}", "sort {t}"]
            )
            if en
            else (
                ["Sortiere {t}.", "Sortiere aufsteigend: {t}", "Ordne der Größe nach: {t}"]
                if numbers
                else ["Sortiere {t}.", "Sortiere alphabetisch: {t}", "Ordne nach dem Alphabet: {t}"]
            )
        )
        out = up
    elif kind == "down":
        how = (
            [
                "Sort in descending order: {t}",
                "Sort from largest to smallest: {t}" if numbers else "Sort in reverse order: {t}",
            ]
            if en
            else ["Sortiere absteigend: {t}", "Ordne rückwärts: {t}"]
        )
        out = up[::-1]
    else:
        big = kind == "max"
        if numbers:
            how = (
                ["Which is the {p} of {t}?", "What is the {p} number: {t}?", "Find the {p}: {t}"]
                if en
                else ["Welche Zahl ist die {p}: {t}?", "Was ist die {p} Zahl von {t}?"]
            )
            p = ("largest" if big else "smallest") if en else ("größte" if big else "kleinste")
        else:
            how = ["Which word comes {p} in the alphabet: {t}?"] if en else ["Welches Wort kommt im Alphabet {p}: {t}?"]
            p = ("last" if big else "first") if en else ("zuletzt" if big else "zuerst")
        out = [up[-1] if big else up[0]]
        return Item(
            d.choice(how).format(t=text, p=p),
            str(out[0]),
            f"{out[0]}.",
            ", ".join(map(str, up)) + ".",
            gold=str(out[0]),
        )
    out = ", ".join(map(str, out))
    return Item(d.choice(how).format(t=text), out, out + ".", f"{up[0]} … {up[-1]}.", gold=out)


def neighbours(d, ql, al):
    """What stands before or behind entries of a list; the first step towards the key of a value."""
    pool = d.choice((WORDS if ql == "en" else WORDS_DE, NAMES, CITIES, [str(n) for n in range(100)]))
    things = d.sample(pool, d.randint(2, 16))
    before = d.chance(0.75)
    pairs = list(zip(things, things[1:]))
    some = d.sample(pairs, d.randint(1, min(len(pairs), 8)))
    known = {y: x for x, y in some} if before else dict(some)
    d.claim("neighbour", before, *list(known.items())[0])
    text = d.choice([", ", " ", "; ", "\n", "\n- "]).join(things)
    where = {"en": ("after", "before"), "de": ("nach", "vor")}
    q = d.choice(
        ["What comes {w} {x} in this list: {t}", "Which entry stands {w} {x}: {t}", "{t}\n\nWhat is {w} {x}?"]
        if ql == "en"
        else [
            "Was kommt {w} {x} in dieser Liste: {t}",
            "Welcher Eintrag steht {w} {x}: {t}",
            "{t}\n\nWas steht {w} {x}?",
        ]
    ).format(w=where[ql][before], x=", ".join(known), t=text)
    own = where[al][before]
    answer = "\n".join(f"{own.capitalize()} {x}: {y}" for x, y in known.items())
    thought = f"{own.capitalize()} {', '.join(known)}."
    kind = "before" if before else "after"
    return Item(q, answer, answer, thought, gold=answer, exact=True, kind=kind)


def any_text(d, longest):
    """Meaningless text of up to `longest` pieces: words, numbers, codes, signs."""
    kind = d.randint(0, 3)
    n = d.randint(1, longest)
    if kind == 0:
        return " ".join(d.choice(WORDS) for _ in range(n))
    if kind == 1:
        return " ".join(
            d.choice((d.choice(WORDS), invented(d), code(d), str(d.number()), d.choice(NAMES))) for _ in range(n)
        )
    if kind == 2:
        return "".join(
            d.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:") for _ in range(min(n, 24))
        )
    return d.choice([", ", "; ", "\n", " | "]).join(f"{d.choice(WORDS)} {d.number()}" for _ in range(n))


def copy(d, ql, al, longest=40):
    text = any_text(d, longest)
    d.claim("copy", text)
    q = d.choice(
        {
            "en": [
                "Repeat: {t}",
                "Repeat this exactly: {t}",
                "Copy this text:\n{t}",
                "Say '{t}'",
                "Echo: {t}",
                "Write this again:\n\n{t}",
                "Please repeat after me: {t}",
            ],
            "de": [
                "Wiederhole: {t}",
                "Wiederhole das genau: {t}",
                "Schreibe das ab:\n{t}",
                "Sag '{t}'",
                "Gib diesen Text wieder:\n\n{t}",
            ],
        }[ql]
    )
    return Item(q.format(t=text), text, text, "Repeat it." if al == "en" else "Wiederholen.", exact=True)
