"""Two-operand arithmetic up to three digits."""

from .item import Item, Retry
from .lexicon import NAMES
from .numerals import words

SIGNS = {"add": "+", "sub": "-", "mul": "×", "div": "÷"}
# How a sum can be asked for; {e} is "17 + 26", {a} and {b} the operands.
ASK = {
    "en": [
        "What is {e}?",
        "{e}",
        "{e} =",
        "{e} = ?",
        "What's {e}?",
        "Calculate {e}.",
        "Compute {e}",
        "How much is {e}?",
        "Please calculate {e}.",
        "Tell me {e}.",
        "Solve {e}",
        "Work out {e}.",
        "Can you compute {e}?",
        "what is {e}",
        "What does {e} equal?",
        "Give me the result of {e}.",
        "I need the value of {e}.",
    ],
    "de": [
        "Was ist {e}?",
        "Wie viel ist {e}?",
        "{e}",
        "{e} =",
        "Berechne {e}.",
        "Rechne {e} aus.",
        "Was ergibt {e}?",
        "Wieviel ist {e}?",
        "was ist {e}",
        "Kannst du {e} berechnen?",
        "Bitte rechne {e}.",
        "Löse {e}.",
        "Sag mir das Ergebnis von {e}.",
        "Ich brauche den Wert von {e}.",
    ],
}
WORDY = {
    "en": {
        "add": [
            "add {a} and {b}",
            "Add {b} to {a}.",
            "What is the sum of {a} and {b}?",
            "What is {a} plus {b}?",
            "How much is {a} plus {b}?",
            "{a} plus {b}",
        ],
        "sub": [
            "Subtract {b} from {a}.",
            "What is {a} minus {b}?",
            "What is the difference of {a} and {b}?",
            "Take {b} away from {a}.",
            "{a} minus {b}",
        ],
        "mul": [
            "Multiply {a} by {b}.",
            "What is {a} times {b}?",
            "What is the product of {a} and {b}?",
            "{a} times {b}",
        ],
        "div": ["Divide {a} by {b}.", "What is {a} divided by {b}?", "{a} divided by {b}"],
    },
    "de": {
        "add": [
            "Addiere {a} und {b}.",
            "Was ist die Summe von {a} und {b}?",
            "Was ist {a} plus {b}?",
            "Wie viel ist {a} plus {b}?",
            "{a} plus {b}",
        ],
        "sub": [
            "Ziehe {b} von {a} ab.",
            "Was ist {a} minus {b}?",
            "Was ist die Differenz von {a} und {b}?",
            "Subtrahiere {b} von {a}.",
            "{a} minus {b}",
        ],
        "mul": [
            "Multipliziere {a} mit {b}.",
            "Was ist {a} mal {b}?",
            "Was ist das Produkt von {a} und {b}?",
            "{a} mal {b}",
        ],
        "div": [
            "Teile {a} durch {b}.",
            "Was ist {a} geteilt durch {b}?",
            "Dividiere {a} durch {b}.",
            "{a} geteilt durch {b}",
        ],
    },
}
STORIES = {
    "en": {
        "add": [
            "{n} has {a} {o} and gets {b} more. How many {o} does {n} have now?",
            "There are {a} {o} in one box and {b} in another. How many {o} are there in total?",
        ],
        "sub": [
            "{n} has {a} {o} and gives away {b}. How many {o} are left?",
            "A shop has {a} {o} and sells {b}. How many {o} remain?",
        ],
        "mul": ["{n} buys {a} boxes with {b} {o} each. How many {o} is that?"],
        "div": ["{n} shares {a} {o} equally among {b} people. How many {o} does each get?"],
    },
    "de": {
        "add": [
            "{n} hat {a} {o} und bekommt {b} dazu. Wie viele {o} hat {n} jetzt?",
            "In einer Kiste sind {a} {o}, in einer anderen {b}. Wie viele {o} sind es zusammen?",
        ],
        "sub": [
            "{n} hat {a} {o} und gibt {b} weg. Wie viele {o} bleiben übrig?",
            "Ein Laden hat {a} {o} und verkauft {b}. Wie viele {o} bleiben?",
        ],
        "mul": ["{n} kauft {a} Kisten mit je {b} {o}. Wie viele {o} sind das?"],
        "div": ["{n} teilt {a} {o} gerecht auf {b} Leute auf. Wie viele {o} bekommt jeder?"],
    },
}
THINGS = [
    ("apples", "Äpfel"),
    ("books", "Bücher"),
    ("coins", "Münzen"),
    ("cards", "Karten"),
    ("stones", "Steine"),
    ("pencils", "Stifte"),
    ("eggs", "Eier"),
    ("balls", "Bälle"),
    ("stamps", "Briefmarken"),
    ("cups", "Tassen"),
]


