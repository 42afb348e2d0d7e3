"""Models of the `hf` workload that find objects, segments or depths in images."""

from __future__ import annotations

from typing import Final

from tracekit.capture.workloads.hf.entry import HfEntry, entries
from tracekit.capture.workloads.hf.vision import VIT_TINY

__all__ = ["ENTRIES"]

_STAGES: Final = ["stage1", "stage2", "stage3", "stage4"]
_COCO: Final = {"num_labels": 91}
_COCO_80: Final = {"num_labels": 80}
_ADE: Final = {"num_labels": 150}
_RESNET_TINY: Final = {
    "class": "ResNetConfig",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
}
_LAST_STAGE: Final = {"backbone_config": {**_RESNET_TINY, "out_features": ["stage4"]}}
_RESNET_50: Final = {"backbone_config": {"class": "ResNetConfig", "out_features": ["stage4"]}}
# transformers means to freeze the first stages of such a backbone only, but does not find the others by name.
_TRAINED: Final = {"train": (".stages.1.", ".stages.2.", ".stages.3.")}
_LAYERS_TINY: Final = {
    "num_queries": 8,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_DETR_TINY: Final = {**_LAYERS_TINY, **_LAST_STAGE, "d_model": 32}
_RT_LAYERS_TINY: Final = {
    **_LAYERS_TINY,
    "d_model": 32,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [16, 24, 32],
    "decoder_in_channels": [32, 32, 32],
    "num_denoising": 4,
}
_RT_DETR_TINY: Final = {
    **_RT_LAYERS_TINY,
    "backbone_config": {
        **_RESNET_TINY,
        "class": "RTDetrResNetConfig",
        "out_features": ["stage2", "stage3", "stage4"],
    },
}
_SWIN_TINY: Final = {
    "class": "SwinConfig",
    "image_size": 64,
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 2, 4],
    "window_size": 2,
    "drop_path_rate": 0.0,
    "out_features": _STAGES,
}
_SWIN_T: Final = {"class": "SwinConfig", "out_features": _STAGES}

_DETECTORS: Final = entries(
    (
        ("detr", "DetrForObjectDetection", "DetrConfig", _DETR_TINY, {**_COCO, **_RESNET_50}, _TRAINED),
        (
            "conditional-detr",
            "ConditionalDetrForObjectDetection",
            "ConditionalDetrConfig",
            _DETR_TINY,
            {**_COCO, **_RESNET_50},
            _TRAINED,
        ),
        (
            "deformable-detr",
            "DeformableDetrForObjectDetection",
            "DeformableDetrConfig",
            {
                **_DETR_TINY,
                "backbone_config": {**_RESNET_TINY, "out_features": ["stage2", "stage3", "stage4"]},
            },
            {
                **_COCO,
                "backbone_config": {"class": "ResNetConfig", "out_features": ["stage2", "stage3", "stage4"]},
            },
            _TRAINED,
        ),
        (
            "dab-detr",
            "DabDetrForObjectDetection",
            "DabDetrConfig",
            {**_LAYERS_TINY, **_LAST_STAGE, "hidden_size": 32},
            {**_COCO, **_RESNET_50},
        ),
        (
            "table-transformer",
            "TableTransformerForObjectDetection",
            "TableTransformerConfig",
            _DETR_TINY,
            {**_RESNET_50, "num_labels": 2, "num_queries": 15},
            _TRAINED,
        ),
        (
            "yolos",
            "YolosForObjectDetection",
            "YolosConfig",
            {**VIT_TINY, "image_size": [64, 64], "num_detection_tokens": 8},
            # YOLOS-Ti
            {
                **_COCO,
                "hidden_size": 192,
                "num_attention_heads": 3,
                "intermediate_size": 768,
                "image_size": [800, 1333],
                "use_mid_position_embeddings": False,
            },
            {"step": 16, "size": 512},
        ),
        ("rt-detr", "RTDetrForObjectDetection", "RTDetrConfig", _RT_DETR_TINY, _COCO_80),
        ("rt-detr-v2", "RTDetrV2ForObjectDetection", "RTDetrV2Config", _RT_DETR_TINY, _COCO_80),
        (
            "d-fine",
            "DFineForObjectDetection",
            "DFineConfig",
            {
                **_RT_LAYERS_TINY,
                "lqe_hidden_dim": 16,
                "backbone_config": {
                    "class": "HGNetV2Config",
                    "stem_channels": [3, 8, 8],
                    "hidden_sizes": [8, 16, 24, 32],
                    "depths": [1, 1, 1, 1],
                    "stage_in_channels": [8, 8, 16, 24],
                    "stage_mid_channels": [8, 8, 8, 8],
                    "stage_out_channels": [8, 16, 24, 32],
                    "stage_num_blocks": [1, 1, 1, 1],
                    "stage_numb_of_layers": [1, 1, 1, 1],
                    "out_features": ["stage2", "stage3", "stage4"],
                },
            },
            _COCO_80,
        ),
        (
            "lw-detr",
            "LwDetrForObjectDetection",
            "LwDetrConfig",
            {
                "d_model": 32,
                "decoder_layers": 2,
                "decoder_ffn_dim": 64,
                "decoder_self_attention_heads": 2,
                "decoder_cross_attention_heads": 2,
                "num_queries": 8,
                "group_detr": 2,
                "c2f_num_blocks": 1,
                "projector_scale_factors": [1.0],
                "backbone_config": {
                    "class": "LwDetrViTConfig",
                    "hidden_size": 32,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "image_size": 64,
                    "pretrain_image_size": 64,
                    "num_windows": 4,
                    "window_block_indices": [0],
                    "out_indices": [1, 2],
                },
            },
            {**_COCO, "projector_scale_factors": [1.0]},
            {"step": 64},
        ),
        (
            "rf-detr",
            "RfDetrForObjectDetection",
            "RfDetrConfig",
            {
                "d_model": 32,
                "decoder_layers": 2,
                "decoder_ffn_dim": 64,
                "decoder_self_attention_heads": 2,
                "decoder_cross_attention_heads": 2,
                "num_queries": 8,
                "group_detr": 2,
                "c2f_num_blocks": 1,
                "backbone_config": {
                    "class": "RfDetrDinov2Config",
                    "hidden_size": 32,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "image_size": 56,
                    "num_windows": 2,
                    "out_features": ["stage1", "stage2"],
                },
            },
            _COCO,
            {"tiny_size": 56, "size": 560, "step": 28},
        ),
    ),
    task="object detection",
    inputs="image and boxes",
    unit="pixels",
    tiny_size=64,
    size=640,
    batch=4,
    step=32,
)

