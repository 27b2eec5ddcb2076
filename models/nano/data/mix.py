"""The mixture: which conversations are drawn, how often, and how they are built from items."""

from . import arithmetic, conversion, facts, lookup, structured, talk, tools, wordplay
from .item import Chat, Draw, Retry, draw_until
from .lexicon import NAMES

ITEMS = {
    "arithmetic": arithmetic.arithmetic,
    "conversion": conversion.conversion,
    "spelling": wordplay.spell,
    "counting": wordplay.count,
    "sorting": wordplay.sort,
    "copy": wordplay.copy,
    "neighbours": wordplay.neighbours,
    "several": lookup.several,
    "facts": facts.fact,
    "talk": talk.talk,
    "unknown": talk.unknown,
    "json": structured.structured,
}
WEIGHTS = {
    "arithmetic": 30,
    "conversion": 11,
    "spelling": 12,
    "counting": 10,
    "sorting": 10,
    "copy": 5,
    "neighbours": 10,
    "several": 24,
    "facts": 14,
    "talk": 9,
    "unknown": 4,
    "json": 9,
    "lookup": 16,
    "tools": 13,
    "memory": 2,
}
_NAMES, _SHARES = list(WEIGHTS), list(WEIGHTS.values())

SYSTEM = {
    "language": {
        "en": [
            "Answer in English.",
            "Reply in English.",
            "Always answer in English.",
            "Speak English.",
            "Antworte auf Englisch.",
            "You speak only English.",
        ],
        "de": [
            "Answer in German.",
            "Reply in German.",
            "Always answer in German.",
            "Speak German.",
            "Antworte auf Deutsch.",
            "Antworte immer auf Deutsch.",
            "You speak only German.",
        ],
    },
    "length": {
        False: [
            "Be brief.",
            "Answer briefly.",
            "Keep it short.",
            "Short answers only.",
            "Antworte kurz.",
            "Fasse dich kurz.",
        ],
        True: [
            "Answer in full sentences.",
            "Give long answers.",
            "Be detailed.",
            "Explain your answer.",
            "Antworte in ganzen Sätzen.",
            "Antworte ausführlich.",
        ],
    },
    "plain": [
        "You are a helpful assistant.",
        "You are lily-nano.",
        "You are a friendly assistant.",
        "Du bist ein hilfreicher Assistent.",
        "You are a helpful AI.",
    ],
}


def manners(d):
    """(question language, answer language, long answers, system text)."""
    ql = "de" if d.chance(0.33) else "en"
    al, long, parts = ql, False, []
    if d.chance(0.12):
        parts.append(d.choice(SYSTEM["plain"]))
    if d.chance(0.2):
        al = d.choice(("en", "de"))
        parts.append(d.choice(SYSTEM["language"][al]))
    if d.chance(0.25):
        long = d.chance(0.6)
        parts.append(d.choice(SYSTEM["length"][long]))
    return ql, al, long, " ".join(parts)


POLITE = {
    "en": (
        [
            "Please tell me: ",
            "Hi! ",
            "Hello, ",
            "Can you tell me: ",
            "I have a question: ",
            "Quick question: ",
            "Hey, ",
            "I want to know: ",
            "Tell me, ",
        ],
        [" Thanks!", " Please.", " please", " Thank you.", " Can you help?"],
    ),
    "de": (
        [
            "Bitte sag mir: ",
            "Hi! ",
            "Hallo, ",
            "Kannst du mir sagen: ",
            "Ich habe eine Frage: ",
            "Kurze Frage: ",
            "Ich möchte wissen: ",
            "Sag mal, ",
        ],
        [" Danke!", " Bitte.", " bitte", " Danke schön.", " Kannst du helfen?"],
    ),
}


AMERICAN = [("metre", "meter"), ("litre", "liter"), ("colour", "color"), ("favourite", "favorite"), ("grey", "gray")]


def worded(d, lang, item):
    """The question as people type it: with a word before or behind it, or without capitals and marks."""
    q = item.question
    if item.exact or "\n" in q:
        return item
    if lang == "en" and d.chance(0.3):
        for british, american in AMERICAN:
            q = q.replace(british, american)
        item.question = q
    if not d.chance(0.22):
        return item
    before, behind = POLITE[lang]
    kind = d.randint(0, 3)
    if kind == 0:
        q = d.choice(before) + q
    elif kind == 1:
        q += d.choice(behind)
    elif kind == 2:
        q = q[0].lower() + q[1:]
    else:
        q = q.rstrip("?.!")
    item.question = q
    return item


