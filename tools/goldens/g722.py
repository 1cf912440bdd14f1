"""Writes crates/eval/tests/goldens/chirp.{g722,s16}: a signal coded by FFmpeg, and what FFmpeg decodes it to."""

import subprocess
from pathlib import Path

import numpy as np

OUT = Path(__file__).parents[2] / "crates/eval/tests/goldens"
RATE = "-ar 16000 -ac 1"


def ffmpeg(arguments, data):
    return subprocess.run(["ffmpeg", "-v", "error", *arguments.split()], input=data, capture_output=True, check=True).stdout


def main():
    n = 3200
    t = np.arange(n) / 16000
    x = 0.7 * np.sin(2 * np.pi * (200 * t + 9000 * t * t)) * np.linspace(0, 1, n)
    x += 0.1 * np.random.default_rng(7).standard_normal(n)
    x[2400:2800] = 0
    x[2800:] = np.sign(np.sin(2 * np.pi * 300 * t[2800:]))
    pcm = (np.clip(x, -1, 1) * 32767).astype("<i2").tobytes()
    coded = ffmpeg(f"-f s16le {RATE} -i - -c:a g722 -f g722 -", pcm)
    (OUT / "chirp.g722").write_bytes(coded)
    (OUT / "chirp.s16").write_bytes(ffmpeg("-f g722 -i - -f s16le -ar 16000 -", coded))


if __name__ == "__main__":
    main()
