"""The second small model: the thinker of Qwen2.5-Omni in small, with the same parts as the first wherever the two agree.

Encoder windows of 2 s that see nothing of each other, with the reference's sinusoids from 0 in each; the mean of two
states, a norm and a linear layer make an audio token (25 a second); biases on q, k and v; ChatML.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from data import HOP, log_mel
from model import Config, Encoder, Voxtral, frequencies

WINDOW = 200  # mel frames
SYSTEM = {"asr": "You are a speech recognition model.", "translate": "You are a speech translation model."}
ASK = {
    "en": "Transcribe the English audio into text without any punctuation marks.",
    "fr": "Transcribe the French audio into text without any punctuation marks.",
    "auto": "Transcribe the audio into text without any punctuation marks.",
    "en2fr": "Listen to the provided speech and produce a translation in French text.",
}
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
BPE = 762
# (layer, KV head, slack in seconds) whose attention is guided to the audio of the token being predicted
GUIDED = [(2, 0, 0.4), (3, 0, 0.15), (3, 1, 0.15), (4, 0, 0.15)]


def config():
    return Config(
        vocab=BPE + len(CONTROL), enc_positions=WINDOW // 2, dim=256, layers=6, heads=8, kv_heads=2, mlp=448, eps=1e-6,
        qkv_bias=True, rate=25.0,
    )  # fmt: skip


def sinusoids(length, channels):
    """Whisper's table: sines in the first half of the channels, cosines in the second."""
    inverse = torch.exp(-math.log(10000) / (channels // 2 - 1) * torch.arange(channels // 2))
    angle = torch.arange(length)[:, None] * inverse[None]
    return torch.cat([angle.sin(), angle.cos()], 1)


class Tower(Encoder):
    def __init__(self, c):
        super().__init__(c)
        self.embed_positions.weight.data.copy_(sinusoids(c.enc_positions, c.enc_dim))

    def forward(self, mel, positions):
        """One window a row, before the norm."""
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x)).transpose(1, 2) + positions
        for layer in self.layers:
            x = layer(x)
        return x


