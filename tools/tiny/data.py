"""Training world of the tiny Voxtral: Debian's Asterisk prompts plus synthetic digits and letters.

Every recording is a random order of *units*.  A unit is one prompt (English:
Allison Smith, French: June Wallack) or one spoken digit/letter (Allison,
espeak-ng, flite).  Everything comes from Debian packages:
asterisk-core-sounds-{en,fr}-{wav,g722}, espeak-ng, flite, ffmpeg.

`World.load()` builds (once) a cache of decoded, trimmed, level-normalised
16 kHz units; `World.compose()` strings units together into a recording and
returns the exact time span of every unit.
"""

import gzip
import json
import math
import os
import pickle
import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile as sf
import torch
from scipy.signal import resample_poly

SR = 16000
CHUNK = 30 * SR
HOP = 160
WORK = Path(os.environ.get("TINY_WORK", "/tmp/tiny-voxtral"))
TRANSLATE = "Translate to French."
SOUNDS = {"en": "/usr/share/asterisk/sounds/en_US_f_Allison", "fr": "/usr/share/asterisk/sounds/fr_CA_f_June"}
TEXTS = {
    "en": "/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz",
    "fr": "/usr/share/doc/asterisk-core-sounds-fr/core-sounds-fr.txt.gz",
}
DIGITS = {
    "en": "zero one two three four five six seven eight nine".split(),
    "fr": "zéro un deux trois quatre cinq six sept huit neuf".split(),
}
ESPEAK = ["en-us", "en-gb", "en-us+f2", "en-us+f4", "en-us+m3", "en-us+m7", "en-gb+f3", "en-gb-scotland"]
FLITE = ["kal16", "awb", "rms", "slt"]
MAX_UNIT_S = 14.0


@dataclass
class Unit:
    """One prompt or one digit/letter: its text and one or more recorded versions of it."""

    key: str
    lang: str
    text: str
    audio: list = field(default_factory=list)  # float16 arrays at 16 kHz (8 kHz WAV up-sampled, G.722)


