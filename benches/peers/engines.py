"""The engines that are compared, each behind `measure(length, steps)`.

A measurement is a dictionary with the seconds of a prefill (`prefill_s`) of `prompt` random tokens,
`length` of them unless that would take too long, and of each of `steps` decode steps behind `length`
tokens (`decode_s`). Seconds are those of a clock or, where it is asked for, of the processor.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf_model

HERE = Path(__file__).parent


class EngineError(Exception):
    """An engine could not be started, or ended."""


def pinned(cores):
    """What a child does before it starts: stay on these cores."""
    return (lambda: os.sched_setaffinity(0, cores)) if cores else None


class Lily:
    """`lily bench`, a process for every measurement; its first round of each is not counted."""

    name = "lily"

    def __init__(self, program: Path, model: Path, load: str, processor_time: bool, threads: int, cores):
        self.command = [str(program), "bench", "-m", str(model), "--device", "cpu"]
        self.command += ["--load", load, "--threads", str(threads), "--reps", "1"]
        self.program, self.model, self.cores = program, model, cores
        self.processor_time = processor_time
        # Bytes read in a second, the best that any of its runs measured.
        self.bandwidth = 0.0
        self.system = ""

    def version(self) -> str:
        return subprocess.check_output([str(self.program), "--version"], text=True).strip()

    def bytes_per_token(self) -> int:
        return mlx_bytes_per_token(self.model)

    def start(self) -> None:
        pass

    def warm_up(self, length: int) -> None:
        pass

    def bench(self, length: int, steps: int) -> tuple:
        """Figures of a length, and the processor time of the whole process."""
        with tempfile.NamedTemporaryFile(suffix=".json") as figures:
            command = [*self.command, "--lengths", str(length), "--decode", str(steps)]
            command += ["--json", figures.name]
            before = os.times()
            done = subprocess.run(
                command, capture_output=True, text=True, preexec_fn=pinned(self.cores)
            )
            after = os.times()
            if done.returncode:
                raise EngineError(f"{' '.join(command)}: {done.stderr.strip()}")
            report = json.load(open(figures.name))
        self.system = report["device"]
        self.bandwidth = max(self.bandwidth, report.get("read_bandwidth") or 0.0)
        spent = after.children_user + after.children_system
        return report["rows"][0], spent - before.children_user - before.children_system

    def measure(self, length: int, steps: int) -> dict:
        figures = {"prompt": length, "steps": steps}
        if self.processor_time:
            # Differences of whole processes, in which each of two rounds does the same.
            least, shorter, longer = (
                self.bench(*work)[1] for work in ((1, 1), (length, 1), (length, 1 + steps))
            )
            figures["prefill_s"] = (shorter - least) / 2 * length / (length - 1)
            figures["decode_s"] = (longer - shorter) / 2 / steps
        else:
            row = self.bench(length, steps)[0]
            figures["prefill_s"] = row["time_to_first_token_ms"] / 1e3
            figures["decode_s"] = 1.0 / row["decode_tok_s"]
        return figures

    def stop(self) -> None:
        pass


class Worker:
    """A peer in a Python process of its own, which holds the model from the first call to `stop`."""

    def __init__(self, arguments: list, processor_time: bool, threads: int, cores):
        clock = "processor" if processor_time else "wall"
        self.arguments, self.threads, self.cores = [*arguments, clock], threads, cores
        self.process = None
        self.system = ""

    def start(self) -> None:
        # Libraries that take the number of threads from the environment.
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | {name: str(self.threads) for name in names}
        self.process = subprocess.Popen(
            [sys.executable, *map(str, self.arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "PEERS_VERBOSE" not in os.environ else None,
            text=True,
            env=environment,
            preexec_fn=pinned(self.cores),
        )
        self.system = self.answer()["system"]

    def answer(self) -> dict:
        # Libraries print to the same output; answers are objects.
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        code = self.process.wait()
        raise EngineError(f"{self.name} ended with {code}; run with PEERS_VERBOSE=1 to see why")

    def ask(self, *numbers: int) -> dict:
        self.process.stdin.write(" ".join(map(str, numbers)) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def warm_up(self, length: int) -> None:
        self.ask(length, 4)

    def measure(self, length: int, steps: int) -> dict:
        return self.ask(length, steps) | {"prompt": length, "steps": steps}

    def stop(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


class LlamaCpp(Worker):
    """llama.cpp over its package for Python, with a GGUF file of the same shapes."""

    name = "llama.cpp"

    def __init__(self, gguf: Path, model: Path, context: int, fused: bool, processor_time, threads: int, cores):
        arguments = [HERE / "worker_llama_cpp.py", gguf, threads, context]
        super().__init__(arguments, processor_time, threads, cores)
        self.config, self.fused = gguf_model.text_config(model), fused

    def version(self) -> str:
        from importlib.metadata import version

        return f"llama-cpp-python {version('llama-cpp-python')}"

    def bytes_per_token(self) -> int:
        return gguf_model.read_bytes_per_token(self.config, self.fused)


class MlxLm(Worker):
    """mlx-lm on the CPU backend of MLX, with the checkpoint that lily reads."""

    name = "mlx-lm"

    def __init__(self, model: Path, limit: float, processor_time: bool, threads: int, cores):
        super().__init__([HERE / "worker_mlx_lm.py", model], processor_time, threads, cores)
        self.model = model
        # Seconds that a prefill, and decode steps, may take each.
        self.limit = limit
        # Of a token of a short prompt, and of a step.
        self.token_s = self.step_s = 0.0

    def warm_up(self, length: int) -> None:
        first = self.ask(2, 2, 1)
        self.token_s, self.step_s = first["prefill_s"] / 2, first["decode_s"]

    def measure(self, length: int, steps: int) -> dict:
        """Fewer tokens and steps than asked for where they would take too long."""
        prompt = max(2, min(length, int(self.limit / self.token_s)))
        steps = max(1, min(steps, int(self.limit / self.step_s)))
        return self.ask(length, prompt, steps) | {"prompt": prompt, "steps": steps}

    def version(self) -> str:
        from importlib.metadata import version

        return f"mlx-lm {version('mlx-lm')}, mlx {version('mlx')}"

    def bytes_per_token(self) -> int:
        return mlx_bytes_per_token(self.model)


def mlx_bytes_per_token(model: Path) -> int:
    """Bytes of weights that one decode step reads: all but the embedding, and the chosen experts."""
    config = gguf_model.text_config(model)
    used = config["num_experts_per_tok"] / config["num_experts"]
    total = 0.0
    for file in model.glob("*.safetensors"):
        with open(file, "rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
        for name, tensor in header.items():
            if name != "__metadata__" and "embed_tokens" not in name:
                begin, end = tensor["data_offsets"]
                total += (end - begin) * (used if ".switch_mlp." in name else 1.0)
    return int(total)
