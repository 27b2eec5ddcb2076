"""The chat page in headless Chromium: `check.py PROGRAM [FOLDER FOR SCREENSHOTS]`.

What follows an action is waited for with `expect`: the page may draw it in a later task.
"""

import json
import os
import re
import sys
import urllib.error
import urllib.request

from playwright.sync_api import expect, sync_playwright

import markdown
from served import GO_ON, Server, Tab, browser

PROGRAM = sys.argv[1]
SHOTS = sys.argv[2] if len(sys.argv) > 2 else None
CHAT = "**/v1/chat/completions"

SAMPLE = [
    "A **list** with `code` and a [link](https://example.org/):\n\n",
    "1. First, with *emphasis*\n2. Second\n   - nested\n   - twice\n\n",
    "```rust\nfn main() {\n    println!(\"Hello\");\n}\n```\n\n",
    "| device | GB/s |\n|---|---:|\n| CPU | 76 |\n| GPU | 4800 |\n\n> A quotation.\n\nThe end.",
]


def bodies(tab):
    """The requests for answers from now on, as the server gets them."""
    found = []
    tab.page.on(
        "request",
        lambda r: r.url.endswith("/completions") and found.append(json.loads(r.post_data)),
    )
    return found


def an_answer_streams_with_its_thought_folded(chromium):
    script = [["Let me ", "think.", "\n</think>\n\n", *SAMPLE], ["</think>\n\n", "Second."]]
    with Server(PROGRAM, "--ctx", "1024", script=script) as server, Tab(chromium, server.base) as tab:
        tab.ready()
        asked = bodies(tab)
        expect(tab.page.locator("#note")).to_be_hidden()
        assert "tokens" not in tab.page.inner_text("header")
        tab.ask("What is there?")
        answer = tab.answer()
        thought = answer.locator("details.thought")
        assert thought.get_attribute("open") is None
        assert re.fullmatch(r"Thought( for [0-9.]+ s)?", thought.inner_text().strip())
        assert "0.0 s" not in thought.inner_text()
        assert not thought.locator(".markdown").is_visible()
        thought.locator("summary").click()
        expect(thought.locator(".markdown")).to_have_text("Let me think.")
        text = answer.locator("> .markdown")
        assert text.locator("ol > li").count() == 2 and text.locator("ol li ul li").count() == 2
        assert text.locator("pre code").inner_text() == 'fn main() {\n    println!("Hello");\n}'
        assert text.locator("tbody td.right").all_inner_texts() == ["76", "4800"]
        assert text.locator("a").get_attribute("rel") == "noopener noreferrer nofollow"
        assert "tokens ·" in answer.locator(".note").inner_text()
        assert "of 1,024 tokens" in tab.page.inner_text("#context")
        tab.ask("And then?")
        assert tab.text(1) == "Second."
        # The second request has the first answer in it, and nothing else besides the conversation.
        roles = [message["role"] for message in asked[1]["messages"]]
        assert roles == ["user", "assistant", "user"], asked
        assert asked[1]["messages"][1]["reasoning_content"] == "Let me think."
        assert set(asked[1]) == {"messages", "stream", "stream_options"}
        tab.page.click("#new")
        expect(tab.page.locator("article")).to_have_count(0)
        tab.ask("Anew")
        assert "A list with code" in tab.text(0)
        assert [message["role"] for message in asked[2]["messages"]] == ["user"]


def text_is_shown_while_it_comes_and_stop_ends_the_work(chromium):
    with Server(PROGRAM, "--ctx", "65536") as server, Tab(chromium, server.base) as tab:
        tab.ready()

        # An answer that does not end by itself.
        def endless(route):
            body = json.loads(route.request.post_data)
            route.continue_(post_data=json.dumps({**body, "seed": 1, "logit_bias": GO_ON}))

        tab.page.route(CHAT, endless)
        tab.ask("Go on")
        tab.told("tokens/s")
        expect(tab.page.locator("article.busy")).to_have_count(1)
        expect(tab.page.locator("#context")).to_contain_text("≈")
        assert server.health()["running"] == 1
        tab.page.click("#stop")
        assert "stopped" in tab.answer().locator(".note").inner_text()
        server.wait_until(running=0)
        # The same by key, and by a new chat.
        tab.ask("Again")
        tab.told("tokens")
        tab.page.keyboard.press("Escape")
        assert "stopped" in tab.answer(1).locator(".note").inner_text()
        server.wait_until(running=0)
        tab.ask("And again")
        tab.told("tokens")
        tab.page.click("#new")
        expect(tab.page.locator("article")).to_have_count(0)
        server.wait_until(running=0)
        tab.set(max_tokens="3")
        tab.ask("Short")
        assert "cut at the limit" in tab.answer().locator(".note").inner_text()


