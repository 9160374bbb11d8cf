# ===- dynamo - torch.compile(model, backend="segue") -----------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""The backend of `torch.compile`.

TorchDynamo cuts a program at its graph breaks, AOTAutograd makes a forward and
a backward graph of each piece, and every piece becomes a *segment*: two Segue
programs, stitched at run time with those of the other segments. PyTorch finds
the backend by the entry point ``torch_dynamo_backends``.
"""

from .report import BackendReport, SegmentReport, backend_report

__all__ = ["BackendReport", "SegmentReport", "backend_report"]
