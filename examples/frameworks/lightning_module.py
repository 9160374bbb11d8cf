"""Lightning: a module with a step for training and one for validation, which log what they find.

    PYTHONPATH=build/python python examples/frameworks/lightning_module.py

The network inside is compiled, in `configure_model`. What `self.log` does is Python's and lies outside of it.
"""

import lightning
import torch
from torch import nn

import segue


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2)
        self.hidden, self.norm, self.head = nn.Linear(16 * 16, 64), nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, images):
        h = self.pool(nn.functional.gelu(self.conv(images))).flatten(1)
        return self.head(nn.functional.gelu(self.norm(self.hidden(h))))


class Classifier(lightning.LightningModule):

    def __init__(self, backend: str | None):
        super().__init__()
        self.backend, self.losses, self.net = backend, [], Net()

    def configure_model(self):
        if self.backend is not None:
            self.net.compile(backend=self.backend)

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def train(backend: str | None = "segue", steps: int = 6) -> tuple[list[float], segue.BackendReport]:
    """The losses of the steps, and what became of the program; `backend` None trains in PyTorch alone."""
    torch.manual_seed(0)
    model = Classifier(backend)
    data = torch.utils.data.TensorDataset(torch.randn(4 * steps, 3, 8, 8), torch.randint(0, 10, (4 * steps,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)  # half as many batches as steps: two epochs
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", gradient_clip_val=1.0, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader, loader)
    return model.losses, segue.backend_report()


if __name__ == "__main__":
    for backend in (None, "segue"):
        losses, report = train(backend)
        print(backend or "eager", *(f"{loss:.4f}" for loss in losses))
    print(report)
