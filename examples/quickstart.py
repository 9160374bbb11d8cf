import torch
from torch import nn

import segue


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(16), nn.Linear(16, 64)

    def forward(self, x):
        return nn.functional.gelu(self.fc(self.norm(x)))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, hidden, targets):
        return nn.functional.cross_entropy(self.head(hidden), targets)


torch.manual_seed(0)
x, targets = torch.randn(32, 16), torch.randint(0, 10, (32,))

# Each module is compiled alone and knows nothing of the other.
first = segue.compile(First(), (x,))
last = segue.compile(Last(), (torch.empty(32, 64), targets))

# Stitched: torch tensors in and out, gradients through torch autograd.
loss = last(first(x), targets)
loss.backward()

# Or the whole step inside the runtime, optimizer included.
adamw = segue.AdamW(lr=1e-2)
trainer = segue.Trainer([segue.compile(First(), (x,), optimizer=adamw),
                         segue.compile(Last(), (torch.empty(32, 64), targets), optimizer=adamw)], optimizer=adamw)
for step in range(50):
    loss = trainer.step(x=x, targets=targets)
print(f"loss after 50 steps: {loss:.3f}")
