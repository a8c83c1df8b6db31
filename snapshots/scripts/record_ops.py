#!/usr/bin/env python3
"""Records what ops compute, worked out with NumPy in f64 and, where it has the op, checked against ONNX Runtime.

Packages: numpy 2.4.6, onnx 1.23.2, onnxruntime 1.32.0, gguf 0.19.0 (Python 3.11).
Run: python3 snapshots/scripts/record_ops.py [FAMILY …]

Writes `snapshots/reference/ops/FAMILY.json`. The formulas in `ops/` come from papers and from the NumPy and ONNX documents,
not from a backend of this workspace; ONNX Runtime computes in f32 and must agree to 2e-5 of the largest result.

A record: `case` is a line of the conformance suite; `in` says what each operand holds, and `out` is the result in linear
order (fastest axis first). An operand is either a list of numbers, or bytes in hexadecimal (block dtypes), or
`[seed, low, count, denominator]` for this formula in 32-bit unsigned integers, with `i` the linear index of an element (for a
`broadcast` operand with its axis 1 taken as 0):

    h = (i + 1) · 2654435761 + seed · 40503;  h ^= h >> 15;  h ·= 2246822519;  h ^= h >> 13
    value = (low + h mod count) / denominator
"""

import importlib
import json
import pathlib
import sys

import gguf
import numpy
import onnx
import onnxruntime

from ops import records

FAMILIES = ["elementwise", "movement", "indexing", "reductions", "products", "attention", "recurrent", "spatial"]


def main():
    folder = pathlib.Path(__file__).resolve().parent.parent / "reference" / "ops"
    folder.mkdir(parents=True, exist_ok=True)
    versions = {
        "numpy": numpy.__version__,
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "gguf": gguf.__version__ if hasattr(gguf, "__version__") else "0.19.0",
    }
    for family in sys.argv[1:] or FAMILIES:
        made = records.collect(importlib.import_module(f"ops.{family}"))
        lines = [json.dumps(record, separators=(",", ":")) for record in made]
        head = json.dumps({"made_with": versions}, separators=(",", ":"))[1:-1]
        text = "{" + head + ',"records":[\n' + ",\n".join(lines) + "\n]}\n"
        (folder / f"{family}.json").write_text(text)
        ops = sorted({record["case"].split()[0] for record in made})
        print(f"{family}: {len(made)} records of {len(ops)} ops, {records.checked} results checked with onnxruntime, {len(text)} bytes")


if __name__ == "__main__":
    main()