_SEGMENTERS: Final = entries(
    (
        (
            "segformer",
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            {
                "hidden_sizes": [8, 16, 24, 32],
                "depths": [1, 1, 1, 1],
                "num_attention_heads": [1, 2, 2, 4],
                "decoder_hidden_size": 32,
            },
            _ADE,
        ),
        (
            "upernet",
            "UperNetForSemanticSegmentation",
            "UperNetConfig",
            {
                "backbone_config": {
                    "class": "ConvNextConfig",
                    "hidden_sizes": [8, 16, 24, 32],
                    "depths": [1, 1, 1, 1],
                    "out_features": _STAGES,
                },
                "hidden_size": 16,
                "auxiliary_in_channels": 24,
                "auxiliary_channels": 16,
            },
            {
                **_ADE,
                "backbone_config": {
                    "class": "ConvNextConfig",
                    "hidden_sizes": [96, 192, 384, 768],
                    "depths": [3, 3, 9, 3],
                    "out_features": _STAGES,
                },
                "auxiliary_in_channels": 384,
            },
        ),
        (
            "dpt",
            "DPTForSemanticSegmentation",
            "DPTConfig",
            {
                **VIT_TINY,
                "num_hidden_layers": 4,
                "backbone_out_indices": [0, 1, 2, 3],
                "neck_hidden_sizes": [8, 16, 24, 32],
                "fusion_hidden_size": 16,
            },
            _ADE,
            {"size": 384, "step": 32, "size_keys": ("image_size",)},
        ),
        (
            "mobilevit-deeplab",
            "MobileViTForSemanticSegmentation",
            "MobileViTConfig",
            {
                "image_size": 64,
                "hidden_sizes": [16, 24, 32],
                "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
                "num_attention_heads": 2,
                "aspp_out_channels": 32,
            },
            {"num_labels": 21, "output_stride": 16},
            {"size_keys": ("image_size",)},
        ),
        (
            "mask2former",
            "Mask2FormerForUniversalSegmentation",
            "Mask2FormerConfig",
            {
                "backbone_config": _SWIN_TINY,
                "feature_size": 32,
                "mask_feature_size": 32,
                "hidden_dim": 32,
                "encoder_feedforward_dim": 64,
                "encoder_layers": 1,
                "decoder_layers": 3,
                "num_attention_heads": 2,
                "dim_feedforward": 64,
                "num_queries": 8,
                "train_num_points": 64,
            },
            {**_ADE, "backbone_config": _SWIN_T},
            {"task": "universal segmentation", "inputs": "image and masks", "batch": 2},
        ),
        (
            "maskformer",
            "MaskFormerForInstanceSegmentation",
            "MaskFormerConfig",
            {
                "backbone_config": _SWIN_TINY,
                "decoder_config": {"class": "DetrConfig", **_DETR_TINY},
                "fpn_feature_size": 32,
                "mask_feature_size": 32,
            },
            {**_ADE, "backbone_config": _SWIN_T},
            {"task": "instance segmentation", "inputs": "image and masks", "batch": 2},
        ),
        (
            "glpn",
            "GLPNForDepthEstimation",
            "GLPNConfig",
            {
                "hidden_sizes": [8, 16, 24, 32],
                "depths": [1, 1, 1, 1],
                "num_attention_heads": [1, 2, 2, 4],
                "decoder_hidden_size": 16,
            },
            {},
            {"task": "depth estimation", "inputs": "image and depth", "size": 480},
        ),
    ),
    task="semantic segmentation",
    inputs="image and classes",
    unit="pixels",
    tiny_size=64,
    size=512,
    batch=8,
    step=32,
)

ENTRIES: Final[tuple[HfEntry, ...]] = (*_DETECTORS, *_SEGMENTERS)
