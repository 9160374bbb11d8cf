# ===- sweep_models.py - models that were not written for Segue, through torch.compile -------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""What becomes of the models of Hugging Face that are given to ``torch.compile(backend="segue")``.

    PYTHONPATH=build/python python test/python/sweep_models.py [--only llama,t5] [--variants f32,bf16] [--out sweep.jsonl]

Each is tiny, made from a config with random weights, and trains three steps of SGD in PyTorch and in Segue, from the same weights on the
same batches: losses, and the parameters after the steps, are compared. Variants:

    f32           as it is
    bf16          ``model.bfloat16()``; compared with the distance that PyTorch's own bf16 has from f32
    checkpointed  ``model.gradient_checkpointing_enable()``, for those that have it; compared with the model without, as eager
                  PyTorch moves the running statistics of a batch norm twice where it runs a region twice, and no compiled
                  program does
    lengths       a step each with inputs of five lengths

Parameters may be out by 2e-4 of their largest, and by more where PyTorch's own f32 is: by four times its distance from f64.

Each model and variant has a process of its own. It ends in one of the ways that `sweep_operators.py` has: segue, part, pytorch,
uncompiled, wrong, raised, crashed, hung. Models that this version of transformers does not have, or cannot make, are counted apart.
"""

from __future__ import annotations

import argparse
import collections
import copy
import gc
import json
import os
import re
import select
import signal
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402

import segue  # noqa: E402

ENDS = ("segue", "part", "pytorch", "uncompiled", "wrong", "raised", "crashed", "hung")
VARIANTS = ("f32", "bf16", "checkpointed", "lengths")
PATIENCE, LONGEST = 120.0, 1800.0  # seconds of the processor, and by the clock, for one model and variant
LENGTHS = (16, 24, 9, 33, 16)

#: What makes a config tiny, where it has such a key.
TINY = dict(
    vocab_size=128, hidden_size=32, d_model=32, n_embd=32, dim=32, embedding_size=32, emb_dim=32, intermediate_size=64, n_inner=64, d_ff=64, d_kv=8,
    d_inner=64, ffn_dim=64, hidden_dim=64, encoder_ffn_dim=64, decoder_ffn_dim=64, num_hidden_layers=2, n_layer=2, n_layers=2, num_layers=2,
    encoder_layers=2, decoder_layers=2, num_decoder_layers=2, num_attention_heads=4, n_head=4, n_heads=4, num_heads=4, encoder_attention_heads=4,
    decoder_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64, n_positions=64, n_ctx=64, max_seq_len=64,
    image_size=32, patch_size=8, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, use_cache=False,
    num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
    n_group=1, topk_group=1, moe_num_experts=4, moe_k=2, first_k_dense_replace=1, max_source_positions=64, max_target_positions=64, num_mel_bins=16,
    projection_dim=32, sliding_window=8, attention_window=8, forced_eos_token_id=None, layerdrop=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
    drop_path_rate=0.0, mask_time_prob=0.0, apply_spec_augment=False, output_router_logits=False)
#: Keys that every config takes, though `to_dict` of some does not name them.
_ALWAYS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_labels", "decoder_start_token_id")
#: Takes a key of TINY away.
_OWN = "as the config has it"
_MLA = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, num_key_value_heads=4)
_WAVES = dict(conv_dim=[16, 16], conv_kernel=[4, 4], conv_stride=[4, 4], num_feat_extract_layers=2, num_conv_pos_embeddings=4,
              num_conv_pos_embedding_groups=2, classifier_proj_size=16, vocab_size=32)
_TOWERS = dict(text_config=dict(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, projection_size=32, hidden_dropout_prob=0.0,
                                attention_probs_dropout_prob=0.0),
               vision_config=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8))
_STAGES = dict(embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=2, patch_size=4, num_attention_heads=_OWN, num_hidden_layers=_OWN, hidden_size=_OWN)

#: By kind: type of the config, and what else it takes to be tiny.
MODELS: dict[str, dict[str, dict]] = {
    "CausalLM": {
        "llama": {}, "mistral": {}, "gemma": {}, "gemma2": {}, "gemma3_text": {}, "qwen2": {}, "qwen3": {}, "phi": {}, "phi3": {},
        "gpt2": {}, "gpt_neo": dict(attention_types=[[["global", "local"], 1]], window_size=8), "gpt_neox": {}, "gptj": dict(rotary_dim=8),
        "opt": dict(word_embed_proj_dim=32), "bloom": {}, "falcon": {}, "codegen": dict(rotary_dim=8), "mpt": {}, "stablelm": {},
        "starcoder2": {}, "olmo": {}, "olmo2": {}, "cohere": {}, "cohere2": {}, "granite": {}, "persimmon": {}, "biogpt": {},
        "xglm": dict(attention_heads=4), "openai-gpt": {}, "ctrl": dict(dff=64), "gpt_bigcode": {}, "nemotron": {}, "glm": {}, "glm4": {},
        "helium": {}, "smollm3": {}, "exaone4": {}, "arcee": {}, "ernie4_5": {}, "hunyuan_v1_dense": {}, "apertus": {}, "diffllama": {},
        "seed_oss": {}, "bitnet": {}, "lfm2": {}, "mamba": dict(state_size=8),
        "mamba2": dict(state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8), "falcon_mamba": dict(state_size=8),
        "recurrent_gemma": dict(lru_width=32, attention_window_size=8), "rwkv": dict(attention_hidden_size=32, context_length=64),
        "xlnet": {},
    },
    "CausalLM (experts)": {
        "mixtral": {}, "qwen2_moe": {}, "qwen3_moe": {}, "olmoe": {}, "phimoe": {}, "granitemoe": {}, "jetmoe": dict(kv_channels=8),
        "deepseek_v2": _MLA, "deepseek_v3": _MLA,
        "dbrx": dict(ffn_config=dict(ffn_hidden_size=64, moe_num_experts=4, moe_top_k=2), attn_config=dict(kv_n_heads=2, clip_qkv=8.0,
            rope_theta=1e4), max_seq_len=64), "gpt_oss": {}, "ernie4_5_moe": {}, "glm4_moe": {}, "minimax": {},
        "dots1": dict(n_shared_experts=1, moe_layer_freq=1), "flex_olmo": {},
        "jamba": dict(attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False),
    },
    "MaskedLM": {
        "bert": {}, "roberta": {}, "xlm-roberta": {}, "distilbert": {}, "albert": {}, "electra": {}, "mpnet": {}, "deberta": {},
        "deberta-v2": {}, "mobilebert": dict(intra_bottleneck_size=32), "squeezebert": dict(embedding_size=32), "convbert": {},
        "camembert": {}, "ernie": {}, "esm": dict(mask_token_id=3), "fnet": {}, "layoutlm": {}, "megatron-bert": {}, "modernbert": {},
        "nystromformer": dict(num_landmarks=16, segment_means_seq_len=16),
        "rembert": dict(input_embedding_size=16, output_embedding_size=16), "roformer": {}, "xlm": {}, "longformer": {},
        "big_bird": dict(block_size=4), "data2vec-text": {}, "funnel": dict(block_sizes=[1, 1], d_head=8, num_hidden_layers=_OWN),
    },
    "Seq2SeqLM": {
        "t5": {}, "mt5": {}, "umt5": {}, "bart": {}, "mbart": {}, "pegasus": {}, "marian": {}, "blenderbot": {}, "m2m_100": {}, "led": {},
        "prophetnet": dict( num_hidden_layers=_OWN, num_encoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4),
        "plbart": {}, "switch_transformers": {},
    },
    "ImageClassification": {
        "vit": {}, "beit": {}, "swin": _STAGES, "swinv2": _STAGES, "convnext": dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
        "convnextv2": dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
        "resnet": dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]),
        "focalnet": dict(embed_dim=16, depths=[1, 1], focal_levels=[1, 1], focal_windows=[3, 3], patch_size=4, hidden_sizes=_OWN,
            hidden_size=_OWN),
        "levit": dict(hidden_sizes=[16, 32, 32], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8], drop_path_rate=0,
            patch_size=_OWN, image_size=128),
        "mobilenet_v1": dict(depth_multiplier=0.25), "mobilenet_v2": dict(depth_multiplier=0.25),
        "mobilevit": dict(hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 32], patch_size=2),
        "poolformer": dict(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1]),
        "pvt_v2": dict(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
        "segformer": dict(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16),
        "dinov2": {}, "data2vec-vision": {}, "ijepa": {}, "vit_msn": {},
        "efficientnet": dict(width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
    },
    "CTC": {
        "wav2vec2": _WAVES, "hubert": _WAVES, "wavlm": _WAVES, "data2vec-audio": _WAVES, "unispeech-sat": _WAVES,
        "sew": dict(_WAVES, squeeze_factor=2),
    },
    "AudioClassification": {
        "audio-spectrogram-transformer": dict(max_length=32, frequency_stride=8, time_stride=8, patch_size=8),
    },
    "SpeechSeq2Seq": {
        "whisper": {}, "speech_to_text": dict(input_feat_per_channel=16, conv_channels=16, conv_kernel_sizes=[3, 3]),
    },
    "towers": {
        "clip": _TOWERS, "siglip": _TOWERS, "chinese_clip": _TOWERS,
    },
}


def kind_of(name: str) -> str:
    return next(kind for kind, models in MODELS.items() if name in models)


def make(name: str):
    """The model in training mode, without chance. Raises what transformers raises for a config that it cannot make."""
    kind = kind_of(name)
    known = transformers.AutoConfig.for_model(name).to_dict()
    chosen = {key: value for key, value in TINY.items() if key in known or key in _ALWAYS}
    chosen |= {key: 0.0 for key, value in known.items() if re.search("drop(out|path)?(_|$)|pdrop", key) and isinstance(value, float)}
    chosen |= MODELS[kind][name]
    chosen = {key: value for key, value in chosen.items() if value is not _OWN}
    config = transformers.AutoConfig.for_model(name, **chosen)
    torch.manual_seed(0)
    if kind == "towers":
        return transformers.AutoModel.from_config(config)
    if name == "levit":  # its auto class does not choose between two
        return transformers.LevitForImageClassification(config).train()
    if name == "phimoe":  # its routers draw numbers in training
        model = transformers.PhimoeForCausalLM(config).train()
        for module in model.modules():
            if "Router" in type(module).__name__:
                module.eval()
        return model
    factory = {"ImageClassification": "ForImageClassification", "CTC": "ForCTC"}.get(kind, "For" + kind.split()[0])
    return getattr(transformers, f"AutoModel{factory}").from_config(config).train()


def batch_of(name: str, model, length: int, draw: torch.Generator) -> dict[str, torch.Tensor]:
    kind, config = kind_of(name), model.config
    if kind == "ImageClassification":
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else 32
        # Eight, as what is normalised over a batch of two is 1 and -1, whatever it was, and rounding decides.
        return {"pixel_values": torch.randn(8, 3, size, size, generator=draw), "labels": torch.randint(0, 3, (8,), generator=draw)}
    if kind == "CTC":
        return {"input_values": torch.randn(2, 16 * length, generator=draw), "labels": torch.randint(3, 32, (2, 4), generator=draw)}
    if kind == "AudioClassification":
        return {"input_values": torch.randn(2, config.max_length, config.num_mel_bins, generator=draw), "labels": torch.randint(0, 3, (2,), generator=draw)}
    ids = torch.randint(4, 120, (2, length), generator=draw)
    if kind == "SpeechSeq2Seq":
        features = torch.randn(2, 16, 128, generator=draw)
        return {"input_features": features if name == "whisper" else features.transpose(1, 2).contiguous(), "labels": ids}
    if kind == "towers":
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(2, 3, 32, 32, generator=draw), "return_loss": True}
    mask = torch.ones_like(ids)
    mask[1, length - 3:] = 0
    labels = torch.randint(4, 120, ids.shape, generator=draw)
    labels = torch.where(mask == 0, -100, ids if "Causal" in kind else labels)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def train(model, call, batches) -> list[float]:
    """Losses of a step of SGD for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in batches:
        loss = call(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def distance(one: dict, other: dict) -> tuple[float, str]:
    """The greatest difference of two sets of parameters, relative to the largest element of each, and whose it is."""
    worst = (0.0, "")
    for name, value in one.items():
        if value.is_floating_point() and value.numel():
            value, wanted = value.float(), other[name].float()
            scale = max(wanted.abs().max().item(), 1e-3)
            gap = (value - wanted).abs().max().item() / scale
            worst = max(worst, (gap if gap == gap else float("inf"), name))
    return worst


def own_error(model, trained, batches) -> float:
    """How far the parameters that PyTorch trained in f32 are from those of f64: much for a model that amplifies every rounding."""
    try:
        model = model.double()
        train(model, model, [{k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in b.items()} for b in batches])
        return distance(trained.state_dict(), model.state_dict())[0]
    except Exception:  # some models name f32 within
        return 0.0


def judge(name: str, variant: str) -> dict:
    """How a model ends, in which way, and what ran where."""
    transformers.logging.set_verbosity_error()
    try:
        model = make(name)
    except Exception as error:
        return {"end": "unmade", "detail": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    draw = torch.Generator().manual_seed(1)
    batches = [batch_of(name, model, n, draw) for n in (LENGTHS if variant == "lengths" else LENGTHS[:1] * 3)]
    if variant == "checkpointed":
        try:
            model.gradient_checkpointing_enable()
        except Exception:
            return {"end": "unmade", "detail": "no gradient checkpointing"}
    plain = copy.deepcopy(model)
    if variant == "checkpointed":
        plain.gradient_checkpointing_disable()
    single = copy.deepcopy(plain)
    if variant == "bf16":
        model = model.bfloat16()
        batches = [{k: v.bfloat16() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in b.items()} for b in batches]
    reference = copy.deepcopy(model if variant == "bf16" else plain)
    try:
        expected = train(reference, reference, batches)
    except Exception as error:
        return {"end": "unmade", "detail": f"in PyTorch: {type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    allowed = 2e-4
    if variant != "bf16":
        allowed = max(allowed, 4 * own_error(single, reference, batches))
    if variant == "bf16":
        wide = [{k: v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in b.items()} for b in batches]
        exact = train(single, single, wide)
        allowed = 4 * distance(reference.state_dict(), single.state_dict())[0] + 0.02
    if not all(x == x for x in expected):
        return {"end": "unmade", "detail": "the loss is NaN in PyTorch"}
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = train(model, torch.compile(model, backend="segue"), batches)
        except Exception as error:
            inner = getattr(error, "inner_exception", None) or error
            return {"end": "raised", "detail": f"{type(inner).__name__}: {' '.join(str(inner).split())[:300]}"}
    reasons = list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, segue.FallbackWarning)))
    ops = list(dict.fromkeys(m[1] for r in reasons if (m := re.search(r"operator (\S+) in|input '[^']*': element type (\S+)", r))))
    report = segue.backend_report()
    row = {"seconds": round(time.process_time() - began, 1), "operators": round(report.operators_in_segue, 4), "segments": len(report.segments), "ops": ops,
           "detail": " | ".join(reasons)[:600]}
    if variant == "bf16":
        loss_gap = max(abs(a - e) for a, e in zip(found, exact)) - 4 * max(abs(a - e) for a, e in zip(expected, exact)) - 0.02 * abs(exact[0])
    else:
        loss_gap = max(abs(a - e) / max(abs(e), 1e-3) for a, e in zip(found, expected)) - allowed / 2
    gap, whose = distance(model.state_dict(), reference.state_dict())
    row["gap"] = gap
    if not loss_gap <= 0 or not gap <= allowed:
        return row | {"end": "wrong", "detail": f"losses {found}, in PyTorch {expected}; {whose} differs by {gap:.2e} of its largest (allowed {allowed:.2e}) | " + row["detail"]}
    if not report.segments:
        return row | {"end": "uncompiled"}
    if reasons or report.fallen_back:
        return row | {"end": "part" if report.compiled else "pytorch"}
    return row | {"end": "segue"}