def the_built_in_model_answers(chromium):
    with Server(PROGRAM, model="nano") as server, Tab(chromium, server.base) as tab:
        tab.ready()
        assert tab.page.inner_text("#model") == "lily-nano"
        expect(tab.page.locator("#note")).to_contain_text("lily-nano is a toy")
        tab.ask("What is 17 + 26?")
        assert "43" in tab.text(0)


def waiting_is_told_and_a_full_queue_is_an_error(chromium):
    arguments = ("--sessions", "1", "--queue", "32", "--ctx", "65536")
    with Server(PROGRAM, *arguments) as server, Tab(chromium, server.base) as tab:
        tab.ready()
        tab.set(max_tokens="2")
        with server.occupied():
            # 31 choices of the other client wait, then this one.
            tab.ask("One")
            tab.told("Waiting")
            with Tab(chromium, server.base) as other:
                other.ready().ask("Two")
                failure = other.answer().locator(".failure").inner_text()
                assert "no room for this request" in failure, failure
        # The other one has left.
        assert "token" in tab.answer().locator(".note").inner_text()


def a_server_that_goes_away_is_an_error_and_can_come_back(chromium):
    script = [["</think>\n\n", "Here."]]
    server = Server(PROGRAM, script=script)
    with server, Tab(chromium, server.base) as tab:
        tab.ready()
        server.stop()
        tab.ask("Are you there?")
        assert "does not answer" in tab.answer().locator(".failure").inner_text()
        # Which the browser tells as well.
        tab.complaints = [text for text in tab.complaints if "ERR_CONNECTION" not in text]
        with Server(PROGRAM, script=script, port=server.port):
            tab.page.click(".again")
            expect(tab.page.locator("article.answer")).to_have_count(1)
            expect(tab.page.locator("article.answer:not(.busy) > .markdown")).to_have_text("Here.")
            expect(tab.page.locator("article .failure")).to_have_count(0)


def a_refusal_is_shown(chromium):
    with Server(PROGRAM, "--ctx", "64", script=[["</think>ok"]]) as server, Tab(chromium, server.base) as tab:
        tab.ready().ask("long " * 100)
        failure = tab.answer().locator(".failure")
        assert "maximum context length is 64 tokens" in failure.inner_text()
        assert failure.get_attribute("role") == "alert"


def a_model_that_is_being_loaded_is_waited_for(chromium):
    loading = {"error": {"message": "the model is still being loaded", "code": "model_loading"}}
    with Server(PROGRAM, script=[["</think>ok"]]) as server, Tab(chromium, server.base) as tab:
        tab.ready()
        answers = []

        def load(route):
            answers.append(route)
            if len(answers) < 3:
                route.fulfill(status=503, content_type="application/json", body=json.dumps(loading))
            else:
                route.continue_()

        tab.page.route("**/v1/models", load)
        tab.page.reload()
        expect(tab.page.locator("#greeting")).to_contain_text("still being loaded")
        tab.ready().ask("Are you there?")
        assert tab.text() == "ok" and len(answers) == 3


def a_key_is_asked_for_and_kept_in_the_tab_only(chromium):
    script = [["</think>\n\n", "Open."]]
    with Server(PROGRAM, "--api-key", "sesame", script=script) as server, Tab(chromium, server.base) as tab:
        page = tab.page
        page.locator("#key-dialog[open]").wait_for()
        assert not page.locator("#key-wrong").is_visible()
        # What no header can carry is not taken.
        page.fill("#key", "s\u00e9same")
        page.press("#key", "Enter")
        assert page.evaluate("document.getElementById('key').validity.patternMismatch")
        page.fill("#key", "simsim")
        page.press("#key", "Enter")
        page.locator("#key-wrong:not([hidden])").wait_for()
        page.fill("#key", "sesame")
        page.press("#key", "Enter")
        tab.ready()
        tab.ask("Who is there?")
        assert tab.text() == "Open."
        kept = "[sessionStorage.getItem('lily-key'), localStorage.length, document.cookie]"
        assert page.evaluate(kept) == ["sesame", 0, ""]
        assert not any("sesame" in url for url in tab.requests)
        # It lasts over a reload, and until it is to be forgotten.
        page.reload()
        tab.ready()
        expect(page.locator("#key-dialog[open]")).to_have_count(0)
        page.click("#open-settings")
        page.click("#forget-key")
        page.locator("#key-dialog[open]").wait_for()
        assert page.evaluate("sessionStorage.getItem('lily-key')") is None


