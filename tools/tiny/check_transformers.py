"""Loads the exported checkpoint with transformers and mistral-common and compares both with the training code.

Exits non-zero when a tensor is missing or extra, when logits differ, or when the tokenizer gives other ids.
"""

import random
import sys
from pathlib import Path

import torch
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from safetensors.torch import load_file
from transformers import VoxtralForConditionalGeneration, WhisperFeatureExtractor

import tokenizer
from data import TRANSLATE, log_mel
from model import Config, Voxtral

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "models" / "tiny")
failures = []


def check(name, ok, detail=""):
    print(("ok   " if ok else "FAIL ") + name, detail)
    if not ok:
        failures.append(name)


torch.manual_seed(0)
hf, info = VoxtralForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32, output_loading_info=True)
hf.eval()
check("no missing, unexpected or misshapen tensors", not any(len(v) for k, v in info.items() if k != "error_msgs"), info)
names = load_file(FOLDER / "model.safetensors")
check("encoder positions in F32", names["audio_tower.embed_positions.weight"].dtype == torch.float32)
check("all else in BF16", all(t.dtype == torch.bfloat16 for n, t in names.items() if "embed_positions" not in n))
size = sum(f.stat().st_size for f in FOLDER.iterdir() if f.is_file())
check("at most 12 MB", size <= 12e6, f"{size:,} bytes")

net = Voxtral(Config())
net.load_state_dict({n: t.float() for n, t in names.items()})
net.eval()
x = torch.randn(int(16000 * 37.3)).numpy() * 0.02
mel = log_mel(x)
features = WhisperFeatureExtractor.from_pretrained(FOLDER)
import numpy as np

ref = features(np.pad(x, (0, -len(x) % 480000)), sampling_rate=16000, truncation=False, return_tensors="pt").input_features
ref = ref[0].reshape(128, -1, 3000).transpose(0, 1)
check("log-mel equals transformers'", ref.shape == mel.shape and (ref - mel).abs().max() < 1e-4, f"{(ref - mel).abs().max():.1e}")

tok = tokenizer.Tekken(FOLDER / "tekken.json")
prompt = tok.prompt("en", 375 * len(mel)) + list(tok.encode("Please enter your password followed by the pound key."))
ids = torch.tensor([prompt])
with torch.no_grad():
    a = hf(input_ids=ids, input_features=mel).logits[0]
    audio = net.multi_modal_projector(net.encode(mel).reshape(-1, 4 * net.c.enc_dim))
    emb = net.language_model.model.embed_tokens(ids)
    emb = emb.masked_scatter((ids == tokenizer.AUDIO)[..., None], audio)
    b = net.language_model.lm_head(net.hidden(emb, torch.arange(len(prompt))[None])[0])[0]
worst = ((a - b).abs().max() / b.abs().max()).item()
check("logits equal the training code's", worst < 1e-4, f"relative difference {worst:.1e}")

mc = Tekkenizer.from_file(FOLDER / "tekken.json")
check("tekken version and size", mc.version.value == "v7" and mc.n_words == 800 and mc.num_special_tokens == 40)
for rank, name in tokenizer.NAMES.items():
    check(f"special {name}", mc.get_special_token(name) == rank) if mc.get_special_token(name) != rank else None
rng, alphabet = random.Random(0), "abc XYZ éàœ'.,?!0123\n -語🙂"
texts = ["lang:en", "lang:fr", TRANSLATE, "Échec à l'ouverture de session.", "Three seven one nine."]
texts += ["".join(rng.choices(alphabet, k=rng.randint(1, 60))) for _ in range(300)]
same = all(mc.encode(t, False, False) == list(tok.encode(t)) and mc.decode(list(tok.encode(t))) == t for t in texts)
check(f"ids of {len(texts)} strings equal mistral-common's", same)
print("failures:", failures or "none")
sys.exit(bool(failures))
