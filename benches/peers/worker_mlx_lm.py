"""Times mlx-lm in one process: a line `CONTEXT PROMPT STEPS` on the input gives a line of JSON.

A prompt shorter than the context is evaluated; random rows of keys and values fill the rest of the
cache, since MLX on this kind of processor needs minutes for a prompt of some hundred tokens.

The loop is the one of mlx-lm's `generate_step`: the prompt in pieces of 2,048 into the cache, then the
most likely token of each step into the next one.
"""

import glob
import importlib.util
import json
import sys
import time
import types
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np


def models_package() -> None:
    """Makes `mlx_lm.models` importable without what the rest of mlx_lm imports (tokenizers, transformers)."""
    spec = importlib.util.find_spec("mlx_lm")
    package = types.ModuleType("mlx_lm")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["mlx_lm"] = package


def load(folder: Path):
    """The model of a checkpoint, its packed weights as they are in the files."""
    models_package()
    config = json.loads((folder / "config.json").read_text())
    arch = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = arch.Model(arch.ModelArgs.from_dict(config))
    weights = {}
    for file in sorted(glob.glob(str(folder / "*.safetensors"))):
        weights.update(mx.load(file))
    weights = model.sanitize(weights)
    quantization = config["quantization"]

    def how(path: str, module):
        if not hasattr(module, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return quantization.get(path, True)

    nn.quantize(model, quantization["group_size"], quantization["bits"], class_predicate=how)
    model.load_weights(list(weights.items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return model, config.get("text_config", config)["vocab_size"]


def fill(cache: list, rows: int) -> None:
    """Puts random rows behind what the caches of attention hold."""
    for one in cache:
        if rows > 0 and hasattr(one, "update_and_fetch"):
            keys, values = one.state[:2]
            shape = (*keys.shape[:2], rows, keys.shape[-1])
            random = mx.random.normal(shape).astype(keys.dtype)
            one.update_and_fetch(random, random.astype(values.dtype))
    mx.eval([one.state for one in cache])


def measure(model, vocab: int, context: int, length: int, steps: int, seed: int, clock) -> dict:
    """Seconds of a prefill of `length` random tokens, and of each decode step behind `context`."""
    from mlx_lm.models.cache import make_prompt_cache

    prompt = mx.array(np.random.default_rng(seed).integers(0, vocab, length))
    cache = make_prompt_cache(model)
    start = clock()
    while prompt.size > 2048:
        model(prompt[None, :2048], cache=cache)
        mx.eval([c.state for c in cache])
        prompt = prompt[2048:]
    if prompt.size > 1:
        # The last token goes alone, so that the head runs for it only.
        model(prompt[None, :-1], cache=cache)
        mx.eval([c.state for c in cache])
    logits = model(prompt[None, -1:], cache=cache)
    token = mx.argmax(logits[:, -1], axis=-1)
    mx.eval(token)
    end = clock()
    prefill = end - start
    fill(cache, context - length)
    start = clock()
    for _ in range(steps):
        logits = model(token[None], cache=cache)
        token = mx.argmax(logits[:, -1], axis=-1)
        mx.eval(token)
    end = clock()
    return {"prefill_s": prefill, "decode_s": (end - start) / max(steps, 1)}


def main() -> None:
    clock = time.process_time if sys.argv[-1] == "processor" else time.perf_counter
    mx.set_default_device(mx.cpu)
    model, vocab = load(Path(sys.argv[1]))
    print(json.dumps({"ready": True, "system": f"mlx {mx.__version__}"}), flush=True)
    for seed, line in enumerate(sys.stdin):
        context, length, steps = map(int, line.split())
        print(json.dumps(measure(model, vocab, context, length, steps, seed, clock)), flush=True)


if __name__ == "__main__":
    main()
