"""The page's Markdown, run in the browser: text to nodes."""

import random

# Makes a text into nodes, in pieces that end at `cuts`.
RENDER = """async ([text, cuts]) => {
    const { Markdown } = await import('/page/markdown.js');
    const root = document.createElement('div');
    const markdown = new Markdown(root);
    for (const cut of [...cuts, text.length]) markdown.update(text.slice(0, cut));
    return root.outerHTML;
}"""
# All elements below one, with their attributes.
NODES = """root => [...root.querySelectorAll('*')].map((node) =>
    [node.localName, Object.fromEntries([...node.attributes].map((a) => [a.name, a.value]))])"""
ALLOWED = {
    **dict.fromkeys("p h3 h4 h5 h6 ul em strong del br hr pre code blockquote table thead tbody tr span".split(), ()),
    "ol": ("start",),
    "li": ("class",),
    "th": ("class",),
    "td": ("class",),
    "div": ("class",),
    "button": ("class", "type"),
    "a": ("href", "title", "target", "rel"),
}
HOSTILE = r"""<script>hacked()</script>

<img src=x onerror=hacked()> <svg onload=hacked()> <iframe srcdoc="<script>parent.hacked()</script>"></iframe>
<style>body { display: none }</style><base href="http://evil.example/"><form action="http://evil.example/">
<meta http-equiv="refresh" content="0; url=http://evil.example/"> <a href="javascript:hacked()">a</a>

[a](javascript:hacked()) [b](JaVaScRiPt:hacked()) [c]( javascript:hacked()) [d](java&#115;cript:hacked())
[e](data:text/html,<script>hacked()</script>) [f](vbscript:hacked()) [g](//evil.example/) [h](/v1/models)
[i](file:///etc/passwd) <javascript:hacked()> [j](blob:x) [k](https:evil"onmouseover="hacked())
[l](https://example.org/" onmouseover="hacked()") [m](https://example.org/'><img/src=x>)

![pixel](http://evil.example/pixel.png) ![p](https://evil.example/p.png "t") <link rel=stylesheet href=//evil.example>

- [x] <b onclick=hacked()>item</b>
- ![y](http://evil.example/y.png)

| <th onclick=hacked()> | b |
|---|---|
| <td><img src=//evil.example/t.png> | `<script>hacked()</script>` |

```html"><script>hacked()</script>
<script>hacked()</script>
</code></pre><script>hacked()</script>
```

# <script>hacked()</script>
> <script>hacked()</script>

**<img src=x onerror=hacked()>** *[n](https://example.org/*"onclick=hacked()*)* __proto__ `${hacked()}`
"""

