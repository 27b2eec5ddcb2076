#!/usr/bin/env python3
"""Draws the loss of a run, or of several one after the other, as SVG: `python plot.py LOG.json [LOG.json …] OUT.svg`."""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 360, 56, 40, 28, 16
SERIES = [("answer", "tokens to be written", "#1f5fa8"), ("mtp", "second next token, all tokens", "#c2571a")]


def main():
    *logs, target = sys.argv[1:]
    rows, borders = [], [0]  # of all runs, with the tokens of those before added; where each run ends
    for log in logs:
        steps = json.loads(Path(log).read_text())["steps"]
        rows += [r | {"tokens": r["tokens"] + borders[-1]} for r in steps if r["step"] >= 10]
        borders.append(rows[-1]["tokens"])
    last = borders[-1] / 1e6
    values = [r[k] for r in rows for k, _, _ in SERIES]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    x = lambda tokens: LEFT + (WIDTH - LEFT - RIGHT) * tokens / 1e6 / last
    y = lambda loss: HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (math.log10(loss) - low) / (high - low)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in [m * 10**e for e in range(-3, 2) for m in (1, 2, 5)]:
        if low <= math.log10(tick) <= high:
            out.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>'
                f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
            )
    step = 10 ** math.floor(math.log10(last)) / 2
    for i in range(int(last / step) + 1):
        out.append(
            f'<text x="{x(i * step * 1e6):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{i * step:g}</text>'
        )
    out.append(f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">million tokens</text>')
    for border in borders[1:-1]:
        out.append(f'<line x1="{x(border):.1f}" x2="{x(border):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#888"/>')
    for n, (key, name, colour) in enumerate(SERIES):
        points = " ".join(f"{x(r['tokens']):.1f},{y(r[key]):.1f}" for r in rows)
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            f'<text x="{WIDTH - RIGHT}" y="{TOP + 16 * n}" text-anchor="end" fill="{colour}">loss, {name}</text>'
        )
    Path(target).write_text("\n".join(out + ["</svg>"]) + "\n")


if __name__ == "__main__":
    main()
