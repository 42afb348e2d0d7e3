"""Models of speech and sound of the `hf` workload."""

from __future__ import annotations

from typing import Final

from tracekit.capture.workloads.hf.entry import HfEntry, entries
from tracekit.capture.workloads.hf.seq2seq import BART_TINY

__all__ = ["ENTRIES"]

_WAVE_TINY: Final = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 2, 2],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_length": 2,
}
_BART_TINY: Final = {
    **{key: value for key, value in BART_TINY.items() if key != "max_position_embeddings"},
    "max_target_positions": 64,
}

_WAVEFORMS: Final = entries(
    (
        ("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVE_TINY, {}),
        ("hubert", "HubertForCTC", "HubertConfig", _WAVE_TINY, {}),
        ("wavlm", "WavLMForCTC", "WavLMConfig", _WAVE_TINY, {}),
        ("unispeech", "UniSpeechForCTC", "UniSpeechConfig", _WAVE_TINY, {}),
        ("sew", "SEWForCTC", "SEWConfig", {**_WAVE_TINY, "squeeze_factor": 2}, {}),
        (
            "data2vec-audio",
            "Data2VecAudioForCTC",
            "Data2VecAudioConfig",
            {**_WAVE_TINY, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3},
            {},
        ),
        (
            "wav2vec2-conformer",
            "Wav2Vec2ConformerForCTC",
            "Wav2Vec2ConformerConfig",
            {**_WAVE_TINY, "conv_depthwise_kernel_size": 3},
            {"vocab_size": 32},
        ),
        (
            "moonshine",
            "MoonshineForConditionalGeneration",
            "MoonshineConfig",
            {
                "vocab_size": 128,
                "hidden_size": 32,
                "intermediate_size": 64,
                "encoder_num_hidden_layers": 1,
                "decoder_num_hidden_layers": 1,
                "encoder_num_attention_heads": 2,
                "decoder_num_attention_heads": 2,
                "max_position_embeddings": 64,
                "pad_token_id": 0,
            },
            {"pad_token_id": 2},
            {"inputs": "waveform and words"},
        ),
    ),
    task="speech recognition",
    inputs="waveform and characters",
    unit="samples of 1/16000 s",
    tiny_size=4000,
    size=160_000,
    batch=8,
)

_SPECTROGRAMS: Final = entries(
    (
        (
            "whisper",
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            {
                **_BART_TINY,
                "num_mel_bins": 16,
                "max_source_positions": 50,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "decoder_start_token_id": 1,
                "begin_suppress_tokens": None,
            },
            {},
            {"inputs": "mel features and words", "step": 2, "size_keys": ("max_source_positions/2",)},
        ),
        (
            "speech-to-text",
            "Speech2TextForConditionalGeneration",
            "Speech2TextConfig",
            {**_BART_TINY, "input_feat_per_channel": 16, "conv_channels": 16, "max_source_positions": 128},
            {},
            {"inputs": "frames and words"},
        ),
        (
            "parakeet",
            "ParakeetForCTC",
            "ParakeetCTCConfig",
            {
                "vocab_size": 32,
                "pad_token_id": 31,
                "encoder_config": {
                    "class": "ParakeetEncoderConfig",
                    "hidden_size": 32,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "intermediate_size": 64,
                    "num_mel_bins": 16,
                    "subsampling_conv_channels": 8,
                },
            },
            {},
            {"inputs": "frames and characters", "size": 1000},
        ),
        (
            "ast",
            "ASTForAudioClassification",
            "ASTConfig",
            {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "num_mel_bins": 32,
                "max_length": 64,
            },
            {"num_labels": 527},
            {
                "task": "audio classification",
                "inputs": "spectrogram and class",
                "tiny_size": 64,
                "size": 1024,
                "size_keys": ("max_length",),
            },
        ),
    ),
    task="speech recognition",
    unit="frames of 10 ms",
    tiny_size=100,
    size=3000,
    batch=8,
)

ENTRIES: Final[tuple[HfEntry, ...]] = (*_WAVEFORMS, *_SPECTROGRAMS)
