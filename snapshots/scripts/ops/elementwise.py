"""Functions of elements: definitions of the papers, of NumPy's and of ONNX's operator documents."""

import math

import numpy as np

from .records import agrees, noise, record

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    # Hendrycks and Gimpel 2016, section 2.
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def binary():
    def repeated(b, a):
        return np.tile(b, [n // m for n, m in zip(a.shape, b.shape)])

    functions = [("add", np.add, "Add"), ("sub", np.subtract, "Sub"), ("mul", np.multiply, "Mul"), ("div", np.divide, "Div")]
    # A divisor stays away from 0.
    positive = (64, 449, 256)
    for name, function, onnx in functions:
        steps = positive if name == "div" else None
        for shapes, layouts, dtypes in [
            (((7, 5, 3), (7, 5, 3)), ("permuted", "sliced"), ("f32", "f32")),
            (((7, 5, 3, 2), (7, 1, 3)), ("transposed", "contiguous"), ("f32", "f16")),
            (((6, 4, 2), (3, 2, 1)), ("sliced", "transposed"), ("f32", "f32")),
            (((9, 4), (9, 4)), ("broadcast", "permuted"), ("f16", "f32")),
            (((9, 4), (1, 4)), ("contiguous", "broadcast"), ("f32", "f32")),
            (((9, 2, 3), (9, 2, 3)), ("sliced", "permuted"), ("bf16", "f16")),
        ]:
            a = noise(shapes[0], layouts[0], dtypes[0])
            b = noise(shapes[1], layouts[1], dtypes[1], steps)
            result = function(a.values, repeated(b.values, a.values))
            agrees(result, onnx, [a.values, repeated(b.values, a.values)])
            record(name, result, a=a, b=b)


def unary():
    functions = [
        ("sqr", lambda x: x * x, None, None),
        ("neg", lambda x: -x, "Neg", None),
        ("abs", np.abs, "Abs", None),
        ("sgn", np.sign, "Sign", None),
        ("step", lambda x: (x > 0).astype(np.float64), None, None),
        ("exp", np.exp, "Exp", None),
        ("relu", lambda x: np.maximum(x, 0), "Relu", None),
        ("tanh", np.tanh, "Tanh", None),
        ("sigmoid", sigmoid, "Sigmoid", None),
        ("silu", lambda x: x * sigmoid(x), None, None),
        ("gelu", gelu_tanh, "Gelu", {"approximate": "tanh"}),
        ("gelu_erf", gelu_erf, "Gelu", {"approximate": "none"}),
        ("gelu_quick", lambda x: x * sigmoid(1.702 * x), None, None),
        ("hardswish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "HardSwish", None),
        ("hardsigmoid", lambda x: np.clip(x / 6 + 0.5, 0, 1), "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
        ("softplus", lambda x: np.logaddexp(0, x), "Softplus", None),
        ("elu", lambda x: np.where(x > 0, x, np.expm1(x)), "Elu", None),
    ]
    # From −8 to 8: beyond the knees of every function.
    wide = (-1024, 2049, 128)
    for name, function, onnx, attributes in functions:
        for shape, layout, dtype, steps in [
            ((7, 5, 3), "permuted", "f32", wide),
            ((9, 4, 2), "transposed", "f32", None),
            ((11, 3), "sliced", "f16", None),
        ]:
            x = noise(shape, layout, dtype, steps)
            result = function(x.values)
            if onnx:
                agrees(result, onnx, [x.values], **(attributes or {}))
            record(name, result, x=x)
    for name, function, onnx in [("sqrt", np.sqrt, "Sqrt"), ("log", np.log, "Log")]:
        for shape, layout, dtype in [((7, 5, 3), "permuted", "f32"), ((9, 4, 2), "transposed", "f32"), ((11, 3), "sliced", "f16")]:
            x = noise(shape, layout, dtype, (8, 1017, 256))
            agrees(function(x.values), onnx, [x.values])
            record(name, function(x.values), x=x)


def with_parameters():
    for layout in ["permuted", "sliced", "transposed", "broadcast"]:
        x = noise((7, 5, 3), layout)
        record("scale", x.values * -0.375, {"by": -0.375}, x=x)
        clamped = np.clip(x.values, -0.75, 1.25)
        agrees(clamped, "Clip", [x.values, np.float32(-0.75), np.float32(1.25)])
        record("clamp", clamped, {"min": -0.75, "max": 1.25}, x=x)
        leaky = np.where(x.values > 0, x.values, 0.125 * x.values)
        agrees(leaky, "LeakyRelu", [x.values], alpha=0.125)
        record("leaky_relu", leaky, {"negative_slope": 0.125}, x=x)
    x = noise((13, 4), "sliced", "f16")
    record("leaky_relu", np.where(x.values > 0, x.values, np.float64(np.float32(0.01)) * x.values), x=x)


def gated():
    functions = [("swiglu", lambda g: g * sigmoid(g)), ("geglu", gelu_tanh), ("reglu", lambda g: np.maximum(g, 0))]
    for name, function in functions:
        for shape, layouts, dtype in [((7, 5, 3), ("permuted", "sliced"), "f32"), ((9, 4), ("transposed", "broadcast"), "f16")]:
            gate, value = noise(shape, layouts[0], dtype), noise(shape, layouts[1], dtype)
            record(name, function(gate.values) * value.values, gate=gate, value=value)
        # Halves of one operand: the gate first.
        whole = noise((14, 3, 2), "permuted")
        gate, value = whole.values[..., :7], whole.values[..., 7:]
        record(name, function(gate) * value, gate=whole)


ALL = [binary, unary, with_parameters, gated]
