#!/usr/bin/env python3
"""The work of `wnw bench decode`, `prefill` and `encoder` in transformers and torch, with random weights at the same sizes.

Prints one JSON object: milliseconds of a decoding step over a cache of random keys and values, seconds of a prefill, and
seconds of an encoder on one chunk of 30 s, each for the number of layers given. Needs requirements.txt.

    python tools/bench/torch_side.py --shape voxtral-mini-3b --dtype bf16 --layers 4 --audio 240 --threads 2
"""

import argparse
import json
import statistics
import time

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

# hidden, feed-forward, layers, query heads, KV heads, head_dim, vocabulary, audio tokens a second
SHAPES = {
    "voxtral-mini-3b": (3072, 8192, 30, 32, 8, 128, 131_072, 12.5),
    "voxtral-small-24b": (5120, 32_768, 40, 32, 8, 128, 131_072, 12.5),
    "qwen2.5-omni-3b": (2048, 11_008, 36, 16, 2, 128, 151_936, 25.0),
    "tiny": (160, 480, 8, 8, 4, 32, 800, 12.5),
}
# hidden, feed-forward, layers, heads
ENCODERS = {
    "voxtral-mini-3b": (1280, 5120, 32, 20),
    "voxtral-small-24b": (1280, 5120, 32, 20),
    "tiny": (160, 640, 4, 5),
}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
PROMPT_TEXT = 8  # positions of text in the prompt, as in `wnw bench`
WARM_UP = 3


def decoder(shape, layers):
    hidden, inner, all_layers, heads, kv_heads, head_dim, vocabulary, _ = SHAPES[shape]
    sizes = dict(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=min(layers or all_layers, all_layers),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=1 << 20,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    if shape.startswith("qwen"):
        return Qwen2ForCausalLM(Qwen2Config(**sizes, use_sliding_window=False)).eval()
    return LlamaForCausalLM(LlamaConfig(**sizes, head_dim=head_dim)).eval()


def decode(model, shape, dtype, seconds, steps):
    """Milliseconds of each step, with the argmax of its logits."""
    *_, kv_heads, head_dim, _, rate = SHAPES[shape]
    rows = round(seconds * rate) + PROMPT_TEXT
    cache = DynamicCache(config=model.config)
    for layer in range(model.config.num_hidden_layers):
        k, v = (torch.randn(1, kv_heads, rows, head_dim, dtype=dtype) for _ in range(2))
        cache.update(k, v, layer)
    token, taken = torch.zeros(1, 1, dtype=torch.long), []
    for step in range(WARM_UP + steps):
        clock = time.perf_counter()
        token = model(input_ids=token, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
        if step >= WARM_UP:
            taken.append(1e3 * (time.perf_counter() - clock))
    return taken


def prefill(model, shape, dtype, seconds):
    """Seconds for the layers alone, after one pass to warm up."""
    hidden, *_, rate = SHAPES[shape]
    rows = round(seconds * rate) + PROMPT_TEXT
    states = torch.randn(1, rows, hidden, dtype=dtype)
    for _ in range(2):
        clock = time.perf_counter()
        model.model(inputs_embeds=states, use_cache=True)
        taken = time.perf_counter() - clock
    return taken


def encoder(shape, dtype, layers):
    """Seconds for one chunk of 30 s, without the projector; None where the shape has no such encoder."""
    if shape not in ENCODERS:
        return None
    from transformers.models.voxtral.modeling_voxtral import VoxtralEncoder, VoxtralEncoderConfig

    hidden, inner, all_layers, heads = ENCODERS[shape]
    config = VoxtralEncoderConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=min(layers or all_layers, all_layers),
        num_attention_heads=heads,
        attn_implementation="sdpa",
    )
    model = VoxtralEncoder(config).eval()
    mel = torch.randn(1, 128, 3000, dtype=dtype)
    for _ in range(2):
        clock = time.perf_counter()
        model(mel)
        taken = time.perf_counter() - clock
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--layers", type=int, help="only the first layers [default: all]")
    parser.add_argument("--audio", type=float, default=240.0, help="seconds of audio in the cache")
    parser.add_argument("--prefill", type=float, default=30.0, help="seconds of audio that are prefilled")
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    dtype = DTYPES[args.dtype]
    # Weights are made in their type: in f32 first, they would need twice the memory.
    torch.set_default_dtype(dtype)
    with torch.inference_mode():
        model = decoder(args.shape, args.layers)
        steps = decode(model, args.shape, dtype, args.audio, args.steps)
        prefilled = prefill(model, args.shape, dtype, args.prefill)
        layers = model.config.num_hidden_layers
        del model
        encoded = encoder(args.shape, dtype, args.layers)
    out = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "shape": args.shape,
        "dtype": args.dtype,
        "layers": layers,
        "audio_seconds": args.audio,
        "decode_ms_median": statistics.median(steps),
        "prefill_audio_seconds": args.prefill,
        "prefill_seconds": prefilled,
        "encoder_seconds": encoded,
    }
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