def settings_are_sent_and_last_over_a_reload(chromium):
    with Server(PROGRAM, script=[["yes"]]) as server, Tab(chromium, server.base) as tab:
        tab.ready()
        asked = bodies(tab)
        tab.set(system="Be brief.", thinking="off", temperature="0.5", top_p="0.9", top_k="20", seed="7")
        tab.page.reload()
        tab.ready().ask("Well?")
        assert tab.text() == "yes"
        system = {"role": "system", "content": "Be brief."}
        assert asked[0]["messages"] == [system, {"role": "user", "content": "Well?"}]
        sent = {name: asked[0].get(name) for name in ("enable_thinking", "temperature", "top_p", "top_k", "seed")}
        assert sent == {"enable_thinking": False, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 7}
        assert "min_p" not in asked[0] and "max_tokens" not in asked[0]
        # Shift+Enter begins a line; an empty message is none.
        tab.page.fill("#question", "a")
        tab.page.press("#question", "Shift+Enter")
        assert tab.page.input_value("#question") == "a\n"
        tab.page.fill("#question", "  ")
        tab.page.press("#question", "Enter")
        assert len(asked) == 1


def text_of_the_model_never_becomes_markup(chromium):
    hostile = markdown.HOSTILE
    script = [[hostile, "\n</think>\n\n", hostile], ["</think>", *hostile]]
    name = "<img src=x onerror=hacked()>"
    with Server(PROGRAM, "--model-name", name, script=script) as server, Tab(chromium, server.base) as tab:
        tab.ready()
        tab.page.evaluate("void (window.hacked = () => { window.isHacked = true })")
        assert tab.page.evaluate("window.isHacked") is None
        assert tab.page.inner_text("#model") == name
        tab.ask(hostile)
        tab.answer().locator("summary").click()
        expect(tab.answer().locator(".thought > .markdown")).to_contain_text("onerror")
        # And letter by letter.
        tab.ask("<script>hacked()</script>")
        tab.answer(1)
        assert tab.page.locator("article.question").nth(1).inner_text() == "<script>hacked()</script>"
        for number in (0, 1):
            text = tab.text(number)
            assert "<script>hacked()</script>" in text and "onerror" in text, text
        for root in tab.page.locator("article .markdown").all():
            markdown.check_nodes(root.evaluate(markdown.NODES))
        assert tab.page.locator("article :is(script, img, iframe, svg, style, form)").count() == 0
        assert tab.page.evaluate("window.isHacked") is None


def markup_is_held_back_by_the_browser_too(chromium):
    with Server(PROGRAM) as server, Tab(chromium, server.base) as tab:
        tab.ready()
        # What the headers forbid fails even if the page's code tried it.
        tried = tab.page.evaluate(
            """async () => {
                const failed = [];
                const node = document.createElement('div');
                try { node.innerHTML = '<b>x</b>'; } catch { failed.push('markup'); }
                try { await fetch('http://127.0.0.1:1/'); } catch { failed.push('fetch'); }
                // Within the call of a test the browser lets it pass.
                await new Promise((later) => setTimeout(later));
                try { new Function('return 1'); } catch { failed.push('eval'); }
                return failed;
            }"""
        )
        assert tried == ["markup", "fetch", "eval"], tried
        assert len(tab.complaints) >= len(tried)
        tab.complaints.clear()
        tab.requests.clear()


