"""Times llama.cpp in one process: a line `LENGTH STEPS` on the input gives a line of JSON.

Uses only the functions of llama.h, as the package llama-cpp-python binds them.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

import llama_cpp as lib
import numpy as np

# Of the libraries that the package loaded.
FOLDER = Path(lib.llama_cpp._base_path)


def library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(FOLDER / f"lib{name}.so"))


def system() -> str:
    """Version of ggml, and the instruction sets that it uses."""
    version = library("ggml-base").ggml_version
    version.restype = ctypes.c_char_p
    uses = lib.llama_print_system_info().decode().strip().rstrip("|").strip()
    return f"ggml {version().decode()}, {uses}"


def load_backends() -> None:
    """Builds with the backends in files of their own choose the one for this processor; others do nothing."""
    if list(FOLDER.glob("libggml-cpu-*.so")):
        load = library("ggml").ggml_backend_load_all_from_path
        load.argtypes = [ctypes.c_char_p]
        load(str(FOLDER).encode())


class Engine:
    """A model with one sequence."""

    def __init__(self, path: str, threads: int, context: int):
        load_backends()
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        # Everything else as llama.cpp has it: f16 cache, flash attention where it helps, ubatch of 512.
        params = lib.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = max(params.n_batch, 2048)
        params.n_threads = threads
        params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        vocab = lib.llama_model_get_vocab(self.model)
        self.vocab = lib.llama_vocab_n_tokens(vocab)

    def evaluate(self, tokens: np.ndarray) -> None:
        """Logits of the last token; done when this returns."""
        for start in range(0, len(tokens), 2048):
            part = np.ascontiguousarray(tokens[start : start + 2048], dtype=np.int32)
            pointer = part.ctypes.data_as(ctypes.POINTER(lib.llama_token))
            if lib.llama_decode(self.context, lib.llama_batch_get_one(pointer, len(part))):
                raise SystemExit(f"llama.cpp cannot evaluate {len(part)} tokens")
        lib.llama_synchronize(self.context)

    def logits_are_finite(self) -> bool:
        row = lib.llama_get_logits_ith(self.context, -1)
        return bool(np.isfinite(np.ctypeslib.as_array(row, (self.vocab,))).all())

    def measure(self, length: int, steps: int, seed: int, clock) -> dict:
        """Seconds of a prefill, and of each decode step behind it; tokens are random."""
        tokens = np.random.default_rng(seed).integers(0, self.vocab, length + steps)
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        start = clock()
        self.evaluate(tokens[:length])
        middle = clock()
        for i in range(steps):
            self.evaluate(tokens[length + i : length + i + 1])
        end = clock()
        if not self.logits_are_finite():
            raise SystemExit("llama.cpp gave logits that are no numbers")
        return {"prefill_s": middle - start, "decode_s": (end - middle) / max(steps, 1)}


def main() -> None:
    clock = time.process_time if sys.argv[-1] == "processor" else time.perf_counter
    path, threads, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = Engine(path, threads, context)
    print(json.dumps({"ready": True, "system": system()}), flush=True)
    for seed, line in enumerate(sys.stdin):
        length, steps = map(int, line.split())
        print(json.dumps(engine.measure(length, steps, seed, clock)), flush=True)


if __name__ == "__main__":
    main()
