"""Networks of transformers on text, sound, images and pairs of them, each of its smallest useful configuration."""

from functools import partial

import transformers

from models.architectures.networks import Input, Network, Picked

VOCAB = 48
TEXT = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 32}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 1, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
PATCHES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
           "image_size": 16, "patch_size": 8}  # fmt: skip
ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 0}
BART = {"vocab_size": VOCAB, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
        **ENDS}  # fmt: skip

TOKENS = {"input_ids": Input((2, 8), VOCAB, {0: 3, 1: 11})}
MASKED = {**TOKENS, "attention_mask": Input((2, 8), 2, {0: 3, 1: 11})}
# A row, since at opset 23 dynamo writes RotaryEmbedding with caches of one row, which ORT takes for no other number.
ROW = {"input_ids": Input((1, 8), VOCAB, {1: 11}), "attention_mask": Input((1, 8), 2, {1: 11})}
STEPS = {"input_ids": Input((2, 8), VOCAB, {0: 3})}  # loops that the exporters unroll
PAIR = {**MASKED, "decoder_input_ids": Input((2, 5), VOCAB, {0: 3, 1: 7})}
PIXELS = {"pixel_values": Input((2, 3, 16, 16), sizes={0: 3})}


def first(found):
  """The first output."""
  return found[0]


def network(model, names, pick, given,
            config):  # fmt: skip
  """A model of transformers as a function of tensors with these names; attention is spelled out."""
  made = getattr(transformers, model)
  settings = made.config_class(**config)
  settings._attn_implementation, settings._experts_implementation = "eager", "batched_mm"
  for each in vars(settings).values():
    if isinstance(each, transformers.PreTrainedConfig):
      each._attn_implementation = "eager"
  return Picked(made(settings), names, pick, {"return_dict": False, **given})


def entry(model, inputs, config, *, pick=first,
          given=None, **more):  # fmt: skip
  """A line of the table."""
  return Network(partial(network, model, tuple(inputs), pick, given or {}, config), inputs, **more)


NO_CACHE = {"use_cache": False}

NETWORKS: dict[str, Network] = {
    # encoders of text
    "deberta": entry("DebertaV2Model", MASKED, {**TEXT, "relative_attention": True, "position_buckets": 8,
                                                "norm_rel_ebd": "layer_norm", "share_att_key": True,
                                                "pos_att_type": ["p2c", "c2p"]}),
    "modernbert": entry("ModernBertModel", MASKED, {**TEXT, "pad_token_id": 0, "global_attn_every_n_layers": 2,
                                                    "local_attention": 4}),
    "fnet": entry("FNetModel", TOKENS, {**TEXT, "use_tpu_fourier_optimizations": False},
                  exporters=("dynamo",), dynamic=("dynamo",)),
    "convbert": entry("ConvBertModel", MASKED, {**TEXT, "embedding_size": 8, "head_ratio": 1, "conv_kernel_size": 3}),
    # decoders of text
    "gpt_neox": entry("GPTNeoXForCausalLM", ROW, {**TEXT, "bos_token_id": 0, "eos_token_id": 0}, given=NO_CACHE),
    "bloom": entry("BloomModel", MASKED, {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 2, "n_head": 2,
                                          "bos_token_id": 0, "eos_token_id": 0}, given=NO_CACHE),
    "mixtral": entry("MixtralModel", ROW, {**GROUPED, "num_local_experts": 3, "num_hidden_layers": 1},
                     given=NO_CACHE, chooses=True),
    "mamba": entry("MambaModel", STEPS, {"vocab_size": VOCAB, "hidden_size": 8, "state_size": 4,
                                          "num_hidden_layers": 1, "time_step_rank": 2}, given=NO_CACHE),
    # from one text to another
    "t5_pair": entry("T5ForConditionalGeneration", PAIR,
                     {"vocab_size": VOCAB, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2,
                      "relative_attention_num_buckets": 8, "decoder_start_token_id": 0}, given=NO_CACHE),
    "bart": entry("BartModel", PAIR, BART, given=NO_CACHE),
    # sound
    "whisper": entry("WhisperModel", {"input_features": Input((2, 8, 16), sizes={0: 3}),
                                      "decoder_input_ids": Input((2, 5), VOCAB, {0: 3, 1: 7}),
                                      "decoder_attention_mask": Input((2, 5), 2, {0: 3, 1: 7})},
                     {**BART, "num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16},
                     given=NO_CACHE),
    "wav2vec2": entry("Wav2Vec2ForCTC", {"input_values": Input((2, 400), sizes={0: 3, 1: 560})},
                      {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "intermediate_size": 32, "conv_dim": [8, 8, 8], "conv_kernel": [10, 3, 2],
                       "conv_stride": [5, 2, 2], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}),
    "hifigan": entry("SpeechT5HifiGan", {"spectrogram": Input((2, 7, 8), sizes={0: 3, 1: 9})},
                     {"model_in_dim": 8, "upsample_initial_channel": 16, "upsample_rates": [4, 2],
                      "upsample_kernel_sizes": [8, 4], "resblock_kernel_sizes": [3, 5],
                      "resblock_dilation_sizes": [[1, 3], [1, 3]]}, pick=lambda found: found),
    # images
    "sam_vision": entry("SamVisionModel", {"pixel_values": Input((1, 3, 32, 32), sizes={0: 2})},
                        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
                         "patch_size": 8, "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 32,
                         "output_channels": 8}),
    # pairs
    "clip": entry("CLIPModel", {**TOKENS, "pixel_values": Input((2, 3, 16, 16), sizes={0: 3})},
                  {"text_config": {**TEXT, "num_hidden_layers": 1, "eos_token_id": 47, "bos_token_id": 46,
                                   "pad_token_id": 1},
                   "vision_config": {**PATCHES, "num_hidden_layers": 1}, "projection_dim": 8},
                  pick=lambda found: found[:2]),
    # tables and series
    "patchtst": entry("PatchTSTForPrediction", {"past_values": Input((2, 16, 3), sizes={0: 3})},
                      {"num_input_channels": 3, "context_length": 16, "patch_length": 4, "patch_stride": 4,
                       "d_model": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16,
                       "prediction_length": 4},
                      exporters=("dynamo",), dynamic=("dynamo",)),  # TorchScript: an Add that does not broadcast
}  # fmt: skip
