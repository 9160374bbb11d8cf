"""Low-rank adapters on frozen linear layers (Hu et al., arXiv:2106.09685)."""

import torch
import torch.nn as nn


class LoraLinear(nn.Module):
    """`base(x) + scale * b(a(x))`: `base` is frozen, `a` and `b` are trained; `b` starts at zero."""

    def __init__(self, base: nn.Linear, rank: int, scale: float = 1.0):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scale * self.b(self.a(x))


def add_lora(model: nn.Module, rank: int, names: tuple[str, ...]) -> nn.Module:
    """Freezes `model` and puts an adapter on each of its linear layers called one of `names`."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, LoraLinear(child, rank))
    return model
