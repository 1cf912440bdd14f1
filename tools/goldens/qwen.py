"""Parity goldens for Qwen2.5-Omni (the thinker) and Qwen3-ASR: what transformers computes with small random weights.

    python tools/goldens/qwen.py [CASE ...]

writes `crates/model/tests/data/qwen/CASE.json`: the configuration as a checkpoint has it, the prompt, and a sample of
the reference's outputs in f32 with eager attention. Weights and mel frames are not stored: both sides compute them.
See README.md beside this file.

    hash(seed, n): x = n ^ seed; x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16  (u32)
    weight i of a tensor = shift + ((hash(seed ^ fnv1a(name), i) >> 8) / 2^23 - 1) * scale      (f32)
        where name is the tensor's canonical name in this program, and scale and shift are those of `spread`
    mel[m][t] = (3 a + b) / 2048 - 0.75   with   b = hash(seed, m * frames + t) >> 22
                                                 a = hash(seed + 1, (m / 8) * 65536 + t / 50) >> 22
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
)

from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni
from transformers.models.qwen3 import modeling_qwen3

OUT = Path(__file__).resolve().parents[2] / "crates/model/tests/data/qwen"
STEPS = 64
MELS = 128
# Frames of 0.05, 1.99, 2.00, 2.01, 29.99, 30.01 and 61.7 s: around the edges of chunks, windows and clips.
LENGTHS = [5, 199, 200, 201, 2999, 3001, 6170]
# Every so many-th value of a matrix is kept; primes, so that all columns and rows come up.
ENCODER_EVERY, LOGITS_EVERY = 1301, 397


def lowbias32(x):
    m = np.uint32
    x = x ^ (x >> m(16))
    x = x * m(0x7FEB352D)
    x = x ^ (x >> m(15))
    x = x * m(0x846CA68B)
    return x ^ (x >> m(16))


def fnv1a(text):
    h = 0x811C9DC5
    for byte in text.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def make_mel(seed, frames):
    m = np.arange(MELS, dtype=np.uint32)[:, None]
    t = np.arange(frames, dtype=np.uint32)[None, :]
    b = lowbias32((m * np.uint32(frames) + t) ^ np.uint32(seed)) >> np.uint32(22)
    a = lowbias32((m // 8 * np.uint32(65536) + t // 50) ^ np.uint32(seed + 1)) >> np.uint32(22)
    return torch.from_numpy(((3 * a + b).astype(np.float32) / np.float32(2048) - np.float32(0.75)))


def spread(name, shape, case):
    """Scale and shift of a tensor's weights: activations near 1, attention neither uniform nor one-hot, and layers that
    outweigh the residual, or greedy decoding falls into a loop at once."""
    inputs = math.prod(shape[1:])
    if "norm" in name or "ln_post" in name:
        if name.endswith("bias"):
            return 0.26, 0.0
        last = case.get("final_norm", 1.0) if name == "language_model.model.norm.weight" else 1.0
        return 0.26 * last, last
    if name.endswith("bias"):
        return 0.34, 0.0
    if "embed_tokens" in name:
        return 1.73 * case.get("embed", 1.0), 0.0
    gains = [("lm_head", 3.5), ("q_proj", 3.0), ("k_proj", 3.0), ("down_proj", 5.2), ("o_proj", 2.6), ("projector", 2.8)]
    gain = next((g for part, g in gains if part in name), 1.73)
    return gain / math.sqrt(inputs), 0.0


def canonical(name):
    if name == "lm_head.weight":
        return "language_model.lm_head.weight"
    name = name.removeprefix("model.")
    if name.startswith("language_model."):
        return name.replace("language_model.", "language_model.model.", 1)
    return name.replace("audio_tower.proj.", "multi_modal_projector.proj.")


def fill(model, case, seed):
    for name, p in model.state_dict().items():
        if "visual" in name or "audio_bos_eos" in name:
            continue
        name = canonical(name)
        if case["tied"] and "lm_head" in name:
            continue
        scale, shift = spread(name, p.shape, case)
        i = np.arange(p.numel(), dtype=np.uint32)
        u = (lowbias32(i ^ np.uint32(seed ^ fnv1a(name))) >> np.uint32(8)).astype(np.float32)
        u = u / np.float32(8388608) - np.float32(1)
        value = u * np.float32(scale) + np.float32(shift)
        p.copy_(torch.from_numpy(value).reshape(p.shape))
    if case["tied"]:
        model.lm_head.weight = model.model.language_model.embed_tokens.weight


# ---------------------------------------------------------------------------------------------------------------
# Families


def omni_config(case):
    d, heads, layers = case["audio"]
    hidden, q, kv, inter, n, vocab = case["text"]
    audio = dict(
        d_model=d,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * d,
        num_mel_bins=MELS,
        max_source_positions=1500,
        n_window=100,
        output_dim=hidden,
    )
    text = dict(
        hidden_size=hidden,
        intermediate_size=inter,
        num_hidden_layers=n,
        num_attention_heads=q,
        num_key_value_heads=kv,
        vocab_size=vocab,
        rms_norm_eps=1e-6,
        max_position_embeddings=32768,
        use_sliding_window=False,
        sliding_window=32768,
    )
    head = hidden // q
    third = head // 2 // 3
    sections = [head // 2 - 2 * third, third, third]
    # As the releases spell it.
    spelled = dict(text, rope_theta=1e6, rope_scaling=dict(mrope_section=sections, rope_type="default", type="default"))
    vision = dict(depth=1, hidden_size=16, num_heads=1, intermediate_size=16, out_hidden_size=hidden)
    config = Qwen2_5OmniThinkerConfig(
        audio_config=audio,
        text_config=dict(text, rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=sections)),
        vision_config=vision,
        vision_start_token_id=300001,
        image_token_index=300002,
        video_token_index=300003,
        audio_start_token_id=47,
        audio_end_token_id=48,
        audio_token_index=case["pad"],
        tie_word_embeddings=case["tied"],
    )
    thinker = dict(
        model_type="qwen2_5_omni_thinker",
        audio_config=dict(audio, model_type="qwen2_5_omni_audio_encoder", activation_function="gelu", num_hidden_layers=layers),
        text_config=dict(spelled, model_type="qwen2_5_omni_text", hidden_act="silu"),
        audio_token_index=case["pad"],
        tie_word_embeddings=case["tied"],
    )
    whole = dict(architectures=["Qwen2_5OmniModel"], model_type="qwen2_5_omni", thinker_config=thinker, talker_config={})
    return config, whole, thinker


def asr_config(case):
    d, heads, layers, channels = case["audio"]
    hidden, q, kv, inter, n, vocab = case["text"]
    audio = dict(
        d_model=d,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * d,
        num_mel_bins=MELS,
        n_window=50,
        n_window_infer=800,
        downsample_hidden_size=channels,
        output_dim=hidden,
    )
    text = dict(
        hidden_size=hidden,
        intermediate_size=inter,
        num_hidden_layers=n,
        num_attention_heads=q,
        num_key_value_heads=kv,
        head_dim=case["head_dim"],
        vocab_size=vocab,
        rms_norm_eps=1e-6,
        max_position_embeddings=65536,
        tie_word_embeddings=case["tied"],
    )
    config = Qwen3ASRConfig(
        audio_config=audio,
        text_config=dict(text, model_type="qwen3", rope_parameters=dict(rope_type="default", rope_theta=1e6)),
        audio_token_id=case["pad"],
        tie_word_embeddings=case["tied"],
        pad_token_id=0,
        eos_token_id=[1, 2],
    )
    scaling = dict(mrope_interleaved=True, mrope_section=[24, 20, 20], rope_type="default", type="default")
    flat = dict(
        model_type="qwen3_asr",
        audio_config=dict(audio, model_type="qwen3_asr_encoder", activation_function="gelu"),
        text_config=dict(text, model_type="qwen3", hidden_act="silu", rope_parameters=dict(rope_type="default", rope_theta=1e6)),
        audio_token_id=case["pad"],
        tie_word_embeddings=case["tied"],
    )
    thinker = dict(
        flat,
        model_type="qwen3_asr_thinker",
        audio_config=dict(audio, model_type="qwen3_asr_audio_encoder", activation_function="gelu"),
        text_config=dict(text, model_type="qwen3_asr_text", hidden_act="silu", rope_theta=1e6, rope_scaling=scaling),
    )
    whole = dict(architectures=["Qwen3ASRForConditionalGeneration"], model_type="qwen3_asr", thinker_config=thinker)
    return config, whole, flat


def padded(mels, multiple):
    longest = max(m.shape[1] for m in mels)
    longest += -longest % multiple
    features = torch.zeros(len(mels), MELS, longest)
    mask = torch.zeros(len(mels), longest, dtype=torch.long)
    for row, (m, mel) in enumerate(zip(mask, mels)):
        m[: mel.shape[1]] = 1
        features[row, :, : mel.shape[1]] = mel
    return features, mask


class Omni:
    rotary = modeling_qwen2_5_omni
    configs = staticmethod(omni_config)
    model = Qwen2_5OmniThinkerForConditionalGeneration

    @staticmethod
    def inputs(mels):
        features, mask = padded(mels, 1)
        return dict(input_features=features, feature_attention_mask=mask)

    @staticmethod
    def tokens(frames):
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1

    @staticmethod
    def check_positions(model, ids, mels):
        """The three axes of the rotary embedding are all 0, 1, 2, …."""
        lengths = torch.tensor([m.shape[1] for m in mels])
        positions, delta = model.model.get_rope_index(ids, attention_mask=torch.ones_like(ids), audio_seqlens=lengths)
        assert torch.equal(positions, torch.arange(ids.shape[1]).expand(3, 1, -1)), positions
        assert int(delta) == 0


class Asr:
    rotary = modeling_qwen3
    configs = staticmethod(asr_config)
    model = Qwen3ASRForConditionalGeneration

    @staticmethod
    def inputs(mels):
        features, mask = padded(mels, 100)
        return dict(input_features=features, input_features_mask=mask)

    @staticmethod
    def tokens(frames):
        rest = frames % 100
        f = (rest - 1) // 2 + 1
        return ((f - 1) // 2 + 1 - 1) // 2 + 1 + frames // 100 * 13

    @staticmethod
    def check_positions(model, ids, mels):
        pass


# audio: width, heads, layers (and channels); text: width, query and KV heads, inner width, layers, vocabulary.
CASES = {
    # The releases' names and nesting; one head each; one recording just over two seconds.
    "omni-release": dict(
        family=Omni, audio=(32, 2, 2), text=(48, 4, 4, 96, 2, 320), tied=False, pad=46, layout="release",
        prompt=[44, 8, 198, 45, 98, 44, 72, 98, 47, [201], 48, 200, 3, 17, 90, 45, 98, 44, 77, 98], lengths=True,
        scores=True,
    ),
    # The names of transformers 5 and its flat configuration; tied; two recordings of different lengths.
    "omni-tied": dict(
        family=Omni, audio=(48, 3, 2), text=(96, 8, 2, 96, 2, 320), tied=True, pad=46, layout="transformers5",
        embed=0.05, final_norm=5.0, prompt=[44, 8, 45, 44, 72, 47, [5], 48, 91, 47, [199], 48, 100, 45, 44, 77],
    ),
    # A thinker alone in two shards; eight query heads to one; a clip of 29.99 s.
    "omni-thinker": dict(
        family=Omni, audio=(32, 4, 3), text=(64, 8, 1, 96, 3, 384), tied=False, pad=46, layout="thinker",
        prompt=[44, 8, 9, 45, 44, 72, 47, [2999], 48, 260, 45, 44, 77],
    ),
    # Three recordings, the shortest that has a token among them; text before the audio.
    "omni-three": dict(
        family=Omni, audio=(32, 2, 1), text=(64, 4, 2, 64, 2, 352), tied=False, pad=46, layout="release",
        prompt=[44, 8, 45, 44, 72, 300, 301, 47, [400], 48, 302, 47, [3], 48, 47, [333], 48, 45, 44, 77],
    ),
    # The releases' names and nesting, with an output layer; context words.
    "asr-release": dict(
        family=Asr, audio=(32, 2, 2, 8), text=(48, 4, 2, 96, 2, 320), head_dim=16, tied=False, pad=76, layout="release",
        prompt=[44, 8, 198, 120, 121, 45, 98, 44, 72, 98, 69, [201], 70, 45, 98, 44, 77, 98], lengths=True,
        scores=True,
    ),
    # transformers' names; tied; a forced language.
    "asr-tied": dict(
        family=Asr, audio=(48, 3, 2, 6), text=(64, 8, 2, 96, 2, 320), head_dim=8, tied=True, pad=76, layout="transformers5",
        embed=0.05, final_norm=5.0, prompt=[44, 8, 45, 44, 72, 69, [99], 70, 45, 44, 77, 111, 112, 104],
    ),
    # Eight query heads to one; more than three windows of attention.
    "asr-long": dict(
        family=Asr, audio=(32, 4, 3, 4), text=(64, 8, 1, 96, 3, 384), head_dim=16, tied=False, pad=76, layout="release",
        embed=2.0, prompt=[44, 8, 45, 44, 72, 69, [1801], 70, 45, 44, 77],
    ),
    # Three recordings of mixed lengths in one prompt.
    "asr-three": dict(
        family=Asr, audio=(32, 2, 1, 8), text=(64, 4, 4, 64, 2, 352), head_dim=16, tied=False, pad=76, layout="transformers5",
        prompt=[44, 8, 45, 44, 72, 69, [801], 70, 69, [50], 70, 300, 69, [333], 70, 45, 44, 77],
    ),
}


def build(case, config, seed):
    config._attn_implementation = "eager"
    model = case["family"].model(config).to(torch.float32).eval()
    with torch.no_grad():
        fill(model, case, seed)
    for part in (model.model.audio_tower, model.model.language_model):
        assert part.config._attn_implementation == "eager"
    return model


def sample(matrix, every):
    """(every many-th value of a matrix, its largest magnitude)"""
    flat = matrix.flatten()
    return dict(
        rows=matrix.shape[0],
        every=every,
        largest=float(f"{flat.abs().max().item():.9g}"),
        values=[float(f"{v:.7g}") for v in flat[::every].tolist()],
    )


def embed(case, model, mel):
    inputs = list(case["family"].inputs([mel]).values())
    return model.get_audio_features(*inputs).pooler_output


def head_scores(case, model, ids, embeddings, answer, eos=1, top_k=4):
    """Loss, hits of the voice score and head sensitivities by PyTorch, as in calibration.py."""
    ids, audio = torch.tensor(ids + answer), embeddings.detach()
    is_audio = ids == case["pad"]
    starts = torch.linspace(0, len(audio) - 7, len(answer)).long()
    spans = torch.stack([starts, starts + 1 + torch.arange(len(answer)) % 7], dim=1)
    embeds = model.get_input_embeddings()(ids).detach().clone()
    embeds[is_audio] = audio
    module, rotated = case["family"].rotary, []
    plain = module.apply_rotary_pos_emb

    def recording(q, k, *args, **kwargs):
        q, k = plain(q, k, *args, **kwargs)
        k.retain_grad()
        rotated.append(k)
        return q, k

    module.apply_rotary_pos_emb = recording
    try:
        out = model(inputs_embeds=embeds[None].requires_grad_(), output_attentions=True)
    finally:
        module.apply_rotary_pos_emb = plain
    queries = torch.arange(len(ids) - len(answer) - 1, len(ids))
    loss = torch.nn.functional.cross_entropy(out.logits[0, queries], torch.tensor(answer + [eos]))
    loss.backward()
    norms = torch.stack([k.grad[0] for k in rotated])[:, :, is_audio].norm(dim=-1)
    weights = torch.stack([a[0] for a in out.attentions])[:, :, queries[:-1]][..., is_audio]
    top = weights.topk(top_k + 1, dim=-1)
    gap = (top.values[..., -2] / top.values[..., -1] - 1).min().item()
    assert gap > 1e-5, f"rounding decides which positions are in the top: {gap}"
    chosen = top.indices[..., :top_k]
    hits = ((chosen >= spans[:, :1]) & (chosen < spans[:, 1:])).sum(-1).sum(-1)
    return dict(
        answer=answer,
        eos=eos,
        top_k=top_k,
        spans=spans.tolist(),
        loss=float(f"{loss.item():.9g}"),
        hits=hits.flatten().tolist(),
        hs=[float(f"{x:.9g}") for x in norms.double().mean(-1).flatten().tolist()],
    )


def make(name, case):
    family, mel_seed = case["family"], fnv1a(name) & 0xFFFF
    config, whole, flat = family.configs(case)
    ids, mels = [], []
    for part in case["prompt"]:
        if isinstance(part, list):
            mels.append(make_mel(mel_seed + 10 * len(mels), part[0]))
            ids += [case["pad"]] * family.tokens(part[0])
        else:
            ids.append(part)
    ids = torch.tensor([ids])
    inputs = family.inputs(mels)
    for seed in range(1, 400):
        model = build(case, config, seed)
        with torch.no_grad():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **inputs,
                do_sample=False,
                max_new_tokens=STEPS,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_scores=True,
            )
        greedy = out.sequences[0, ids.shape[1] :].tolist()
        scores = torch.stack([s[0] for s in out.scores])
        top = scores.topk(2, dim=-1).values
        gap = (top[:, 0] - top[:, 1]).min().item()
        if gap > 2e-3 and len(set(greedy)) >= 20 and case["pad"] not in greedy:
            break
    else:
        raise SystemExit(f"{name}: no seed gave a usable golden")
    with torch.no_grad():
        family.check_positions(model, ids, mels)
        logits = model(input_ids=ids, **inputs).logits[0]
        whole_ids = torch.cat([ids, torch.tensor([greedy])], dim=1)
        if family is Asr:  # the whole sequence in one pass gives the same tokens as the cached decode
            again = model(input_ids=whole_ids, **inputs).logits[0]
            assert again[ids.shape[1] - 1 : -1].argmax(-1).tolist() == greedy
        embeddings = torch.cat([embed(case, model, mel) for mel in mels])
        together = torch.cat([e for e in [model.get_audio_features(*inputs.values()).pooler_output]])
        assert (together.reshape(embeddings.shape) - embeddings).abs().max() < 1e-4, "a batch differs from singles"
        lengths = []
        for frames in LENGTHS if case.get("lengths") else []:
            out = embed(case, model, make_mel(mel_seed + 7, frames))
            assert out.shape[0] == family.tokens(frames)
            lengths.append(dict(frames=frames, **sample(out, ENCODER_EVERY if frames > 500 else 101)))
    golden = dict(
        made_by=f"transformers {transformers.__version__}, torch {torch.__version__}, f32, eager attention",
        config=flat if case["layout"] != "release" else whole,
        layout=case["layout"],
        pad=case["pad"],
        embed=case.get("embed", 1.0),
        final_norm=case.get("final_norm", 1.0),
        seed=seed,
        mel_seed=mel_seed,
        prompt=case["prompt"],
        greedy=greedy,
        min_gap=float(f"{gap:.3g}"),
        embeddings=sample(embeddings, 211 if embeddings.numel() < 20000 else ENCODER_EVERY),
        logits=sample(logits, LOGITS_EVERY if logits.numel() < 60000 else 10 * LOGITS_EVERY + 1),
        last=sample(logits[-1:], 7),
        lengths=lengths,
    )
    if case.get("scores"):
        golden["scores"] = head_scores(case, model, ids[0].tolist(), embeddings, greedy[:17])
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(golden, separators=(",", ":"))
    (OUT / f"{name}.json").write_text(text + "\n")
    print(name, "seed", seed, "gap", golden["min_gap"], "distinct", len(set(greedy)), len(text), "bytes")


def noise(n):
    """White noise at half scale from a 32-bit linear congruential generator, as in mel.py."""
    out = np.empty(n, np.uint32)
    state = 12345
    for i in range(n):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = state
    return ((out >> 16).astype(np.int32) - 32768).astype(np.float32) / np.float32(65536)


def features():
    """Qwen3-ASR's log-mel frames (those of Qwen2.5-Omni are in mel.py), less the zero frames that fill up a chunk."""
    cases = []
    for n in [500, 8000, 8159, 16000, 16123, 47999]:
        out = Qwen3ASRFeatureExtractor()(noise(n), sampling_rate=16000, padding=True, return_attention_mask=True, return_tensors="np")
        frames = int(out["attention_mask"][0].sum())
        mel = torch.from_numpy(out["input_features"][0][:, :frames].copy())
        cases.append(dict(samples=n, **sample(mel, 331)))
    (OUT / "asr-features.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for wanted in sys.argv[1:] or ["features", *CASES]:
        features() if wanted == "features" else make(wanted, CASES[wanted])
