#!/usr/bin/env python3
"""Puts a trained model into lily: `install.py FOLDER [TARGET]`, FOLDER as `run.sh join` makes it.

TARGET is the folder of crates/lily-nano without it. The weights become two files, because none in the
repository may have over 16 MiB; every tensor keeps its bytes.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

MOST = 16 << 20
TEXTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def read(path):
    """{name: (entry of the header, bytes)} of a safetensors file, in the order of its data."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length :]
    order = sorted(header, key=lambda name: header[name]["data_offsets"])
    return {name: (header[name], body[slice(*header[name]["data_offsets"])]) for name in order}


def write(path, tensors):
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, (entry, data) in tensors.items():
        header[name] = {**entry, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64 + 56)  # the data begins at a multiple of 64
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)
    assert path.stat().st_size <= MOST, f"{path} has over 16 MiB, need more files"


def main():
    source = Path(sys.argv[1])
    default = Path(__file__).resolve().parents[2] / "crates/lily-nano/model"
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else default
    tensors = read(source / "model.safetensors")
    total = sum(len(data) for _, data in tensors.values())
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    parts, before = ({}, {}), 0
    for name, tensor in tensors.items():
        parts[before >= total / 2][name] = tensor
        before += len(tensor[1])
    target.mkdir(parents=True, exist_ok=True)
    for file, part in zip(names, parts):
        write(target / file, part)
    weight_map = {name: file for file, part in zip(names, parts) for name in part}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    for text in TEXTS:
        shutil.copyfile(source / text, target / text)
    # How tokens are chosen is no result of training.
    shutil.copyfile(Path(__file__).parent / "tokenizer/generation_config.json", target / "generation_config.json")


if __name__ == "__main__":
    main()