def the_page_is_for_its_own_origin_only(chromium):
    with Server(PROGRAM) as server, Tab(chromium, server.base) as tab:
        tab.ready()
        parts = {url for url in tab.requests if "/page/" in url}
        assert len(parts) == 5, parts
        for url in [server.base + "/", *parts]:
            with urllib.request.urlopen(url) as reply:
                policy = reply.headers["content-security-policy"]
                assert "default-src 'none'" in policy and "unsafe" not in policy
                assert reply.headers["x-content-type-options"] == "nosniff"
        request = urllib.request.Request(server.base + "/", headers={"host": "evil.example"})
        try:
            urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            assert error.code == 403
        else:
            raise AssertionError("a foreign name was served")


def light_and_dark_follow_the_system_and_the_reader(chromium):
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    with Server(PROGRAM) as server:
        seen = {}
        for scheme in ("light", "dark"):
            with Tab(chromium, server.base, color_scheme=scheme) as tab:
                tab.ready()
                seen[scheme] = tab.page.evaluate(ground)
                other = "dark" if scheme == "light" else "light"
                tab.set(colours=other)
                seen[f"{scheme} {other}"] = tab.page.evaluate(ground)
    assert seen["light"] == seen["dark light"] != seen["dark"] == seen["light dark"], seen


def a_narrow_window_has_no_sideways_scrolling(chromium):
    script = [["</think>\n\n", *SAMPLE, "\n\n`" + "x" * 300 + "`\n\n```\n" + "y" * 300 + "\n```"]]
    size = {"width": 360, "height": 640}
    with Server(PROGRAM, script=script) as server, Tab(chromium, server.base, viewport=size) as tab:
        tab.ready().ask("z" * 200)
        tab.answer()
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
        assert tab.page.evaluate("document.getElementById('thread').scrollWidth") <= 360


def screenshots(chromium):
    """For people to look at."""
    if not SHOTS:
        return
    os.makedirs(SHOTS, exist_ok=True)
    thought = ["The reader asks about bandwidth.", "\n\n1. Say what it is.\n2. Show code."]
    script = [[*thought, "\n</think>\n\n", "## Reading weights\n\n", *SAMPLE], ["hm"]]
    sizes = [("light", 1100, 900), ("dark", 1100, 900), ("narrow", 390, 844)]
    name = "Qwen3.6-35B-A3B-4bit"
    for shot, width, height in sizes:
        scheme = "dark" if shot == "dark" else "light"
        with Server(PROGRAM, "--model-name", name, "--ctx", "2048", script=script) as server:
            options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
            with Tab(chromium, server.base, **options) as tab:
                tab.ready()
                tab.page.screenshot(path=f"{SHOTS}/{shot}-empty.png")
                tab.ask("How fast can weights be read on a GPU, and how do I measure it?")
                tab.answer()
                if shot == "dark":
                    tab.page.click("summary")
                    expect(tab.answer().locator(".thought li")).to_have_count(2)
                tab.page.screenshot(path=f"{SHOTS}/{shot}.png")
                tab.page.click("#open-settings")
                tab.page.screenshot(path=f"{SHOTS}/{shot}-settings.png")
                tab.page.click("#settings .main")
                server.stop()
                tab.ask("And now?")
                tab.answer(1)
                tab.page.screenshot(path=f"{SHOTS}/{shot}-error.png")
                tab.complaints.clear()


TESTS = [
    an_answer_streams_with_its_thought_folded,
    text_is_shown_while_it_comes_and_stop_ends_the_work,
    the_built_in_model_answers,
    waiting_is_told_and_a_full_queue_is_an_error,
    a_server_that_goes_away_is_an_error_and_can_come_back,
    a_refusal_is_shown,
    a_model_that_is_being_loaded_is_waited_for,
    a_key_is_asked_for_and_kept_in_the_tab_only,
    settings_are_sent_and_last_over_a_reload,
    text_of_the_model_never_becomes_markup,
    markup_is_held_back_by_the_browser_too,
    the_page_is_for_its_own_origin_only,
    light_and_dark_follow_the_system_and_the_reader,
    a_narrow_window_has_no_sideways_scrolling,
    screenshots,
]

with sync_playwright() as playwright:
    chromium = browser(playwright)
    for test in TESTS:
        print(test.__name__, flush=True)
        test(chromium)
    with Server(PROGRAM) as server, Tab(chromium, server.base) as tab:
        for test in markdown.TESTS:
            print(test.__name__, flush=True)
            test(tab.page)
    chromium.close()
print(f"{len(TESTS) + len(markdown.TESTS)} passed, 0 failed")
