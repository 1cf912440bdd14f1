"""Reference log-mel frames from transformers, for crates/audio/tests/mel.rs.

    python tools/goldens/mel.py            # writes crates/audio/tests/goldens/mel.bin

The signals are made from integers only, so that the Rust test makes the same samples bit for bit. Of each reference
only a few frames are kept: every 37th, and the first and last 4 of the recording and of the padded recording.

Long recordings keep every 333rd.

File: little-endian. "MEL1", u32 number of cases; per case: u8 family (0 Voxtral, 1 Qwen2.5-Omni), u8 signal (0 noise,
1 voice-like, 2 silence), u32 samples, u32 frames in all, u32 frames kept, then u32 frame indices, then f32 values
(frames kept × 128).
"""

import pathlib
import struct

import numpy as np
from transformers import WhisperFeatureExtractor

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/audio/tests/goldens/mel.bin"
LENGTHS = [1, 160, 4800, 479840, 480000, 480160, 987200]  # 1 sample, 10 ms, 0.3, 29.99, 30, 30.01, 61.7 s


def lcg(n):
    """n values of a 32-bit linear congruential generator."""
    out = np.empty(n, np.uint32)
    state = 12345
    for i in range(n):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = state
    return out


def noise(n):
    """White noise at half scale."""
    return ((lcg(n) >> 16).astype(np.int32) - 32768).astype(np.float32) / np.float32(65536)


def voice(n):
    """Glottal-like pulses whose pitch and loudness change, with pauses and a little noise; like speech it has loud
    low bands, weak high ones and nearly silent stretches."""
    r = lcg(n)
    i = np.arange(n, dtype=np.int64)
    segment = i // 3200
    period = 80 + (segment * 37) % 120
    phase = (i % 3200) % period
    pulse = np.where(phase < 24, 24 * 24 - (phase - 12) * (phase - 12) * 4, 0)
    loud = np.where(segment % 5 == 4, 0, 8 + (segment * 13) % 24)
    hiss = (r >> 24).astype(np.int64) - 128
    value = (pulse * loud + hiss * np.where(segment % 7 == 3, 16, 1)).astype(np.int32)
    return value.astype(np.float32) / np.float32(32768)


SIGNALS = [noise, voice, lambda n: np.zeros(n, np.float32)]


def reference(family, audio):
    """(128, frames) as the family's processor gives it: VoxtralProcessor and Qwen2_5OmniProcessor."""
    common = dict(sampling_rate=16000, return_tensors="np")
    if family == 0:
        fe = WhisperFeatureExtractor(feature_size=128)
        got = fe(audio, truncation=False, padding=True, pad_to_multiple_of=480000, **common)
        return got["input_features"][0]
    fe = WhisperFeatureExtractor(feature_size=128, chunk_length=300)
    got = fe(audio, padding="max_length", return_attention_mask=True, **common)
    return got["input_features"][0][:, got["attention_mask"][0].astype(bool)]


def keep(samples, frames):
    """Frames to store."""
    edge = samples // 160
    wanted = set(range(0, frames, 37)) | set(range(4)) | set(range(frames - 4, frames)) | set(range(edge - 4, edge + 4))
    return sorted(i for i in wanted if 0 <= i < frames)


def main():
    cases = []
    for family in (0, 1):
        for signal in range(3):
            for n in LENGTHS if signal < 2 else [4800]:
                mel = reference(family, SIGNALS[signal](n))
                idx = keep(n, mel.shape[1])
                if len(idx) > 40:  # every 333rd of the long ones
                    edge = n // 160
                    near = [i for i in idx if i < 4 or i >= mel.shape[1] - 4 or abs(i - edge) <= 4]
                    idx = sorted(set(idx[::9]) | set(near))
                head = struct.pack("<BBIII", family, signal, n, mel.shape[1], len(idx))
                body = np.asarray(idx, "<u4").tobytes() + mel[:, idx].T.astype("<f4").tobytes()
                cases.append(head + body)
                print(["voxtral", "qwen2.5-omni"][family], ["noise", "voice", "silence"][signal], n, mel.shape)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(b"MEL1" + struct.pack("<I", len(cases)) + b"".join(cases))
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
