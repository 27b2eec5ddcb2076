"""Compares lily with llama.cpp and mlx-lm on the CPU, with models of the same shapes.

`benches/peers/run --help` says how; `run` makes the environment for it.
"""

import argparse
import datetime
import os
import platform
import shutil
import subprocess
from pathlib import Path

import gguf_model
import report as reports
from arguments import arguments
from engines import EngineError, Lily, LlamaCpp, MlxLm


class Models:
    """Folders of the models, made when they are first asked for."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        name = f"layers-{args.layers}" if args.layers else "full"
        self.checkpoint = args.work / name
        self.gguf = args.work / f"{name}{'-fused' if args.fused else ''}.gguf"

    def synth(self) -> None:
        command = [self.args.lily, "synth", "--preset", "qwen3.6-35b-a3b", "--out", self.checkpoint]
        if self.args.layers:
            command += ["--layers", str(self.args.layers)]
        subprocess.run(list(map(str, command)), check=True)

    def config(self) -> dict:
        if not (self.checkpoint / "config.json").exists():
            self.synth()
        return gguf_model.text_config(self.checkpoint)

    def make(self, engine: str) -> None:
        if engine == "llama.cpp":
            self.config()
            if not self.gguf.exists():
                part = self.gguf.with_suffix(".part")
                gguf_model.write(self.checkpoint, part, self.args.fused)
                part.rename(self.gguf)
        elif not list(self.checkpoint.glob("*.safetensors")):
            self.synth()

    def remove_weights(self, engine: str) -> None:
        if engine == "llama.cpp":
            self.gguf.unlink(missing_ok=True)
        else:
            for file in self.checkpoint.glob("*.safetensors"):
                file.unlink()


def engine(name: str, args: argparse.Namespace, models: Models):
    common = (args.processor_time, args.threads, args.cores)
    if name == "lily":
        return Lily(args.lily, models.checkpoint, args.load, *common)
    if name == "mlx-lm":
        return MlxLm(models.checkpoint, args.limit, *common)
    context = max(args.lengths) + args.steps + 64
    return LlamaCpp(models.gguf, models.checkpoint, context, args.fused, *common)


def machine() -> dict:
    cpu = platform.processor()
    for line in open("/proc/cpuinfo") if os.path.exists("/proc/cpuinfo") else ():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "processors": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load_before": round(os.getloadavg()[0], 1),
    }


def commit() -> str:
    """Of the repository that this file stands in."""
    here = Path(__file__).parent
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


class Comparison:
    """Rounds of measurements, and what is known about them."""

    def __init__(self, args: argparse.Namespace, models: Models):
        self.args = args
        config = models.config()
        self.report = {
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "machine": machine(),
            "threads": args.threads,
            "layers": config["num_hidden_layers"],
            "experts": config["num_experts"],
            "lengths": args.lengths,
            "steps": args.steps,
            "engines": args.engines,
            "load": args.load,
            "clock": "processor time" if args.processor_time else "time",
            "order": "one engine after the other" if args.one_by_one else "interleaved rounds",
            "versions": {},
            "systems": {},
            "bytes_per_token": {},
            "read_bandwidth": None,
            "rounds": {},
            "loads": [],
        }

    def begin(self, one) -> None:
        """Starts an engine and runs what is not counted."""
        one.start()
        self.report["versions"][one.name] = one.version()
        self.report["bytes_per_token"][one.name] = one.bytes_per_token()
        one.warm_up(self.args.lengths[0])

    def measure(self, one, length: int, index: int) -> None:
        if one.name == "mlx-lm" and index >= self.args.mlx_rounds:
            return
        figures = one.measure(length, self.args.steps)
        if one.name == "lily":
            self.report["read_bandwidth"] = one.bandwidth
        self.report["systems"][one.name] = one.system
        self.report["rounds"].setdefault(f"{one.name} {length}", []).append(figures)
        self.report["loads"].append(round(os.getloadavg()[0], 1))
        print(
            f"{one.name:>10} {length:>6} tokens:"
            f" prefill {figures['prompt'] / figures['prefill_s']:8.1f} tok/s,"
            f" decode {1 / figures['decode_s']:7.2f} tok/s",
            flush=True,
        )

    def interleaved(self, engines: list) -> None:
        for one in engines:
            self.begin(one)
        for index in range(self.args.rounds):
            print(f"round {index + 1} of {self.args.rounds}", flush=True)
            for length in self.args.lengths:
                # The order turns, so that no engine always follows the same other one.
                for one in engines if index % 2 == 0 else engines[::-1]:
                    self.measure(one, length, index)
            # What is there stays, should a later round be cut off.
            reports.write_figures(self.report, self.args.out, self.args.name)
        for one in engines:
            one.stop()

    def one_by_one(self, engines: list, models: Models) -> None:
        for one in engines:
            models.make(one.name)
            self.begin(one)
            for index in range(self.args.rounds):
                for length in self.args.lengths:
                    self.measure(one, length, index)
            one.stop()
            following = engines[engines.index(one) + 1 :]
            same = [e for e in following if (e.name == "llama.cpp") == (one.name == "llama.cpp")]
            if not self.args.keep and not same:
                models.remove_weights(one.name)


def main() -> None:
    args = arguments()
    if args.processor_time and args.threads != 1:
        raise SystemExit("--processor-time counts waiting threads too; give --threads 1")
    if not args.lily.is_file():
        raise SystemExit(f"no program {args.lily}; run `cargo build --release -p lily`, or name one with --lily")
    args.lily = args.lily.resolve()
    args.threads = args.threads or len(args.cores or os.sched_getaffinity(0))
    if args.cores:
        # Models too: their pages then lie on the memory of these processors.
        os.sched_setaffinity(0, args.cores)
    args.work.mkdir(parents=True, exist_ok=True)
    if args.one_by_one:
        # Engines that read the same files stand beside each other.
        args.engines.sort(key=lambda name: name == "llama.cpp")
    models = Models(args)
    comparison = Comparison(args, models)
    engines = [engine(name, args, models) for name in args.engines]
    try:
        if args.one_by_one:
            comparison.one_by_one(engines, models)
        else:
            for name in args.engines:
                models.make(name)
            comparison.interleaved(engines)
    except (EngineError, subprocess.CalledProcessError) as error:
        raise SystemExit(str(error)) from error
    finally:
        for one in engines:
            one.stop()
        if not args.keep:
            shutil.rmtree(models.checkpoint, ignore_errors=True)
            models.gguf.unlink(missing_ok=True)
    comparison.report["load_after"] = round(os.getloadavg()[0], 1)
    reports.write(comparison.report, args.out, args.name)
    print()
    print((args.out / f"{args.name}.md").read_text())


if __name__ == "__main__":
    main()
