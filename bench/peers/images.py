#!/usr/bin/env python3
"""A training step of a network for images, by `torch.compile(backend="segue")` or PyTorch, as one line of JSON.

    images.py resnet18 --mode segue --threads 2
    images.py unet --mode compile --bf16

ResNet-18 reads 8 images of 224 x 224 (or --size) and names one of 1,000 classes; the UNet reads 8 of 128 x 128 and names one of 4 classes for
each pixel.
Weights, images and labels come from one seed, all values lie channels-last, and SGD with momentum updates. With --bf16, products and
convolutions are autocast.
"""
import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn

import gpt_common as g

BATCH, LR, MOMENTUM = 8, 1e-3, 0.9


def convolution(inputs, outputs, size=3, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Two convolutions beside what they are added to, which one of 1 x 1 brings to their shape."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = convolution(inputs, outputs, stride=stride), convolution(outputs, outputs)
        self.beside = nn.Identity() if stride == 1 and inputs == outputs else convolution(inputs, outputs, 1, stride)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.beside(x))


class ResNet18(nn.Module):
    """He et al. 2015, table 1."""

    size, classes = 224, 1000

    def __init__(self):
        super().__init__()
        self.stem, self.pool = convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)
        widths, blocks = [64, 64, 128, 256, 512], []
        for inputs, outputs in zip(widths, widths[1:]):
            blocks += [Residual(inputs, outputs, 1 if inputs == outputs else 2), Residual(outputs, outputs, 1)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(512, self.classes)

    def forward(self, images, labels):
        x = self.blocks(self.pool(F.relu(self.stem(images))))
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)

    @classmethod
    def labels(cls, size):
        return torch.randint(0, cls.classes, (BATCH,))


class UNet(nn.Module):
    """Ronneberger et al. 2015, with batch norms, half of the widths and padded convolutions."""

    size, classes = 128, 4

    def __init__(self):
        super().__init__()
        widths = [3, 32, 64, 128, 256]
        self.down = nn.ModuleList(self.pair(a, b) for a, b in zip(widths, widths[1:]))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * b, b, 2, 2) for b in (128, 64, 32))
        self.up = nn.ModuleList(self.pair(2 * b, b) for b in (128, 64, 32))
        self.head = nn.Conv2d(32, self.classes, 1)

    @staticmethod
    def pair(inputs, outputs):
        return nn.Sequential(convolution(inputs, outputs), nn.ReLU(), convolution(outputs, outputs), nn.ReLU())

    def forward(self, images, labels):
        x, kept = images, []
        for at, pair in enumerate(self.down):
            x = pair(F.max_pool2d(x, 2) if at else x)
            kept.append(x)
        for widen, pair, beside in zip(self.widen, self.up, kept[-2::-1]):
            x = pair(torch.cat([widen(x), beside], 1))
        return F.cross_entropy(self.head(x), labels)

    @classmethod
    def labels(cls, size):
        return torch.randint(0, cls.classes, (BATCH, size, size))


MODELS = {"resnet18": ResNet18, "unet": UNet}


def step_of(model, images, labels, args):
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    call = model if args.mode == "eager" else torch.compile(model, backend="segue" if args.mode == "segue" else "inductor")

    def step():
        with torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext():
            loss = call(images, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--size", type=int, help="of a side of an image, in pixels; a multiple of 8")
    parser.add_argument("--mode", choices=["segue", "eager", "compile"], required=True)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    before = g.rss_mb()
    torch.manual_seed(0)
    kind = MODELS[args.model]
    model = kind().to(memory_format=torch.channels_last)
    size = args.size or kind.size
    images = torch.randn(BATCH, 3, size, size).to(memory_format=torch.channels_last)
    labels = kind.labels(size)
    step = step_of(model, images, labels, args)
    g.result(args.mode + " bf16" * args.bf16, args.model, args.threads, g.run_steps(lambda _: step(), args.steps), None, before)


if __name__ == "__main__":
    main()
