"""Reads files that `entensor quantize` wrote with the `gguf` package and compares every tensor, dequantized by both.

    python3 -m pip install gguf==0.19.0 numpy
    python3 snapshots/scripts/check_quantized.py target/release/entensor MODEL.gguf q8_0 q4_0 q5_1 q4_K q6_K f16 …

For each dtype: quantizes MODEL, dequantizes the result to f32 with `entensor quantize --dtype f32`, and asks the package
for its own dequantization of the quantized file. They must agree in every bit. Prints a line per dtype; status 1 if any differs.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy
from gguf import GGUFReader
from gguf.quants import dequantize


def tensors(path):
    return {tensor.name: tensor for tensor in GGUFReader(path).tensors}


def values(tensor):
    return numpy.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32).reshape(-1)


def main():
    binary, model, *dtypes = sys.argv[1:]
    fields = set(GGUFReader(model).fields)
    failed = False
    for dtype in dtypes:
        with tempfile.TemporaryDirectory() as folder:
            packed, plain = (str(pathlib.Path(folder) / name) for name in ("packed.gguf", "plain.gguf"))
            for source, target, to in ((model, packed, dtype), (packed, plain, "f32")):
                subprocess.run([binary, "quantize", source, target, "--dtype", to], check=True, stderr=subprocess.DEVNULL)
            lost = fields - set(GGUFReader(packed).fields)
            theirs, ours = tensors(packed), tensors(plain)
            wrong = [
                name
                for name, tensor in theirs.items()
                if not numpy.array_equal(values(tensor).view(numpy.uint32), values(ours[name]).view(numpy.uint32))
            ]
            kinds = sorted({tensor.tensor_type.name for tensor in theirs.values()})
            print(f"{dtype}: {len(theirs)} tensors ({', '.join(kinds)}), {len(wrong)} differ, {len(lost)} metadata keys lost")
            failed |= bool(wrong or lost or set(theirs) != set(ours))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
