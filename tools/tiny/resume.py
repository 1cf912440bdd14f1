"""Rebuilds a training state from an exported model: its weights, and a CTC head for its encoder (which is not exported).

With it the training goes on where the published weights stand: `align.py` on the encoder state gives the word times,
`train.py --input` takes the model state.
"""

import argparse
import random
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from data import WORK, World
from encoder import Recogniser, ctc_loss, windows
from layout import config


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("folder", type=Path, help="an exported model, such as models/tiny")
    a.add_argument("--minutes", type=float, default=3, help="time for the CTC head")
    a.add_argument("--encoder", default=str(WORK / "encoder.pt"), help="encoder state to write")
    a.add_argument("--output", default=str(WORK / "model.pt"), help="model state to write")
    a = a.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = Recogniser(config())
    weights = {k: v.float() for k, v in load_file(a.folder / "model.safetensors").items()}
    net.voxtral.load_state_dict(weights)
    torch.save({"model": weights, "last": weights}, a.output)
    for p in net.voxtral.parameters():
        p.requires_grad_(False)
    opt = torch.optim.AdamW(net.ctc.parameters(), lr=1e-2)
    world, rng, start, step, mean = World.load(), random.Random(5), time.time(), 0, None
    while (share := (time.time() - start) / 60 / a.minutes) < 1:
        mel, spans, _, _ = windows(world, rng, 8, 8)
        with torch.no_grad():
            enc = net.voxtral.frames(mel, net.voxtral.place(rng, 400))
        loss = ctc_loss(net.ctc(enc), spans)
        loss.backward()
        opt.param_groups[0]["lr"] = 1e-2 * (1 - 0.95 * share)
        opt.step()
        opt.zero_grad()
        step += 1
        mean = loss.item() if mean is None else 0.95 * mean + 0.05 * loss.item()
        if step % 25 == 0:
            print(f"{step} ctc {mean:.3f} {time.time() - start:.0f}s", flush=True)
    torch.save(net.state_dict(), a.encoder)


if __name__ == "__main__":
    main()
