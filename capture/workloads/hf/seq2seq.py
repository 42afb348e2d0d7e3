"""Encoder-decoder language models of the `hf` workload."""

from __future__ import annotations

from typing import Final

from tracekit.capture.workloads.hf.entry import HfEntry, entries

__all__ = ["BART_TINY", "ENTRIES"]

_START: Final = {"decoder_start_token_id": 0}
_T5: Final = {
    **_START,
    "vocab_size": 128,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
}

BART_TINY: Final = {
    "vocab_size": 128,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
"""A tiny model of BART's many relatives."""

_BASE: Final = {
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
}

ENTRIES: Final[tuple[HfEntry, ...]] = entries(
    (
        ("t5", "T5ForConditionalGeneration", "T5Config", _T5, _START),
        ("mt5", "MT5ForConditionalGeneration", "MT5Config", _T5, {}),
        ("bart", "BartForConditionalGeneration", "BartConfig", BART_TINY, _BASE),
        ("mbart", "MBartForConditionalGeneration", "MBartConfig", BART_TINY, {"vocab_size": 250_027}),
        (
            "pegasus",
            "PegasusForConditionalGeneration",
            "PegasusConfig",
            BART_TINY,
            {"vocab_size": 96_103, "encoder_layers": 16, "decoder_layers": 16},
        ),
        (
            "marian",
            "MarianMTModel",
            "MarianConfig",
            {**BART_TINY, "pad_token_id": 0, "decoder_start_token_id": 0},
            {
                **_BASE,
                "d_model": 512,
                "encoder_attention_heads": 8,
                "decoder_attention_heads": 8,
                "encoder_ffn_dim": 2048,
                "decoder_ffn_dim": 2048,
                "max_position_embeddings": 512,
            },
        ),
        (
            "blenderbot",
            "BlenderbotForConditionalGeneration",
            "BlenderbotConfig",
            BART_TINY,
            # 400M, distilled
            {"d_model": 1280, "decoder_layers": 12, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120},
            {"size": 128},
        ),
        (
            "fsmt",
            "FSMTForConditionalGeneration",
            "FSMTConfig",
            {**BART_TINY, "src_vocab_size": 128, "tgt_vocab_size": 128},
            {},
            {"inputs": "source, input and target tokens"},
        ),
        ("m2m-100", "M2M100ForConditionalGeneration", "M2M100Config", BART_TINY, {}),
        (
            "led",
            "LEDForConditionalGeneration",
            "LEDConfig",
            {
                **{key: value for key, value in BART_TINY.items() if key != "max_position_embeddings"},
                "max_encoder_position_embeddings": 64,
                "max_decoder_position_embeddings": 64,
                "attention_window": 8,
            },
            {**_BASE, "attention_window": 1024},
            {"size": 4096, "batch": 2},
        ),
        (
            "switch-transformers",
            "SwitchTransformersForConditionalGeneration",
            "SwitchTransformersConfig",
            {
                **_T5,
                "num_decoder_layers": 2,
                "num_sparse_encoder_layers": 1,
                "num_sparse_decoder_layers": 1,
                "num_experts": 4,
            },
            _START,
        ),
    ),
    task="sequence to sequence",
    inputs="source and target tokens",
    tiny_size=16,
    size=512,
    batch=8,
)
