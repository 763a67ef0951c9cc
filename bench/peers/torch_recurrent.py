"""The training steps of bench/recurrent.cpp in PyTorch's eager mode: the same work and rows."""
import torch
from torch import nn

from torch_timing import THREADS, measure

BATCH, TIME, IN, HIDDEN, CLASSES = 32, 40, 64, 128, 20


def main():
    torch.set_num_threads(THREADS)
    for row, make in {"lstm_step": nn.LSTM, "gru_step": nn.GRU}.items():
        torch.manual_seed(0)
        layer, head = make(IN, HIDDEN, batch_first=True, bidirectional=True), nn.Linear(2 * HIDDEN, CLASSES)
        optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.01)
        x, y = torch.randn(BATCH, TIME, IN), torch.randint(0, CLASSES, (BATCH * TIME,))

        def step():
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(layer(x)[0]).flatten(0, 1), y).backward()
            optimizer.step()

        measure(row, step)


main()
