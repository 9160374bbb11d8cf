"""PEFT: adapters of low rank on a frozen tiny Llama, saved and loaded again.

    PYTHONPATH=build/python python examples/frameworks/peft_lora.py
"""

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import segue

TINY = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=64, use_cache=False)


def train(backend: str | None = "segue", steps: int = 6) -> tuple[list[float], segue.BackendReport]:
    """The losses of the steps, and what became of the program; `backend` None trains in PyTorch alone."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(TINY)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"))
    if backend is not None:
        model.compile(backend=backend)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    losses = []
    for tokens in torch.randint(0, 256, (steps, 4, 32)):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)  # the adapters alone
        torch.manual_seed(0)
        again = PeftModel.from_pretrained(LlamaForCausalLM(TINY), folder)
        assert torch.allclose(again(input_ids=tokens).logits, model(input_ids=tokens).logits, atol=1e-4)
    return losses, segue.backend_report()


if __name__ == "__main__":
    for backend in (None, "segue"):
        losses, report = train(backend)
        print(backend or "eager", *(f"{loss:.4f}" for loss in losses))
    print(report)
