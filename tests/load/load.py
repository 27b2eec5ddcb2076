"""Load on `lily serve`: `load.py PROGRAM [SECONDS [CONNECTIONS]]`.

So many clients, each with a connection of its own, send one request after the other: whole replies and streams, chats and
texts, counts of tokens, and now and then one leaves in the middle. Every reply must be complete and right; 429 with
`Retry-After` is the only refusal. The memory of the server must not grow once it is warm.
"""

import asyncio
import collections
import json
import os
import random
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 120.0
CONNECTIONS = int(sys.argv[3]) if len(sys.argv) > 3 else 64
# No reply takes so long unless it hangs.
TIMEOUT = 120
# What the memory may grow by in the second half: the allocator's slack, far below what a leak of one request's
# buffers would make of thousands of requests.
SLACK = 24 << 20

QUESTION = [{"role": "user", "content": "Tell me about lilies, please, and be brief about it."}]
CHAT = {"messages": QUESTION, "max_tokens": 24}
REQUESTS = [
    ("chat", "/v1/chat/completions", CHAT),
    ("stream", "/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("text", "/v1/completions", {"prompt": "Lilies are", "max_tokens": 16}),
    ("leave", "/v1/chat/completions", {**CHAT, "max_tokens": 2000, "stream": True}),
    ("tokens", "/tokenize", {"messages": QUESTION}),
    ("refused", "/v1/chat/completions", {**CHAT, "top_p": 2}),
]


class Client:
    """One connection that is kept, and opened again after it was left."""

    def __init__(self, port, counts):
        self.port, self.counts = port, counts
        self.reader = self.writer = None

    async def run(self, until, seed):
        draw = random.Random(seed)
        while asyncio.get_running_loop().time() < until:
            name, path, body = draw.choice(REQUESTS)
            try:
                await asyncio.wait_for(self.request(name, path, body), TIMEOUT)
            except Exception as error:  # noqa: BLE001: whatever went wrong is what this looks for
                self.counts[f"{name}: {type(error).__name__} {error}"[:200]] += 1
                self.leave()
        self.leave()

    async def request(self, name, path, body):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()
        status, headers = await self.head()
        if status == 429:
            assert int(headers["retry-after"]) > 0
            await self.body(headers)
            self.counts["429"] += 1
            # Asked again sooner than told, so that the queue stays full.
            await asyncio.sleep(0.1)
            return
        if name == "leave":
            assert status == 200, status
            await self.reader.readuntil(b"delta")
            self.leave()
        else:
            self.check(name, status, await self.body(headers))
        self.counts[name] += 1

    async def head(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        lines = [line.split(":", 1) for line in head[1:] if line]
        return int(head[0].split()[1]), {key.lower(): value.strip() for key, value in lines}

    async def body(self, headers):
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body

    def check(self, name, status, body):
        assert status == (400 if name == "refused" else 200), (status, body[:200])
        if name == "stream":
            events = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
            assert events[-1] == "[DONE]", events[-1]
            chunks = [json.loads(event) for event in events[:-1]]
            assert chunks[-1]["usage"]["completion_tokens"] > 0, chunks[-1]
            reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
            assert sum(reason is not None for reason in reasons) == 1, reasons
            return
        reply = json.loads(body)
        if name == "refused":
            assert reply["error"]["param"] == "top_p", reply
        elif name == "tokens":
            assert reply["count"] == len(reply["tokens"]) > 0, reply
        else:
            assert reply["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls"), reply
            assert reply["usage"]["completion_tokens"] > 0, reply

    def leave(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


def resident(process):
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


async def watch(process, until):
    """The memory of the server, every second or so, up to the end."""
    sizes = []
    while asyncio.get_running_loop().time() < until:
        sizes.append(resident(process))
        await asyncio.sleep(SECONDS / 120)
    return sizes


async def load(server, port):
    counts = collections.Counter()
    until = asyncio.get_running_loop().time() + SECONDS
    clients = (Client(port, counts).run(until, seed) for seed in range(CONNECTIONS))
    sizes, *_ = await asyncio.gather(watch(server.pid, until), *clients)
    # Those that left have left no work behind.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(TIMEOUT * 10):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        probe = Client(port, counts)
        probe.reader = reader
        _, headers = await probe.head()
        health = json.loads(await probe.body(headers))
        if health["running"] == health["waiting"] == 0:
            break
        await asyncio.sleep(0.1)
    else:
        counts[f"still busy: {health}"] += 1
    writer.close()
    return counts, sizes


def main():
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("r") as log:
        # Random weights: how long answers are must not depend on what a model has learnt.
        model = os.path.join(folder, "tiny")
        subprocess.run([PROGRAM, "synth", "--preset", "tiny", "--out", model], check=True, capture_output=True)
        # Kept prompts fill what they may, which is not to be taken for a leak.
        kept = ["--cache-memory", "8M"]
        command = [PROGRAM, "serve", "-m", model, "--port", "0", "--ctx", "4096", *kept]
        with open(log.name, "w", encoding="utf-8") as target:
            server = subprocess.Popen(command, stderr=target, stdout=target)
        try:
            text = ""
            while "listening on " not in text or not text.endswith("\n"):
                assert server.poll() is None, text
                text += log.read()
            port = int(text.split("listening on ")[1].split()[0].rsplit(":", 1)[1])
            counts, sizes = asyncio.run(load(server, port))
            assert server.poll() is None, "the server is gone"
        finally:
            server.terminate()
            server.wait()
    expected = {name for name, _, _ in REQUESTS}
    faults = {what: count for what, count in counts.items() if what not in expected and what != "429"}
    served = {name: counts[name] for name in [*sorted(expected), "429"]}
    # Warm after a third, at the latest.
    middle = len(sizes) // 2
    before, after = max(sizes[len(sizes) // 3 : middle]), max(sizes[middle:])
    print(f"{CONNECTIONS} connections, {SECONDS:.0f} s: {sum(served.values())} requests {served}")
    print(f"resident: first {sizes[0] / 1e6:.1f} MB, up to the middle {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")
    assert not faults, faults
    assert all(counts[name] for name in expected), f"nothing came of some: {served}"
    assert after <= before + SLACK, f"the memory grows: {[size >> 20 for size in sizes]} MiB"
    print("no error, and the memory is flat")


if not os.path.exists("/proc/self/status"):
    print("the memory of a process is looked up in /proc, which is not there", file=sys.stderr)
    sys.exit(77)
main()