def sentence(text, lang):
    """Readable form of a prompt: digits as words, no brackets, one capital at the start, one stop at the end."""
    text = re.sub(r"\[.*?\]|\(.*?\)|<.*?>", " ", text)
    text = text.replace("’", "'").replace("“", "").replace("”", "").replace('"', "").replace("…", " ")
    star, pound = ("star", "pound") if lang == "en" else ("étoile", "dièse")
    text = text.replace("*", f" {star} ").replace("#", f" {pound} ").replace(";", ",").replace("¨", "")
    text = text.replace("500", "five hundred" if lang == "en" else "cinq cents")
    text = re.sub(r"\d", lambda m: f" {DIGITS[lang][int(m[0])]} ", text)
    text = re.sub(r"\.{2,}", " ", text)
    text = re.sub(r"[:!]", lambda m: "," if m[0] == ":" else ".", text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\s+([,.?])", r"\1", text)
    text = re.sub(r"([,.?])(?=[^\W\d_]{2})", r"\1 ", text)
    text = text.strip(" ,-")
    text = re.sub(r"\.+$", "", text).strip(" ,")
    if not re.search(r"\w", text):
        return ""
    if text[-1] not in ".?":
        text += "."
    text = re.sub(r"([.?] )(\w)", lambda m: m[1] + m[2].upper(), text)
    return text[0].upper() + text[1:]


def plain(text):
    """Lower-case letters, apostrophes and single spaces: what CTC spells and what WER compares."""
    text = re.sub(r"[^\w' ]+|[\d_]", " ", text.lower().replace("’", "'"))
    return re.sub(r"\s+", " ", text).strip()


CHARS = "abcdefghijklmnopqrstuvwxyzàâäçéèêëîïôöùûüœæ' "
CHAR_ID = {c: i + 1 for i, c in enumerate(CHARS)}


def spell(text):
    return [CHAR_ID[c] for c in plain(text) if c in CHAR_ID]


def trim(x):
    """Cut leading/trailing silence, keep 20 ms, and normalise the level."""
    x = np.asarray(x, np.float32)
    if not len(x):
        return x
    env = np.abs(x)
    loud = np.where(env > 0.02 * env.max() + 1e-6)[0]
    if not len(loud):
        return x[:0]
    x = x[max(0, loud[0] - 320) : loud[-1] + 320]
    return x / (np.sqrt((x**2).mean()) + 1e-6) * 0.08


def read_wav(path):
    x, sr = sf.read(path, dtype="float32")
    if x.ndim > 1:
        x = x.mean(1)
    if sr != SR:
        g = math.gcd(sr, SR)
        x = resample_poly(x, SR // g, sr // g)
    return trim(x)


def read_g722(path):
    raw = subprocess.run(
        ["ffmpeg", "-v", "error", "-f", "g722", "-i", path, "-f", "s16le", "-ar", "16000", "-"], capture_output=True, check=True
    ).stdout
    return trim(np.frombuffer(raw, np.int16).astype(np.float32) / 32768)


def synthesise(engine, voice, text, out):
    if engine == "espeak":
        subprocess.run(["espeak-ng", "-v", voice, "-s", "150", "-w", out, text], check=True)
    else:
        subprocess.run(["flite", "-voice", voice, "-t", text, "-o", out], check=True)
    return read_wav(out)


def read_texts(lang):
    rows = {}
    for line in gzip.open(TEXTS[lang], "rt", encoding="utf-8", errors="replace"):
        if line.startswith(";") or ":" not in line:
            continue
        key, text = line.split(":", 1)
        key = key.strip()
        if key.startswith("silence/") or key in ("spy-iax2", "tt-monkeys"):
            continue
        text = sentence(text, lang)
        if text:
            rows[key] = text
    return rows


def build_units():
    """Decode all prompts of both languages and synthesise the other voices."""
    units, pool = [], ThreadPoolExecutor(2)
    for lang in ("en", "fr"):
        jobs = []
        for key, text in read_texts(lang).items():
            base = f"{SOUNDS[lang]}/{key}"
            if os.path.exists(base + ".wav"):
                jobs.append((key, text, pool.submit(read_wav, base + ".wav"), pool.submit(read_g722, base + ".g722")))
        for key, text, *versions in jobs:
            audio = [v.result().astype(np.float16) for v in versions]
            audio = [a for a in audio if len(a) > 0.1 * SR]
            if not audio:
                continue
            seconds = len(audio[0]) / SR
            rate = len(plain(text)) / seconds
            if seconds > MAX_UNIT_S or (rate > 32 or rate < 3.5) and len(plain(text)) > 3:
                continue
            units.append(Unit(key, lang, text, audio))
    tmp = WORK / "synth"
    tmp.mkdir(parents=True, exist_ok=True)
    jobs = []
    for engine, voices in (("espeak", ESPEAK), ("flite", FLITE)):
        for voice in voices:
            for w in DIGITS["en"] + list("abcdefghijklmnopqrstuvwxyz"):
                said = w.upper() + "." if len(w) == 1 else w
                jobs.append((voice, w, pool.submit(synthesise, engine, voice, said, f"{tmp}/{engine}-{voice}-{w}.wav")))
    for voice, w, result in jobs:
        audio = result.result()
        if len(audio) > 0.05 * SR:
            units.append(Unit(f"synth/{voice}/{w}", "en", w, [audio.astype(np.float16)]))
    return units


class World:
    """All units, and the random recordings made from them."""

    def __init__(self, units):
        self.unit = {(u.lang, u.key): u for u in units}
        synth = [u for u in units if u.key.startswith("synth/")]
        self.pool = {lang: [u for u in units if u.lang == lang and not u.key.startswith("synth/")] for lang in ("en", "fr")}
        self.voices = {}
        for u in synth:
            self.voices.setdefault(u.key.split("/")[1], {})[u.text] = u
        allison = {}
        for w in DIGITS["en"]:
            allison[w] = self.unit["en", f"digits/{DIGITS['en'].index(w)}"]
        for c in "abcdefghijklmnopqrstuvwxyz":
            if ("en", f"letters/{c}") in self.unit:
                allison[c] = self.unit["en", f"letters/{c}"]
        self.voices["allison"] = allison
        # English -> French: one canonical translation for each English text.
        self.french = {}
        for u in self.pool["en"]:
            v = self.unit.get(("fr", u.key))
            if v is not None:
                self.french.setdefault(plain(u.text), v.text)
        self.both = [u for u in self.pool["en"] if plain(u.text) in self.french]

    @classmethod
    def load(cls):
        path = WORK / "units.pkl"
        if not path.exists():
            WORK.mkdir(parents=True, exist_ok=True)
            units = build_units()
            tmp = path.with_suffix(".tmp")
            pickle.dump([(u.key, u.lang, u.text, u.audio) for u in units], open(tmp, "wb"))
            tmp.rename(path)
        return cls([Unit(*row) for row in pickle.load(open(path, "rb"))])

    def compose(self, rng, seconds, task, longest=MAX_UNIT_S, tail=0.0, noise=True, strings=0.35):
        """A recording of at most `seconds`; returns (samples, pieces).

        A piece is a dict: text (answer text), spoken (what CTC spells), start, end (s),
        units [(lang, key, start, end, speed)], mix [(index into the unit's audio, first sample)], gain; task is "en", "fr"
        or "en2fr".
        `tail` leaves that many seconds of digital silence at the end.
        """
        lang = "fr" if task == "fr" else "en"
        pool = self.both if task == "en2fr" else self.pool[lang]
        n, limit = int(seconds * SR), seconds - tail
        x = np.zeros(n, np.float32)
        t, pieces, used, misses = rng.uniform(0.05, 0.5), [], set(), 0
        speed = rng.uniform(0.92, 1.08)
        while misses < 6:
            gain, row = rng.uniform(0.5, 1.5), []
            if task == "en" and rng.random() < strings:
                voice = "allison" if rng.random() < 0.5 else rng.choice(sorted(self.voices))
                names = DIGITS["en"] if rng.random() < 0.9 else [k for k in self.voices[voice] if len(k) == 1]
                gap = rng.uniform(0.03, 0.2)
                words = [rng.choice(names) for _ in range(rng.randint(3, 8))]
                row = [(self.voices[voice][w], gap * rng.uniform(0.6, 1.4)) for w in words]
                text = " ".join(w.upper() if len(w) == 1 else w for w in words)
                text = text[0].upper() + text[1:] + "."
                speeds = speed if voice == "allison" else rng.uniform(0.9, 1.15)
                key = (voice, text)
            else:
                u = rng.choice(pool)
                row, speeds, key = [(u, 0.0)], speed, plain(u.text)
                text = self.french[key] if task == "en2fr" else u.text
            if key in used:
                misses += 1
                continue
            versions = [rng.choice(range(len(u.audio))) for u, _ in row]
            clips = [resample(u.audio[v], speeds) for v, (u, _) in zip(versions, row)]
            length = sum(len(c) / SR + g for c, (_, g) in zip(clips, row)) - row[-1][1]
            if t + length > limit - 0.05 or (len(row) == 1 and length > longest):
                misses += 1
                continue
            used.add(key)
            at, units, mix = t, [], []
            for version, clip, (u, g) in zip(versions, clips, row):
                a = int(at * SR)
                mix.append((version, a))
                clip = clip[: n - a]
                x[a : a + len(clip)] += clip * gain
                units.append((u.lang, u.key, at, at + len(clip) / SR, speeds))
                at += len(clip) / SR + g
            end = units[-1][3]
            pieces.append({"text": text, "start": t, "end": end, "units": units, "mix": mix, "gain": gain})
            t, misses = end + rng.uniform(0.1, 0.6), 0
        if noise:
            m = n if tail == 0 else int(min(n, (limit - rng.uniform(0, 0.3)) * SR))
            state = np.random.default_rng(rng.getrandbits(32))
            x[:m] += state.standard_normal(m).astype(np.float32) * 10 ** rng.uniform(-4, -2.3)
        return x, pieces


def resample(clip, speed):
    clip = clip.astype(np.float32)
    if abs(speed - 1) < 0.005:
        return clip
    m = int(len(clip) / speed)
    return np.interp(np.arange(m) * speed, np.arange(len(clip)), clip).astype(np.float32)


def answer(pieces):
    return " ".join(p["text"] for p in pieces)


_MEL = {}


def log_mel(x, pad=True):
    """Voxtral's log-mel of a whole recording, [frames, 128] transposed to [chunks, 128, 3000] when padded to 30 s."""
    if not _MEL:
        from transformers.audio_utils import mel_filter_bank

        bank = mel_filter_bank(201, 128, 0, 8000, SR, norm="slaney", mel_scale="slaney")
        _MEL["bank"] = torch.tensor(bank, dtype=torch.float32).T
        _MEL["window"] = torch.hann_window(400)
    if pad:
        x = np.pad(x, (0, -len(x) % CHUNK))
    spec = torch.stft(torch.from_numpy(np.ascontiguousarray(x)), 400, 160, window=_MEL["window"], return_complex=True)
    mel = (_MEL["bank"] @ (spec[..., :-1].abs() ** 2)).clamp(min=1e-10).log10()
    mel = (torch.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0
    return mel.view(128, -1, 3000).transpose(0, 1).contiguous() if pad else mel


if __name__ == "__main__":
    world = World.load()
    for lang, pool in world.pool.items():
        total = sum(len(u.audio[0]) for u in pool) / SR / 60
        print(lang, len(pool), f"prompts, {total:.1f} min;", len({plain(u.text) for u in pool}), "different texts")
    print("translatable", len(world.both), "voices", len(world.voices))
    for lang in ("en", "fr"):
        print("\n".join(u.text for u in random.Random(1).sample(world.pool[lang], 25)))
    print(sorted({c for u in world.unit.values() for c in u.text}))
    for s in range(3):
        x, pieces = world.compose(random.Random(s), 20, ["en", "fr", "en2fr"][s])
        print(len(x), answer(pieces))
