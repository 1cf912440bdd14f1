"""Stage 1: the audio encoder alone, with a character CTC head over exactly known unit spans."""

import argparse
import math
import multiprocessing as mp
import os
import pickle
import queue
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import data
from data import WORK, World, log_mel, spell
from layout import Model, config
from optim import Both

HEAD = len(data.CHARS) + 1


class Recogniser(nn.Module):
    """Encoder plus linear heads: CTC spelling and (once aligned) the character of each frame and the word of each audio token."""

    def __init__(self, config, vocabulary=1200):
        super().__init__()
        self.voxtral = Model(config)
        self.ctc = nn.Linear(config.enc_dim, HEAD)
        self.frame = nn.Linear(config.enc_dim, HEAD)
        self.word = nn.Linear(self.voxtral.feature_dim, vocabulary)


def vocabulary(times):
    """Word -> class; 0 is "no word"."""
    return {w: i + 1 for i, w in enumerate(sorted({w for row in times["words"].values() for w, _, _ in row}))}


def windows(world, rng, count, seconds, times=None, rate=12.5):
    """A batch of short recordings: mel, unit spans (window, first frame, last frame, spelling), frame and token labels."""
    mels, spans = [], []
    frames = int(seconds * 50)
    labels, lexical = np.zeros((count, frames), np.int64), np.zeros((count, int(seconds * rate)), np.int64)
    for b in range(count):
        task = rng.choice(["en", "en", "fr", "fr", "fr"]) if times is None else rng.choice(["en", "fr"])
        tail = rng.uniform(0, 3) if rng.random() < 0.2 else 0.0
        if times is None:
            x, pieces = world.compose(rng, seconds, task, longest=seconds, tail=tail)
            cut = 0.0
        else:
            cut = rng.uniform(0, 6)
            x, pieces = world.compose(rng, seconds + cut + 4, task)
            x = x[int(cut * data.SR) :][: int(seconds * data.SR)]
            if tail:
                x[-int(tail * data.SR) :] = 0
        mels.append(log_mel(x, pad=False))
        stop = seconds - tail
        for p in pieces:
            for lang, key, start, end, speed in p["units"]:
                start, end = start - cut, end - cut
                if times is not None:
                    for c, a, z in times["chars"][lang, key]:
                        a, z = int((start + a / speed) * 50), int((start + z / speed) * 50 + 0.5)
                        labels[b, max(a, 0) : max(z, 0)] = c
                    for w, a, z in times["words"][lang, key]:
                        a, z = (start + a / speed) * rate, (start + z / speed) * rate
                        lexical[b, max(round(a), 0) : max(round(z), round(a) + 1, 0)] = times["class"][w]
                if start < 0 or end > stop:
                    continue
                y = spell(world.unit[lang, key].text)
                a, z = max(0, int(start * 50) - 1), min(int(seconds * 50), int(end * 50) + 3)
                if y and z - a > len(y):
                    spans.append((b, a, z, y))
        if times is not None and tail:
            labels[b, int(stop * 50) :] = 0
            lexical[b, int(stop * rate) :] = 0
    return torch.stack(mels), spans, torch.from_numpy(labels), torch.from_numpy(lexical)


def producer(out, seed, count, seconds, times, rate):
    """Background process that keeps the queue of batches filled."""
    os.nice(8)
    try:
        os.sched_setaffinity(0, {0})
    except OSError:
        pass
    torch.set_num_threads(1)
    world, rng = World.load(), random.Random(seed)
    while True:
        mel, spans, labels, lexical = windows(world, rng, count, seconds, times, rate)
        out.put((mel.half().numpy(), spans, labels.numpy(), lexical.numpy()))


def ctc_loss(logits, spans):
    """CTC of every unit inside its own span, per character."""
    long = max(z - a for _, a, z, _ in spans)
    rows = torch.stack([F.pad(logits[b, a:z], (0, 0, 0, long - (z - a))) for b, a, z, _ in spans])
    y = [torch.tensor(s[3]) for s in spans]
    n = torch.tensor([len(s) for s in y])
    loss = F.ctc_loss(
        rows.float().log_softmax(-1).transpose(0, 1),
        torch.cat(y),
        torch.tensor([z - a for _, a, z, _ in spans]),
        n,
        reduction="sum",
        zero_infinity=True,
    )
    return loss / n.sum()


