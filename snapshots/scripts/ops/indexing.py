"""Rows by index: NumPy's fancy indexing."""

import numpy as np

from .records import agrees, blocks, encoded, given, noise, record


def reading():
    ids = [4, 0, 3, 3, 1, 2, 0]
    for table in [noise((7, 5), "transposed"), noise((7, 5), "sliced", "f16"), blocks((64, 5), "q8_0"), blocks((32, 5), "q4_1", "sliced")]:
        rows = table.values[0, 0][ids]
        agrees(rows, "Gather", [table.values[0, 0], np.array(ids)], axis=0)
        record("get_rows", rows, table=table, ids=given(ids, (7,)))
    ints = noise((6, 5), "permuted", "i32", (-70000, 140001, 1))
    record("get_rows", ints.values[0, 0][ids], table=ints, ids=given(ids, (7,), "sliced"))
    # A table for each plane: ids [4, 3, 2] into [7, 5, 3, 2].
    table = noise((7, 5, 3, 2), "permuted")
    ids = noise((4, 3, 2), "transposed", "i32", (0, 5, 1))
    chosen = np.stack([[table.values[b, a][ids.values[0, b, a].astype(int)] for a in range(3)] for b in range(2)])
    record("get_rows", chosen, table=table, ids=ids)


def writing():
    ids = [6, 1, 4, 1]
    for target, layout in [(noise((7, 9), "sliced"), "transposed"), (noise((7, 9), "transposed", "f16"), "permuted")]:
        rows = noise((7, 4), layout)
        written = target.values.copy()
        # Of equal ids the last wins, as in NumPy.
        written[0, 0][ids] = rows.values[0, 0]
        record("set_rows", written, target=target, rows=rows, ids=given(ids, (4,)))
    target, rows = blocks((64, 9), "q8_0"), noise((64, 4), "sliced")
    before = bytes.fromhex(target.contents["hex"])
    size = len(before) // 9
    fresh = encoded(rows.values, "q8_0")
    parts = [before[i * size:(i + 1) * size] for i in range(9)]
    for at, row in enumerate(ids):
        parts[row] = fresh[at * size:(at + 1) * size]
    record("set_rows", b"".join(parts), target=target, rows=rows, ids=given(ids, (4,)))
    # Planes with ids of their own, repeated over the outermost axis.
    target, rows = noise((7, 9, 4, 2), "permuted"), noise((7, 3, 4, 2), "sliced")
    ids = given([0, 8, 3, 5, 5, 1], (3, 2), "transposed")
    written = target.values.copy()
    for b in range(2):
        for a in range(4):
            written[b, a][ids.values[0, 0, a % 2].astype(int)] = rows.values[b, a]
    record("set_rows", written, target=target, rows=rows, ids=ids)


ALL = [reading, writing]