def turn(item, long):
    return [("user", item.question), ("assistant", item.thought, item.long if long else item.short, [])]


def some(ask, d):
    """A question of the wanted set about a given context; a small context may hold none."""
    for _ in range(20):
        try:
            return ask(Draw(d.rng, d.held))
        except Retry:
            continue
    raise Retry


def lookup_chat(d, size, questions):
    """A context of about `size` tokens with up to `questions` different questions, the first in the same turn."""
    ql, al, long, system = manners(d)
    text, ask = lookup.context(d, ql, al, size)
    asked = {}
    for _ in range(questions):
        item = some(ask, d)
        asked.setdefault(item.thought, item)  # an answer that stands further up needs no look-up
    asked = list(asked.values())
    turns = []
    inside = d.chance(0.2)
    if inside:
        system = f"{system}\n\n{text}".strip()
    for i, item in enumerate(asked):
        user, answer = turn(item, long)
        if i == 0 and not inside:
            first = d.chance(0.25)
            user = ("user", f"{item.question}\n\n{text}" if first else f"{text}\n\n{item.question}")
        turns += [user, answer]
    return Chat(turns, d.chance(0.4), system, ability="lookup", gold=asked[-1].gold, kind=asked[-1].kind)


def memory_chat(d):
    """The user says something about themselves and asks for it later."""
    ql, al, _, system = manners(d)
    name, other = d.choice(NAMES), d.sample(list(ITEMS), 1)[0]
    d.claim("memory", name, ql, other)
    en, hi = ql == "en", al == "en"
    say = d.choice(
        ["My name is {n}.", "I am {n}.", "Hi, I'm {n}.", "Call me {n}."]
        if en
        else ["Ich heiße {n}.", "Ich bin {n}.", "Hallo, mein Name ist {n}.", "Nenn mich {n}."]
    )
    turns = [("user", say.format(n=name)), ("assistant", "", f"Hello {name}!" if hi else f"Hallo {name}!", [])]
    if d.chance(0.6):
        turns += turn(draw_until(ITEMS[other], d.rng, d.held, ql, al), False)
    ask = d.choice(
        ["What is my name?", "Who am I?", "Do you remember my name?"]
        if en
        else ["Wie heiße ich?", "Wer bin ich?", "Weißt du noch, wie ich heiße?"]
    )
    a = f"Your name is {name}." if hi else f"Du heißt {name}."
    turns += [("user", ask), ("assistant", f"{name}.", a, [])]
    if d.chance(0.3):
        del turns[2:]
        turns[1] = ("assistant", "A greeting." if hi else "Eine Begrüßung.", turns[1][2], [])
        a = turns[1][2]
    return Chat(turns, d.chance(0.4), system, ability="memory", gold=a)


def short_chat(d, ability=None, single=False):
    """A conversation of the short kind, one to four questions."""
    ability = ability or d.choices(_NAMES, _SHARES)[0]
    if ability == "lookup":
        size = d.choice((40, 80, 150, 300, 600, 1000) if d.held else (40, 80, 150, 300, 600, 1000, 1500))
        return lookup_chat(d, size, 1 if single else d.randint(1, 6 + size // 25))
    if ability == "memory":
        return memory_chat(d)
    ql, al, long, system = manners(d)
    think = d.chance(0.4)
    if ability == "tools":
        chat = tools.tool_chat(d, ql, ql, long, think)
        chat.system = system if ql == al else ""
        return chat
    item = worded(d, ql, ITEMS[ability](d, ql, al))
    turns = []
    if not single and d.chance(0.3):
        for _ in range(d.randint(1, 3)):
            name = d.choices(_NAMES, _SHARES)[0]
            if name in ITEMS:
                turns += turn(draw_until(ITEMS[name], d.rng, d.held, ql, al), long)
    return Chat(turns + turn(item, long), think, system, ability=ability, gold=item.gold, exact=item.exact, kind=item.kind)


def long_chat(d, longest):
    """Look-ups in a long context. Contexts have about 0.7 times the wanted size, and some are longer than `longest`."""
    return lookup_chat(d, int((0.25 + d.random()) * longest), d.randint(16, 80))


def draw_short(rng, held=False, ability=None, single=False):
    while True:
        try:
            return short_chat(Draw(rng, held), ability, single)
        except Retry:
            continue


def draw_long(rng, longest, held=False):
    return draw_until(long_chat, rng, held, longest)
