#!/usr/bin/env python3
#===- dual_stream_mlir.py - a video transformer with adapters as MLIR text -===#
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
#===------------------------------------------------------------------------===#
"""Writes the forward of a diffusion transformer of two streams in the segue dialect, with low-rank adapters.

    dual_stream_mlir.py --layers 48 | segue-compile - -o blocks.segue

The shapes are those that LTX-2 gives in its published configuration: 48 blocks, a video stream of 32 heads of 128 and an
audio stream of 32 heads of 64. A block has attention of each stream to itself and to the text, attention between the
streams both ways with the audio stream's heads, and an MLP of four widths per stream: 386 M parameters. Norms of blocks
have no weights, queries and keys are normed over all heads. Base weights are frozen bf16; each projection of an attention
has an adapter of the given rank, held in f32 and rounded to bf16 for its products. Left out is what saves nothing for
backward and multiplies no matrix: rotary positions, biases, and the shifts, scales and gates that a timestep gives.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test" / "tools"))

from gpt_mlir import Writer, tensor  # noqa: E402


@dataclass(frozen=True)
class Model:
    layers: int = 48
    heads: int = 32
    video_head: int = 128
    audio_head: int = 64
    rank: int = 32
    video_tokens: int = 768
    audio_tokens: int = 17
    text_tokens: int = 1024
    latent: int = 128

    @property
    def video(self) -> int:
        return self.heads * self.video_head

    @property
    def audio(self) -> int:
        return self.heads * self.audio_head


def typed(shape, element="bf16") -> str:
    return tensor(shape, element)


class Blocks:
    """The ops of the model; activations are [batch, tokens, width] in bf16."""

    def __init__(self, model: Model):
        self.model, self.writer = model, Writer()

    def op(self, text: str, types: str) -> str:
        return self.writer.op(f"{text}{self.writer.attrs()} : {types}")

    def product(self, x: str, weight: str, shape, outputs: int) -> str:
        """x @ weight^T over the last dimension."""
        last = len(shape) - 1
        return self.op(f"segue.dot_general {x}, {weight} batch [] x [] contract [{last}] x [1]",
                       f"{typed(shape)}, {typed([outputs, shape[-1]])} -> {typed([*shape[:-1], outputs])}")

    def linear(self, name: str, x: str, shape, outputs: int) -> str:
        weight = self.writer.argument(f"{name}.weight", [outputs, shape[-1]], "frozen", "bf16")
        return self.product(x, weight, shape, outputs)

    def adapted(self, name: str, x: str, shape, outputs: int) -> str:
        """A frozen layer and its adapter of scale 1."""
        rank = self.model.rank
        base, parts = self.linear(name, x, shape, outputs), []
        for part, extent in (("a", [rank, shape[-1]]), ("b", [outputs, rank])):
            weight = self.writer.argument(f"{name}.{part}", extent)
            parts.append(self.writer.op(f"segue.cast {weight} : {typed(extent, 'f32')} -> {typed(extent)}"))
        low = self.product(x, parts[0], shape, rank)
        return self.add(base, self.product(low, parts[1], [*shape[:-1], rank], outputs), [*shape[:-1], outputs])

    def add(self, x: str, y: str, shape) -> str:
        return self.op(f"segue.add {x}, {y}", typed(shape))

    def norm(self, x: str, shape, name: str = "") -> str:
        gamma = ""
        if name:
            vector = typed(shape[-1:])
            gamma = f" gamma {self.writer.argument(f'{name}.weight', shape[-1:], 'frozen', 'bf16')} : {vector}"
        return self.writer.ops(f"segue.rms_norm {x}{gamma} eps 1.0e-6{self.writer.attrs()} : {typed(shape)} -> "
                               f"{typed(shape[:-1], 'f32')}", 2)[0]

    def heads(self, x: str, shape, head: int) -> str:
        split = [shape[0], shape[1], self.model.heads, head]
        x = self.op(f"segue.reshape {x}", f"{typed(shape)} -> {typed(split)}")
        return self.op(f"segue.transpose {x} [0, 2, 1, 3]", f"{typed(split)} -> {typed([split[i] for i in (0, 2, 1, 3)])}")

    def attention(self, name: str, x: str, shape, context: str, context_shape, head: int) -> str:
        """Of x to the context, added to nothing."""
        count, inner = self.model.heads, self.model.heads * head
        asks, gives = [*shape[:-1], inner], [*context_shape[:-1], inner]
        q = self.norm(self.adapted(f"{name}.to_q", x, shape, inner), asks, f"{name}.q_norm")
        k = self.norm(self.adapted(f"{name}.to_k", context, context_shape, inner), gives, f"{name}.k_norm")
        v = self.adapted(f"{name}.to_v", context, context_shape, inner)
        q, k, v = self.heads(q, asks, head), self.heads(k, gives, head), self.heads(v, gives, head)
        by_head = [shape[0], count, shape[1], head]
        out = self.writer.ops(f"segue.attention {q}, {k}, {v} scale {head ** -0.5:.17e}{self.writer.attrs()} : "
                              f"{typed(by_head)}, {typed([shape[0], count, context_shape[1], head])} -> "
                              f"{typed(by_head[:3], 'f32')}", 2)[0]
        split = [by_head[i] for i in (0, 2, 1, 3)]
        out = self.op(f"segue.transpose {out} [0, 2, 1, 3]", f"{typed(by_head)} -> {typed(split)}")
        out = self.op(f"segue.reshape {out}", f"{typed(split)} -> {typed(asks)}")
        return self.adapted(f"{name}.to_out", out, asks, shape[-1])

    def mlp(self, name: str, x: str, shape) -> str:
        hidden = [*shape[:-1], 4 * shape[-1]]
        y = self.op(f"segue.gelu tanh {self.linear(f'{name}.in', x, shape, hidden[-1])}", typed(hidden))
        return self.linear(f"{name}.out", y, hidden, shape[-1])

    def given(self, name: str, shape, element: str = "bf16") -> str:
        """An input of the step, which wants no gradient."""
        value = self.writer.argument(name, shape, "input", element)
        self.writer.args[-1] = self.writer.args[-1].replace("role<input>", "role<input>, segue.requires_grad = false")
        return value

    def squares(self, x: str, name: str, shape) -> str:
        """Mean of squares of what is off the target, in f32."""
        flat = typed(shape, "f32")
        wide = self.op(f"segue.cast {x}", f"{typed(shape)} -> {flat}")
        target = self.given(name, shape, "f32")
        off = self.op(f"segue.sub {wide}, {target}", flat)
        return self.op(f"segue.reduce mean {self.op(f'segue.mul {off}, {off}', flat)} dims [0, 1, 2]",
                       f"{flat} -> {typed([], 'f32')}")


def text(model: Model) -> str:
    """A module whose @forward gives the loss of one sample."""
    b = Blocks(model)
    w = b.writer
    streams = {"video": (model.video_tokens, model.video, model.video_head),
               "audio": (model.audio_tokens, model.audio, model.audio_head)}
    x, shapes, prompts, prompt_shapes = {}, {}, {}, {}
    for name, (tokens, width, _) in streams.items():
        shapes[name], prompt_shapes[name] = [1, tokens, width], [1, model.text_tokens, width]
        latent = b.given(name, [1, tokens, model.latent])
        prompts[name] = b.given(f"{name}_text", prompt_shapes[name])
        x[name] = b.linear(f"{name}.project_in", latent, [1, tokens, model.latent], width)
    for i in range(model.layers):
        w.block = f"blocks.{i}"
        for name, (_, _, head) in streams.items():
            shape, prefix = shapes[name], f"blocks.{i}.{name}"
            y = b.norm(x[name], shape)
            x[name] = b.add(x[name], b.attention(f"{prefix}.self", y, shape, y, shape, head), shape)
            y = b.norm(x[name], shape)
            y = b.attention(f"{prefix}.text", y, shape, prompts[name], prompt_shapes[name], head)
            x[name] = b.add(x[name], y, shape)
        normed = {name: b.norm(x[name], shapes[name]) for name in streams}
        for name, other in (("video", "audio"), ("audio", "video")):
            y = b.attention(f"blocks.{i}.{other}_to_{name}", normed[name], shapes[name], normed[other], shapes[other],
                            model.audio_head)
            x[name] = b.add(x[name], y, shapes[name])
        for name in streams:
            y = b.mlp(f"blocks.{i}.{name}.mlp", b.norm(x[name], shapes[name]), shapes[name])
            x[name] = b.add(x[name], y, shapes[name])
    w.block = None
    losses = []
    for name, (tokens, _, _) in streams.items():
        y = b.linear(f"{name}.project_out", b.norm(x[name], shapes[name]), shapes[name], model.latent)
        losses.append(b.squares(y, f"{name}_target", [1, tokens, model.latent]))
    loss = b.op(f"segue.add {losses[0]}, {losses[1]}", typed([], "f32"))
    arguments, body = ",\n      ".join(w.args), "\n".join(w.lines)
    return f"""module {{
  func.func @forward(
      {arguments})
      -> ({typed([], 'f32')} {{segue.name = "loss", segue.role = #segue.role<output>}}) {{
{body}
    return {loss} : {typed([], 'f32')}
  }}
}}
"""


def main() -> None:
    standard = Model()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, value in vars(standard).items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=int, default=value, help=f"default: {value}")
    print(text(Model(**vars(parser.parse_args()))), end="")


if __name__ == "__main__":
    main()
