"""Writes the held-out recordings: FLAC, reference text and exact times, from seeds that training never uses.

Training draws from integer seeds; here every recording has its own string
seed, so orders, gaps, speeds, gains and noise are new.  The prompts themselves
are those of training: the model's world is closed.
"""

import argparse
import json
import pickle
import random
from pathlib import Path

import numpy as np
import soundfile as sf

from data import SR, WORK, World, answer, plain

TASKS = ("en", "fr", "en2fr")
LONG = 8


def timed(world, words, piece, task):
    """A prompt with its exact span and, where the text is what is spoken, the words' times."""
    row = {"text": piece["text"], "start": round(piece["start"], 3), "end": round(piece["end"], 3)}
    if task != "en2fr":
        units = []
        for lang, key, start, end, speed in piece["units"]:
            whole, spoken, at = world.unit[lang, key].text.split(" "), words[lang, key], 0
            if len(piece["units"]) > 1:
                whole = [whole[0]]
            for w in whole:
                k = len(plain(w).split())
                if k:
                    units.append([w, start + spoken[at][1] / speed, start + spoken[at + k - 1][2] / speed])
                at += k
        if len(piece["units"]) > 1:
            for u, w in zip(units, piece["text"].split(" ")):
                u[0] = w
        row["words"] = [{"word": w, "start": round(s, 3), "end": round(e, 3)} for w, s, e in units]
    else:
        row["spoken"] = world.unit[piece["units"][0][:2]].text
    return row


def write(world, words, folder, name, task, seconds, seed):
    x, pieces = world.compose(random.Random(seed), seconds, task)
    x = x[: int((pieces[-1]["end"] + 0.4) * SR)]
    x = x * min(1.0, 0.99 / np.abs(x).max())
    sf.write(folder / f"{name}.flac", (x * 32767).astype(np.int16), SR, subtype="PCM_16")
    (folder / f"{name}.txt").write_text(answer(pieces) + "\n", encoding="utf-8")
    body = {
        "audio": f"{name}.flac",
        "task": task,
        "duration": round(len(x) / SR, 3),
        "note": "prompt spans (and the spans of single digits) are exact; word times inside a prompt are CTC forced alignment",
        "prompts": [timed(world, words, p, task) for p in pieces],
    }
    (folder / f"{name}.words.json").write_text(json.dumps(body, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return len(x) / SR


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("folder", type=Path)
    a.add_argument("--count", type=int, default=20)
    a.add_argument("--calibration", type=int, help="write only this many English recordings, eight of 2 to 4 minutes and the others of 40 to 75 seconds, with flat word lists")
    a.add_argument("--longest", type=float, default=240, help="seconds of the longest recording; the shortest has half as many")
    a.add_argument("--tasks", default=",".join(TASKS))
    a.add_argument("--sample", help="write only one four-minute English recording, under this name")
    a = a.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    world, words = World.load(), pickle.load(open(WORK / "times.pkl", "rb"))["words"]
    if a.sample:
        print(a.sample, write(world, words, a.folder, a.sample, "en", 239.5, "held-out sample 5"))
        return
    if a.calibration:
        for i in range(a.calibration):
            name = f"cal-{i:02d}"
            # λ is fitted on the first: as long as what is transcribed, since recall weighs less in a long recording
            seconds = (120 + 15 * i if i < LONG else 40 + 35 * (i % 10) / 9) if a.longest == 240 else a.longest * (0.5 + (i % 10) / 20)
            print(name, round(write(world, words, a.folder, name, "en", seconds, f"calibration {i}"), 1), flush=True)
            path = a.folder / f"{name}.words.json"
            prompts = json.loads(path.read_text(encoding="utf-8"))["prompts"]
            path.write_text(json.dumps({"words": [w for p in prompts for w in p["words"]]}, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    rows = []
    for task in a.tasks.split(","):
        for i in range(a.count):
            # lengths spread evenly, by default over 2 to 4 minutes
            seconds = a.longest / 2 + (a.longest / 2 - 0.5) * i / max(1, a.count - 1)
            name = f"{task}-{i:02d}"
            length = write(world, words, a.folder, name, task, seconds, f"held-out {task} {i}")
            text = (a.folder / f"{name}.txt").read_text(encoding="utf-8").strip()
            lang = "fr" if task == "fr" else "en"
            rows.append({"audio_filepath": f"{name}.flac", "text": text, "duration": round(length, 3), "lang": lang})
            if task == "en2fr":
                rows[-1] |= {"source_lang": "en", "target_lang": "fr"}
            print(name, round(length, 1), flush=True)
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (a.folder / "manifest.jsonl").write_text(body, encoding="utf-8")


if __name__ == "__main__":
    main()
