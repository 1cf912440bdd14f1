"""Groups of AffPool (arXiv 2604.06871) on random states, for crates/kv/tests/aff_pool.rs.

    python tools/goldens/affpool.py    # writes crates/kv/tests/data/affpool.json, crates/model/tests/data/affpool.json

Every case has states (rows, width) in eighths, so that both sides read the same numbers, the stretches that are grouped
apart, and ω. For some thresholds: the groups as lists of rows, and their means. For some largest numbers of groups: how many
groups the largest threshold leaves that leaves no more, found by trying all.

The second file is the whole decoder: transformers' layers of a small checkpoint, run over rows that are merged at the input and
before the last layer, with the position ids of what is left, and over some answer tokens. See README.md beside this file.
"""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import VoxtralForConditionalGeneration

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "crates/kv/tests/data/affpool.json"
DECODER_OUT = ROOT / "crates/model/tests/data/affpool.json"
CHECKPOINT = ROOT / "crates/model/tests/data/voxtral/gqa4-tied"


def cosine(a, b):
    norms = np.sqrt(np.dot(a, a)) * np.sqrt(np.dot(b, b))
    return float(np.dot(a, b) / norms) if norms > 0 else 0.0


def groups_of(x, stretches, window, tau):
    done = []
    for start, end in stretches:
        group = [start]
        for t in range(start + 1, end):
            if max(cosine(x[t], x[i]) for i in group[-window:]) >= tau:
                group.append(t)
            else:
                done.append(group)
                group = [t]
        done.append(group)
    return done


def case(rng, stretches, width, window, step):
    rows = stretches[-1][1] + 1
    # A walk with jumps: neighbours are alike, as frames of speech are.
    x = rng.normal(size=(rows, width))
    for t in range(1, rows):
        if rng.random() > 0.15:
            x[t] = x[t - 1] + step * x[t]
    x = np.round(8 * x) / 8
    x[stretches[0][0] + 2] = 0.0
    similar = [cosine(x[t], x[t - b]) for s, e in stretches for t in range(s, e) for b in range(1, window + 1) if t - b >= s]
    thresholds = []
    for tau in rng.uniform(-0.2, 1.0, 6):
        # Away from any cosine, so that the last bit decides nothing.
        if min(abs(tau - s) for s in similar) < 1e-9:
            continue
        groups = groups_of(x, stretches, window, tau)
        means = [x[g].mean(axis=0).tolist() for g in groups]
        thresholds.append({"tau": float(tau), "groups": groups, "means": means})
    counts = [len(groups_of(x, stretches, window, tau)) for tau in sorted(set(similar)) + [2.0]]
    assert counts == sorted(counts)
    most = []
    for wanted in range(len(stretches), rows, 5):
        most.append([wanted, max(c for c in counts if c <= wanted)])
    return {
        "x": x.tolist(),
        "width": width,
        "stretches": stretches,
        "window": window,
        "thresholds": thresholds,
        "most": most,
    }


def lowbias32(x):
    m = 0xFFFFFFFF
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & m
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & m
    return x ^ (x >> 16)


def embeddings(rows, width):
    """Rows that are alike by threes and fours, from integers as the Rust test makes them."""
    def unit(n):
        return (lowbias32(n) >> 22) / 1024 - 0.5

    def row(p):
        return [unit(2 * (2 * p // 7 * width + i)) + unit(2 * (p * width + i) + 1) for i in range(width)]

    return np.array([row(p) for p in range(rows)])


def decoder_case(model, stretches, rows, tau, windows, position, answer):
    language = model.language_model if hasattr(model, "language_model") else model.model.language_model
    llama = language.model if hasattr(language, "model") else language
    deep = len(llama.layers) - 1
    x = torch.tensor(embeddings(rows, model.config.text_config.hidden_size), dtype=torch.float32)
    x = torch.cat([x, llama.embed_tokens(torch.tensor(answer))])
    spans = [(p, p + 1) for p in range(len(x))]
    positions = list(range(len(x)))
    left = []
    for l, layer in enumerate(llama.layers):
        if l in (0, deep):
            states = x.double().numpy()
            index = {span[0]: row for row, span in enumerate(spans)}
            inner = [[index[s], index.get(e, len(spans))] for s, e in stretches]
            window = windows[0] if l == 0 else windows[1]
            near = [cosine(states[t], states[t - b]) for s, e in inner for t in range(s, e) for b in range(1, window + 1) if t - b >= s]
            assert min(abs(tau - c) for c in near) > 1e-4, "a threshold this near to a cosine proves nothing"
            audio = groups_of(states, inner, window, tau)
            inside = {row for group in audio for row in group}
            groups = sorted(audio + [[row] for row in range(len(spans)) if row not in inside])
            x = torch.stack([x[group].mean(dim=0) for group in groups])
            merged = [(spans[group[0]][0], spans[group[-1]][1]) for group in groups]
            mean = [(s + e - 1) // 2 if len(g) > 1 else positions[g[0]] for (s, e), g in zip(merged, groups)]
            positions = [positions[g[0]] for g in groups] if position == "first" else mean
            spans = merged
            left.append(len(audio))
        n = len(x)
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
        ids = torch.tensor(positions)[None]
        cos_sin = llama.rotary_emb(x[None], ids)
        out = layer(x[None], attention_mask=mask, position_ids=ids, position_embeddings=cos_sin)
        x = (out[0] if isinstance(out, tuple) else out).reshape(n, -1)
    logits = llama.norm(x[-len(answer) - 1 :]) @ llama.embed_tokens.weight.T  # tied, see README.md
    return {
        "stretches": stretches,
        "rows": rows,
        "tau": tau,
        "windows": windows,
        "position": position,
        "answer": answer,
        "left": left,
        "logits": [[round(v, 6) for v in row[:48].tolist()] for row in logits],
    }


@torch.no_grad()
def decoder_goldens():
    model = VoxtralForConditionalGeneration.from_pretrained(CHECKPOINT, dtype=torch.float32, attn_implementation="eager").eval()
    answer = [30, 41, 7, 99, 12]
    cases = [
        decoder_case(model, [[3, 43]], 48, 0.5, [1, 3], "first", answer),
        decoder_case(model, [[3, 43]], 48, 0.5, [1, 3], "mean", answer),
        decoder_case(model, [[1, 24], [26, 290]], 300, 0.5, [1, 3], "first", answer),
    ]
    DECODER_OUT.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    for c in cases:
        print(c["position"], sum(e - s for s, e in c["stretches"]), "->", c["left"])


def main():
    rng = np.random.default_rng(7)
    cases = [
        case(rng, [[1, 25]], 5, 1, 0.6),
        case(rng, [[0, 24]], 5, 3, 0.9),
        case(rng, [[2, 14], [14, 17], [20, 34]], 4, 3, 0.7),
        case(rng, [[1, 13], [16, 30]], 6, 1, 0.8),
    ]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    decoder_goldens()


if __name__ == "__main__":
    main()
