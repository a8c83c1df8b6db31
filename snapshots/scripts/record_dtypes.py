#!/usr/bin/env python3
"""Records what the `gguf` package makes of blocks of each dtype: snapshots/reference/dtypes.json.

Packages: gguf 0.19.0, numpy 2.4.6 (Python 3.11). Run: python3 snapshots/scripts/record_dtypes.py

Everything is hexadecimal, little-endian: `decode` has the bytes of blocks and the f32 bits that they stand for, `encode`
has f32 bits and the bytes that they become.
"""

import json
import pathlib
import warnings

import gguf
import numpy as np
from gguf.quants import QuantError, dequantize, quantize

warnings.filterwarnings("ignore")
random = np.random.default_rng(20240607)

# Bytes of a block, and where its f16 scales lie.
BLOCKS = {
    "F16": (2, []),
    "BF16": (2, []),
    "Q4_0": (18, [0]),
    "Q4_1": (20, [0, 2]),
    "Q5_0": (22, [0]),
    "Q5_1": (24, [0, 2]),
    "Q8_0": (34, [0]),
    "Q2_K": (84, [80, 82]),
    "Q3_K": (110, [108]),
    "Q4_K": (144, [0, 2]),
    "Q5_K": (176, [0, 2]),
    "Q6_K": (210, [208]),
    "IQ4_NL": (18, [0]),
    "MXFP4": (17, []),
}

# Bits of a first and a second scale: ordinary, negative, zero, subnormal, the largest, infinite, NaN.
SCALES = [
    (0x2E66, 0x3266),
    (0xAF01, 0xB0A3),
    (0x0000, 0x8000),
    (0x0001, 0x7BFF),
    (0x7BFF, 0x83FF),
    (0x7C00, 0x3C00),
    (0xFE00, 0x3C00),
]


def blocks_of(name):
    """Blocks of random bytes with chosen scales, of zeros, and of ones."""
    size, scales_at = BLOCKS[name]
    if name in ("F16", "BF16"):
        chosen = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7F7F, 0x7F80, 0x0080]
        bits = np.concatenate([np.array(chosen, np.uint16), random.integers(0, 1 << 16, 53).astype(np.uint16)])
        return bits.view(np.uint8)
    # Large blocks: every second choice.
    chosen = SCALES if size < 64 else [SCALES[i] for i in (0, 1, 3, 5)]
    blocks = [np.zeros(size, np.uint8), np.full(size, 0xFF, np.uint8)]
    for index, bits in enumerate(chosen):
        block = random.integers(0, 256, size).astype(np.uint8)
        for at, scale in zip(scales_at, bits):
            block[at : at + 2] = np.array([scale], np.uint16).view(np.uint8)
        if name == "MXFP4":
            block[0] = (127, 120, 0, 1, 2, 254, 255)[index]
        blocks.append(block)
    return np.concatenate(blocks)


def rows():
    """Rows to encode: noise of several sizes, and what sits on an edge."""
    noise = random.standard_normal((3, 32)).astype(np.float32)
    ramp = (np.arange(32, dtype=np.float32) - 15.5) / 4
    outlier = np.full(32, 0.01, np.float32)
    outlier[5] = -7.25
    return np.stack(
        [
            noise[0],
            noise[1] * np.float32(3e-3),
            noise[2] * np.float32(900),
            np.abs(noise[0]),
            np.zeros(32, np.float32),
            np.full(32, -2.5, np.float32),
            ramp,
            np.where(np.arange(32) % 2 == 0, 1, -1).astype(np.float32),
            outlier,
            (random.integers(-8, 8, 32) / np.float32(2)).astype(np.float32),
        ]
    )


def main():
    decode, encode = {}, {}
    for name in BLOCKS:
        kind = gguf.GGMLQuantizationType[name]
        data = blocks_of(name)
        text = name.lower().replace("_k", "_K")
        values = np.ascontiguousarray(dequantize(data.reshape(1, -1), kind), np.float32)
        decode[text] = {"bytes": data.tobytes().hex(), "values": values.tobytes().hex()}
        try:
            # One row at a time, so that rows are blocks.
            x = rows()
            encoded = b"".join(np.ascontiguousarray(quantize(row.reshape(1, -1), kind)).tobytes() for row in x)
            encode[text] = {"values": x.tobytes().hex(), "bytes": encoded.hex()}
        except (NotImplementedError, QuantError):
            # The package only decodes this dtype.
            pass
    path = pathlib.Path(__file__).parent.parent / "reference" / "dtypes.json"
    with path.open("w") as file:
        json.dump({"decode": decode, "encode": encode}, file, indent=1)
        file.write("\n")


main()
