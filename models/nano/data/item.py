"""What a generator makes: questions with answers, and the conversations built from them."""

import hashlib
from dataclasses import dataclass, field

LANGUAGES = ("en", "de")


@dataclass
class Item:
    """One question and its answer."""

    question: str
    short: str  # the answer alone
    long: str  # the answer in a sentence
    thought: str  # what to think before it
    gold: str = ""  # what a right answer contains; the whole short answer if empty
    exact: bool = False  # only the whole short or long answer is right
    kind: str = ""  # what is asked, where an ability has several kinds


@dataclass
class Chat:
    """A conversation. `turns` are ("user", text), ("tool", text) or ("assistant", thought, text, calls).

    A call is (name, {argument: value}). The last turn is the assistant's.
    """

    turns: list
    think: bool
    system: str = ""
    tools: list = field(default_factory=list)
    ability: str = ""
    gold: str = ""
    exact: bool = False
    kind: str = ""


def held_out(*key):
    """Whether an item belongs to the held-out set: one of sixteen, by a hash of what it asks."""
    text = "\x1f".join(map(str, key))
    return hashlib.blake2b(text.encode(), digest_size=2).digest()[0] % 16 == 0


class Retry(Exception):
    """The drawn item belongs to the other set."""


class Draw:
    """Source of choices for one item; knows which set is being made."""

    def __init__(self, rng, held):
        self.rng, self.held = rng, held
        self.random, self.choice, self.randint = rng.random, rng.choice, rng.randint
        self.sample, self.shuffle, self.choices = rng.sample, rng.shuffle, rng.choices

    def chance(self, p):
        return self.rng.random() < p

    def claim(self, *key):
        """Declares what the item asks; items of the other set are drawn again."""
        if held_out(*key) != self.held:
            raise Retry

    def number(self, digits=3):
        """A number of one to `digits` digits, each length equally likely."""
        n = self.rng.randint(1, digits)
        return self.rng.randint(10 ** (n - 1) if n > 1 else 0, 10**n - 1)


def draw_until(make, rng, held, *args):
    """Calls `make(Draw, *args)` until it gives an item of the wanted set."""
    while True:
        try:
            return make(Draw(rng, held), *args)
        except Retry:
            continue
