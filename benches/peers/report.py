"""Table and chart of a comparison, from the object that `peers.py` writes as JSON."""

import sys
import json
from pathlib import Path
from statistics import median

PHASES = ("prefill", "decode")
# What lily is held to: its speed over the peer's.
TARGETS = {
    ("prefill", "llama.cpp"): 1.2,
    ("decode", "llama.cpp"): 1.2,
    ("decode", "mlx-lm"): 3.0,
}


def speeds(report: dict, engine: str, length: int, phase: str) -> list:
    """Tokens per second of every round."""
    rounds = report["rounds"].get(f"{engine} {length}", [])
    return [(one["prompt"] if phase == "prefill" else 1) / one[f"{phase}_s"] for one in rounds]


def shortened(report: dict) -> list:
    """A sentence for each measurement that stands for a longer one."""
    out = []
    for name, rounds in report["rounds"].items():
        engine, length = name.rsplit(" ", 1)
        prompt = min(one["prompt"] for one in rounds)
        steps = min(one["steps"] for one in rounds)
        if prompt < int(length) or steps < report["steps"]:
            out.append(
                f"{engine} at {length}: a prompt of {prompt} tokens was evaluated, the rest of the"
                f" context filled with random rows, and {steps} step(s) decoded; more would have"
                f" taken too long."
            )
    return out


def rows(report: dict) -> list:
    """A row for every engine, length and phase that was measured."""
    out = []
    for phase in PHASES:
        for length in report["lengths"]:
            own = speeds(report, "lily", length, phase)
            for engine in report["engines"]:
                values = speeds(report, engine, length, phase)
                if not values:
                    continue
                row = {
                    "phase": phase,
                    "length": length,
                    "engine": engine,
                    "median": median(values),
                    "slowest": min(values),
                    "fastest": max(values),
                    "rounds": len(values),
                }
                # Processor time says nothing of what others took of the memory's time.
                bandwidth = report["read_bandwidth"] if report["clock"] == "time" else None
                if phase == "decode" and bandwidth:
                    read = report["bytes_per_token"][engine] * row["median"]
                    row["bandwidth_share"] = read / bandwidth
                if engine != "lily" and own:
                    # Rounds of both stand beside each other in time.
                    ratios = [a / b for a, b in zip(own, values)]
                    row["lily_over_it"] = median(ratios)
                    row["lily_over_it_spread"] = [min(ratios), max(ratios)]
                    row["lily_over_it_fastest"] = max(own) / max(values)
                    row["target"] = TARGETS.get((phase, engine))
                out.append(row)
    return out


def number(value: float) -> str:
    """With three digits at least."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def verdict(row: dict) -> str:
    target = row.get("target")
    if not target:
        return ""
    return f"{target:g}: {'yes' if row['lily_over_it'] >= target else 'no'}"


def markdown(report: dict) -> str:
    machine = report["machine"]
    lines = [
        f"{machine['cpu']}, {report['threads']} threads, {machine['memory_gb']} GB, {machine['system']},"
        f" {report['date']}, {report['commit']}. Load average {machine['load_before']} before,"
        f" {report.get('load_after', 'unknown')} after.",
        f"{report['layers']} layers, all {report['experts']} experts, {report['steps']} decode steps,"
        f" {report['order']}, {report['clock']}; lily --load {report['load']}.",
        "",
    ]
    for engine, version in report["versions"].items():
        lines.append(
            f"- {engine}: {version}; {report['systems'].get(engine, '')};"
            f" {report['bytes_per_token'][engine] / 1e6:.0f} MB of weights for each token"
        )
    if report["read_bandwidth"]:
        lines.append(f"- measured read bandwidth: {report['read_bandwidth'] / 1e9:.1f} GB/s")
    lines += [
        "",
        "| what | tokens before | engine | tok/s, median | slowest to fastest | rounds | of the bandwidth"
        " | lily over it | by fastest rounds | target |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows(report):
        share = f"{100 * row['bandwidth_share']:.0f} %" if "bandwidth_share" in row else ""
        ratio = best = ""
        if "lily_over_it" in row:
            low, high = row["lily_over_it_spread"]
            ratio = f"{row['lily_over_it']:.2f} ({low:.2f} to {high:.2f})"
            best = f"{row['lily_over_it_fastest']:.2f}"
        before = row["length"] if row["phase"] == "decode" else 0
        what = "decode" if row["phase"] == "decode" else f"prefill of {row['length']}"
        lines.append(
            f"| {what} | {before} | {row['engine']} | {number(row['median'])}"
            f" | {number(row['slowest'])} to {number(row['fastest'])} | {row['rounds']} | {share}"
            f" | {ratio} | {best} | {verdict(row)} |"
        )
    for note in shortened(report):
        lines += ["", note]
    return "\n".join(lines) + "\n"


def chart(report: dict, path: Path) -> None:
    """Bars of the medians with their spread, one picture for each phase; logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    table = rows(report)
    width = 0.8 / len(report["engines"])
    for axis, phase in zip(axes, PHASES):
        for place, engine in enumerate(report["engines"]):
            found = {r["length"]: r for r in table if (r["phase"], r["engine"]) == (phase, engine)}
            places = [i for i, length in enumerate(report["lengths"]) if length in found]
            cells = [found[report["lengths"][i]] for i in places]
            middles = [c["median"] for c in cells]
            errors = [
                [c["median"] - c["slowest"] for c in cells],
                [c["fastest"] - c["median"] for c in cells],
            ]
            left = [i + (place - (len(report["engines"]) - 1) / 2) * width for i in places]
            bars = axis.bar(left, middles, width, yerr=errors, capsize=2, label=engine)
            axis.bar_label(bars, [f"{value:.3g}" for value in middles], padding=4, fontsize=8)
        axis.set_yscale("log")
        axis.set_xticks(range(len(report["lengths"])), report["lengths"])
        axis.set_xlabel("prompt, tokens" if phase == "prefill" else "context, tokens")
        axis.set_ylabel("tokens per second")
        axis.set_title(phase)
        axis.margins(y=0.15)
    axes[0].legend(fontsize=8)
    machine = report["machine"]["cpu"]
    figure.suptitle(f"{report['layers']} layers of Qwen3.6-35B-A3B, {machine}, {report['threads']} threads")
    figure.tight_layout()
    figure.savefig(path)


def write_figures(report: dict, folder: Path, name: str) -> None:
    """JSON and table."""
    folder.mkdir(parents=True, exist_ok=True)
    report["rows"] = rows(report)
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(report))


def write(report: dict, folder: Path, name: str) -> None:
    """JSON, table and, where matplotlib is there, the chart."""
    write_figures(report, folder, name)
    try:
        chart(report, folder / f"{name}.svg")
    except ImportError:
        print("no chart: matplotlib is missing; `python report.py FILE.json` draws it later")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    write(json.loads(source.read_text()), source.parent, source.stem)
