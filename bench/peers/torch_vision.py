"""The convolutions, training steps and inference of bench/vision.cpp in PyTorch's eager mode: the same work and rows."""
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


# Images, channels, height, channels of the result, kernel, stride, padding; forward and backward?
LAYERS = {
    "conv_32_14": (32, 32, 14, 32, 3, 1, 1, False),
    "conv_32_14_backward": (32, 32, 14, 32, 3, 1, 1, True),
    "conv_16_14_backward": (32, 16, 14, 32, 3, 1, 1, True),
    "conv_64_56": (8, 64, 56, 64, 3, 1, 1, False),
    "conv_64_56_backward": (8, 64, 56, 64, 3, 1, 1, True),
    "conv_1_28": (32, 1, 28, 16, 3, 1, 1, False),
    "conv_128_28": (8, 128, 28, 128, 3, 1, 1, False),
    "conv_256_14": (8, 256, 14, 256, 3, 1, 1, False),
    "conv_512_7": (8, 512, 7, 512, 3, 1, 1, False),
    "conv_3_224": (8, 3, 224, 64, 7, 2, 3, False),
    "conv_64_56_kernel_1": (8, 64, 56, 256, 1, 1, 0, False),
    "conv_64_56_stride_2": (8, 64, 56, 128, 3, 2, 1, False),
}


def measure_layer(row, batch, inputs, size, outputs, kernel, stride, padding, backward):
    layer, x = nn.Conv2d(inputs, outputs, kernel, stride, padding), torch.randn(batch, inputs, size, size)
    if not backward:
        with torch.inference_mode():
            measure(row, lambda: layer(x))
        return
    x.requires_grad_()
    grad = torch.randn_like(layer(x))

    def work():
        layer(x).backward(grad)
        x.grad = None
        layer.zero_grad()

    measure(row, work)


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
    for row, layer in LAYERS.items():
        measure_layer(row, *layer)
    measure_step("cnn_step", cnn(), torch.randn(32, 1, 28, 28), 10)
    measure_step("resnet18_step", ResNet18(), torch.randn(8, 3, 96, 96), 100)
    measure_step("resnet18_step_224", ResNet18(), torch.randn(4, 3, 224, 224), 100)

    model, x = ResNet18().eval(), torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        measure("resnet18_inference", lambda: model(x), 2.0)


main()
