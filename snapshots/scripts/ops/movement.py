"""Ops that move elements: NumPy's own words for them, and ONNX's Resize for interpolation."""

import numpy as np

from .records import agrees, blocks, encoded, noise, record, rounded


def copies():
    for shape, layout, dtype in [((7, 5, 3), "permuted", "f32"), ((9, 4, 2), "transposed", "f16"), ((11, 3), "broadcast", "f32")]:
        x = noise(shape, layout, dtype)
        record("cont", x.values, x=x)
    ints = noise((7, 3, 2), "transposed", "i32", (-100000, 200001, 1))
    record("cont", ints.values, x=ints)
    # Converting, between other shapes with as many elements, into targets with strides.
    thirds = (-2000, 4001, 1536)
    for (source, a), (target, b) in [
        (((6, 5, 2), "permuted"), ((15, 4), "sliced")),
        (((7, 5, 3), "sliced"), ((7, 5, 3), "transposed")),
    ]:
        x = noise(source, a, "f32", thirds)
        into = noise(target, b, "f16")
        record("cpy", rounded(x.values, "f16"), source=x, target=into)
    half, into = noise((7, 5, 3), "transposed", "f16"), noise((7, 5, 3), "permuted")
    record("cpy", half.values, source=half, target=into)
    x, into = noise((64, 3), "sliced"), blocks((64, 3), "q8_0")
    record("cpy", encoded(x.values, "q8_0"), source=x, target=into)


def casts():
    x = noise((7, 5, 3), "transposed", "f32", (-2000, 4001, 1536))
    record("cast", rounded(x.values, "f16"), {"dtype": "f16"}, x=x)
    record("cast", rounded(x.values, "bf16"), {"dtype": "bf16"}, x=x)
    x = noise((9, 4), "sliced", "f16")
    record("cast", x.values, {"dtype": "f32"}, x=x)
    for dtype in ["q4_1", "q5_0"]:
        x = blocks((64, 3), dtype)
        record("cast", x.values, {"dtype": "f32"}, x=x)
    x = noise((64, 2, 3), "permuted")
    record("cast", encoded(x.values, "q8_0"), {"dtype": "q8_0"}, x=x)


def arrangements():
    for dim, other in [(0, (4, 5, 3)), (1, (7, 2, 3)), (2, (7, 5, 4)), (3, (7, 5, 3, 2))]:
        a, b = noise((7, 5, 3), "permuted"), noise(other, "sliced" if dim % 2 else "transposed")
        joined = np.concatenate([a.values, b.values], axis=3 - dim)
        agrees(joined, "Concat", [a.values, b.values], axis=3 - dim)
        record("concat", joined, {"dim": dim}, a=a, b=b)
    for layout, dtype in [("permuted", "f32"), ("transposed", "f16")]:
        x = noise((7, 5, 3), layout, dtype)
        padded = np.pad(x.values, [(0, 1), (1, 0), (2, 0), (3, 2)])
        record("pad", padded, {"right": [2, 0, 0, 1], "left": [3, 2, 1, 0]}, x=x)
        padded = np.pad(x.values, [(0, 0), (0, 0), (0, 3), (0, 2)])
        agrees(padded, "Pad", [x.values, np.array([0, 0, 0, 0, 0, 0, 3, 2])])
        record("pad", padded, {"right": [2, 3, 0, 0]}, x=x)
        rolled = np.roll(x.values, (2, -1, 4), axis=(3, 2, 1))
        record("roll", rolled, {"shifts": [2, -1, 4, 0]}, x=x)
    for shape, target, layout in [((7, 1, 3), (14, 5, 6), "permuted"), ((3, 2), (6, 4, 2, 2), "transposed")]:
        x = noise(shape, layout)
        full = target + (1,) * (4 - len(target))
        times = [n // m for n, m in zip(full[::-1], x.values.shape)]
        repeated = np.tile(x.values, times)
        agrees(repeated, "Tile", [x.values, np.array(times)])
        record("repeat", repeated, {"shape": list(target)}, x=x)


def upscaling():
    for layout in ["permuted", "sliced", "transposed"]:
        x = noise((5, 4, 3), layout)
        nearest = x.values.repeat(2, axis=3).repeat(3, axis=2)
        agrees(nearest, "Resize", [x.values, None, np.array([1, 1, 3, 2], dtype=np.float32)], mode="nearest",
               coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        record("upscale", nearest, {"ne": [10, 12, 3], "mode": "nearest"}, x=x)
        for align, mode in [(False, "half_pixel"), (True, "align_corners")]:
            smooth = bilinear(x.values, 12, 10, align)
            agrees(smooth, "Resize", [x.values, None, None, np.array([1, 3, 12, 10])], mode="linear",
                   coordinate_transformation_mode=mode)
            record("upscale", smooth, {"ne": [10, 12, 3], "mode": "bilinear", "align_corners": align}, x=x)


def bilinear(x, height, width, align):
    def weights(old, new):
        matrix = np.zeros((new, old))
        for i in range(new):
            at = i * (old - 1) / (new - 1) if align else (i + 0.5) * old / new - 0.5
            at = min(max(at, 0), old - 1)
            low = min(int(np.floor(at)), old - 1)
            matrix[i, low] += 1 - (at - low)
            matrix[i, min(low + 1, old - 1)] += at - low
        return matrix

    return np.einsum("yh,xw,nchw->ncyx", weights(x.shape[2], height), weights(x.shape[3], width), x)


def made_from_nothing():
    for start, stop, step in [(0, 4, 1), (1.5, -2.25, -0.25), (-3, 11, 2.5)]:
        record("arange", np.arange(start, stop, step), {"start": float(start), "stop": float(stop), "step": float(step)})
    # Sinusoids of a time: Vaswani et al. 2017, section 3.5, cosines first as diffusion models have them.
    for dim, max_period in [(8, 10000), (7, 100)]:
        times = noise((5,), "sliced", "f32", (0, 4001, 4))
        half = dim // 2
        frequencies = np.exp(-np.log(max_period) * np.arange(half) / half)
        angles = times.values.reshape(5, 1) * frequencies
        parts = [np.cos(angles), np.sin(angles)] + ([np.zeros((5, 1))] if dim % 2 else [])
        record("timestep_embedding", np.concatenate(parts, axis=1), {"dim": dim, "max_period": max_period}, timesteps=times)


ALL = [copies, casts, arrangements, upscaling, made_from_nothing]
