"""Operands, records, and ONNX Runtime as a second opinion.

Arrays have four axes, slowest first: `x[i3, i2, i1, i0]`; shapes are written fastest first, as in case lines.
"""

import math

import numpy as np
import onnxruntime
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from onnx import helper

_records = []
_seed = 0
checked = 0

# Steps that a dtype holds exactly: lowest, how many, denominator.
NOISE = {"f32": (-512, 1025, 256), "f16": (-512, 1025, 256), "bf16": (-64, 129, 32)}


def collect(module):
    """The records that a family's module makes."""
    global _seed, checked
    _records.clear()
    _seed, checked = 0, 0
    for function in module.ALL:
        function()
    return list(_records)


class Operand:
    """Some tensor: how it stands in the case's line, what it holds, and its values."""

    def __init__(self, dtype, shape, layout, contents, values):
        self.text = f"{dtype}[{','.join(map(str, shape))}]:{layout}"
        self.contents = contents
        self.values = values


def _full(shape):
    return tuple(shape) + (1,) * (4 - len(shape))


def _index(shape, layout):
    """Linear indices as the formula takes them."""
    d0, d1, d2, d3 = _full(shape)
    i3, i2, i1, i0 = np.meshgrid(*(np.arange(d) for d in (d3, d2, d1, d0)), indexing="ij")
    if layout == "broadcast":
        i1 = i1 * 0
    return ((i3 * d2 + i2) * d1 + i1) * d0 + i0


def noise(shape, layout="contiguous", dtype="f32", steps=None):
    """Numbers by the formula; `steps` is (lowest, how many, denominator)."""
    global _seed
    _seed += 1
    low, count, denominator = steps or NOISE[dtype]
    mask = (1 << 32) - 1
    h = ((_index(shape, layout) + 1) * 2654435761 + _seed * 40503) & mask
    h ^= h >> 15
    h = (h * 2246822519) & mask
    h ^= h >> 13
    values = (low + h % count) / denominator
    if dtype in ("f32", "f16", "bf16"):
        values = rounded(values, dtype)
    return Operand(dtype, shape, layout, [_seed, low, count, denominator], values)


def rounded(values, dtype):
    """Values as a float dtype holds them, rounded to nearest, ties to even."""
    values = np.asarray(values, dtype=np.float32)
    if dtype == "f16":
        values = values.astype(np.float16)
    if dtype == "bf16":
        bits = values.view(np.uint32).astype(np.uint64)
        values = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return values.astype(np.float64)


def given(values, shape, layout="contiguous", dtype="i32"):
    """Listed numbers, in linear order."""
    listed = np.array(values, dtype=np.float64).reshape(_full(shape)[::-1])
    return Operand(dtype, shape, layout, {"values": _numbers(listed)}, listed)


def blocks(shape, dtype, layout="contiguous"):
    """Noise in a block dtype, as the `gguf` package encodes and decodes it."""
    of = noise(shape, layout, "f32")
    kind = GGMLQuantizationType[dtype.upper()]
    rows = of.values.astype(np.float32).reshape(-1, shape[0])
    encoded = quantize(rows, kind)
    values = dequantize(encoded, kind).astype(np.float64).reshape(of.values.shape)
    return Operand(dtype, shape, layout, {"hex": encoded.tobytes().hex()}, values)


def _number(value):
    value = float(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    short = float(f"{value:.9g}")
    if short == 0 and math.copysign(1, short) < 0:
        return short
    return int(short) if short == int(short) and abs(short) < 1e9 else short


def _numbers(values):
    return [_number(value) for value in np.asarray(values).reshape(-1)]


def record(op, result, params=None, in_place=None, **operands):
    """Appends a record. `result` is an array, or bytes."""
    words = [op]
    for name, value in (params or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")
        words.append(f"{name}={text}")
    words += [f"{name}={operand.text}" for name, operand in operands.items()]
    if in_place is not None:
        words.append(f"in_place={in_place}")
    contents = [operand.contents for operand in operands.values()]
    out = {"hex": result.hex()} if isinstance(result, bytes) else _numbers(result)
    _records.append({"case": " ".join(words), "in": contents, "out": out})


def encoded(values, dtype):
    """A result in a block dtype."""
    rows = np.asarray(values, dtype=np.float32)
    return quantize(rows.reshape(-1, rows.shape[-1]), GGMLQuantizationType[dtype.upper()]).tobytes()


def agrees(expected, node, inputs, outputs=1, opset=21, domain="", which=0, **attributes):
    """ONNX Runtime's result of one node must be `expected`; inputs are arrays (f64 becomes f32) or None."""
    global checked
    names, feeds, declared = [], {}, []
    for i, value in enumerate(inputs):
        if value is None:
            names.append("")
            continue
        value = np.asarray(value)
        if value.dtype == np.float64:
            value = value.astype(np.float32)
        names.append(f"in{i}")
        feeds[f"in{i}"] = value
        declared.append(helper.make_tensor_value_info(f"in{i}", helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
    results = [f"out{i}" for i in range(outputs)]
    made = helper.make_node(node, names, results, domain=domain, **attributes)
    infos = [helper.make_empty_tensor_value_info(results[which])]
    graph = helper.make_graph([made], "one", declared, infos)
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run([results[which]], feeds)[0].astype(np.float64)
    expected = np.asarray(expected, dtype=np.float64).reshape(found.shape)
    scale = max(1e-30, np.abs(expected[np.isfinite(expected)]).max(initial=0))
    if not np.allclose(found, expected, rtol=0, atol=2e-5 * scale, equal_nan=True):
        raise AssertionError(f"{node}: onnxruntime is {np.abs(found - expected).max()} away, of {scale}")
    checked += 1
