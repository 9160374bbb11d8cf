#!/usr/bin/env python3
#===- gpt_mlir.py - a GPT as MLIR text -------------------------------------===#
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
#===------------------------------------------------------------------------===#
"""Writes the forward of a GPT-2 style model in the segue dialect.

What the frontend would write for the module, without PyTorch: tests and
benchmarks of the compiler take their input from here.

    gpt_mlir.py --layers 12 --width 768 | segue-compile - -o gpt.segue
"""

import argparse


class Writer:
    """Numbers values and collects lines."""

    def __init__(self):
        self.lines, self.args, self.count, self.block = [], [], 0, None

    def op(self, text):
        """Adds `text`, an op with one result after its name; returns the result."""
        return self.ops(text, 1)[0]

    def ops(self, text, results):
        self.count += 1
        names = [f"%{self.count}"] if results == 1 else [f"%{self.count}#{i}" for i in range(results)]
        head = f"%{self.count}" if results == 1 else f"%{self.count}:{results}"
        self.lines.append(f"    {head} = {text}")
        return names

    def attrs(self):
        return f' {{segue.block = "{self.block}"}}' if self.block else ""

    def argument(self, name, shape, role="parameter", element="f32"):
        value = f"%arg{len(self.args)}"
        self.args.append(
            f'{value}: {tensor(shape, element)} {{segue.name = "{name}", segue.role = #segue.role<{role}>}}')
        return value


def tensor(shape, element="f32"):
    return f"tensor<{'x'.join(map(str, [*shape, element]))}>"


def linear(w, name, x, shape, outputs):
    """x @ weight^T + bias over the last dimension, as nn.Linear."""
    weight = w.argument(f"{name}.weight", [outputs, shape[-1]])
    bias = w.argument(f"{name}.bias", [outputs])
    result = [*shape[:-1], outputs]
    last = len(shape) - 1
    y = w.op(f"segue.dot_general {x}, {weight} batch [] x [] contract [{last}] x [1]{w.attrs()} : "
             f"{tensor(shape)}, {tensor([outputs, shape[-1]])} -> {tensor(result)}")
    b = w.op(f"segue.broadcast {bias} dims [{last}]{w.attrs()} : {tensor([outputs])} -> {tensor(result)}")
    return w.op(f"segue.add {y}, {b}{w.attrs()} : {tensor(result)}")


def layer_norm(w, name, x, shape):
    gamma = w.argument(f"{name}.weight", shape[-1:])
    beta = w.argument(f"{name}.bias", shape[-1:])
    vector, rows = tensor(shape[-1:]), tensor(shape[:-1])
    return w.ops(f"segue.layer_norm {x} gamma {gamma} : {vector} beta {beta} : {vector} eps 1.0e-5{w.attrs()} : "
                 f"{tensor(shape)} -> {rows}", 3)[0]


def attention(w, name, x, shape, heads):
    batch, rows, width = shape
    dim = width // heads
    qkv = linear(w, f"{name}.c_attn", x, shape, 3 * width)
    split, head = tensor([batch, rows, heads, dim]), tensor([batch, heads, rows, dim])
    parts = []
    for i in range(3):
        part = w.op(f"segue.slice {qkv} [0, 0, {i * width}] to [{batch}, {rows}, {(i + 1) * width}] by [1, 1, 1]"
                    f"{w.attrs()} : {tensor([batch, rows, 3 * width])} -> {tensor(shape)}")
        part = w.op(f"segue.reshape {part}{w.attrs()} : {tensor(shape)} -> {split}")
        parts.append(w.op(f"segue.transpose {part} [0, 2, 1, 3]{w.attrs()} : {split} -> {head}"))
    out = w.ops(f"segue.attention {parts[0]}, {parts[1]}, {parts[2]} causal scale {dim ** -0.5:.17e}{w.attrs()} : "
                f"{head}, {head} -> {tensor([batch, heads, rows])}", 2)[0]
    out = w.op(f"segue.transpose {out} [0, 2, 1, 3]{w.attrs()} : {head} -> {split}")
    out = w.op(f"segue.reshape {out}{w.attrs()} : {split} -> {tensor(shape)}")
    return linear(w, f"{name}.c_proj", out, shape, width)


def gpt(layers, width, heads, vocabulary, batch, rows):
    """The text of a module whose @forward gives the loss."""
    w = Writer()
    ids = w.argument("ids", [batch, rows], "input", "i64")
    targets = w.argument("targets", [batch, rows], "input", "i64")
    shape = [batch, rows, width]
    wte = w.argument("wte.weight", [vocabulary, width])
    wpe = w.argument("wpe.weight", [rows, width])
    w.block = "embedding"
    x = w.op(f"segue.gather {wte}[{ids}]{w.attrs()} : {tensor([vocabulary, width])}, {tensor([batch, rows], 'i64')} "
             f"-> {tensor(shape)}")
    p = w.op(f"segue.broadcast {wpe} dims [1, 2]{w.attrs()} : {tensor([rows, width])} -> {tensor(shape)}")
    x = w.op(f"segue.add {x}, {p}{w.attrs()} : {tensor(shape)}")
    for i in range(layers):
        name = w.block = f"h.{i}"
        y = attention(w, f"{name}.attn", layer_norm(w, f"{name}.ln_1", x, shape), shape, heads)
        x = w.op(f"segue.add {x}, {y}{w.attrs()} : {tensor(shape)}")
        y = linear(w, f"{name}.mlp.c_fc", layer_norm(w, f"{name}.ln_2", x, shape), shape, 4 * width)
        hidden = [batch, rows, 4 * width]
        y = w.op(f"segue.gelu tanh {y}{w.attrs()} : {tensor(hidden)}")
        y = linear(w, f"{name}.mlp.c_proj", y, hidden, width)
        x = w.op(f"segue.add {x}, {y}{w.attrs()} : {tensor(shape)}")
    w.block = "head"
    x = layer_norm(w, "ln_f", x, shape)
    logits = w.op(f"segue.dot_general {x}, {wte} batch [] x [] contract [2] x [1]{w.attrs()} : {tensor(shape)}, "
                  f"{tensor([vocabulary, width])} -> {tensor([batch, rows, vocabulary])}")
    flat = [batch * rows, vocabulary]
    logits = w.op(f"segue.reshape {logits}{w.attrs()} : {tensor([batch, rows, vocabulary])} -> {tensor(flat)}")
    target = w.op(f"segue.reshape {targets}{w.attrs()} : {tensor([batch, rows], 'i64')} -> {tensor(flat[:1], 'i64')}")
    losses = w.ops(f"segue.cross_entropy {logits}, {target} ignore_index -100{w.attrs()} : {tensor(flat)}, "
                   f"{tensor(flat[:1], 'i64')} -> {tensor(flat[:1])}", 2)[0]
    loss = w.op(f"segue.reduce mean {losses} dims [0]{w.attrs()} : {tensor(flat[:1])} -> {tensor([])}")
    arguments = ",\n      ".join(w.args)
    body = "\n".join(w.lines)
    return f"""module {{
  func.func @forward(
      {arguments})
      -> ({tensor([])} {{segue.name = "loss", segue.role = #segue.role<output>}}) {{
{body}
    return {loss} : {tensor([])}
  }}
}}
"""


def main():
    parser = argparse.ArgumentParser(description="Writes a GPT as MLIR text.")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, help="default: width / 64, at least 1")
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32, help="tokens of a sequence")
    args = parser.parse_args()
    heads = args.heads or max(1, args.width // 64)
    print(gpt(args.layers, args.width, heads, args.vocabulary, args.batch, args.rows), end="")


if __name__ == "__main__":
    main()
