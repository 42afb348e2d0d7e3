"""Models of images and videos of the `hf` workload, apart from those that find objects."""

from __future__ import annotations

from typing import Final

from tracekit.capture.workloads.hf.entry import HfEntry, entries

__all__ = ["ENTRIES", "VIT_TINY"]

VIT_TINY: Final = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 64,
    "patch_size": 16,
}
"""A tiny Vision Transformer for images of 64 pixels a side."""

_FULL: Final = {"num_labels": 1000}
_SIZED: Final = {"size_keys": ("image_size",), "step": 16}
_BY_32: Final = {"step": 32}
_SIZED_BY_32: Final = {"size_keys": ("image_size",), "step": 32}
_NET_TINY: Final = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_NEXT_TINY: Final = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "image_size": 64}
_SWIN_TINY: Final = {
    "image_size": 64,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
    "drop_path_rate": 0.0,
}
_PYRAMID_TINY: Final = {
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
}

_CLASSIFIERS: Final = entries(
    (
        ("vit", "ViTForImageClassification", "ViTConfig", VIT_TINY, _FULL, _SIZED),
        ("deit", "DeiTForImageClassification", "DeiTConfig", VIT_TINY, _FULL, _SIZED),
        ("beit", "BeitForImageClassification", "BeitConfig", VIT_TINY, _FULL, _SIZED),
        (
            "dinov2",
            "Dinov2ForImageClassification",
            "Dinov2Config",
            {key: value for key, value in VIT_TINY.items() if key != "intermediate_size"},
            _FULL,
            {"size_keys": ("image_size",)},
        ),
        ("resnet", "ResNetForImageClassification", "ResNetConfig", _NET_TINY, _FULL, _BY_32),
        (
            "regnet",
            "RegNetForImageClassification",
            "RegNetConfig",
            {**_NET_TINY, "groups_width": 8},
            _FULL,
            _BY_32,
        ),
        ("convnext", "ConvNextForImageClassification", "ConvNextConfig", _NEXT_TINY, _FULL, _SIZED_BY_32),
        (
            "convnextv2",
            "ConvNextV2ForImageClassification",
            "ConvNextV2Config",
            _NEXT_TINY,
            _FULL,
            _SIZED_BY_32,
        ),
        ("swin", "SwinForImageClassification", "SwinConfig", _SWIN_TINY, _FULL, _SIZED_BY_32),
        ("swinv2", "Swinv2ForImageClassification", "Swinv2Config", _SWIN_TINY, _FULL, _SIZED_BY_32),
        (
            "efficientnet",
            "EfficientNetForImageClassification",
            "EfficientNetConfig",
            {
                "image_size": 64,
                "width_coefficient": 0.25,
                "depth_coefficient": 0.25,
                "hidden_dim": 320,
            },
            {
                **_FULL,
                "image_size": 224,
                "width_coefficient": 1.0,
                "depth_coefficient": 1.0,
                "hidden_dim": 1280,
                "dropout_rate": 0.2,
            },
            _SIZED_BY_32,
        ),
        # Both defaults of the dropout are the share to be kept.
        (
            "mobilenet-v1",
            "MobileNetV1ForImageClassification",
            "MobileNetV1Config",
            {"image_size": 64, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.001},
            {**_FULL, "classifier_dropout_prob": 0.001},
            _SIZED_BY_32,
        ),
        (
            "mobilenet-v2",
            "MobileNetV2ForImageClassification",
            "MobileNetV2Config",
            {"image_size": 64, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.2},
            {**_FULL, "classifier_dropout_prob": 0.2},
            _SIZED_BY_32,
        ),
        (
            "mobilevit",
            "MobileViTForImageClassification",
            "MobileViTConfig",
            {
                "image_size": 64,
                "hidden_sizes": [16, 24, 32],
                "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
                "num_attention_heads": 2,
            },
            _FULL,
            _SIZED_BY_32,
        ),
        (
            "mobilevitv2",
            "MobileViTV2ForImageClassification",
            "MobileViTV2Config",
            {
                "image_size": 64,
                "width_multiplier": 0.25,
                "n_attn_blocks": [1, 1, 1],
                "base_attn_unit_dims": [64, 64, 64],
            },
            _FULL,
            _SIZED_BY_32,
        ),
        (
            "levit",
            "LevitForImageClassification",
            "LevitConfig",
            {
                "image_size": 64,
                "hidden_sizes": [16, 24, 32],
                "num_attention_heads": [1, 2, 2],
                "depths": [1, 1, 1],
                "key_dim": [8, 8, 8],
            },
            _FULL,
            _SIZED_BY_32,
        ),
        (
            "pvt",
            "PvtForImageClassification",
            "PvtConfig",
            {**_PYRAMID_TINY, "image_size": 64, "num_labels": 2},
            {},
            _SIZED_BY_32,
        ),
        (
            "pvt-v2",
            "PvtV2ForImageClassification",
            "PvtV2Config",
            {**_PYRAMID_TINY, "image_size": 64},
            _FULL,
            _SIZED_BY_32,
        ),
        (
            "poolformer",
            "PoolFormerForImageClassification",
            "PoolFormerConfig",
            {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
            _FULL,
            _BY_32,
        ),
        (
            "bit",
            "BitForImageClassification",
            "BitConfig",
            {"embedding_size": 8, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "num_groups": 4},
            _FULL,
            _BY_32,
        ),
        (
            "focalnet",
            "FocalNetForImageClassification",
            "FocalNetConfig",
            {
                "image_size": 64,
                "embed_dim": 16,
                "hidden_sizes": [16, 32],
                "depths": [1, 1],
                "focal_levels": [2, 2],
                "focal_windows": [3, 3],
                "drop_path_rate": 0.0,
            },
            _FULL,
            _SIZED_BY_32,
        ),
        (
            "cvt",
            "CvtForImageClassification",
            "CvtConfig",
            {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
            _FULL,
            _BY_32,
        ),
        (
            "hiera",
            "HieraForImageClassification",
            "HieraConfig",
            {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]},
            _FULL,
        ),
        (
            "swiftformer",
            "SwiftFormerForImageClassification",
            "SwiftFormerConfig",
            {"image_size": 64, "embed_dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
            _FULL,
            _SIZED_BY_32,
        ),
        ("vit-msn", "ViTMSNForImageClassification", "ViTMSNConfig", VIT_TINY, _FULL, _SIZED),
        (
            "hgnet-v2",
            "HGNetV2ForImageClassification",
            "HGNetV2Config",
            {
                "stem_channels": [3, 8, 8],
                "hidden_sizes": [16, 24, 32, 40],
                "depths": [1, 1, 1, 1],
                "stage_in_channels": [8, 16, 24, 32],
                "stage_mid_channels": [8, 8, 8, 8],
                "stage_out_channels": [16, 24, 32, 40],
                "stage_num_blocks": [1, 1, 1, 1],
                "stage_numb_of_layers": [2, 2, 2, 2],
            },
            _FULL,
            _BY_32,
        ),
        ("donut-swin", "DonutSwinForImageClassification", "DonutSwinConfig", _SWIN_TINY, _FULL, _SIZED_BY_32),
        (
            "textnet",
            "TextNetForImageClassification",
            "TextNetConfig",
            {
                "image_size": [64, 64],
                "stem_out_channels": 8,
                "hidden_sizes": [8, 8, 16, 16, 24],
                "conv_layer_kernel_sizes": [[[3, 3]], [[3, 3]], [[3, 1]], [[1, 3]]],
                "conv_layer_strides": [[1], [2], [2], [2]],
            },
            _FULL,
            {**_BY_32, "size": 640, "batch": 8},
        ),
        ("ijepa", "IJepaForImageClassification", "IJepaConfig", VIT_TINY, _FULL, _SIZED),
        (
            "perceiver",
            "PerceiverForImageClassificationLearned",
            "PerceiverConfig",
            {
                "image_size": 32,
                "num_latents": 8,
                "d_latents": 32,
                "num_self_attends_per_block": 1,
                "num_self_attention_heads": 2,
                "num_cross_attention_heads": 1,
            },
            {
                **_FULL,
                "image_size": 224,
                "num_latents": 512,
                "d_latents": 1024,
                "num_blocks": 8,
                "num_self_attends_per_block": 6,
                "num_cross_attention_heads": 1,
            },
            {"inputs": "inputs and class", "size_keys": ("image_size",), "tiny_size": 32, "batch": 8},
        ),
    ),
    task="image classification",
    inputs="image and class",
    unit="pixels",
    tiny_size=64,
    size=224,
    batch=32,
)

_VIDEO: Final = entries(
    (
        (
            "videomae",
            "VideoMAEForVideoClassification",
            "VideoMAEConfig",
            {**VIT_TINY, "num_frames": 4, "tubelet_size": 2},
            {"num_labels": 400},
        ),
        (
            "timesformer",
            "TimesformerForVideoClassification",
            "TimesformerConfig",
            {**VIT_TINY, "num_frames": 2},
            {"num_labels": 400},
        ),
        (
            "vivit",
            "VivitForVideoClassification",
            "VivitConfig",
            {
                **{key: value for key, value in VIT_TINY.items() if key != "patch_size"},
                "num_frames": 4,
                "tubelet_size": [2, 16, 16],
            },
            {"num_labels": 400},
        ),
    ),
    task="video classification",
    inputs="video and class",
    unit="pixels",
    tiny_size=64,
    size=224,
    batch=4,
    step=16,
    size_keys=("image_size",),
)

_MAE: Final = entries(
    (
        (
            "vit-mae",
            "ViTMAEForPreTraining",
            "ViTMAEConfig",
            {
                **VIT_TINY,
                "decoder_hidden_size": 32,
                "decoder_num_hidden_layers": 1,
                "decoder_num_attention_heads": 4,
                "decoder_intermediate_size": 64,
            },
            {},
        ),
    ),
    task="image reconstruction",
    inputs="image",
    unit="pixels",
    tiny_size=64,
    size=224,
    batch=32,
    step=16,
    size_keys=("image_size",),
)

ENTRIES: Final[tuple[HfEntry, ...]] = (*_CLASSIFIERS, *_VIDEO, *_MAE)
