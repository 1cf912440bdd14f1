"""Parity goldens for Voxtral: small random-weight checkpoints and what transformers computes with them.

    python tools/goldens/voxtral.py [CASE ...]

writes `crates/model/tests/data/voxtral/CASE/`: a checkpoint directory (the spelling differs from case to case, as
it does in the wild) and `golden.safetensors` + `golden.json`, the reference outputs in f32 with eager attention.
See README.md beside this file.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import VoxtralConfig, VoxtralForConditionalGeneration

OUT = Path(__file__).resolve().parents[2] / "crates/model/tests/data/voxtral"
AUDIO = 24
STEPS = 64
MELS, FRAMES = 128, 3000
TOKENS_PER_CHUNK = 375
# Rows that are kept: every n-th of the encoder, of the projector, and of the audio positions' logits.
ENCODER_EVERY, PROJECTOR_EVERY, LOGITS_EVERY = 50, 10, 25

# ---------------------------------------------------------------------------------------------------------------
# The input. It is not stored: both sides compute it with integers, so it is the same to the last bit.
#
#   hash(seed, n): x = n ^ seed; x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16  (u32)
#   mel[c][m][t] = (3 * a + b) / 2048 - 0.75   with   b = hash(seed, (c * 128 + m) * 3000 + t) >> 22   (per value)
#                                                     a = hash(seed + 1, (c * 16 + m / 8) * 60 + t / 50) >> 22   (per patch of 8 bands by half a second)
#
# The patches give the encoder something that differs from place to place; pure noise would look the same everywhere.


def lowbias32(x):
    m = 0xFFFFFFFF
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & m
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & m
    return x ^ (x >> 16)


def make_mel(seed, chunks):
    c = torch.arange(chunks, dtype=torch.int64)[:, None, None]
    m = torch.arange(MELS, dtype=torch.int64)[None, :, None]
    t = torch.arange(FRAMES, dtype=torch.int64)[None, None, :]
    b = lowbias32(((c * MELS + m) * FRAMES + t) ^ seed) >> 22
    a = lowbias32(((c * 16 + m // 8) * 60 + t // 50) ^ (seed + 1)) >> 22
    return (3 * a + b).to(torch.float32) / 2048 - 0.75


def mel_checksum(mel):
    """Of the integers (3 a + b), each times its index modulo 1009: the reader recomputes it."""
    whole = ((mel.double() + 0.75) * 2048).round().long().flatten()
    return int((whole * (torch.arange(whole.numel()) % 1009)).sum())


# ---------------------------------------------------------------------------------------------------------------
# Weights


def sinusoids(length, channels):
    """Whisper's table, in f32 throughout as Whisper computes it."""
    increment = math.log(10000) / (channels // 2 - 1)
    inverse = torch.exp(-increment * torch.arange(channels // 2))
    time = torch.arange(length)[:, None] * inverse[None, :]
    return torch.cat([time.sin(), time.cos()], dim=1)


def fill(model, case, seed):
    """Random weights at scales that keep activations near 1 and attention away from both uniform and one-hot."""
    g = torch.Generator().manual_seed(seed)

    def normal(shape, std):
        return torch.randn(shape, generator=g) * std

    for name, p in sorted(model.state_dict().items()):
        fan_in = p.shape[1] * (p.shape[2] if p.dim() == 3 else 1) if p.dim() > 1 else 1
        if name.endswith("embed_positions.weight"):
            table = sinusoids(*p.shape)
            value = table if case["positions"] == "sinusoid" else table.flip(0) * 0.7 + normal(p.shape, 0.3)
        elif "norm" in name:
            value = normal(p.shape, 0.15) + (1.0 if name.endswith("weight") else 0.0)
            if name.endswith("language_model.norm.weight"):
                value = value * case.get("final_norm", 1.0)
        elif name.endswith("bias"):
            value = normal(p.shape, 0.2)
        elif name.endswith("embed_tokens.weight"):
            value = normal(p.shape, case.get("embed", 1.0))
        elif name.endswith("lm_head.weight"):
            value = normal(p.shape, 2.0 / math.sqrt(fan_in))
        elif "projector" in name:
            value = normal(p.shape, 1.6 / math.sqrt(fan_in))
        elif "q_proj" in name or "k_proj" in name:
            value = normal(p.shape, 1.7 / math.sqrt(fan_in))
        elif "down_proj" in name:
            # The layers have to outweigh the residual, or greedy decoding falls into a loop at once.
            value = normal(p.shape, 3.0 / math.sqrt(fan_in))
        elif "o_proj" in name:
            value = normal(p.shape, 1.5 / math.sqrt(fan_in))
        else:
            value = normal(p.shape, 1.0 / math.sqrt(fan_in))
        p.copy_(value)
    if case["tied"]:
        # transformers 5.24 does not tie this class itself, whatever the flag says.
        model.lm_head.weight = model.model.language_model.embed_tokens.weight


def old_name(name):
    """The names of the released (2507) checkpoints."""
    if name == "lm_head.weight":
        return "language_model.lm_head.weight"
    name = name.removeprefix("model.")
    return name.replace("language_model.", "language_model.model.", 1) if name.startswith("language_model.") else name


def consolidated(state, text):
    """Mistral's own names, and its interleaved order of the rows of wq and wk."""
    out = {}
    enc = "mm_whisper_embeddings.whisper_encoder."
    attention = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo", "out_proj": "wo"}
    feed = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3", "fc1": "w1", "fc2": "w2"}
    norms = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn_layer_norm": "attention_norm",
        "final_layer_norm": "ffn_norm",
    }
    whole = {
        "lm_head.weight": "output.weight",
        "model.language_model.norm.weight": "norm.weight",
        "model.language_model.embed_tokens.weight": "mm_whisper_embeddings.tok_embeddings.weight",
        "model.multi_modal_projector.linear_1.weight": "mm_whisper_embeddings.audio_language_projection.0.weight",
        "model.multi_modal_projector.linear_2.weight": "mm_whisper_embeddings.audio_language_projection.2.weight",
    }
    for name, value in state.items():
        parts = name.split(".")
        if name.endswith("embed_positions.weight"):
            continue
        if name in whole:
            out[whole[name]] = value
            continue
        if parts[2] in ("conv1", "conv2"):
            out[f"{enc}conv_layers.{int(parts[2][-1]) - 1}.{parts[3]}"] = value
            continue
        if parts[1:3] == ["audio_tower", "layer_norm"]:
            out[f"{enc}transformer.norm.{parts[3]}"] = value
            continue
        head = f"{enc}transformer.layers" if parts[1] == "audio_tower" else "layers"
        layer, leaf = parts[3], parts[-1]
        if parts[4] == "self_attn":
            if parts[1] == "language_model" and parts[5] in ("q_proj", "k_proj"):
                n = text["num_attention_heads" if parts[5] == "q_proj" else "num_key_value_heads"]
                half = text["head_dim"] // 2
                # half-split row j * half + i of a head is interleaved row 2 * i + j
                halves = value
                value = halves.view(n, 2, half, -1).transpose(1, 2).reshape(halves.shape)
                back = value.view(n, half, 2, -1).transpose(1, 2).reshape(halves.shape)
                assert torch.equal(back, halves)
            tail = f"attention.{attention[parts[5]]}"
        elif parts[4] in norms:
            tail = norms[parts[4]]
        else:
            tail = f"feed_forward.{feed[parts[-2]]}"
        out[f"{head}.{layer}.{tail}.{leaf}"] = value
    return out


# ---------------------------------------------------------------------------------------------------------------
# Cases


def audio_args(d, heads, layers=2):
    return dict(
        hidden_size=d,
        intermediate_size=4 * d,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=d // heads,
        num_mel_bins=MELS,
        max_source_positions=1500,
    )


def text_args(hidden, q, kv, head_dim, inter, layers, vocab, theta, eps=1e-5):
    return dict(
        hidden_size=hidden,
        intermediate_size=inter,
        num_hidden_layers=layers,
        num_attention_heads=q,
        num_key_value_heads=kv,
        head_dim=head_dim,
        rms_norm_eps=eps,
        rope_theta=theta,
        vocab_size=vocab,
        max_position_embeddings=131072,
    )


def audio(chunks):
    return [25] + [AUDIO] * (TOKENS_PER_CHUNK * chunks)


CASES = {
    # One key-value head per query head; the released spelling; transcription with a language.
    "mha": dict(
        mel_seed=0x5EED0001,
        audio=audio_args(32, 2),
        text=text_args(32, 4, 4, 24, 96, 2, 320, 1e4),
        tied=False,
        positions="sinusoid",
        chunks=1,
        prompt=[1, 3, *audio(1), 4, 109, 58, 262, 34],
        layout="released",
        also_consolidated=True,
    ),
    # Tied: no lm_head in the file. Sizes that are not powers of two. Config as transformers 5 writes it, names as
    # it writes them too (the released ones). Transcription without a language, two chunks.
    "gqa4-tied": dict(
        mel_seed=0x5EED0002,
        audio=audio_args(48, 3),
        text=text_args(96, 8, 2, 16, 96, 2, 320, 1e8),
        tied=True,
        embed=0.05,
        final_norm=5.0,
        positions="sinusoid",
        chunks=2,
        prompt=[1, 3, *audio(2), 4, 34],
        layout="transformers5-config",
    ),
    # One key-value head for eight. The names transformers 5 uses in memory. Chat: text, audio, text, audio, text.
    "gqa8-chat": dict(
        mel_seed=0x5EED0003,
        audio=audio_args(32, 4),
        text=text_args(32, 8, 1, 16, 96, 3, 384, 1e8),
        tied=False,
        positions="sinusoid",
        chunks=3,
        prompt=[1, 3, 201, 77, 350, 90, *audio(1), 141, 66, 212, *audio(2), 310, 45, 99, 128, 4],
        layout="transformers5-names",
    ),
    # Two shards; a positional table that is not Whisper's; another epsilon; a question before the audio.
    "gqa4-sharded": dict(
        mel_seed=0x5EED0004,
        audio=audio_args(32, 2),
        text=text_args(64, 16, 4, 8, 64, 2, 352, 1e6, eps=1e-6),
        tied=False,
        positions="learned",
        chunks=1,
        prompt=[1, 3, 155, 302, 61, 333, 247, *audio(1), 4],
        layout="sharded",
    ),
}


def build(case, seed):
    config = VoxtralConfig(
        audio_config=case["audio"],
        text_config=dict(case["text"], tie_word_embeddings=case["tied"]),
        audio_token_id=AUDIO,
    )
    config._attn_implementation = "eager"
    model = VoxtralForConditionalGeneration(config).to(torch.float32).eval()
    with torch.no_grad():
        fill(model, case, seed)
    assert model.model.language_model.config._attn_implementation == "eager"
    assert model.model.audio_tower.config._attn_implementation == "eager"
    return config, model


def run(case, model, mel):
    ids = torch.tensor([case["prompt"]])
    tower = model.model.audio_tower(mel).last_hidden_state
    encoder = tower.reshape(-1, tower.shape[-1])
    projector = model.get_audio_features(mel).pooler_output
    logits = model(input_ids=ids, input_features=mel).logits[0]
    out = model.generate(
        input_ids=ids,
        input_features=mel,
        do_sample=False,
        max_new_tokens=STEPS,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_scores=True,
    )
    greedy = out.sequences[0, ids.shape[1] :]
    assert len(greedy) == STEPS
    top = torch.stack([s[0] for s in out.scores]).topk(2, dim=-1).values
    return encoder, projector, logits, greedy, (top[:, 0] - top[:, 1]).min().item()


def attention_figures(case, model, mel):
    """Mean entropy of decoder attention over that of a uniform one, and the mean largest weight."""
    ids = torch.tensor([case["prompt"]])
    maps = model(input_ids=ids, input_features=mel, output_attentions=True).attentions
    last = torch.stack([a[0, :, 100:] for a in maps]).clamp_min(1e-30)
    entropy = -(last * last.log()).sum(-1)
    uniform = torch.arange(101, last.shape[-1] + 1).float().log()
    return (entropy / uniform).mean().item(), last.max(-1).values.mean().item()


def released_config(case, config):
    """config.json as the 2507 repositories spell it."""
    keep = lambda d: {k: v for k, v in d.items() if k not in ("rope_theta",)}
    return {
        "architectures": ["VoxtralForConditionalGeneration"],
        "audio_config": {
            "activation_dropout": 0.0,
            "activation_function": "gelu",
            "attention_dropout": 0.0,
            "dropout": 0.0,
            "initializer_range": 0.02,
            "layerdrop": 0.0,
            "model_type": "voxtral_encoder",
            "scale_embedding": False,
            "vocab_size": 51866,
            **case["audio"],
        },
        "audio_token_id": AUDIO,
        "hidden_size": config.text_config.hidden_size,
        "model_type": "voxtral",
        "projector_hidden_act": "gelu",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "mlp_bias": False,
            "model_type": "llama",
            "pretraining_tp": 1,
            "rope_scaling": None,
            "rope_theta": case["text"]["rope_theta"],
            "sliding_window": None,
            "use_cache": True,
            **keep(case["text"]),
        },
        "torch_dtype": "float32",
        "transformers_version": "4.54.0.dev0",
        "vocab_size": config.text_config.vocab_size,
    }


PREPROCESSOR = {
    "chunk_length": 30,
    "dither": 0.0,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "VoxtralProcessor",
    "return_attention_mask": False,
    "sampling_rate": 16000,
}


def params_json(case):
    t, a = case["text"], case["audio"]
    return {
        "dim": t["hidden_size"],
        "n_layers": t["num_hidden_layers"],
        "head_dim": t["head_dim"],
        "hidden_dim": t["intermediate_size"],
        "n_heads": t["num_attention_heads"],
        "n_kv_heads": t["num_key_value_heads"],
        "rope_theta": t["rope_theta"],
        "norm_eps": t["rms_norm_eps"],
        "vocab_size": t["vocab_size"],
        "max_position_embeddings": 32768,
        "multimodal": {
            "whisper_model_args": {
                "encoder_args": {
                    "audio_encoding_args": {
                        "sampling_rate": 16000,
                        "num_mel_bins": 128,
                        "hop_length": 160,
                        "window_size": 400,
                    },
                    "dim": a["hidden_size"],
                    "n_layers": a["num_hidden_layers"],
                    "head_dim": a["head_dim"],
                    "hidden_dim": a["intermediate_size"],
                    "n_heads": a["num_attention_heads"],
                    "vocab_size": 51866,
                    "max_source_positions": 1500,
                },
                "downsample_args": {"downsample_factor": 4},
            }
        },
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_checkpoint(folder, case, config, model):
    state = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
    if case["tied"]:
        del state["lm_head.weight"]
    layout = case["layout"]
    meta = {"format": "pt"}
    if layout != "transformers5-names":
        state = {old_name(k): v for k, v in state.items()}
    if layout in ("released", "sharded"):
        write_json(folder / "config.json", released_config(case, config))
    else:
        config.dtype = torch.float32
        config.architectures = ["VoxtralForConditionalGeneration"]
        config.save_pretrained(folder)
    write_json(
        folder / "generation_config.json",
        {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11},
    )
    write_json(folder / "preprocessor_config.json", PREPROCESSOR)
    if layout != "sharded":
        save_file(state, folder / "model.safetensors", metadata=meta)
        return
    names = sorted(state)
    half = len(names) // 2
    files = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, members in files.items():
        save_file({n: state[n] for n in members}, folder / file, metadata=meta)
    write_json(
        folder / "model.safetensors.index.json",
        {
            "metadata": {"total_size": sum(v.numel() * 4 for v in state.values())},
            "weight_map": {n: file for file, members in files.items() for n in members},
        },
    )


def acceptable(figures):
    return figures["min_gap"] > 5e-3 and figures["distinct"] >= 20 and not figures["audio_id_generated"]


def make(name, case):
    mel_seed = case["mel_seed"]
    mel = make_mel(mel_seed, case["chunks"])
    for seed in range(1, 400):
        config, model = build(case, seed)
        with torch.no_grad():
            encoder, projector, logits, greedy, gap = run(case, model, mel)
        figures = {
            "min_gap": gap,
            "distinct": len(set(greedy.tolist())),
            "audio_id_generated": AUDIO in greedy.tolist(),
        }
        if acceptable(figures):
            break
    else:
        raise SystemExit(f"{name}: no seed gave a usable golden")

    with torch.no_grad():
        # The whole sequence in one forward pass gives the same tokens as the cached decode.
        whole = torch.tensor([case["prompt"] + greedy.tolist()])
        again = model(input_ids=whole, input_features=mel).logits[0]
        n = len(case["prompt"])
        assert torch.equal(again[n - 1 : -1].argmax(-1), greedy)
        # The audio matters: other input, other logits.
        other = model(input_ids=whole[:, :n], input_features=make_mel(mel_seed + 77, case["chunks"])).logits[0, -1]
        entropy, peak = attention_figures(case, model, mel)

    prompt = torch.tensor(case["prompt"])
    is_audio = prompt == AUDIO
    rank = torch.cumsum(is_audio, 0) - 1
    rows = torch.nonzero(~is_audio | (rank % LOGITS_EVERY == 0)).flatten()
    enc_rows = torch.arange(0, encoder.shape[0], ENCODER_EVERY)
    proj_rows = torch.arange(0, projector.shape[0], PROJECTOR_EVERY)
    u32 = lambda t: t.to(torch.uint32).contiguous()
    tensors = {
        "prompt_ids": u32(prompt),
        "greedy_ids": u32(greedy),
        "encoder_rows": u32(enc_rows),
        "encoder": encoder[enc_rows].contiguous(),
        "projector_rows": u32(proj_rows),
        "projector": projector[proj_rows].contiguous(),
        "logits_rows": u32(rows),
        "logits": logits[rows].contiguous(),
        "last_logits": again[-1].contiguous(),
    }
    info = {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, f32, eager attention",
        "weights_seed": seed,
        "mel_seed": mel_seed,
        "mel_checksum": mel_checksum(mel),
        "chunks": case["chunks"],
        "prompt_length": n,
        "min_gap": gap,
        "distinct_tokens": figures["distinct"],
        "max_abs": {k: tensors[k].abs().max().item() for k in ("encoder", "projector", "logits")},
        "logits_std": logits.std().item(),
        "attention_entropy_over_uniform": entropy,
        "attention_mean_peak": peak,
        "logits_change_with_other_audio": (other - logits[-1]).abs().max().item(),
    }

    def write(folder, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        checkpoint(folder)
        save_file(tensors, folder / "golden.safetensors")
        write_json(folder / "golden.json", info)

    write(OUT / name, lambda f: write_checkpoint(f, case, config, model))
    if case.get("also_consolidated"):

        def mistral(folder):
            state = {k: v.detach() for k, v in model.state_dict().items()}
            made = {k: v.contiguous() for k, v in consolidated(state, case["text"]).items()}
            save_file(made, folder / "consolidated.safetensors")
            write_json(folder / "params.json", params_json(case))

        write(OUT / f"{name}-consolidated", mistral)
    check_reload(OUT / name, case, logits, mel)
    print(name, json.dumps(info, indent=1))


def check_reload(folder, case, logits, mel):
    """What is on disk is what was computed with: transformers reads it back and agrees."""
    if case["layout"] == "transformers5-names":
        return  # 5.24 itself expects the released names on disk
    model = VoxtralForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if case["tied"]:
        model.lm_head.weight = model.model.language_model.embed_tokens.weight
    with torch.no_grad():
        again = model(input_ids=torch.tensor([case["prompt"]]), input_features=mel).logits[0]
    assert torch.equal(again, logits), f"{folder}: {(again - logits).abs().max()}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for wanted in sys.argv[1:] or CASES:
        make(wanted, CASES[wanted])
