"""Writes the recipes of the held-out recordings, from which `wnw data fetch tiny-en` (tiny-fr, tiny-en2fr) makes them
again out of the same Debian packages, without Python or PyTorch.

The recordings are those of `heldout.py`, except for the noise, which the recipe gives as a level and a seed: NumPy's
normal deviates are not reproduced. Needs `units.pkl` and `times.pkl` in TINY_WORK. With --compare the recordings
that `wnw` made are held against those of `heldout.py`.
"""

import argparse
import gzip
import json
import pickle
import random
from pathlib import Path

import numpy as np
import soundfile as sf

from data import SR, WORK, World, plain
from heldout import TASKS

COUNT = 20


def deltas(numbers):
    """Differences between neighbours, which pack better."""
    return [b - a for a, b in zip([0, *numbers], numbers)]


def recipes():
    """prompts: language, key, text, deltas of the words' edges in ms. Recordings: samples, noise level, speed of the prompts,
    pieces; a piece: gain, then prompt, version (0 WAV, 1 G.722) and samples since the last unit's start for each of
    its units, at last the speed if it is another one. french: the key's translation, for every prompt of en2fr."""
    world, words = World.load(), pickle.load(open(WORK / "times.pkl", "rb"))["words"]
    prompts, index, recordings, french = [], {}, [], {}

    def prompt(lang, key):
        if (lang, key) not in index:
            index[lang, key] = len(prompts)
            unit = world.unit[lang, key]
            edges = [round(v * 1000) for _, start, end in words[lang, key] for v in (start, end)]
            prompts.append([lang, key, unit.text, deltas(edges)])
            # That is what the two versions mean.
            assert len(unit.audio) == (1 if key.startswith("synth/") else 2), key
        return index[lang, key]

    for task in TASKS:
        for i in range(COUNT):
            rng = random.Random(f"held-out {task} {i}")
            # As heldout.py has it; without noise, compose leaves its two draws to us.
            x, pieces = world.compose(rng, 120 + 119.5 * i / (COUNT - 1), task, noise=False)
            rng.getrandbits(32)
            level = 10 ** rng.uniform(-4, -2.3)
            common = next(p["units"][0][4] for p in pieces if len(p["units"]) == 1)
            rows, last = [], 0
            for piece in pieces:
                row = [round(piece["gain"], 4)]
                for (lang, key, _, _, _), (version, sample) in zip(piece["units"], piece["mix"]):
                    row += [prompt(lang, key), version, sample - last]
                    last = sample
                if piece["units"][0][4] != common:
                    row.append(round(piece["units"][0][4], 8))
                rows.append(row)
                if task == "en2fr":
                    translation = world.french[plain(world.unit[piece["units"][0][:2]].text)]
                    assert translation == piece["text"]
                    french[row[1]] = translation
            samples = min(len(x), int((pieces[-1]["end"] + 0.4) * SR))
            recordings.append([f"{task}-{i:02d}", samples, float(f"{level:.4g}"), round(common, 8), rows])
    return {"prompts": prompts, "french": [[k, french[k]] for k in sorted(french)], "recordings": recordings}


def compare(made, expected):
    """Correlation and level difference of every recording with the one of heldout.py, and whether the texts agree."""
    worst = 1.0
    for path in sorted(made.rglob("*.wav")):
        a, _ = sf.read(path)
        b, _ = sf.read(expected / f"{path.stem}.flac")
        n = min(len(a), len(b))
        text = path.with_suffix(".txt").read_text(encoding="utf-8") == (expected / f"{path.stem}.txt").read_text(encoding="utf-8")
        times = [json.loads((d / f"{path.stem}.words.json").read_text(encoding="utf-8")) for d in (path.parent, expected)]
        flat = [[w["word"] for p in t["prompts"] for w in p.get("words", [])] for t in times]
        edges = [[x for p in t["prompts"] for w in [p, *p.get("words", [])] for x in (w["start"], w["end"])] for t in times]
        off = max(abs(x - y) for x, y in zip(*edges)) if len(edges[0]) == len(edges[1]) else float("nan")
        r = np.corrcoef(a[:n], b[:n])[0, 1]
        worst = min(worst, r)
        print(f"{path.stem}: {len(a) - len(b):+d} samples, correlation {r:.6f}, text {text}, words {flat[0] == flat[1]}, times within {off * 1000:.1f} ms")
    print(f"least correlation {worst:.6f}")


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("output", type=Path, nargs="?", help="where to write the recipes, .json.gz")
    a.add_argument("--compare", type=Path, nargs=2, metavar=("MADE", "HELDOUT"))
    a = a.parse_args()
    if a.compare:
        compare(*a.compare)
    if a.output:
        text = json.dumps(recipes(), ensure_ascii=False, separators=(",", ":"))
        a.output.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        print(a.output, a.output.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
