"""The convolutions and training steps of bench/vision.cpp in PyTorch's eager mode: the same work and rows."""
import torch
from torch import nn
from torch.nn import functional as F

from torch_timing import THREADS, measure


def cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs),
                                  nn.ReLU(inplace=True),
                                  nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential() if inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                                  nn.MaxPool2d(3, 2, 1))
        widths = [64, 64, 128, 256, 512]
        self.blocks = nn.Sequential(*[block for inputs, outputs in zip(widths, widths[1:]) for block in (
            ResidualBlock(inputs, outputs, 1 if inputs == outputs else 2), ResidualBlock(outputs, outputs, 1))])
        self.head = nn.Linear(512, 100)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def convolution(batch, channels, size):
    return nn.Conv2d(channels, channels, 3, padding=1), torch.randn(batch, channels, size, size)


def measure_forward(row, layer, x):
    with torch.no_grad():
        measure(row, lambda: layer(x), 2.0)


def measure_forward_and_backward(row, layer, x):
    x.requires_grad_()
    grad = torch.randn_like(x)

    def work():
        layer(x).backward(grad)
        x.grad = None
        layer.zero_grad()

    measure(row, work, 2.0)


def measure_step(row, model, x, classes):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    y = torch.randint(0, classes, (x.shape[0],))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    measure(row, step, 4.0)


def main():
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    measure_forward("conv_32_14", *convolution(32, 32, 14))
    measure_forward("conv_128_28", *convolution(8, 128, 28))
    measure_forward_and_backward("conv_64_56_backward", *convolution(8, 64, 56))
    measure_step("cnn_step", cnn(), torch.randn(32, 1, 28, 28), 10)
    measure_step("resnet18_step", ResNet18(), torch.randn(8, 3, 96, 96), 100)


main()