CASES = [
    ("Hello", "<p>Hello</p>"),
    ("a\nb", "<p>a<br>b</p>"),
    ("a\\\nb", "<p>a<br>b</p>"),
    ("a\n\nb", "<p>a</p><p>b</p>"),
    ("# One\n## Two ##\n#no", "<h3>One</h3><h4>Two</h4><p>#no</p>"),
    ("*a* _b_ **c** __d__ ***e*** ~~f~~", "<p><em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> "
     "<em><strong>e</strong></em> <del>f</del></p>"),
    ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    ("**a *b***", "<p><strong>a <em>b</em></strong></p>"),
    ("*a **b** c*", "<p><em>a <strong>b</strong> c</em></p>"),
    ("2 * 3 * 4 and a_b_c and 5 ** 2", "<p>2 * 3 * 4 and a_b_c and 5 ** 2</p>"),
    ("**open", "<p>**open</p>"),
    ("*a *b* and *c **d*", "<p>*a <em>b</em> and <em>c **d</em></p>"),
    (r"\*a\* \# \`b\`", "<p>*a* # `b`</p>"),
    ("`a*b*` and ``c`d``", "<p><code>a*b*</code> and <code>c`d</code></p>"),
    ("*a `*` b*", "<p><em>a <code>*</code> b</em></p>"),
    ("`open", "<p>`open</p>"),
    ("---\n***\n- - -", "<hr><hr><hr>"),
    ("- a\n- b\n  - c\n\nd", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>d</p>"),
    ("1. a\n2. b", "<ol><li>a</li><li>b</li></ol>"),
    ("3) a\n4) b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    ("1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
    ("* a\n* b\n1. c", "<ul><li>a</li><li>b</li></ul><ol><li>c</li></ol>"),
    ("- [ ] a\n- [x] b", '<ul><li class="task">☐ a</li><li class="task">☑ b</li></ul>'),
    ("It was\n1986. A year", "<p>It was<br>1986. A year</p>"),
    ("text\n- a", "<p>text</p><ul><li>a</li></ul>"),
    ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
    ("| a | b |\n|:-:|--:|\n| 1 | 2 |\n\nx", '<div class="table"><table><thead><tr><th class="middle">a</th>'
     '<th class="right">b</th></tr></thead><tbody><tr><td class="middle">1</td><td class="right">2</td></tr>'
     "</tbody></table></div><p>x</p>"),
    ("a | b\n\n| a\n| b", "<p>a | b</p><p>| a<br>| b</p>"),
    ("a<br>b <br/> c", "<p>a<br>b <br> c</p>"),
    ("a & b &amp; <b>", "<p>a &amp; b &amp;amp; &lt;b&gt;</p>"),
    ("![a](data:x)", "<p>![a](data:x)</p>"),
    ("[a] (b) [c](d)", "<p>[a] (b) [c](d)</p>"),
]
LINK = '<a href="{0}" title="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'
LINKS = [
    ("[a **b**](https://example.org/x_(y))", "https://example.org/x_(y)", "a <strong>b</strong>"),
    ('[a](https://example.org/ "t")', "https://example.org/", "a"),
    ("![a](https://example.org/p.png)", "https://example.org/p.png", "a"),
    ("[](https://example.org/)", "https://example.org/", "https://example.org/"),
    ("<https://example.org/>", "https://example.org/", "https://example.org/"),
    ("<mailto:a@example.org>", "mailto:a@example.org", "mailto:a@example.org"),
    ("https://example.org/a_b_c", "https://example.org/a_b_c", "https://example.org/a_b_c"),
]


def inner(html):
    assert html.startswith("<div>") and html.endswith("</div>")
    return html[5:-6]


def code(language, text):
    button = '<button type="button" class="copy">Copy</button>'
    return f'<div class="code"><div class="bar"><span>{language}</span>{button}</div><pre><code>{text}</code></pre></div>'


def check_nodes(nodes):
    for name, attributes in nodes:
        assert name in ALLOWED, name
        assert set(attributes) <= set(ALLOWED[name]), (name, attributes)
        href = attributes.get("href", "https://")
        assert href.startswith(("https://", "http://", "mailto:")), href
        assert attributes.get("class", "code") in ("code", "bar", "copy", "table", "task", "middle", "right")


def texts_become_the_nodes_of_their_markdown(page):
    for text, wanted in CASES:
        found = inner(page.evaluate(RENDER, [text, []]))
        assert found == wanted, f"{text!r}\n wanted {wanted}\n found  {found}"
    for text, href, shown in LINKS:
        found = inner(page.evaluate(RENDER, [text, []]))
        assert found == f"<p>{LINK.format(href, shown)}</p>", f"{text!r}: {found}"
    found = inner(page.evaluate(RENDER, ["See https://example.org/a, (https://example.org/b).", []]))
    assert found.count("<a ") == 2 and ">https://example.org/a</a>," in found and "/b</a>)." in found, found


def code_stays_as_it_was_written(page):
    for text, language, shown in [
        ("```rust\nfn a() {}\n```", "rust", "fn a() {}"),
        ("~~~\n```\n~~~", "", "```"),
        ("````md\n```\nx\n```\n````", "md", "```\nx\n```"),
        ("```\nopen *a*\n\n- b", "", "open *a*\n\n- b"),
        ("```py\nif a:\n    b()\n```", "py", "if a:\n    b()"),
    ]:
        found = inner(page.evaluate(RENDER, [text, []]))
        assert found == code(language, shown), f"{text!r}: {found}"
    nested = inner(page.evaluate(RENDER, ["1. a\n   ```\n   b\n     c\n   ```\n2. d", []]))
    block = code("", "b\n  c")
    assert nested == f"<ol><li>a{block}</li><li>d</li></ol>", nested


def a_text_that_grows_ends_as_the_whole_text(page):
    texts = [text for text, _ in CASES] + [HOSTILE]
    texts.append("\n\n".join(text for text, _ in CASES))
    pieces = ["*", "**", "_", "`", "```\n", "~~~", "\n", "\n\n", "- ", "  - ", "1. ", "> ", "# ", "|", "|---|\n", "[a](",
              "https://example.org", ")", "]", "[", "!", "<", ">", "\\", " ", "word", "é", "---", "\t", "<br>", "~~"]
    draw = random.Random(1)
    texts += ["".join(draw.choices(pieces, k=draw.randint(1, 40))) for _ in range(400)]
    for text in texts:
        whole = page.evaluate(RENDER, [text, []])
        # Positions as the browser counts them.
        length = len(text.encode("utf-16-le")) // 2
        letters = page.evaluate(RENDER, [text, list(range(length))])
        assert letters == whole, f"{text!r}\n letter by letter {letters}\n whole            {whole}"


def no_text_makes_other_nodes_than_those_of_markdown(page):
    draw = random.Random(2)
    letters = "<>\"'`*_~[]()!#-|\\/:=& \nabjs"
    words = ["javascript:", "https://", "data:", "<script>", "<img src=x ", "onerror=", "](", "```", "|---|"]
    texts = [HOSTILE]
    texts += ["".join(draw.choices([*letters, *words], k=draw.randint(1, 60))) for _ in range(500)]
    check = f"""async (text) => {{
        const {{ Markdown }} = await import('/page/markdown.js');
        const root = document.createElement('div');
        new Markdown(root).update(text);
        return ({NODES})(root);
    }}"""
    for text in texts:
        check_nodes(page.evaluate(check, text))


def no_text_freezes_the_page(page):
    many = 100_000
    for piece in ["*", "* ", "*a ", "**a", "_a_", "[", "[a](", "[a](b", "](", "`", "`a``", "``a`", "> ", ">", "- ", "1. ",
                  "\n", " ", " \n", "|", "|-", "|a|\n", "#", "<", "<br", "<h", "http://", "https://a ", "\\", "~~a", "*a_b",
                  "***a**", "- a\n", "  - a\n", "```\n", "a\n", "> > a\n", "![", "a|b\n-|-\n"]:
        text = piece * (many // len(piece))
        assert inner(page.evaluate(RENDER, [text, []])) != "" or text.strip() == ""
    nested = "".join(" " * depth + "- a\n" for depth in range(0, 2000, 2))
    page.evaluate(RENDER, [nested, []])


TESTS = [
    texts_become_the_nodes_of_their_markdown,
    code_stays_as_it_was_written,
    a_text_that_grows_ends_as_the_whole_text,
    no_text_makes_other_nodes_than_those_of_markdown,
    no_text_freezes_the_page,
]
