"""Convolutions and pools, by ONNX's documents: results from f64 loops over windows, checked with ONNX Runtime."""

import numpy as np

from .records import agrees, noise, record


def windows(x, kernel, stride, pad, dilation, fill=0.0):
    """[n, c, rows, columns, kh, kw]: what each place of the kernel sees."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = kernel, stride, pad, dilation
    x = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)], constant_values=fill)
    rows = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    columns = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    seen = np.empty(x.shape[:2] + (rows, columns, kh, kw))
    for i in range(kh):
        for j in range(kw):
            seen[..., i, j] = x[:, :, i * dh:i * dh + sh * (rows - 1) + 1:sh, j * dw:j * dw + sw * (columns - 1) + 1:sw]
    return seen


def conv_2d():
    for kernel, image, s, p, d, layouts, dtypes in [
        ((3, 2, 2, 4), (7, 5, 2), (1, 1), (1, 0), (1, 1), ("permuted", "transposed"), ("f32", "f32")),
        ((3, 4, 3, 2), (8, 6, 3, 2), (2, 1), (1, 2), (1, 2), ("sliced", "permuted"), ("f16", "f32")),
        ((1, 2, 3, 5), (5, 4, 3), (1, 2), (0, 1), (1, 1), ("transposed", "sliced"), ("f32", "f32")),
        ((2, 3, 2, 3), (7, 9, 2), (3, 2), (2, 1), (2, 1), ("contiguous", "broadcast"), ("f32", "f16")),
    ]:
        w, x = noise(kernel, layouts[0], dtypes[0]), noise(image, layouts[1], dtypes[1])
        seen = windows(x.values, kernel[1::-1], s[::-1], p[::-1], d[::-1])
        result = np.einsum("ncyxij,ocij->noyx", seen, w.values)
        agrees(result, "Conv", [x.values, w.values], strides=s[::-1], pads=(p[::-1] * 2), dilations=d[::-1])
        params = {"s0": s[0], "s1": s[1], "p0": p[0], "p1": p[1], "d0": d[0], "d1": d[1]}
        record("conv_2d", result, params, kernel=w, x=x)
        columns = seen.transpose(0, 2, 3, 1, 4, 5).reshape(seen.shape[0], seen.shape[2], seen.shape[3], -1)
        record("im2col", columns, {**params, "is_2d": True, "dtype": "f32"}, kernel=w, x=x)


def depthwise():
    for kernel, image, s, p, d, layouts in [
        ((3, 2, 1, 4), (7, 5, 4), (1, 1), (1, 0), (1, 1), ("permuted", "transposed")),
        ((2, 3, 1, 3), (8, 7, 3, 2), (2, 1), (1, 2), (1, 2), ("sliced", "permuted")),
        ((3, 2, 1, 2), (6, 4, 2), (1, 2), (2, 1), (2, 1), ("transposed", "sliced")),
    ]:
        w, x = noise(kernel, layouts[0]), noise(image, layouts[1])
        seen = windows(x.values, kernel[1::-1], s[::-1], p[::-1], d[::-1])
        result = np.einsum("ncyxij,cij->ncyx", seen, w.values[:, 0])
        agrees(result, "Conv", [x.values, w.values], strides=s[::-1], pads=(p[::-1] * 2), dilations=d[::-1], group=kernel[3])
        params = {"s0": s[0], "s1": s[1], "p0": p[0], "p1": p[1], "d0": d[0], "d1": d[1]}
        record("conv_2d_dw", result, params, kernel=w, x=x)


def conv_1d():
    for kernel, line, s, p, d, layouts, dtype in [
        ((3, 2, 4), (9, 2), 1, 1, 1, ("permuted", "transposed"), "f32"),
        ((4, 3, 2), (11, 3, 2), 2, 2, 1, ("sliced", "permuted"), "f16"),
        ((2, 3, 5), (8, 3), 3, 0, 2, ("transposed", "sliced"), "f32"),
    ]:
        w, x = noise(kernel, layouts[0], dtype), noise(line, layouts[1])
        # [oc, ic, k] and [n, ic, l].
        signal, taps = x.values[0], w.values[0]
        seen = windows(signal[:, :, None], (1, kernel[0]), (1, s), (0, p), (1, d))[:, :, 0, :, 0]
        result = np.einsum("nclk,ock->nol", seen, taps)
        agrees(result, "Conv", [signal, taps], strides=[s], pads=[p, p], dilations=[d])
        record("conv_1d", result, {"s0": s, "p0": p, "d0": d}, kernel=w, x=x)
        columns = seen.transpose(0, 2, 1, 3).reshape(seen.shape[0], seen.shape[2], -1)
        record("im2col", columns, {"s0": s, "p0": p, "d0": d, "is_2d": False, "dtype": "f32"}, kernel=w, x=x)


def transposed():
    for kernel, line, s, p, d, layouts in [
        ((3, 4, 2), (6, 2), 2, 1, 1, ("permuted", "transposed")),
        ((4, 2, 3), (5, 3, 2), 3, 0, 1, ("sliced", "permuted")),
        ((3, 5, 2), (7, 2), 1, 2, 2, ("transposed", "sliced")),
    ]:
        w, x = noise(kernel, layouts[0]), noise(line, layouts[1])
        # [ic, oc, k] and [n, ic, l]: every element of the line puts the kernel down.
        signal, taps = x.values[0], w.values[0]
        length = (signal.shape[2] - 1) * s + d * (taps.shape[2] - 1) + 1
        result = np.zeros((signal.shape[0], taps.shape[1], length))
        for at in range(signal.shape[2]):
            for k in range(taps.shape[2]):
                result[:, :, at * s + k * d] += signal[:, :, at] @ taps[:, :, k]
        result = result[:, :, p:length - p]
        agrees(result, "ConvTranspose", [signal, taps], strides=[s], pads=[p, p], dilations=[d])
        record("conv_transpose_1d", result, {"s0": s, "p0": p, "d0": d}, kernel=w, x=x)
    for kernel, image, s, layouts in [
        ((3, 2, 4, 2), (5, 4, 2), 2, ("permuted", "transposed")),
        ((2, 3, 2, 3), (4, 3, 3, 2), 1, ("sliced", "permuted")),
        ((2, 3, 3, 2), (3, 5, 2), 3, ("transposed", "sliced")),
    ]:
        w, x = noise(kernel, layouts[0]), noise(image, layouts[1])
        n, ic, h, width = x.values.shape
        kh, kw = kernel[1], kernel[0]
        result = np.zeros((n, kernel[2], (h - 1) * s + kh, (width - 1) * s + kw))
        for i in range(h):
            for j in range(width):
                result[:, :, i * s:i * s + kh, j * s:j * s + kw] += np.einsum("nc,coij->noij", x.values[:, :, i, j], w.values)
        agrees(result, "ConvTranspose", [x.values, w.values], strides=[s, s])
        record("conv_transpose_2d", result, {"stride": s}, kernel=w, x=x)


def pools():
    for image, k, s, p, layout in [
        ((9, 7, 3), (3, 2), (2, 1), (1, 0), "permuted"),
        ((8, 5, 2, 2), (2, 3), (2, 2), (0, 1), "transposed"),
        ((7, 6, 2), (4, 3), (1, 3), (2, 1), "sliced"),
    ]:
        x = noise(image, layout)
        params = {"k0": k[0], "k1": k[1], "s0": s[0], "s1": s[1], "p0": p[0], "p1": p[1]}
        common = {"kernel_shape": k[::-1], "strides": s[::-1], "pads": p[::-1] * 2}
        highest = windows(x.values, k[::-1], s[::-1], p[::-1], (1, 1), -np.inf).max(axis=(4, 5))
        agrees(highest, "MaxPool", [x.values], **common)
        record("pool_2d", highest, {"op": "max", **params}, x=x)
        mean = windows(x.values, k[::-1], s[::-1], p[::-1], (1, 1)).mean(axis=(4, 5))
        agrees(mean, "AveragePool", [x.values], count_include_pad=1, **common)
        record("pool_2d", mean, {"op": "avg", **params}, x=x)
    for line, k, s, p, layout in [((11, 3, 2), 3, 2, 1, "permuted"), ((9, 4), 4, 1, 2, "transposed"), ((10, 2), 2, 3, 0, "sliced")]:
        x = noise(line, layout)
        params = {"k0": k, "s0": s, "p0": p}
        seen = lambda fill: windows(x.values, (1, k), (1, s), (0, p), (1, 1), fill)
        record("pool_1d", seen(-np.inf).max(axis=(4, 5)), {"op": "max", **params}, x=x)
        record("pool_1d", seen(0.0).mean(axis=(4, 5)), {"op": "avg", **params}, x=x)


ALL = [conv_2d, depthwise, conv_1d, transposed, pools]
