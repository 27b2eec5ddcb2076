"""Units, dates, number words, Roman numerals."""

from .item import Item, Retry
from .numerals import roman, words

# (bigger, smaller, factor), each unit as (English singular, English plural, German singular, German plural, short).
_U = {
    "km": ("kilometre", "kilometres", "Kilometer", "Kilometer", "km"),
    "m": ("metre", "metres", "Meter", "Meter", "m"),
    "cm": ("centimetre", "centimetres", "Zentimeter", "Zentimeter", "cm"),
    "mm": ("millimetre", "millimetres", "Millimeter", "Millimeter", "mm"),
    "kg": ("kilogram", "kilograms", "Kilogramm", "Kilogramm", "kg"),
    "g": ("gram", "grams", "Gramm", "Gramm", "g"),
    "t": ("tonne", "tonnes", "Tonne", "Tonnen", "t"),
    "l": ("litre", "litres", "Liter", "Liter", "l"),
    "ml": ("millilitre", "millilitres", "Milliliter", "Milliliter", "ml"),
    "h": ("hour", "hours", "Stunde", "Stunden", "h"),
    "min": ("minute", "minutes", "Minute", "Minuten", "min"),
    "s": ("second", "seconds", "Sekunde", "Sekunden", "s"),
    "d": ("day", "days", "Tag", "Tage", "days"),
    "w": ("week", "weeks", "Woche", "Wochen", "weeks"),
    "y": ("year", "years", "Jahr", "Jahre", "years"),
    "mo": ("month", "months", "Monat", "Monate", "months"),
    "eur": ("euro", "euros", "Euro", "Euro", "€"),
    "ct": ("cent", "cents", "Cent", "Cent", "ct"),
}
PAIRS = [
    ("km", "m", 1000),
    ("m", "cm", 100),
    ("cm", "mm", 10),
    ("m", "mm", 1000),
    ("kg", "g", 1000),
    ("t", "kg", 1000),
    ("l", "ml", 1000),
    ("h", "min", 60),
    ("min", "s", 60),
    ("d", "h", 24),
    ("w", "d", 7),
    ("y", "mo", 12),
    ("eur", "ct", 100),
]
LIMIT = {60: 60, 24: 31, 7: 60, 12: 40}
ASK_UNIT = {
    "en": [
        "How many {t} are {n} {f}?",
        "Convert {n} {f} to {t}.",
        "What is {n} {f} in {t}?",
        "{n} {f} in {t}",
        "How many {t} are there in {n} {f}?",
        "Express {n} {f} in {t}.",
        "{n} {f} to {t}",
        "Change {n} {f} into {t}.",
    ],
    "de": [
        "Wie viele {t} sind {n} {f}?",
        "Rechne {n} {f} in {t} um.",
        "Was sind {n} {f} in {t}?",
        "{n} {f} in {t}",
        "Wie viele {t} hat man bei {n} {f}?",
        "Wandle {n} {f} in {t} um.",
        "Gib {n} {f} in {t} an.",
    ],
}
# Inches and miles are left out on purpose: their factors are not whole.


def name(unit, n, lang):
    forms = _U[unit]
    return forms[(0 if n == 1 else 1) + (2 if lang == "de" else 0)]


def unit(d, ql, al):
    big, small, factor = d.choice(PAIRS)
    n = d.randint(1, LIMIT.get(factor, 999))
    down = d.chance(0.6)
    src, dst, value, result = (big, small, n, n * factor) if down else (small, big, n * factor, n)
    d.claim("unit", src, dst, value)
    short_form = d.chance(0.25) and src not in ("d", "w", "y", "mo", "eur", "ct")
    if short_form:
        f, t = _U[src][4], _U[dst][4]
    else:
        f, t = name(src, value, ql), name(dst, 2, ql)
        if ql == "de" and t.endswith(("Tage", "Monate", "Jahre")) and d.chance(0.3):
            t += "n"
    q = d.choice(ASK_UNIT[ql]).format(n=value, f=f, t=t)
    to = name(dst, result, al)
    equals = "are" if al == "en" else "sind"
    long = f"{value} {name(src, value, al)} {equals if value != 1 else ('is' if al == 'en' else 'ist')} {result} {to}."
    per = f"1 {name(big, 1, al)} = {factor} {name(small, factor, al)}, "
    return Item(
        q, f"{result} {to}", long, per + f"{value} {'×' if down else '÷'} {factor} = {result}.", gold=str(result)
    )


MONTHS = [
    ("January", "Januar"),
    ("February", "Februar"),
    ("March", "März"),
    ("April", "April"),
    ("May", "Mai"),
    ("June", "Juni"),
    ("July", "Juli"),
    ("August", "August"),
    ("September", "September"),
    ("October", "Oktober"),
    ("November", "November"),
    ("December", "Dezember"),
]


