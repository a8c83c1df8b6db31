"""Rotary embeddings (Su et al. 2021; Peng et al. 2023; Wang et al. 2024) and fused attention (Vaswani et al. 2017)."""

import math

import numpy as np

from .records import agrees, given, noise, record
from .reductions import slopes, softmax


def yarn(angles, n_dims, n_ctx_orig, base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow):
    """YaRN, section 3: interpolated and extrapolated angles mixed by wavelength, and the attention's temperature."""

    def pair_of(turns):
        # The pair that turns this often over the original context.
        return n_dims * math.log(n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(base))

    pairs = np.arange(n_dims // 2)
    if ext_factor == 0:
        return angles * freq_scale, attn_factor
    low = max(0, math.floor(pair_of(beta_fast)))
    high = min(n_dims - 1, math.ceil(pair_of(beta_slow)))
    keep = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
    mix = keep * ext_factor
    return angles * freq_scale * (1 - mix) + angles * mix, attn_factor * (1 + 0.1 * math.log(1 / freq_scale))


def rotate(x, angles, size, pairs):
    """Turns each pair (a, b) of elements of the rows of x[batch, tokens, heads, width] by angles[tokens, pair]."""
    result = x.copy()
    cos, sin = np.cos(angles) * size, np.sin(angles) * size
    for i, (a, b) in enumerate(pairs):
        c, s = cos[None, :, i, None], sin[None, :, i, None]
        result[..., a] = x[..., a] * c - x[..., b] * s
        result[..., b] = x[..., a] * s + x[..., b] * c
    return result


def halves(n):
    return [(i, i + n // 2) for i in range(n // 2)]


def neighbours(n):
    return [(2 * i, 2 * i + 1) for i in range(n // 2)]


def rope():
    positions = given([0, 5, 2, 113], (4,))
    p = positions.values.reshape(4, 1)
    for mode, pairs in [("normal", neighbours), ("neox", halves)]:
        for shape, n_dims, base, scale, layout in [
            ((10, 3, 4), 10, 10000.0, 1.0, "permuted"),
            ((10, 3, 4, 2), 6, 500.0, 0.5, "transposed"),
            ((12, 5, 4), 8, 10000.0, 1.0, "sliced"),
        ]:
            x = noise(shape, layout, "f16" if layout == "sliced" else "f32")
            frequencies = base ** (-2.0 * np.arange(n_dims // 2) / n_dims)
            result = rotate(x.values, p * scale * frequencies, 1.0, pairs(n_dims))
            params = {"mode": mode, "n_dims": n_dims, "base": base, "freq_scale": scale}
            record("rope", result, params, x=x, positions=positions)
            factors = noise((n_dims // 2,), "contiguous", "f32", (64, 193, 128))
            result = rotate(x.values, p * scale * frequencies / factors.values.reshape(1, -1), 1.0, pairs(n_dims))
            record("rope", result, params, x=x, positions=positions, factors=factors)
            if mode == "neox" and n_dims == shape[0]:
                whole = [np.cos(p * frequencies), np.sin(p * frequencies)]
                plain = rotate(x.values, p * frequencies, 1.0, pairs(n_dims))
                # [batch, heads, tokens, width], with positions as rows of the tables.
                agrees(plain.swapaxes(1, 2), "RotaryEmbedding",
                       [x.values.swapaxes(1, 2), np.arange(4).reshape(1, 4)] + whole, domain="com.microsoft")


def scaled_rope():
    positions = given([1, 700, 40, 2999], (4,), "sliced")
    p = positions.values.reshape(4, 1)
    for mode, pairs, layout in [("normal", neighbours, "sliced"), ("neox", halves, "permuted")]:
        for ext_factor, attn_factor, freq_scale in [(1.0, 1.0, 0.25), (0.5, 0.75, 0.125), (0.0, 0.5, 0.25)]:
            x = noise((20, 3, 4), layout)
            n_dims, base = 16, 10000.0
            angles = p * base ** (-2.0 * np.arange(n_dims // 2) / n_dims)
            angles, size = yarn(angles, n_dims, 512, base, freq_scale, ext_factor, attn_factor, 32.0, 1.0)
            params = {"mode": mode, "n_dims": n_dims, "n_ctx_orig": 512, "base": base, "freq_scale": freq_scale,
                      "ext_factor": ext_factor, "attn_factor": attn_factor, "beta_fast": 32.0, "beta_slow": 1.0}
            record("rope", rotate(x.values, angles, size, pairs(n_dims)), params, x=x, positions=positions)


def sectioned_rope():
    # Positions of time, height, width and one more, one list behind the other.
    lists = [[0, 3, 5, 9], [1, 4, 2, 7], [6, 0, 8, 3], [2, 2, 11, 5]]
    positions = given(sum(lists, []), (16,))
    p = np.array(lists, dtype=np.float64)
    # Sections say how many pairs follow each position: in runs, or taking turns.
    sections = [3, 2, 2, 1]
    runs = np.repeat([0, 1, 2, 3], sections)
    base, n_dims = 1000.0, 16
    frequencies = base ** (-2.0 * np.arange(n_dims // 2) / n_dims)
    for layout, shape in [("permuted", (20, 3, 4)), ("transposed", (16, 2, 4))]:
        x = noise(shape, layout)
        angles = np.stack([p[axis] * frequencies[i] for i, axis in enumerate(runs)], axis=1)
        params = {"mode": "mrope", "n_dims": n_dims, "base": base, "sections": sections}
        record("rope", rotate(x.values, angles, 1.0, halves(n_dims)), params, x=x, positions=positions)
        # Interleaved: pairs take time, height, width in turn, while a section still has pairs; the rest take the last.
        turns = [i % 3 if i < 3 * sections[i % 3] else 3 for i in range(n_dims // 2)]
        angles = np.stack([p[axis] * frequencies[i] for i, axis in enumerate(turns)], axis=1)
        params = {"mode": "imrope", "n_dims": n_dims, "base": base, "sections": sections}
        record("rope", rotate(x.values, angles, 1.0, halves(n_dims)), params, x=x, positions=positions)
    # Vision: rows and columns of patches, each with frequencies of its own; the whole row is turned, halves together.
    x = noise((12, 3, 4), "sliced")
    sections = [3, 3, 0, 0]
    n_dims = 6
    frequencies = base ** (-2.0 * np.arange(3) / n_dims)
    angles = np.concatenate([p[0][:, None] * frequencies, p[1][:, None] * frequencies], axis=1)
    params = {"mode": "vision", "n_dims": n_dims, "base": base, "sections": sections}
    record("rope", rotate(x.values, angles, 1.0, halves(12)), params, x=x, positions=positions)


def fused():
    for shapes, kind, layouts, params, extras in [
        # (dk, dv, queries, keys, heads, key heads, batch)
        ((8, 8, 3, 5, 2, 2, 1), "f32", "permuted", {"scale": 0.25}, ""),
        ((8, 6, 3, 7, 4, 2, 2), "f32", "transposed", {"scale": 0.5}, "mask"),
        ((8, 6, 3, 7, 6, 3, 1), "f16", "sliced", {"scale": 0.5, "max_bias": 8.0}, "mask"),
        ((5, 9, 4, 6, 2, 1, 1), "f16", "permuted", {"scale": 1.0, "logit_softcap": 2.0}, "mask"),
        ((5, 9, 4, 6, 3, 1, 2), "f32", "sliced", {"scale": 0.75}, "mask sinks"),
    ]:
        dk, dv, n, kv, heads, groups, batch = shapes
        q = noise((dk, n, heads, batch), layouts)
        k, v = noise((dk, kv, groups, batch), "sliced", kind), noise((dv, kv, groups, batch), layouts, kind)
        share = heads // groups
        keys, values = k.values.repeat(share, axis=1), v.values.repeat(share, axis=1)
        scores = params["scale"] * np.einsum("bhqd,bhkd->bhqk", q.values, keys)
        cap = params.get("logit_softcap", 0)
        if cap:
            scores = cap * np.tanh(scores / cap)
        operands = {"q": q, "k": k, "v": v}
        if "mask" in extras:
            hidden = [-math.inf if (i * 7 + r * 3) % 4 == 0 else -0.5 * ((i + r) % 3) for r in range(n) for i in range(kv)]
            mask = given(hidden, (kv, n), "sliced", "f16")
            slope = slopes(heads, params["max_bias"]) if "max_bias" in params else np.ones(heads)
            scores = scores + slope.reshape(1, heads, 1, 1) * mask.values
            operands["mask"] = mask
        sinks = None
        if "sinks" in extras:
            operands["sinks"] = noise((heads,))
            sinks = operands["sinks"].values.reshape(1, heads, 1, 1)
        weights = softmax(scores, sinks)
        out = np.einsum("bhqk,bhkd->bqhd", weights, values)
        if set(params) == {"scale"} and sinks is None:
            # Groups of neighbours share keys there as well.
            inputs = [q.values, k.values, v.values] + ([operands["mask"].values] if "mask" in operands else [])
            agrees(out.swapaxes(1, 2), "Attention", inputs, opset=23, scale=params["scale"])
        record("flash_attn_ext", out, params, **operands)


ALL = [rope, scaled_rope, sectioned_rope, fused]
