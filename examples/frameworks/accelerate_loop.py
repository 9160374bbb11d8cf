"""Accelerate: a loop with mixed precision, accumulated gradients and clipping, over a tiny GPT-2.

    PYTHONPATH=build/python python examples/frameworks/accelerate_loop.py

The model is compiled in place before `prepare`, which puts autocast around its forward. `Accelerator(dynamo_backend="segue")`
does not work: accelerate knows a list of backends.
"""

import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

import segue

TINY = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                  use_cache=False, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")


def train(backend: str | None = "segue", steps: int = 6) -> tuple[list[float], segue.BackendReport]:
    """The losses of the steps, and what became of the program; `backend` None trains in PyTorch alone."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(TINY)
    if backend is not None:
        model.compile(backend=backend)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(torch.randint(0, 256, (4 * steps, 32)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for tokens in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, segue.backend_report()


if __name__ == "__main__":
    for backend in (None, "segue"):
        losses, report = train(backend)
        print(backend or "eager", *(f"{loss:.4f}" for loss in losses))
    print(report)
