"""Packs the weights of the tiny models beside this file: the repository has a limit, and both files have the same weights.

    python3 pack.py tiny-qwen2 ...            model.safetensors and model.gguf become model.zst
    python3 pack.py --unpack tiny-qwen2 ...   and the other way round

The packed file has the length of the first file, in eight bytes, and both files. Needs the program zstd.
"""

import pathlib, subprocess, sys

FILES = ["model.safetensors", "model.gguf"]


def main(unpacks, names):
    for folder in (pathlib.Path(__file__).parent / name for name in names):
        paths, packed = [folder / file for file in FILES], folder / "model.zst"
        if unpacks:
            content = subprocess.run(["zstd", "-dc", packed], check=True, capture_output=True).stdout
            end = 8 + int.from_bytes(content[:8], "little")
            paths[0].write_bytes(content[8:end])
            paths[1].write_bytes(content[end:])
            packed.unlink()
        else:
            first, last = (path.read_bytes() for path in paths)
            content = len(first).to_bytes(8, "little") + first + last
            packed.write_bytes(subprocess.run(["zstd", "-19", "-c"], check=True, capture_output=True, input=content).stdout)
            for path in paths:
                path.unlink()


main("--unpack" in sys.argv[1:], [name for name in sys.argv[1:] if name != "--unpack"])