def operands(d):
    """Draws an operation with operands and claims it for the set."""
    # Products and quotients are harder to learn than to ask for.
    op = d.choices(["add", "sub", "mul", "div"], [40, 30, 18, 12] if d.held else [27, 28, 27, 18])[0]
    if op in ("add", "sub"):
        a, b = d.number(), d.number()
        if op == "sub" and a < b and d.chance(0.7):
            a, b = b, a
        result = a + b if op == "add" else a - b
    elif op == "mul":
        if d.chance(0.35):
            a, b = d.randint(0, 12), d.randint(0, 12)
        else:
            a = d.randint(2, 99)
            b = d.randint(1, 999 // a)
            if d.chance(0.5):
                a, b = b, a
        result = a * b
    else:
        b = d.randint(1, 12)
        result = d.randint(0, 999 // b)
        a = b * result
    key = (op, *sorted((a, b))) if op in ("add", "mul") else (op, a, b)
    # Sums of single digits and the small table are the alphabet of arithmetic: they are all learnt.
    if max(a, b) > 12:
        d.claim(*key)
    elif d.held:
        raise Retry
    return op, a, b, result


def column_thought(op, a, b):
    """Digit by digit from the right, as on paper."""
    if op == "sub" and a < b:
        return f"{a} < {b}, so -({b} - {a}). " + column_thought(op, b, a)
    x, y = str(a)[::-1], str(b)[::-1]
    steps, carry = [], 0
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        extra = f" {'+' if op == 'add' else '-'} 1" if carry else ""
        total = p + q + carry if op == "add" else p - q - carry
        if op == "add":
            steps.append(f"{p} + {q}{extra} = {total}")
            carry = total // 10
        else:
            borrow = total < 0
            steps.append(f"{p + 10 if borrow else p} - {q}{extra} = {total + 10 if borrow else total}")
            carry = 1 if borrow else 0
    return ", ".join(steps) + "."


def product_thought(a, b):
    if a < b:
        a, b = b, a
    if b <= 10 and a <= 10:
        return f"{a} × {b} = {a * b}."
    parts = [int(c) * 10**i for i, c in enumerate(str(a)[::-1])][::-1]
    parts = [p for p in parts if p] or [0]
    if len(parts) == 1:
        return f"{a} × {b} = {a * b}."
    return (
        f"{a} × {b} = "
        + " + ".join(f"{p} × {b}" for p in parts)
        + " = "
        + " + ".join(str(p * b) for p in parts)
        + f" = {a * b}."
    )


def quotient_thought(a, b, result):
    """The dividend in parts, one for each digit of the quotient."""
    digits = [int(c) * 10**i for i, c in enumerate(str(result)[::-1])][::-1]
    digits = [q for q in digits if q]
    if len(digits) < 2 or b == 1:
        return f"{result} × {b} = {a}."
    return (
        f"{a} = "
        + " + ".join(str(q * b) for q in digits)
        + ", "
        + ", ".join(f"{q * b} ÷ {b} = {q}" for q in digits)
        + f", {' + '.join(map(str, digits))} = {result}."
    )


def thought(op, a, b, result):
    if op in ("add", "sub"):
        return column_thought(op, a, b)
    if op == "mul":
        return product_thought(a, b)
    return quotient_thought(a, b, result)


def arithmetic(d, ql, al):
    op, a, b, result = operands(d)
    style = d.random()
    if style < 0.6:
        sign = SIGNS[op]
        if op == "mul":
            sign = d.choice(["×", "*", "x", "·"])
        if op == "div":
            sign = d.choice(["÷", "/", ":"])
        if op == "sub" and d.chance(0.1):
            sign = "−"
        space = "" if d.chance(0.25) and sign not in "x" else " "
        question = d.choice(ASK[ql]).format(e=f"{a}{space}{sign}{space}{b}")
    elif style < 0.85 or b == 0 or a < b:
        x, y = (words(a, ql), words(b, ql)) if d.chance(0.3) else (a, b)
        question = d.choice(WORDY[ql][op]).format(a=x, b=y)
    else:
        thing = d.choice(THINGS)[ql == "de"]
        question = d.choice(STORIES[ql][op]).format(a=a, b=b, n=d.choice(NAMES), o=thing)
    text = str(result)
    long = f"{a} {SIGNS[op]} {b} = {result}."
    if op == "mul" and min(a, b) > 10:
        long = product_thought(a, b)
    return Item(question, text, long, thought(op, a, b, result), gold=text)
