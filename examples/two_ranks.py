"""Trains a small GPT on text by two processes that add their gradients up, with the losses of one that has the batches of both.

    torchrun --nproc-per-node 2 examples/two_ranks.py --checkpoint out/run.safetensors
    python examples/two_ranks.py                # one process: the same losses, to the bit

The script is one of PyTorch's: the process group, the DistributedSampler and the DataLoader are. Started again with its checkpoint it goes
on where each rank was in its data, as it does by `torchrun --max-restarts` when a rank has died.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import segue
from models import GPT, GPTConfig

ROOT = Path(__file__).resolve().parent.parent
RANKS, ROWS = 2, 4
GPT_CONFIG = GPTConfig(layers=2, dim=64, heads=4, seq=64)


class Text(Dataset):
    """Bytes of a file in windows of the model's length, and the bytes that follow each."""

    def __init__(self, path: Path):
        self.bytes = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // GPT_CONFIG.seq

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        begin = index * GPT_CONFIG.seq
        window = self.bytes[begin : begin + GPT_CONFIG.seq + 1]
        return {"tokens": window[:-1], "targets": window[1:]}


def loader_of(text: Text, rank: int) -> DataLoader:
    """The batches of one rank: each sees its own half of the text, in an order that differs by epoch."""
    return DataLoader(text, batch_size=ROWS, sampler=DistributedSampler(text, RANKS, rank, seed=0, drop_last=True), drop_last=True)


class Both:
    """The batches of all ranks, one below the other: the micro-batches of one process."""

    def __init__(self, loaders: list[DataLoader]):
        self.loaders = loaders

    def __len__(self) -> int:
        return len(self.loaders[0])

    def __iter__(self):
        for parts in zip(*self.loaders):
            yield {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class Prints:
    """A line for each step, on the first rank."""

    def on_step(self, run) -> None:
        if run.trainer.rank == 0:
            print(f"step {run.step} loss {run.loss!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=ROOT / "README.md")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, help="written after every ten steps; a run goes on from it")
    args = parser.parse_args()

    torch.set_num_threads(1)
    options = {}
    if dist.is_torchelastic_launched():  # by torchrun
        dist.init_process_group("gloo")
        options = {"distributed": "ddp"}
    else:
        options = {"grad_accumulation": RANKS}

    text = Text(args.text)
    torch.manual_seed(0)
    example = torch.zeros(ROWS, GPT_CONFIG.seq, dtype=torch.int64)
    model = segue.compile(GPT(GPT_CONFIG), (example, example), device="cpu:threads=1")
    trainer = segue.Trainer([model], optimizer=segue.AdamW(lr=1e-3), clip_grad_norm=1.0, **options)
    batches = loader_of(text, trainer.rank) if dist.is_initialized() else Both([loader_of(text, rank) for rank in range(RANKS)])

    saving = {} if args.checkpoint is None else {"checkpoint": args.checkpoint, "save_every": 10, "resume": True}
    trainer.fit(batches, steps=args.steps, callbacks=[Prints()], progress=True, **saving)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
