"""Gated steps: Hochreiter and Schmidhuber 1997 with forget gates, Cho et al. 2014 with the reset behind the product."""

import numpy as np

from .elementwise import sigmoid
from .records import agrees, noise, record


def lstm():
    for hidden, batch, layouts in [(5, 3, ("permuted", "sliced")), (7, 4, ("transposed", "contiguous")), (3, 6, ("sliced", "transposed")), (9, 2, ("contiguous", "broadcast"))]:
        gates, cell = noise((4 * hidden, batch), layouts[0]), noise((hidden, batch), layouts[1])
        g, c = gates.values[0, 0], cell.values[0, 0]
        i, f, n, o = (g[:, k * hidden:(k + 1) * hidden] for k in range(4))
        cell_after = sigmoid(f) * c + sigmoid(i) * np.tanh(n)
        state = sigmoid(o) * np.tanh(cell_after)
        # ONNX orders the gates input, output, forget, cell; its input is what the gates are, by an identity.
        wanted = np.concatenate([np.arange(k * hidden, (k + 1) * hidden) for k in (0, 3, 1, 2)])
        identity = np.eye(4 * hidden)[wanted][None]
        inputs = [g[None], identity, np.zeros((1, 4 * hidden, hidden)), None, None, np.zeros((1, batch, hidden)), c[None]]
        for which, expected in [(1, state), (2, cell_after)]:
            agrees(expected, "LSTM", inputs, outputs=3, which=which, hidden_size=hidden)
        record("lstm", np.stack([state, cell_after]), gates=gates, cell=cell)


def gru():
    for size, batch, layouts in [(5, 3, ("permuted", "sliced", "transposed")), (7, 4, ("transposed", "contiguous", "sliced")), (4, 5, ("sliced", "broadcast", "permuted"))]:
        x_gates, h_gates = noise((3 * size, batch), layouts[0]), noise((3 * size, batch), layouts[1])
        hidden = noise((size, batch), layouts[2])
        x, h, before = x_gates.values[0, 0], h_gates.values[0, 0], hidden.values[0, 0]
        part = lambda of, k: of[:, k * size:(k + 1) * size]
        reset = sigmoid(part(x, 0) + part(h, 0))
        update = sigmoid(part(x, 1) + part(h, 1))
        fresh = np.tanh(part(x, 2) + reset * part(h, 2))
        after = (1 - update) * fresh + update * before
        record("gru", after, x_gates=x_gates, h_gates=h_gates, hidden=hidden)
    # The same by ONNX, whose gates are ordered update, reset, hidden, with recurrent weights for one row of states.
    size = 5
    x, before, weights, bias = (noise(shape).values[0, 0] for shape in [(3 * size, 1), (size, 1), (size, 3 * size), (3 * size, 1)])
    h = before @ weights.T + bias
    reset, update = sigmoid(x[:, :size] + h[:, :size]), sigmoid(x[:, size:2 * size] + h[:, size:2 * size])
    fresh = np.tanh(x[:, 2 * size:] + reset * h[:, 2 * size:])
    after = (1 - update) * fresh + update * before
    order = np.concatenate([np.arange(size, 2 * size), np.arange(size), np.arange(2 * size, 3 * size)])
    bias = np.concatenate([np.zeros((1, 3 * size)), bias[:, order]], axis=1)
    agrees(after, "GRU", [x[None], np.eye(3 * size)[order][None], weights[order][None], bias, None, before[None]],
           outputs=2, which=1, hidden_size=size, linear_before_reset=1)


ALL = [lstm, gru]