def mask(mel, rng):
    """Light SpecAugment: one band and two short gaps in every second window."""
    mel = mel.clone()
    for m in mel[::2]:
        f, w = rng.randint(0, 110), rng.randint(0, 18)
        m[f : f + w] = 0.0
        for _ in range(2):
            t, w = rng.randint(0, m.shape[1] - 20), rng.randint(0, 8)
            m[:, t : t + w] = 0.0
    return mel


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--steps", type=int, default=2500)
    a.add_argument("--seconds", type=float, default=8)
    a.add_argument("--batch", type=int, default=8)
    a.add_argument("--lr", type=float, default=2.5e-3)
    a.add_argument("--final", type=float, default=0.03, help="last learning rate as a share of the first")
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--input")
    a.add_argument("--voxtral", help="start from the encoder of an exported Voxtral model (qwen2_5_omni only)")
    a.add_argument("--times", help="character times from align.py: adds a frame-wise loss and windows cut anywhere")
    a.add_argument("--output", default=str(WORK / "encoder.pt"))
    a.add_argument("--minutes", type=float, default=0, help="time budget: the schedule follows the clock instead of the step count")
    a = a.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    rng = random.Random(a.seed)
    net = Recogniser(config())
    if a.input:
        net.load_state_dict(torch.load(a.input), strict=False)
    if a.voxtral:
        import omni
        from safetensors.torch import load_file

        weights = {k: v.float() for k, v in load_file(a.voxtral + "/model.safetensors").items()}
        net.voxtral.load_state_dict(omni.from_voxtral(weights, net.voxtral.c), strict=False)
    times = None
    if a.times:
        times = pickle.load(open(a.times, "rb"))
        times["class"] = vocabulary(times)
    named = [(n, p) for n, p in net.named_parameters() if "audio_tower" in n or n.startswith(("ctc", "frame", "word"))]
    print("encoder parameters", sum(p.numel() for _, p in named), flush=True)
    opt = Both(named, a.lr)
    feed = mp.get_context("spawn").Queue(8)
    world = World.load()
    worker = mp.get_context("spawn").Process(target=producer, args=(feed, a.seed + 1000, a.batch, a.seconds, times, net.voxtral.c.rate), daemon=True)
    worker.start()
    t = int(a.seconds * 50)
    start, mean, own = time.time(), None, 0
    step, share = 0, 0.0
    while share < 1:
        try:
            mel, spans, labels, lexical = feed.get(timeout=0.3 if step else 60)
            mel, labels, lexical = torch.from_numpy(mel).float(), torch.from_numpy(labels), torch.from_numpy(lexical)
        except queue.Empty:
            mel, spans, labels, lexical = windows(world, rng, a.batch, a.seconds, times, net.voxtral.c.rate)
            own += 1
        states = net.voxtral.frames(mask(mel, rng), net.voxtral.place(rng, t))
        enc = net.voxtral.normed(states)
        loss = value = ctc_loss(net.ctc(enc), spans)
        fr, wo, hit = torch.zeros(()), torch.zeros(()), torch.zeros(())
        if times is not None:
            fr = F.cross_entropy(net.frame(enc).flatten(0, 1), labels.flatten())
            guess, lexical = net.word(net.voxtral.features(states)).flatten(0, 1), lexical.flatten()
            wo, hit = F.cross_entropy(guess, lexical), (guess.argmax(-1) == lexical)[lexical > 0].float().mean()
            loss = loss + 0.5 * fr + 0.5 * wo
        loss.backward()
        opt.step(min(1, (step + 1) / 60) * (a.final + (1 - a.final) * 0.5 * (1 + math.cos(math.pi * share))))
        step += 1
        share = (time.time() - start) / 60 / a.minutes if a.minutes else step / a.steps
        mean = value.item() if mean is None else 0.95 * mean + 0.05 * value.item()
        if step % 25 == 0 or step == 5:
            print(f"{step} ctc {mean:.3f} frame {fr.item():.3f} word {wo.item():.3f} acc {hit.item():.3f} {time.time() - start:.0f}s own {own}", flush=True)
        if step % 200 == 0 or share >= 1:
            torch.save(net.state_dict(), a.output + ".tmp")
            os.replace(a.output + ".tmp", a.output)
    worker.kill()


if __name__ == "__main__":
    main()
