"""timm: a tiny ViT and a tiny residual network with batch norm, by their names.

    PYTHONPATH=build/python python examples/frameworks/timm_models.py
"""

import timm
import torch
from torch import nn

import segue

NAMES = ("test_vit", "test_resnet")


def train(backend: str | None = "segue", steps: int = 3) -> tuple[list[float], segue.BackendReport]:
    """The losses of the steps of one model after the other, and what became of the program; `backend` None trains in PyTorch alone."""
    losses = []
    for name in NAMES:
        torch.manual_seed(0)
        model = timm.create_model(name, pretrained=False, num_classes=10)
        if backend is not None:
            model.compile(backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        size = model.default_cfg["input_size"]
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(torch.randn(4, *size)), torch.randint(0, 10, (4,)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, segue.backend_report()


if __name__ == "__main__":
    for backend in (None, "segue"):
        losses, report = train(backend)
        print(backend or "eager", *(f"{loss:.4f}" for loss in losses))
    print(report)
