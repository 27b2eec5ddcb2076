"""Numbers in words, English and German, and Roman numerals."""

_EN = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen""".split()
_EN_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
_DE = """null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn
achtzehn neunzehn""".split()
_DE_TENS = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english(n):
    """0 .. 9999, as in "two hundred and five"."""
    if n < 20:
        return _EN[n]
    if n < 100:
        return _EN_TENS[n // 10] + (f"-{_EN[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{_EN[n // 100]} hundred" + (f" and {english(n % 100)}" if n % 100 else "")
    rest = n % 1000
    return f"{english(n // 1000)} thousand" + (f" {'and ' if rest < 100 else ''}{english(rest)}" if rest else "")


def german(n):
    """0 .. 9999, as in "zweihundertfünf"."""
    if n < 20:
        return _DE[n]
    if n < 100:
        one = {0: "", 1: "einund"}.get(n % 10, f"{_DE[n % 10]}und")
        return one + _DE_TENS[n // 10]
    if n < 1000:
        return ("ein" if n < 200 else _DE[n // 100]) + "hundert" + (german(n % 100) if n % 100 else "")
    return ("ein" if n < 2000 else german(n // 1000)) + "tausend" + (german(n % 1000) if n % 1000 else "")


def words(n, lang):
    return german(n) if lang == "de" else english(n)


def roman(n):
    out = ""
    for value, sign in [
        (1000, "M"),
        (900, "CM"),
        (500, "D"),
        (400, "CD"),
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ]:
        while n >= value:
            out, n = out + sign, n - value
    return out
