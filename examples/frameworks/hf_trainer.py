"""Hugging Face `Trainer`: a tiny Llama, with gradient checkpointing, AdamW and a linear schedule of its own.

    PYTHONPATH=build/python python examples/frameworks/hf_trainer.py

The model is compiled in place before the trainer gets it. `TrainingArguments(torch_compile_backend="segue")` does not work:
accelerate, to which the trainer hands that name, knows a list of backends.
"""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import segue

TINY = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=64, use_cache=False)


def train(backend: str | None = "segue", steps: int = 6) -> tuple[list[float], segue.BackendReport]:
    """The losses of the steps, and what became of the program; `backend` None trains in PyTorch alone."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(TINY)
    if backend is not None:
        model.compile(backend=backend)
    rows = torch.randint(0, 256, (4 * steps, 32))
    data = [{"input_ids": row, "labels": row} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1,
                                      gradient_checkpointing=True, use_cpu=True, report_to=[], disable_tqdm=True)
        trainer = Trainer(model, arguments, train_dataset=data)
        trainer.train()
        trainer.save_model(folder)  # the names of the parameters are the model's own
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], segue.backend_report()


if __name__ == "__main__":
    for backend in (None, "segue"):
        losses, report = train(backend)
        print(backend or "eager", *(f"{loss:.4f}" for loss in losses))
    print(report)
