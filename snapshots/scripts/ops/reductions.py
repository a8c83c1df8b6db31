"""Functions of rows: norms, softmax, sums, order."""

import numpy as np

from .records import agrees, given, noise, record


def norms():
    for shape, layout in [((7, 5, 3), "permuted"), ((33, 3), "transposed"), ((12, 4), "sliced"), ((9, 4), "broadcast")]:
        x = noise(shape, layout)
        v, width = x.values, shape[0]
        # Ba et al. 2016, without gain and bias.
        mean, variance = v.mean(axis=3, keepdims=True), v.var(axis=3, keepdims=True)
        normed = (v - mean) / np.sqrt(variance + 1e-3)
        agrees(normed, "LayerNormalization", [v, np.ones(width)], axis=-1, epsilon=1e-3)
        record("norm", normed, {"eps": 0.001}, x=x)
        # Zhang and Sennrich 2019.
        rms = v / np.sqrt((v * v).mean(axis=3, keepdims=True) + 1e-4)
        record("rms_norm", rms, {"eps": 0.0001}, x=x)
        length = np.sqrt((v * v).sum(axis=3, keepdims=True))
        agrees(v / length, "LpNormalization", [v], axis=-1, p=2)
        record("l2_norm", v / np.maximum(length, 1e-12), x=x)
        record("l2_norm", v / np.maximum(length, 4.0), {"eps": 4.0}, x=x)


def group_norm():
    # Wu and He 2018, without gain and bias: groups of neighbouring channels.
    for shape, groups, layout in [((5, 3, 6, 2), 3, "permuted"), ((4, 3, 8), 2, "transposed"), ((3, 2, 5, 2), 2, "sliced")]:
        x = noise(shape, layout)
        w, h, c, n = shape + (1,) * (4 - len(shape))
        per_group = -(-c // groups)
        normed = np.empty_like(x.values)
        for b in range(n):
            for first in range(0, c, per_group):
                part = x.values[b, first:first + per_group]
                normed[b, first:first + per_group] = (part - part.mean()) / np.sqrt(part.var() + 1e-5)
        if c % groups == 0:
            agrees(normed, "GroupNormalization", [x.values, np.ones(c), np.zeros(c)], num_groups=groups, epsilon=1e-5)
        record("group_norm", normed, {"n_groups": groups, "eps": 1e-05}, x=x)


def softmax(x, sinks=None):
    top = x.max(axis=3, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks)
    e = np.exp(x - top)
    total = e.sum(axis=3, keepdims=True)
    return e / (total if sinks is None else total + np.exp(sinks - top))


def slopes(heads, max_bias):
    # Press et al. 2021, section 3: a geometric sequence for powers of two, and every other of the next one's for the rest.
    def powers(n):
        return [2 ** (-max_bias * (i + 1) / n) for i in range(n)]

    whole = 1 << (heads.bit_length() - 1)
    return np.array(powers(whole) + powers(2 * whole)[0::2][: heads - whole])


def soft_max():
    for shape, layout in [((7, 5, 3), "permuted"), ((33, 3), "transposed"), ((9, 4), "broadcast")]:
        x = noise(shape, layout)
        result = softmax(0.5 * x.values)
        agrees(result, "Softmax", [0.5 * x.values], axis=-1)
        record("soft_max", result, {"scale": 0.5}, x=x)
    # A mask with more rows than needed, repeated over planes.
    x, mask = noise((7, 5, 6, 2), "sliced"), noise((7, 8, 3, 2), "permuted", "f16", (-640, 641, 256))
    rows = np.tile(mask.values[:, :, :5], (1, 2, 1, 1))
    record("soft_max", softmax(0.25 * x.values + rows), {"scale": 0.25}, x=x, mask=mask)
    # Slopes for a count of heads that is a power of two, and for one that is not.
    for heads in [4, 6]:
        x, mask = noise((7, 5, heads), "transposed"), noise((7, 5), "sliced", "f32", (-16, 17, 2))
        biased = x.values + slopes(heads, 8.0).reshape(1, heads, 1, 1) * mask.values
        record("soft_max", softmax(biased), {"max_bias": 8.0}, x=x, mask=mask)
    # Sinks: one more score a head, whose share of the sum is dropped.
    x, mask, sinks = noise((7, 5, 3), "permuted"), noise((7, 5), "contiguous", "f16", (-2, 3, 1)), noise((3,))
    extra = sinks.values.reshape(1, 3, 1, 1)
    record("soft_max", softmax(x.values + mask.values, extra), x=x, mask=mask, sinks=sinks)


def causal():
    for shape, n_past, layout in [((7, 5, 3), 2, "permuted"), ((9, 4, 2), 0, "transposed"), ((6, 7), 1, "sliced")]:
        x = noise(shape, layout)
        columns = np.arange(shape[0])[None, :] > n_past + np.arange(shape[1])[:, None]
        record("diag_mask_inf", np.where(columns, -np.inf, x.values), {"n_past": n_past}, x=x)


def order():
    # Few values, so that there are equals.
    few = (-6, 13, 4)
    for shape, layout in [((13, 5, 3), "permuted"), ((9, 4, 2), "transposed"), ((17, 3), "sliced")]:
        x = noise(shape, layout, "f32", few)
        first = x.values.argmax(axis=3)
        agrees(first, "ArgMax", [x.values], axis=3, keepdims=0)
        record("argmax", first, x=x)
        ascending = np.argsort(x.values, axis=3, kind="stable")
        descending = np.argsort(-x.values, axis=3, kind="stable")
        record("argsort", ascending, {"order": "asc"}, x=x)
        record("argsort", descending, {"order": "desc"}, x=x)
        best = descending[..., :4]
        agrees(best, "TopK", [x.values, np.array([4])], outputs=2, which=1, axis=3)
        record("top_k", best, {"k": 4}, x=x)


def sums():
    for shape, layout in [((7, 5, 3), "permuted"), ((257, 2, 2), "sliced"), ((9, 4, 2), "transposed"), ((9, 4), "broadcast")]:
        x = noise(shape, layout)
        agrees(x.values.sum(axis=3, keepdims=True), "ReduceSum", [x.values, np.array([3])])
        record("sum_rows", x.values.sum(axis=3), x=x)
        agrees(x.values.mean(axis=3, keepdims=True), "ReduceMean", [x.values, np.array([3])])
        record("mean", x.values.mean(axis=3), x=x)
        record("sum", x.values.sum(), x=x)
        if shape[0] < 100:
            agrees(x.values.cumsum(axis=3), "CumSum", [x.values, np.array(3)])
            record("cumsum", x.values.cumsum(axis=3), x=x)


ALL = [norms, group_norm, soft_max, causal, order, sums]