def formats(y, m, day):
    en, de = MONTHS[m - 1]
    return {
        "iso": f"{y}-{m:02}-{day:02}",
        "us": f"{en} {day}, {y}",
        "uk": f"{day} {en} {y}",
        "dot": f"{day:02}.{m:02}.{y}",
        "de": f"{day}. {de} {y}",
        "slash": f"{m:02}/{day:02}/{y}",
    }


FORM_NAMES = {
    "en": {
        "iso": ["as YYYY-MM-DD", "in ISO format", "in the form 2001-01-31"],
        "us": ["in words", "with the month's name"],
        "dot": ["as DD.MM.YYYY", "in the form 31.01.2001"],
    },
    "de": {
        "iso": ["als JJJJ-MM-TT", "im ISO-Format", "in der Form 2001-01-31"],
        "de": ["in Worten", "mit Monatsnamen"],
        "dot": ["als TT.MM.JJJJ", "in der Form 31.01.2001"],
    },
}


def date(d, ql, al):
    y, m, day = d.randint(1900, 2030), d.randint(1, 12), d.randint(1, 28)
    d.claim("date", y, m, day)
    f = formats(y, m, day)
    dst = d.choice(list(FORM_NAMES[ql]))
    src = d.choice([k for k in f if k != dst and not (dst == "us" and k == "uk")])
    form = d.choice(FORM_NAMES[ql][dst])
    if ql == "en":
        q = d.choice(
            [
                "Write the date {a} {b}.",
                "Convert {a}: give the date {b}.",
                "Give {a} {b}.",
                "What is {a} {b}?",
                "Rewrite {a} {b}.",
            ]
        ).format(a=f[src], b=form)
    else:
        q = d.choice(
            ["Schreibe das Datum {a} {b}.", "Gib {a} {b} an.", "Was ist {a} {b}?", "Wandle {a} um: {b}."]
        ).format(a=f[src], b=form)
    year, month, dd = ("year", "month", "day") if al == "en" else ("Jahr", "Monat", "Tag")
    long = f"The date is {f[dst]}." if al == "en" else f"Das Datum ist {f[dst]}."
    return Item(q, f[dst], long, f"{year} {y}, {month} {m}, {dd} {day}.", gold=f[dst])


def number_words(d, ql, al):
    n = d.number(d.choice((2, 3, 3, 4)))
    if n > 20:
        d.claim("words", n)
    elif d.held:
        raise Retry
    w = words(n, ql)
    if d.chance(0.5):
        q = d.choice(
            {
                "en": [
                    "Write {n} in words.",
                    "How do you write {n} in words?",
                    "{n} in words",
                    "Spell out the number {n}.",
                    "What is {n} in words?",
                ],
                "de": [
                    "Schreibe {n} in Worten.",
                    "Wie schreibt man {n} in Worten?",
                    "{n} in Worten",
                    "Schreib die Zahl {n} aus.",
                    "Wie heißt die Zahl {n}?",
                ],
            }[ql]
        ).format(n=n)
        a = words(n, al)
        return Item(q, a, f"{n} is {a}." if al == "en" else f"{n} heißt {a}.", " ".join(str(n)) + ".", gold=a)
    q = d.choice(
        {
            "en": [
                "Write {w} in digits.",
                "Which number is {w}?",
                "{w} in digits",
                "{w} as a number",
                "Convert {w} to digits.",
            ],
            "de": ["Schreibe {w} in Ziffern.", "Welche Zahl ist {w}?", "{w} in Ziffern", "{w} als Zahl"],
        }[ql]
    ).format(w=w)
    return Item(q, str(n), f"{w} {'is' if al == 'en' else 'ist'} {n}.", f"{w}: {' '.join(str(n))}.", gold=str(n))


def romans(d, ql, al):
    n = d.randint(1, 399)
    d.claim("roman", n)
    r = roman(n)
    if d.chance(0.5):
        q = d.choice(
            {
                "en": ["Write {n} as a Roman numeral.", "What is {n} in Roman numerals?", "{n} in Roman numerals"],
                "de": ["Schreibe {n} als römische Zahl.", "Was ist {n} in römischen Zahlen?", "{n} römisch"],
            }[ql]
        ).format(n=n)
        a = r
    else:
        q = d.choice(
            {
                "en": ["Which number is {r}?", "What is the Roman numeral {r}?", "{r} as a number"],
                "de": ["Welche Zahl ist {r}?", "Was ist die römische Zahl {r}?", "{r} als Zahl"],
            }[ql]
        ).format(r=r)
        a = str(n)
    parts = [p for p in (n // 100 * 100, n // 10 % 10 * 10, n % 10) if p]
    return Item(q, a, f"{n} = {r}.", ", ".join(f"{p} = {roman(p)}" for p in parts) + ".", gold=a)


def conversion(d, ql, al):
    return d.choices([unit, date, number_words, romans], [40, 25, 28, 7])[0](d, ql, al)
