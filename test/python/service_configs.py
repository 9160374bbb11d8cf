# ===- service_configs.py - services of memory that keep a run to a cap -----------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Configs of the services that keep a run to a cap, for tests that ask whether one changes a result."""


def services(modes, cap):
    """The config of services that keep a step to `cap` bytes: of "planned", "watermark", "ring", "states" those that are named."""
    stagehand = {"conductor_config": {"enabled": True, "vram_hard_cap_mb": cap / 2**20, "vram_soft_cap_mb": cap / 2**20, "telemetry_enabled": False}}
    if "planned" in modes or "watermark" in modes:
        stagehand["activation_stagehand"] = {"enabled": True, "mode": "planned", "telemetry_enabled": False}
    if "watermark" in modes:
        stagehand["activation_stagehand"] |= {"mode": "watermark", "vram_high_watermark_mb": 0.8 * cap / 2**20,
                                              "vram_low_watermark_mb": 0.7 * cap / 2**20, "pinned_pool_classes_mb": [1], "slabs_per_class": [8]}
    if "ring" in modes:
        stagehand |= {"stagehand_enabled": True, "prefetch_window_blocks": 1, "telemetry_enabled": False, "pinned_pool_mb": 4, "pinned_slab_mb": 1}
    if "states" in modes:
        stagehand["state_stagehand"] = {"mode": "on", "telemetry_enabled": False}
    return {"memory": {"stagehand": stagehand}}
