"""Forced alignment: times of every character and word of every unit, from the stage-1 CTC head."""

import argparse
import pickle
from pathlib import Path

import numpy as np
import torch

import data
from data import CHARS, SR, WORK, World, log_mel, plain, spell
from encoder import Recogniser
from layout import config

PAD = 0.3


def viterbi(logp, y):
    """Best CTC path: for each symbol of y its first and last frame."""
    t, states = len(logp), 2 * len(y) + 1
    ext = np.zeros(states, np.int64)
    ext[1::2] = y
    skip = np.zeros(states, bool)
    skip[3::2] = ext[3::2] != ext[1:-2:2]
    score = np.full(states, -1e30)
    score[:2] = logp[0, ext[:2]]
    back = np.zeros((t, states), np.int8)
    for i in range(1, t):
        one = np.concatenate([[-1e30], score[:-1]])
        two = np.where(skip, np.concatenate([[-1e30, -1e30], score[:-2]]), -1e30)
        back[i] = np.where(two > np.maximum(one, score), 2, np.where(one > score, 1, 0))
        score = np.maximum(np.maximum(score, one), two) + logp[i, ext]
    s = states - 1 if score[-1] > score[-2] else states - 2
    total, first, last = score[s], np.zeros(len(y), int), np.zeros(len(y), int) - 1
    for i in range(t - 1, -1, -1):
        if s % 2:
            first[s // 2] = i
            last[s // 2] = max(last[s // 2], i)
        s -= int(back[i, s])
    return first, last, total / max(1, len(y))


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("checkpoint")
    a.add_argument("--output", default=str(WORK / "times.pkl"))
    a = a.parse_args()
    torch.set_num_threads(1)
    net = Recogniser(config())
    net.load_state_dict(torch.load(a.checkpoint), strict=False)
    net.eval()
    world, chars, words, scores = World.load(), {}, {}, []
    for (lang, key), unit in world.unit.items():
        y = spell(unit.text)
        clip = unit.audio[0].astype(np.float32)
        edge = np.zeros(int(PAD * SR), np.float32)
        x = np.concatenate([edge, clip, edge])
        x = np.pad(x, (0, -len(x) % 320))
        x = x + np.random.default_rng(0).standard_normal(len(x)).astype(np.float32) * 3e-4
        mel = log_mel(x, pad=False)[None]
        with torch.no_grad():
            logp = net.ctc(net.voxtral.normed(net.voxtral.frames(mel, 200))).log_softmax(-1)[0].numpy()
        first, last, score = viterbi(logp, y)
        scores.append((score, lang, key, unit.text))
        end = len(clip) / SR
        begin = np.clip(first * 0.02 - PAD, 0, end)
        begin[0] = 0.0
        stop = np.append(begin[1:], end)
        chars[lang, key] = [(c, float(s), float(e)) for c, s, e in zip(y, begin, stop)]
        out, at = [], 0
        for w in plain(unit.text).split():
            n = len(spell(w))
            s = float(begin[at])
            # a word ends shortly after its last character was spelt, at the latest where the next word starts
            e = min(float(stop[at + n - 1]), max(float(last[at + n - 1] * 0.02 - PAD) + 0.12, s + 0.06))
            if at + n == len(y):
                e = end
            out.append((w, s, e))
            at += n + 1
        words[lang, key] = out
    scores.sort()
    print("mean score a character", np.mean([s[0] for s in scores]))
    for s in scores[:40]:
        print("%.2f %s %s: %s" % s)
    pickle.dump({"chars": chars, "words": words, "score": {(l, k): s for s, l, k, _ in scores}}, open(a.output, "wb"))


if __name__ == "__main__":
    main()