def warm() -> None:
    """Loads what each child would load again: half of a model's time."""
    import segue.dynamo.backend  # noqa: F401

    torch.compile(torch.nn.Linear(4, 4), backend="aot_eager")(torch.ones(2, 4)).sum().backward()
    from transformers import LlamaForCausalLM  # noqa: F401
    torch._dynamo.reset()


def _processor_time(process: int) -> float:
    with open(f"/proc/{process}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def in_child(name: str, variant: str) -> dict:
    """`judge` in a process of its own, ended where it takes too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        torch.set_num_threads(1)
        try:
            os.write(writer, json.dumps(judge(name, variant)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    began, chunks, hung = time.monotonic(), b"", False
    while True:
        if not select.select([reader], [], [], 1.0)[0]:
            if time.monotonic() - began > LONGEST or _processor_time(child) > PATIENCE:
                hung = True
                os.kill(child, signal.SIGKILL)
                break
            continue
        chunk = os.read(reader, 65536)
        if not chunk:
            break
        chunks += chunk
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if chunks and not hung:
        return json.loads(chunks)
    ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "it left"
    return {"end": "hung" if hung else "crashed", "detail": "" if hung else ended}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="types of models, by commas")
    parser.add_argument("--variants", default="f32", help=f"by commas, of {', '.join(VARIANTS)}")
    parser.add_argument("--out", help="a file for one JSON object per model and variant; those that it has already are not run again")
    parser.add_argument("--made", action="store_true", help="only make the models, and train none")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    names = [name for models in MODELS.values() for name in models if not only or name in only]
    if options.made:
        for name in names:
            try:
                print(f"{name:30} {sum(p.numel() for p in make(name).parameters()):10,}")
            except Exception as error:
                print(f"{name:30} {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return
    rows = []
    if options.out and os.path.exists(options.out):
        with open(options.out) as file:
            rows = [json.loads(line) for line in file]
    done = {(row["model"], row["variant"]) for row in rows}
    out = open(options.out, "a", buffering=1) if options.out else None
    warm()
    gc.freeze()
    for variant in options.variants.split(","):
        for name in names:
            if (name, variant) in done:
                continue
            gc.collect()
            row = {"model": name, "kind": kind_of(name), "variant": variant} | in_child(name, variant)
            rows.append(row)
            if out:
                out.write(json.dumps(row) + "\n")
            print(f"{variant:13} {name:30} {row['end']:10} {row.get('operators', 0):6.1%} {', '.join(row.get('ops', [])) or row.get('detail', '')[:120]}", flush=True)
    for variant in VARIANTS:
        ends = collections.Counter(row["end"] for row in rows if row["variant"] == variant)
        if count := sum(n for end, n in ends.items() if end != "unmade"):
            print(f"{variant}: of {count} models " + ", ".join(f"{ends[e]} {e}" for e in ENDS if ends[e]) + f"; {ends['unmade']} were not made")
    blockers = collections.Counter(op for row in rows for op in row.get("ops", []))
    print("in the way: " + ", ".join(f"{op} ({n})" for op, n in blockers.most_common()))
    sys.exit(any(row["end"] in ("wrong", "raised", "crashed", "hung") for row in rows))


if __name__ == "__main__":
    main()