class Pool(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.proj = nn.Linear(c.enc_dim, c.dim)

    def forward(self, x):
        return self.proj(x)


class Omni(Voxtral):
    def __init__(self, c):
        super().__init__(c, Tower, Pool)

    def start_encoder(self):
        """Nothing: the encoder starts from the first model's, see `from_voxtral`."""

    def frames(self, mel, at=0):
        """[N, 128, T] -> [N, T / 2, d], window by window; the last may be shorter."""
        table, n, t = self.audio_tower.embed_positions.weight, len(mel), mel.shape[-1]
        whole, parts = t // WINDOW * WINDOW, []
        if whole:
            x = mel[..., :whole].reshape(n, 128, -1, WINDOW).transpose(1, 2).reshape(-1, 128, WINDOW)
            parts.append(self.audio_tower(x, table).reshape(n, whole // 2, -1))
        if t > whole:
            rest = mel[..., whole:]
            parts.append(self.audio_tower(rest, table[: (t - whole + 1) // 2]))
        return torch.cat(parts, 1)

    def place(self, rng, frames):
        return 0

    def normed(self, states):
        return self.audio_tower.layer_norm(states)

    def features(self, states):
        """[N, T, d] -> [N, T / 2, d]: pairs, an odd last state dropped."""
        n, t, d = states.shape
        return self.normed(states[:, : t // 2 * 2].reshape(n, t // 2, 2, d).mean(2))

    @property
    def feature_dim(self):
        return self.c.enc_dim


def from_voxtral(weights, c):
    """The first model's encoder with its channels in another order: each of its sinusoids comes to lie where the
    reference's table has the nearest one, and is read twice as strongly, since it was twice as large."""
    half, n = c.enc_dim // 2, c.position_dims // 2
    nearest = [round(-math.log(w) * (half - 1) / math.log(10000)) for w in frequencies(n).tolist()]
    taken = nearest + [half + i for i in nearest]
    order = torch.tensor([i for i in range(c.enc_dim) if i not in taken] + taken)  # where each old channel goes
    assert len(set(order.tolist())) == c.enc_dim
    back = torch.empty_like(order)
    back[order] = torch.arange(c.enc_dim)
    louder = torch.ones(c.enc_dim)
    louder[taken] = 2.0
    out = {}
    for name, w in weights.items():
        if not name.startswith("audio_tower.") or "embed_positions" in name:
            continue
        if any(part in name for part in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight")):
            w = w[:, back]
        elif any(part in name for part in ("conv2", "out_proj", "fc2", "layer_norm")):
            w = w[back]
        if "attn_layer_norm" in name or "final_layer_norm" in name:
            w = w * louder
        out[name] = w.clone()
    return out


def train_tokenizer(texts, path):
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    from tokenizers import decoders

    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = texts + ([f"system\n{s}" for s in SYSTEM.values()] + list(ASK.values()) + ["user\n", "assistant\n"]) * 40
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=BPE, initial_alphabet=alphabet, show_progress=False))
    assert tok.get_vocab_size() == BPE, tok.get_vocab_size()
    tok.add_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROL])
    tok.save(str(path))


class ByteLevel:
    """A `tokenizer.json`, and the prompts of Qwen2.5-Omni."""

    def __init__(self, path):
        from tokenizers import Tokenizer

        self.model = Tokenizer.from_file(str(path))
        self.eos, self.pad, self.audio = map(self.model.token_to_id, ("<|im_end|>", "<|endoftext|>", "<|AUDIO|>"))
        self.text = range(BPE)
        self.ends = tuple(self.encode(c)[0] for c in ".?")
        self.known = {}

    def encode(self, text):
        return tuple(self.model.encode(text, add_special_tokens=False).ids)

    def decode(self, ids):
        return self.model.decode([i for i in ids if i < BPE])

    def prompt(self, task, audio_tokens):
        if task not in self.known:
            system = SYSTEM["translate" if task == "en2fr" else "asr"]
            before = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n<|audio_bos|>"
            after = f"<|audio_eos|>{ASK[task]}<|im_end|>\n<|im_start|>assistant\n"
            self.known[task] = list(self.encode(before)), list(self.encode(after))
        before, after = self.known[task]
        return before + [self.audio] * audio_tokens + after


def mel_of(x):
    """Log-mel [128, ceil(samples / 160)]: behind the recording are zeros, not its mirror image."""
    frames = -(-len(x) // HOP)
    return log_mel(np.pad(x, (0, 400 + -len(x) % HOP)), pad=False)[:, :frames]


def audio_tokens(samples):
    return -(-(-(-samples // HOP)) // 2) // 2


def tensors(state):
    """Names of the released checkpoints; the table of positions is not stored."""
    for name, w in state.items():
        if "embed_positions" in name:
            continue
        name = name.replace("audio_tower.layer_norm.", "audio_tower.ln_post.")
        name = name.replace("multi_modal_projector.", "audio_tower.").replace("language_model.", "", 1)
        yield "thinker." + name, w


def configs(c, seconds, tok):
    audio = {
        "model_type": "qwen2_5_omni_audio_encoder",
        "d_model": c.enc_dim,
        "encoder_layers": c.enc_layers,
        "num_hidden_layers": c.enc_layers,
        "encoder_attention_heads": c.enc_heads,
        "encoder_ffn_dim": 4 * c.enc_dim,
        "num_mel_bins": 128,
        "max_source_positions": 1500,
        "n_window": WINDOW // 2,
        "output_dim": c.dim,
        "activation_function": "gelu",
    }
    third = c.head_dim // 2 // 3
    text = {
        "model_type": "qwen2_5_omni_text",
        "hidden_size": c.dim,
        "intermediate_size": c.mlp,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "vocab_size": c.vocab,
        "rms_norm_eps": c.eps,
        "rope_theta": c.theta,
        "rope_scaling": {
            "mrope_section": [c.head_dim // 2 - 2 * third, third, third],
            "rope_type": "default",
            "type": "default",
        },
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "hidden_act": "silu",
    }
    start, end = (tok.model.token_to_id(n) for n in ("<|audio_bos|>", "<|audio_eos|>"))
    thinker = {
        "model_type": "qwen2_5_omni_thinker",
        "audio_config": audio,
        "text_config": text,
        "audio_token_index": tok.audio,
        "audio_start_token_id": start,
        "audio_end_token_id": end,
        "tie_word_embeddings": False,
    }
    return {
        "config.json": {
            "architectures": ["Qwen2_5OmniModel"],
            "model_type": "qwen2_5_omni",
            # Read by wnw, ignored by transformers: the longest recording that the model was trained for.
            "max_audio_seconds": seconds,
            "torch_dtype": "bfloat16",
            "enable_audio_output": False,
            "thinker_config": thinker,
        },
        "generation_config.json": {"eos_token_id": [tok.eos, tok.pad], "pad_token_id": tok.pad},
    }
