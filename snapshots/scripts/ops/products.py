"""Matrix products, of one matrix and of chosen ones."""

import numpy as np

from .records import agrees, blocks, given, noise, record


def mul_mat():
    for weights, x in [
        (noise((7, 5, 2), "permuted"), noise((7, 3, 4), "transposed")),
        (noise((33, 4), "transposed"), noise((33, 6), "sliced")),
        (noise((9, 5), "sliced", "f16"), noise((9, 4), "permuted", "f16")),
        (noise((9, 5, 2, 2), "permuted", "f16"), noise((9, 4, 6, 2), "sliced")),
        (noise((9, 5), "broadcast"), noise((9, 4), "transposed")),
        (noise((9, 5), "transposed", "bf16"), noise((9, 4), "sliced", "bf16")),
        (blocks((64, 5), "q4_0"), noise((64, 3), "permuted", "f16")),
        (blocks((64, 5), "q5_1", "sliced"), noise((64, 3), "transposed")),
        (blocks((64, 5), "q8_0", "sliced"), noise((64, 3), "transposed")),
        (blocks((96, 5, 2), "q4_1", "permuted"), noise((96, 3, 4), "sliced")),
    ]:
        a, b = weights.values, x.values
        # Neighbouring planes of `x` share one of the weights.
        a = a.repeat(b.shape[1] // a.shape[1], axis=1).repeat(b.shape[0] // a.shape[0], axis=0)
        product = np.einsum("bamk,bank->banm", a, b)
        agrees(product, "MatMul", [b, a.swapaxes(2, 3)])
        record("mul_mat", product, weights=weights, x=x)


def chosen():
    # Experts [k, m, e], ids [used, tokens]; rows of `x` one for each used expert, or one for all.
    ids = [2, 0, 3, 3, 1, 2, 0, 1, 3, 2]
    for experts, x in [
        (noise((7, 5, 4), "permuted"), noise((7, 2, 5), "transposed")),
        (noise((7, 5, 4), "transposed", "f16"), noise((7, 1, 5), "sliced")),
        (noise((9, 6, 4), "sliced"), noise((9, 2, 5), "permuted", "f16")),
        (blocks((64, 3, 4), "q8_0"), noise((64, 2, 5), "sliced")),
        (blocks((32, 6, 4), "q4_1", "sliced"), noise((32, 1, 5))),
    ]:
        which = given(ids, (2, 5), "sliced")
        w = experts.values[0][which.values[0, 0].astype(int)]
        rows = np.broadcast_to(x.values[0], (5, 2, x.values.shape[3]))
        record("mul_mat_id", np.einsum("tumk,tuk->tum", w, rows), experts=experts, x=x, ids=which)
    for layout in ["permuted", "transposed"]:
        a, b, which = noise((6, 2, 5), layout), noise((6, 4), "sliced"), given(ids, (2, 5))
        record("add_id", a.values + b.values[0, 0][which.values[0, 0].astype(int)], a=a, b=b, ids=which)


ALL = [mul_mat, chosen]
