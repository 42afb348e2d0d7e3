"""Models of several kinds of input, of time series and of behaviour in the `hf` workload."""

from __future__ import annotations

from typing import Final

from tracekit.capture.workloads.hf.entry import HfEntry, entries
from tracekit.capture.workloads.hf.vision import VIT_TINY

__all__ = ["ENTRIES"]

_TEXT_TINY: Final = {
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
}
_ENDS: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_CONTRASTIVE: Final = {
    "task": "image-text matching",
    "inputs": "image and text",
    "call": {"return_loss": True},
}
_IMAGE_OF_BOTH: Final = {"size_keys": ("vision_config.image_size",)}

_IMAGES_AND_TEXTS: Final = entries(
    (
        (
            "clip",
            "CLIPModel",
            "CLIPConfig",
            {"text_config": {**_TEXT_TINY, **_ENDS}, "vision_config": VIT_TINY, "projection_dim": 32},
            {},
            {**_CONTRASTIVE, **_IMAGE_OF_BOTH, "step": 32, "batch": 32},
        ),
        (
            "siglip",
            "SiglipModel",
            "SiglipConfig",
            {"text_config": {**_TEXT_TINY, **_ENDS, "projection_size": 32}, "vision_config": VIT_TINY},
            {},
            {**_CONTRASTIVE, **_IMAGE_OF_BOTH, "batch": 32},
        ),
        (
            "blip",
            "BlipForConditionalGeneration",
            "BlipConfig",
            {
                "text_config": {**_TEXT_TINY, **_ENDS, "encoder_hidden_size": 32, "sep_token_id": 3},
                "vision_config": VIT_TINY,
            },
            {},
            {"task": "image captioning", "inputs": "caption", **_IMAGE_OF_BOTH, "size": 384},
        ),
        (
            "vilt",
            "ViltForQuestionAnswering",
            "ViltConfig",
            {**VIT_TINY, "vocab_size": 128, "max_position_embeddings": 40, "num_labels": 4},
            {"num_labels": 3129},
            {
                "task": "visual question answering",
                "inputs": "question",
                "size": 384,
                "step": 32,
                "size_keys": ("image_size",),
            },
        ),
        (
            "vision-encoder-decoder",
            "VisionEncoderDecoderModel",
            "VisionEncoderDecoderConfig",
            {
                "encoder": {"model_type": "vit", **VIT_TINY},
                "decoder": {
                    "model_type": "gpt2",
                    "vocab_size": 128,
                    "n_embd": 32,
                    "n_layer": 2,
                    "n_head": 2,
                    "n_positions": 64,
                    "bos_token_id": 1,
                    "eos_token_id": 2,
                    "is_decoder": True,
                    "add_cross_attention": True,
                },
                "pad_token_id": 0,
                "decoder_start_token_id": 1,
            },
            {
                "encoder": {"model_type": "vit"},
                "decoder": {"model_type": "gpt2", "is_decoder": True, "add_cross_attention": True},
                "pad_token_id": 50_256,
                "decoder_start_token_id": 50_256,
            },
            {"task": "image captioning", "inputs": "image to text", "size_keys": ("encoder.image_size",)},
        ),
    ),
    unit="pixels",
    tiny_size=64,
    size=224,
    step=16,
    batch=16,
)

_DOCUMENTS: Final = entries(
    (
        (
            "layoutlm",
            "LayoutLMForTokenClassification",
            "LayoutLMConfig",
            {**_TEXT_TINY, "max_position_embeddings": 64},
            {"num_labels": 13},
        ),
    ),
    task="token classification",
    inputs="document",
    example_mask="full",
    tiny_size=16,
    size=512,
    batch=8,
)

_LAGGED_TINY: Final = {
    "prediction_length": 8,
    "context_length": 16,
    "lags_sequence": [1, 2],
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
_LAGGED: Final = {
    "prediction_length": 24,
    "context_length": 48,
    "lags_sequence": [1, 2, 3, 4, 5, 6, 7],
    "num_time_features": 2,
}

_SERIES: Final = entries(
    (
        (
            "patchtst",
            "PatchTSTForPrediction",
            "PatchTSTConfig",
            {
                "num_input_channels": 2,
                "context_length": 32,
                "patch_length": 8,
                "patch_stride": 8,
                "prediction_length": 8,
                "d_model": 32,
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "ffn_dim": 64,
            },
            {
                "num_input_channels": 7,
                "patch_length": 12,
                "patch_stride": 12,
                "prediction_length": 96,
                "num_attention_heads": 16,
            },
            {"inputs": "patched series", "tiny_size": 32, "size": 512},
        ),
        (
            "patchtsmixer",
            "PatchTSMixerForPrediction",
            "PatchTSMixerConfig",
            {
                "num_input_channels": 2,
                "context_length": 32,
                "patch_length": 8,
                "patch_stride": 8,
                "prediction_length": 8,
                "num_layers": 2,
            },
            {"num_input_channels": 7, "d_model": 48, "prediction_length": 96},
            {"inputs": "patched series", "tiny_size": 32, "size": 512},
        ),
        (
            "time-series-transformer",
            "TimeSeriesTransformerForPrediction",
            "TimeSeriesTransformerConfig",
            _LAGGED_TINY,
            _LAGGED,
        ),
        (
            "autoformer",
            "AutoformerForPrediction",
            "AutoformerConfig",
            {**_LAGGED_TINY, "label_length": 4},
            _LAGGED,
        ),
        ("informer", "InformerForPrediction", "InformerConfig", _LAGGED_TINY, _LAGGED),
    ),
    task="time series forecasting",
    inputs="lagged series",
    unit="steps",
    tiny_size=16,
    size=48,
    batch=64,
    size_keys=("context_length",),
)

_NO_WORDS: Final = {"bos_token_id": None, "eos_token_id": None}

_BEHAVIOUR: Final = entries(
    (
        (
            "decision-transformer",
            "DecisionTransformerModel",
            "DecisionTransformerConfig",
            {
                "state_dim": 8,
                "act_dim": 3,
                "hidden_size": 32,
                "n_layer": 2,
                "n_head": 2,
                "max_ep_len": 64,
                "n_positions": 64,
                **_NO_WORDS,
            },
            {"act_dim": 6, **_NO_WORDS},
        ),
    ),
    task="offline reinforcement learning",
    inputs="trajectory",
    unit="steps",
    tiny_size=8,
    size=20,
    batch=64,
)

ENTRIES: Final[tuple[HfEntry, ...]] = (*_IMAGES_AND_TEXTS, *_DOCUMENTS, *_SERIES, *_BEHAVIOUR)
