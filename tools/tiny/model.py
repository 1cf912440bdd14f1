"""Voxtral in plain PyTorch with the tensor names of the original checkpoints.

The arithmetic equals transformers' VoxtralForConditionalGeneration
(check_transformers.py compares the two); written out here so that training can
use short windows, custom positions and a loss on the attention itself.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 800
    enc_dim: int = 160
    enc_layers: int = 4
    enc_heads: int = 5
    enc_positions: int = 1500
    position_dims: int = 32
    dim: int = 160
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    mlp: int = 480
    theta: float = 1e5
    eps: float = 1e-5
    qkv_bias: bool = False
    rate: float = 12.5  # audio tokens a second


POSITION_SCALE = 2.0
OFFSETS = [(-6, -3, 0, 3, 6), (-10, -4, 0, 4, 10), (-16, -7, 0, 7, 16), (-12, 0, 12)]


def frequencies(n):
    return torch.exp(torch.linspace(math.log(0.012), math.log(0.6), n))


def positions(c):
    """Position table: sinusoids in the last `position_dims` channels, nothing in the others."""
    angle = torch.arange(c.enc_positions)[:, None] * frequencies(c.position_dims // 2)[None]
    return F.pad(torch.cat([angle.sin(), angle.cos()], 1) * POSITION_SCALE, (c.enc_dim - c.position_dims, 0))


@torch.no_grad()
def local_start(encoder, c):
    """Lets most heads start as a soft look at a fixed offset (in frames of 20 ms).

    Query and key read the sinusoids, the query turned by the offset, so that their
    product peaks there.  From a random start attention stays global for thousands
    of steps and the encoder hears little more than single frames.
    """
    n, p = c.position_dims // 2, c.enc_dim - c.position_dims
    w, hd = frequencies(n), c.enc_dim // c.enc_heads
    encoder.conv1.weight *= 3.0
    encoder.conv2.weight *= 3.0
    encoder.conv2.weight[p:] = 0
    encoder.conv2.bias[p:] = 0
    for layer, offsets in zip(encoder.layers, OFFSETS):
        a = layer.self_attn
        a.out_proj.weight[p:] = 0
        layer.fc2.weight[p:] = 0
        a.q_proj.weight *= 0.5
        a.k_proj.weight *= 0.5
        for h, d in enumerate(offsets):
            q, k = a.q_proj.weight[h * hd : (h + 1) * hd, p:], a.k_proj.weight[h * hd : (h + 1) * hd, p:]
            q.zero_(), k.zero_()
            i, g = torch.arange(n), 1.2
            k[i, i], k[n + i, n + i] = g, g
            q[i, i], q[i, n + i] = g * torch.cos(w * d), g * torch.sin(w * d)
            q[n + i, n + i], q[n + i, i] = g * torch.cos(w * d), -g * torch.sin(w * d)


class EncoderAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.enc_dim
        self.heads = c.enc_heads
        self.q_proj, self.v_proj, self.out_proj = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.k_proj = nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class EncoderLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.enc_dim
        self.self_attn = EncoderAttention(c)
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class Encoder(nn.Module):
    """Whisper encoder; windows shorter than 30 s may start at any position of the table."""

    def __init__(self, c):
        super().__init__()
        d = c.enc_dim
        self.conv1 = nn.Conv1d(128, d, 3, padding=1)
        self.conv2 = nn.Conv1d(d, d, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(c.enc_positions, d)
        self.embed_positions.weight.data.copy_(positions(c))
        self.embed_positions.weight.requires_grad_(False)
        self.layers = nn.ModuleList(EncoderLayer(c) for _ in range(c.enc_layers))
        self.layer_norm = nn.LayerNorm(d)

    def forward(self, mel, positions):
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x)).transpose(1, 2) + positions
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.dim, c.heads * c.head_dim, bias=c.qkv_bias)
        self.k_proj = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.v_proj = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.dim, bias=False)

    def forward(self, x, cos, sin, first=0, visible=None):
        """Causal attention of the positions from `first` on; `visible` [b, kv_heads, A, t] masks the last A of them."""
        c = self.c
        b, t, _ = x.shape
        q = self.q_proj(x[:, first:]).view(b, t - first, c.heads, c.head_dim).transpose(1, 2)
        q = rotate(q, cos[..., first:, :], sin[..., first:, :]).to(x.dtype)
        k = rotate(self.k_proj(x).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2), cos, sin).to(x.dtype)
        v = self.v_proj(x).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2)
        g = c.heads // c.kv_heads
        ke = k[:, :, None].expand(b, c.kv_heads, g, t, c.head_dim).reshape(b, c.heads, t, c.head_dim)
        ve = v[:, :, None].expand(b, c.kv_heads, g, t, c.head_dim).reshape(b, c.heads, t, c.head_dim)
        if visible is None:
            mask = torch.ones(t - first, t, dtype=torch.bool).tril(first) if first else None
            y = F.scaled_dot_product_attention(q, ke, ve, attn_mask=mask, is_causal=mask is None)
        else:
            n = t - visible.shape[2]
            mask = torch.ones(n - first, n, dtype=torch.bool).tril(first) if first else None
            y = F.scaled_dot_product_attention(q[:, :, : n - first], ke[:, :, :n], ve[:, :, :n], attn_mask=mask, is_causal=mask is None)
            mask = visible.repeat_interleave(g, 1)
            y = torch.cat([y, F.scaled_dot_product_attention(q[:, :, n - first :], ke, ve, attn_mask=mask)], 2)
        return self.o_proj(y.transpose(1, 2).reshape(b, t - first, -1)), q, k


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.dim, c.mlp, bias=False)
        self.up_proj = nn.Linear(c.dim, c.mlp, bias=False)
        self.down_proj = nn.Linear(c.mlp, c.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c.dim, c.eps), RMSNorm(c.dim, c.eps)

    def forward(self, x, cos, sin, first=0, visible=None):
        y, q, k = self.self_attn(self.input_layernorm(x), cos, sin, first, visible)
        x = x[:, first:] + y
        return x + self.mlp(self.post_attention_layernorm(x)), q, k


class DecoderModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(DecoderLayer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.dim, c.eps)


class LanguageModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = DecoderModel(c)
        self.lm_head = nn.Linear(c.dim, c.vocab, bias=False)


class Projector(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.linear_1 = nn.Linear(4 * c.enc_dim, c.dim, bias=False)
        self.linear_2 = nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, x):
        return self.linear_2(F.gelu(self.linear_1(x)))


class Voxtral(nn.Module):
    def __init__(self, c, tower=Encoder, projector=Projector):
        super().__init__()
        self.c = c
        self.audio_tower = tower(c)
        self.multi_modal_projector = projector(c)
        self.language_model = LanguageModel(c)
        for name, p in self.named_parameters():
            if p.ndim >= 2 and "embed_positions" not in name and "conv" not in name:
                nn.init.normal_(p, std=0.02 if "embed_tokens" in name else p.shape[1] ** -0.5)
                if name.endswith(("down_proj.weight", "o_proj.weight", "out_proj.weight", "fc2.weight")):
                    p.data *= 0.3
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        self.start_encoder()
        self.language_model.model.embed_tokens.weight.data.normal_(std=0.5)
        self.language_model.lm_head.weight.data *= 0.2

    def start_encoder(self):
        local_start(self.audio_tower, self.c)

    def encode(self, mel):
        """[N, 128, 3000] -> [N, 1500, d]"""
        return self.frames(mel)

    def frames(self, mel, at=0):
        """States of windows of any length up to 30 s that begin at position `at` of the table: [N, 128, T] -> [N, T / 2, d]"""
        return self.audio_tower(mel, self.audio_tower.embed_positions.weight[at : at + mel.shape[-1] // 2])

    def place(self, rng, frames):
        """A position at which a window of so many states may begin."""
        return rng.randint(0, (self.c.enc_positions - frames) // 4) * 4

    def normed(self, states):
        """States as linear heads read them."""
        return states

    def features(self, states):
        """What the projector reads, one row an audio token: [N, T, d] -> [N, T / 4, 4 d]"""
        return states.reshape(len(states), -1, 4 * self.c.enc_dim)

    @property
    def feature_dim(self):
        return 4 * self.c.enc_dim

    def rope(self, positions):
        d = self.c.head_dim
        inverse = self.c.theta ** (-torch.arange(0, d, 2).float() / d)
        angle = positions.float()[..., None] * inverse
        return angle.cos().unsqueeze(-3), angle.sin().unsqueeze(-3)

    def hidden(self, x, positions, watch=(), first=0, visible=None):
        """Decoder on embeddings x [B, T, H]; final hidden states from position `first` on, and (q, k) of the watched layers.

        `visible(layer)` may hide keys from the last positions: see Attention.forward.
        """
        cos, sin = self.rope(positions)
        seen = {}
        for i, layer in enumerate(self.language_model.model.layers):
            seen_keys = visible(i) if visible else None
            x, q, k = layer(x, cos, sin, first if i == self.c.layers - 1 else 0, seen_keys)
            if i in watch:
                seen[i] = (q, k)
        return self.language_model.model.norm(x), seen

    @torch.no_grad()
    def greedy(self, mel, prompt, limit, stop=2, pad=24):
        """Greedy decoding of one recording with a KV cache; the same numbers as transformers, several times faster."""
        c, lm = self.c, self.language_model.model
        audio = self.multi_modal_projector(self.features(self.encode(mel)).flatten(0, 1))
        ids = torch.tensor([prompt])
        x = lm.embed_tokens(ids)
        first = prompt.index(pad)
        x[0, first : first + len(audio)] = audio
        n, g = len(prompt), c.heads // c.kv_heads
        keys = [torch.zeros(c.kv_heads, n + limit, c.head_dim) for _ in lm.layers]
        values = [torch.zeros(c.kv_heads, n + limit, c.head_dim) for _ in lm.layers]
        cos, sin = self.rope(torch.arange(n + limit))
        out, at = [], 0
        while True:
            t = x.shape[1]
            for layer, ks, vs in zip(lm.layers, keys, values):
                a, h = layer.self_attn, layer.input_layernorm(x)
                q = rotate(a.q_proj(h)[0].view(t, -1, c.head_dim).transpose(0, 1), cos[:, at : at + t], sin[:, at : at + t])
                ks[:, at : at + t] = rotate(
                    a.k_proj(h)[0].view(t, -1, c.head_dim).transpose(0, 1), cos[:, at : at + t], sin[:, at : at + t]
                )
                vs[:, at : at + t] = a.v_proj(h)[0].view(t, -1, c.head_dim).transpose(0, 1)
                if t > 1:
                    k, v = ks[:, :t].repeat_interleave(g, 0), vs[:, :t].repeat_interleave(g, 0)
                    y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
                else:
                    q = q.reshape(c.kv_heads, g, c.head_dim)
                    w = (q @ ks[:, : at + 1].mT * c.head_dim**-0.5).softmax(-1)
                    y = (w @ vs[:, : at + 1]).reshape(c.heads, 1, c.head_dim)
                x = x + a.o_proj(y.transpose(0, 1).reshape(1, t, -1))
                x = x + layer.mlp(layer.post_attention_layernorm(x))
            at += t
            token = int(self.language_model.lm_head(lm.norm(x[:, -1:])).argmax())
            out.append(token)
            if token == stop or len(out) >= limit:
                return out
            x = lm.embed_tokens(torch.tensor([[token]]))
