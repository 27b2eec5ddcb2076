"""The options of `benches/peers/run`; needs nothing but Python, so that they are checked before anything is built."""

import argparse
from pathlib import Path

ENGINES = ("lily", "llama.cpp", "mlx-lm")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benches/peers/run",
        description="Compares lily with llama.cpp and mlx-lm on the CPU, with models of the same shapes.")
    numbers = lambda text: [int(part) for part in text.split(",")]
    names = lambda text: text.split(",")
    add = parser.add_argument
    add("--lily", type=Path, default=Path("target/release/lily"), help="the program; default %(default)s")
    add("--work", type=Path, default=Path("target/peers"), help="folder of the models; default %(default)s")
    add("--out", type=Path, default=Path("target/peers"),
        help="folder of JSON, table and chart; default %(default)s")
    add("--name", default="peers", help="their name; default %(default)s")
    add("--layers", type=int, default=8, help="layers of the model; 0 is the full shape; default %(default)s")
    add("--threads", type=int, default=0, help="threads of each engine; 0 is one for each core")
    add("--cores", type=numbers, help="processors to stay on, such as 0,1,2")
    add("--lengths", type=numbers, default=[128, 512, 2048], help="prompt lengths; default 128,512,2048")
    add("--steps", type=int, default=32, help="decode steps behind each prompt; default %(default)s")
    add("--rounds", type=int, default=5, help="rounds; default %(default)s")
    add("--mlx-rounds", type=int, default=1,
        help="rounds of mlx-lm, which takes minutes for one; default %(default)s")
    add("--engines", type=names, default=list(ENGINES), help="default lily,llama.cpp,mlx-lm")
    add("--load", choices=("map", "read"), default="read",
        help="lily's weights in mapped files or, as llama.cpp's are, in memory of its own; default %(default)s")
    add("--fused", action="store_true", help="gate and up matrices of llama.cpp's experts as one tensor")
    add("--processor-time", action="store_true",
        help="processor time instead of time, for one thread on a machine that is busy with other work")
    add("--one-by-one", action="store_true",
        help="one engine after the other, its model removed behind it: where only one fits")
    add("--limit", type=float, default=60.0,
        help="seconds that mlx-lm may take for a prompt, and for decode steps: it gets fewer then; default %(default)s")
    add("--keep", action="store_true", help="keep the models")
    args = parser.parse_args()
    if unknown := set(args.engines) - set(ENGINES):
        parser.error(f"unknown engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    return args


if __name__ == "__main__":
    arguments()
