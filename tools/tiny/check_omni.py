"""Loads an exported checkpoint in the layout of Qwen2.5-Omni with transformers and compares it with the training code.

Exits non-zero when a tensor is missing or extra, or when mel or logits differ.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import (
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from omni import ByteLevel, Omni, audio_tokens, config, mel_of, tensors

FOLDER = Path(sys.argv[1])
failures = []


def check(name, ok, detail=""):
    print(("ok   " if ok else "FAIL ") + name, detail)
    if not ok:
        failures.append(name)


torch.manual_seed(0)
names = load_file(FOLDER / "model.safetensors")
check("all in BF16", all(t.dtype == torch.bfloat16 for t in names.values()))
size = sum(f.stat().st_size for f in FOLDER.iterdir() if f.is_file())
check("at most 10 MB", size <= 10e6, f"{size:,} bytes")

thinker = json.loads((FOLDER / "config.json").read_text())["thinker_config"]
text = thinker["text_config"]
text["rope_parameters"] = {"rope_theta": text.pop("rope_theta"), **text.pop("rope_scaling")}
vision = dict(depth=1, hidden_size=16, num_heads=1, intermediate_size=16, out_hidden_size=text["hidden_size"])
thinker.pop("model_type")
unused = dict(vision_start_token_id=300001, image_token_index=300002, video_token_index=300003)
c = Qwen2_5OmniThinkerConfig(**thinker, vision_config=vision, **unused)
hf = Qwen2_5OmniThinkerForConditionalGeneration(c).float().eval()
weights = {}
for name, w in names.items():
    name = name.removeprefix("thinker.")
    name = name if name.startswith("lm_head") else "model." + name.replace("model.", "language_model.", 1)
    weights[name] = w.float()
info = hf.load_state_dict(weights, strict=False)
missing = [n for n in info.missing_keys if "visual" not in n and "audio_bos_eos" not in n]
check("no missing or unexpected tensors", not missing and not info.unexpected_keys, missing + info.unexpected_keys)

net = Omni(config()).eval()
back = {name: key for key, (name, _) in zip((k for k in net.state_dict() if "embed_positions" not in k), tensors(net.state_dict()))}
net.load_state_dict({back[n]: w.float() for n, w in names.items()}, strict=False)
x = torch.randn(int(16000 * 13.57)).numpy() * 0.02
mel = mel_of(x)
extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=300)
ref = extractor(x, sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="pt")
frames = int(ref.attention_mask.sum())
ref = ref.input_features[0][:, :frames]
worst = (ref - mel).abs().max()
check("log-mel equals transformers'", ref.shape == mel.shape and worst < 1e-4, f"{worst:.1e}")

tok = ByteLevel(FOLDER / "tokenizer.json")
audio = audio_tokens(len(x))
prompt = tok.prompt("en", audio) + list(tok.encode("Please enter your password followed by the pound key."))
ids = torch.tensor([prompt])
with torch.no_grad():
    a = hf(input_ids=ids, input_features=mel[None], feature_attention_mask=torch.ones(1, frames, dtype=torch.long)).logits[0]
    heard = net.multi_modal_projector(net.features(net.frames(mel[None])))[0]
    check("as many audio embeddings as placeholders", len(heard) == audio, f"{len(heard)} and {audio}")
    emb = net.language_model.model.embed_tokens(ids)
    emb = emb.masked_scatter((ids == tok.audio)[..., None], heard)
    b = net.language_model.lm_head(net.hidden(emb, torch.arange(len(prompt))[None])[0])[0]
worst = ((a - b).abs().max() / b.abs().max()).item()
check("logits equal the training code's", worst < 1e-4, f"relative difference {worst:.1e}")
print("failures:", failures or "none")
sys.exit(bool(failures))
