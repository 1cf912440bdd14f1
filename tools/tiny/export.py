"""Writes a training checkpoint as a Hugging Face directory: Voxtral with the tensor names of the 2507 release, or the thinker
of Qwen2.5-Omni with those of its release."""

import argparse
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

import layout


def configs(c, seconds):
    audio = {
        "model_type": "voxtral_encoder",
        "hidden_size": c.enc_dim,
        "intermediate_size": 4 * c.enc_dim,
        "num_hidden_layers": c.enc_layers,
        "num_attention_heads": c.enc_heads,
        "num_key_value_heads": c.enc_heads,
        "head_dim": c.enc_dim // c.enc_heads,
        "num_mel_bins": 128,
        "max_source_positions": c.enc_positions,
        "activation_function": "gelu",
        "scale_embedding": False,
        "vocab_size": c.vocab,
        "dropout": 0.0,
        "activation_dropout": 0.0,
        "attention_dropout": 0.0,
        "layerdrop": 0.0,
        "initializer_range": 0.02,
    }
    text = {
        "model_type": "llama",
        "hidden_size": c.dim,
        "intermediate_size": c.mlp,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": c.eps,
        "rope_theta": c.theta,
        "rope_scaling": None,
        "sliding_window": None,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": 8192,
        "vocab_size": c.vocab,
        "pretraining_tp": 1,
        "use_cache": True,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 11,
        "tie_word_embeddings": False,
    }
    top = {
        "architectures": ["VoxtralForConditionalGeneration"],
        "model_type": "voxtral",
        "audio_token_id": 24,
        # Read by wnw, ignored by transformers: the longest recording that the model was trained for.
        "max_audio_seconds": seconds,
        "hidden_size": c.dim,
        "vocab_size": c.vocab,
        "projector_hidden_act": "gelu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "audio_config": audio,
        "text_config": text,
        "transformers_version": "4.54.0",
    }
    features = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "VoxtralProcessor",
        "feature_size": 128,
        "n_fft": 400,
        "hop_length": 160,
        "chunk_length": 30,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "sampling_rate": 16000,
        "dither": 0.0,
        "padding_value": 0.0,
        "padding_side": "right",
        "return_attention_mask": False,
    }
    return {
        "config.json": top,
        "generation_config.json": {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11},
        "preprocessor_config.json": features,
    }


def contents(net, tok, seconds):
    """The JSON files and the tensors of a checkpoint."""
    if layout.NAME == "qwen2_5_omni":
        import omni

        tensors = {name: p.to(torch.bfloat16).contiguous() for name, p in omni.tensors(net.state_dict())}
        return omni.configs(net.c, seconds, tok), tensors
    tensors = {}
    for name, p in net.state_dict().items():
        keep = name == "audio_tower.embed_positions.weight"
        tensors[name] = p.float().contiguous() if keep else p.to(torch.bfloat16).contiguous()
    return configs(net.c, seconds), tensors


def export(net, tok, seconds, folder):
    """Every file is written beside its final place and renamed, so that a reader never sees half a file."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files, tensors = contents(net, tok, seconds)
    for name, body in files.items():
        tmp = folder / (name + ".tmp")
        tmp.write_text(json.dumps(body, indent=2) + "\n")
        tmp.rename(folder / name)
    tmp = folder / "model.safetensors.tmp"
    save_file(tensors, tmp, metadata={"format": "pt"})
    tmp.rename(folder / "model.safetensors")
    os.chmod(folder / "model.safetensors", 0o644)
    return sum(t.numel() for t in tensors.values()), (folder / "model.safetensors").stat().st_size


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("checkpoint", help="state of train.py, or `random`")
    a.add_argument("folder")
    a.add_argument("--seconds", type=int, default=240, help="longest recording that the model was trained for")
    a.add_argument("--tokenizer", default=str(layout.TOKENIZER))
    a = a.parse_args()
    torch.manual_seed(0)
    net = layout.Model(layout.config())
    if a.checkpoint != "random":
        state = torch.load(a.checkpoint)
        net.load_state_dict(state.get("model", state))
    print(asdict(net.c))
    print("parameters, bytes:", *export(net, layout.Tokenizer(a.tokenizer), a.seconds, a.folder))
    shutil.copy(a.tokenizer, Path(a.folder) / layout.TOKENIZER.name)


if __name__ == "__main__":
    main()
