"""Stage 3: projector and decoder on the frozen encoder, with guided attention and a curriculum of lengths.

`--plan` is a list of phases, each MINUTES:MIX; a mix is SECONDSxBATCH joined by "+".
"s10x16" means unpadded windows of 10 s whose rotary positions imitate a place in
a long recording; "30x8", "60x4", ... "240x1" are whole recordings padded to 30 s
multiples exactly as at inference.
"""

import argparse
import collections
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

import layout
from data import SR, WORK, World, log_mel, plain
from layout import GUIDED
from optim import Both

RATE = layout.config().rate
CHUNK = int(30 * RATE)  # audio tokens of 30 s
QUERIES = 192
BF16 = "avx512_bf16" in open("/proc/cpuinfo").read()
LONG = 3000  # audio tokens of a recording as long as the model should bear


def translation_spans(n, start, end):
    """Where a translated token listens: the first to the whole prompt, then roughly in order, the stop to the prompt's end."""
    reach = max(0.5, 0.4 * (end - start))
    middle = [start + (end - start) * i / n for i in range(n)]
    spans = [(max(start, m - reach), min(end, m + reach)) for m in middle]
    spans[0], spans[-1] = (start, end), (max(start, end - 0.6), end)
    return spans


def tokens_with_spans(tok, words, pieces, task):
    """Answer ids and, for each, the audio span (s) it speaks about; </s> closes the list."""
    ids, spans = [], []
    for n, p in enumerate(pieces):
        whole = p["text"].split(" ")
        if task == "en2fr":
            ids_here = tok.encode(p["text"] if n == 0 else " " + p["text"])
            ids += ids_here
            spans += translation_spans(len(ids_here), p["start"], p["end"])
            continue
        elif len(p["units"]) > 1:
            times = [(u[2], u[3]) for u in p["units"]]
        else:
            lang, key, start, end, speed = p["units"][0]
            row, at, times = words[lang, key], 0, []
            for w in whole:
                k = len(plain(w).split())
                if k:
                    times.append((start + row[at][1] / speed, start + row[at + k - 1][2] / speed))
                else:
                    times.append(times[-1] if times else (start, end))
                at += k
        for i, (w, t) in enumerate(zip(whole, times)):
            new = tok.encode(w if n == 0 and i == 0 else " " + w)
            ids += new
            spans += [t] * len(new)
    last = pieces[-1]["end"] if pieces else 0.0
    return ids + [tok.eos], spans + [(last - 0.1, last + 1.5)]


def draw_task(rng, tasks):
    return rng.choices(list(tasks), list(tasks.values()))[0]


def example(world, tok, words, rng, task, kind, seconds, length):
    """One recording of `length` s: samples, prompt ids, answer ids, spans in audio tokens, rotary positions."""
    x, pieces = [], []
    while not pieces:
        x, pieces = world.compose(rng, length, task, tail=rng.uniform(0, 3) if kind == "short" and rng.random() < 0.3 else 0.0)
    ids, spans = tokens_with_spans(tok, words, pieces, task)
    if layout.NAME == "qwen2_5_omni":
        from omni import audio_tokens

        audio = audio_tokens(len(x))
    elif kind == "short":
        audio = int(seconds * RATE)
    else:
        audio = math.ceil(len(x) / (30 * SR)) * CHUNK
    tag = "auto" if task != "en2fr" and rng.random() < 0.1 else task
    prompt = tok.prompt(tag, audio)
    head = prompt.index(tok.audio)
    position = np.arange(len(prompt) + len(ids) - 1)
    if kind == "short" or (seconds <= 60 and rng.random() < 0.3):
        total = max(audio, CHUNK * rng.randint(1, 8))
        skip = rng.randint(0, total - audio)
        position[head : head + audio] += skip
        position[head + audio :] += total - audio
        position[len(prompt) :] += int(skip * rng.uniform(0.2, 0.45))
    return x, prompt, ids, [(a * RATE, b * RATE) for a, b in spans], position


def length_of(rng, kind, seconds):
    if kind == "short":
        return seconds
    if seconds > 30:
        return seconds - (rng.uniform(0, 29.5) if rng.random() < 0.5 else 0)
    return rng.uniform(8, 30) if rng.random() < 0.6 else 30


def batch(world, tok, words, net, rng, tasks, kind, seconds, count):
    if layout.NAME == "qwen2_5_omni":
        return omni_batch(world, tok, words, net, rng, draw_task(rng, tasks), kind, seconds, count)
    rows = [example(world, tok, words, rng, draw_task(rng, tasks), kind, seconds, length_of(rng, kind, seconds)) for _ in range(count)]
    with torch.no_grad():
        if kind == "short":
            mel = torch.stack([log_mel(r[0], pad=False) for r in rows])
            enc = net.frames(mel, net.place(rng, int(seconds * 50)))
        else:
            mels = [log_mel(r[0]) for r in rows]
            most = max(len(m) for m in mels)
            mels = [m if len(m) == most else torch.cat([m, m.new_full((most - len(m), 128, 3000), float(m.min()))]) for m in mels]
            enc = torch.cat([net.encode(m) for m in mels])
    features = enc.reshape(count, -1, 4 * enc.shape[-1])
    audio = features.shape[1]
    fixed = []
    for x, prompt, ids, spans, position in rows:
        n = prompt.count(tok.audio)
        if n < audio:  # a shorter recording in the batch: pad it to the batch's number of chunks
            prompt = prompt[:3] + [tok.audio] * audio + prompt[3 + n :]
            position = np.arange(len(prompt) + len(ids) - 1)
        fixed.append((prompt, ids, spans, position))
    return features.half(), fixed


def omni_batch(world, tok, words, net, rng, task, kind, seconds, count):
    """Recordings of one task and one length, since nothing is padded; what comes before the audio depends on the task."""
    from omni import mel_of

    length = length_of(rng, kind, seconds)
    rows = [example(world, tok, words, rng, task, kind, seconds, length) for _ in range(count)]
    with torch.no_grad():
        features = net.features(net.frames(torch.stack([mel_of(r[0]) for r in rows])))
    return features.half(), [row[1:] for row in rows]


def producer(out, phase, plan, tasks, seed, encoder, tokenizer):
    os.nice(0)
    try:
        os.sched_setaffinity(0, {0})
    except OSError:
        pass
    torch.set_num_threads(1)
    world, tok, words, net = setting(encoder, tokenizer)
    rng = random.Random(seed)
    while True:
        n = phase.value
        what = rng.choice(plan[n][1])
        f, rows = batch(world, tok, words, net, rng, tasks, *what)
        out.put((n, what, f.numpy(), rows))


def setting(encoder, tokenizer):
    net = layout.Model(layout.config())
    state = torch.load(encoder)
    net.audio_tower.load_state_dict({k.split("audio_tower.")[1]: v for k, v in state.items() if "audio_tower." in k})
    net.eval()
    words = pickle.load(open(WORK / "times.pkl", "rb"))["words"]
    return World.load(), layout.Tokenizer(tokenizer), words, net


def parse_plan(text):
    plan = []
    for phase in text.split():
        minutes, mix = phase.split(":")
        kinds = []
        for m in mix.split("+"):
            seconds, count = m.lstrip("s").split("x")
            kinds.append(("short" if m[0] == "s" else "whole", int(seconds), int(count)))
        plan.append((float(minutes), kinds))
    return plan


def spoil(ids, rng, tok):
    """Replaces text tokens at random, few in most prompts and many in every fourth: who cannot trust the text must listen."""
    said, rate = [], 0.05
    for i in ids:
        said.append(rng.choice(tok.text) if rng.random() < rate else i)
        if i in tok.ends:
            rate = 0.4 if rng.random() < 0.25 else 0.05
    return said


def ebb(c, rows, low, high, head, audio, longest, rng, ease=0.0):
    """Which keys the answer's queries see, per layer, when most heads have lost most of the audio.

    Large speech LLMs stay accurate when heads lose audio far from what is being said; a model as small as this one
    learns to only if it has to. So in a share of the batches every head but some guided ones keeps a random part of the
    audio, half a percent to all of it, and some also see the seconds around the word that the *previous* token spoke about.
    `ease` raises the least level, from that of the smallest budgets (0) to all (1): a model that has never missed
    anything learns nothing from missing nearly everything.
    """
    b, n = len(rows), min(len(p) for p, _, _, _ in rows)
    answers = longest - n
    dice = torch.Generator().manual_seed(rng.randrange(1 << 30))
    # one level for all heads, so that none can be relied on; most often low, as under a budget of a tenth or a fifth
    level = math.exp((1 - ease) * rng.uniform(math.log(0.02), math.log(0.15) if rng.random() < 0.6 else 0.0))
    share = level * (0.2 + 0.8 * torch.rand(c.layers, c.kv_heads, generator=dice)) ** (1 - ease)
    tidal = torch.rand(c.layers, c.kv_heads, generator=dice) < rng.uniform(0.2, 0.9)
    # under the smallest budgets there is room for one or two anchors only
    anchors = GUIDED if rng.random() < 0.6 else rng.sample(GUIDED, rng.randint(1, 2))
    for guided in GUIDED:
        tidal[guided[:2]] = True
        if guided in anchors:
            share[guided[:2]] = 1.0
    frame = torch.arange(audio) + 0.5
    reach = rng.uniform(2.0, 6.0) * RATE
    before = lambda x: torch.cat([x[:, :1], x[:, :-1]], 1)[:, n:, None]
    near = (frame > before(low) - reach) & (frame < before(high) + reach)  # [b, answers, audio]
    causal = torch.ones(answers, longest, dtype=torch.bool).tril(n)
    # what is still prompt in a longer prompt sees everything
    whole = torch.zeros(b, answers, 1, dtype=torch.bool)
    for k, (prompt, _, _, _) in enumerate(rows):
        whole[k, : len(prompt) - n] = True

    def visible(layer):
        kept = torch.rand(b, c.kv_heads, 1, audio, generator=dice) < share[layer][:, None, None]
        seen = kept | whole[:, None] | (near[:, None] & tidal[layer][:, None, None])
        mask = causal.expand(b, c.kv_heads, answers, longest).clone()
        mask[..., head : head + audio] &= seen
        return mask

    return visible


def forward(net, tok, features, rows, rng, crowd=0.7, drop=0.0, ease=0.0):
    """Cross-entropy, accuracy and guided-attention loss of a batch; a share `drop` of batches goes through `ebb`."""
    c, b, audio = net.c, len(rows), features.shape[1]
    longest = max(len(p) + len(i) - 1 for p, i, _, _ in rows)
    head = rows[0][0].index(tok.audio)
    ids = torch.full((b, longest), tok.pad)
    target = torch.full((b, longest), -100)
    position = torch.zeros((b, longest), dtype=torch.long)
    low, high = torch.zeros((b, longest)), torch.zeros((b, longest))
    for k, (prompt, answer, spans, where) in enumerate(rows):
        n = len(prompt)
        ids[k, :n] = torch.tensor(prompt)
        said = spoil(answer[:-1], rng, tok)
        ids[k, n : n + len(said)] = torch.tensor(said, dtype=torch.long)
        target[k, n - 1 : n + len(said)] = torch.tensor(answer)
        position[k, : len(where)] = torch.from_numpy(where)
        low[k, n - 1 : n + len(said)] = torch.tensor([s[0] for s in spans])
        high[k, n - 1 : n + len(said)] = torch.tensor([s[1] for s in spans])
    decoder = net.language_model.model
    emb = decoder.embed_tokens(ids)
    heard = net.multi_modal_projector(features)
    emb = torch.cat([emb[:, :head], heard, emb[:, head + audio :]], 1)
    first = head + audio
    visible = ebb(c, rows, low, high, head, audio, longest, rng, ease) if rng.random() < drop else None
    # attention over 4000 positions is most of the work, and a third faster in bf16 where the processor multiplies it
    with torch.autocast("cpu", torch.bfloat16, enabled=BF16):
        hidden, seen = net.hidden(emb, position, watch={g[0] for g in GUIDED}, first=first, visible=visible)
    target = target[:, first:]
    chosen = target != -100
    logits = net.language_model.lm_head(hidden[chosen])
    # the first token of a prompt and the end are the hard decisions, and rare
    before = torch.cat([torch.full((b, 1), tok.ends[0]), target[:, :-1]], 1)
    weight = torch.where(target == tok.eos, 4.0, torch.where((before == tok.ends[0]) | (before == tok.ends[1]), 2.0, 1.0))
    weight = weight * chosen
    loss = (F.cross_entropy(logits, target[chosen], reduction="none") * weight[chosen]).sum() / weight.sum()
    accuracy = (logits.argmax(-1) == target[chosen]).float().mean()

    # attention of the guided heads at some of the text positions
    some = torch.tensor(sorted(rng.sample(range(longest - first), min(longest - first, QUERIES))))
    want, at = weight[:, some], first + some
    frame = torch.arange(audio) + 0.5
    causal = torch.arange(longest) <= at[:, None]
    guided = []
    for layer, kv_head, slack in GUIDED:
        q, k = seen[layer]
        g = c.heads // c.kv_heads
        q, k = q[:, kv_head * g : (kv_head + 1) * g, at], k[:, kv_head : kv_head + 1]
        score = (q @ k.mT) * c.head_dim**-0.5
        score = score.masked_fill(~causal, -1e9)
        from_ = (low[:, at] - slack * RATE).clamp(max=audio - 3.0)[..., None]
        to = (high[:, at] + slack * RATE)[..., None]
        inside = (frame > from_) & (frame < torch.maximum(to, from_ + 2))
        part = score[..., head:first].masked_fill(~inside[:, None], -1e9).logsumexp(-1)
        rest = score.masked_fill(F.pad(inside, (head, longest - first))[:, None], -1e9).logsumexp(-1)
        # a short recording has fewer distractors than four minutes have: count each of them several times
        gain = part - torch.logaddexp(part, rest + crowd * math.log(max(1.0, LONG / audio)))
        guided.append(-(gain * want[:, None]).sum() / (want.sum() * g))
    return loss, accuracy, torch.stack(guided)


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--plan", default="5:s10x16 10:30x7")
    a.add_argument("--tasks", default="en:0.56,fr:0.24,en2fr:0.2", help="share of the batches' recordings")
    a.add_argument("--lr", type=float, default=2e-3)
    a.add_argument("--decay", type=float, default=0.3, help="share of the time in which the rate falls to its end")
    a.add_argument("--warm", type=int, default=60)
    a.add_argument("--guide", default="1.0,0.1", help="weight of the guided attention at the start and at the end")
    a.add_argument("--drop", type=float, default=0.0, help="share of batches in which heads lose audio: see ebb()")
    a.add_argument("--ease", type=float, default=0.0, help="share of the time in which the loss of audio grows to its full extent")
    a.add_argument("--average", type=float, default=0.02, help="share of the newest weights in the running average")
    a.add_argument("--encoder", default=str(WORK / "encoder.pt"))
    a.add_argument("--tokenizer", default=str(layout.TOKENIZER))
    a.add_argument("--input")
    a.add_argument("--output", default=str(WORK / "model.pt"))
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    rng = random.Random(a.seed)
    _, tok, _, net = setting(a.encoder, a.tokenizer)
    if a.input:
        state = torch.load(a.input)["last"]
        net.load_state_dict({k: v for k, v in state.items() if "audio_tower" not in k}, strict=False)
    for p in net.audio_tower.parameters():
        p.requires_grad_(False)
    opt = Both(net.named_parameters(), a.lr)
    average = {n: p.detach().clone() for n, p in net.named_parameters() if p.requires_grad}
    plan = parse_plan(a.plan)
    tasks = {task: float(share) for task, share in (t.split(":") for t in a.tasks.split(","))}
    total = sum(m for m, _ in plan) * 60
    g0, g1 = map(float, a.guide.split(","))
    context = mp.get_context("spawn")
    feed, phase = context.Queue(12), context.Value("i", 0)
    worker = context.Process(target=producer, args=(feed, phase, plan, tasks, a.seed + 77, a.encoder, a.tokenizer), daemon=True)
    worker.start()
    start = saved = time.time()
    step, again, ends, means = 0, 0, np.cumsum([m * 60 for m, _ in plan]), {}
    replay = collections.deque(maxlen=300)  # when the producer is behind, an old batch is used again
    while True:
        spent = time.time() - start
        if spent >= total:
            break
        phase.value = int(np.searchsorted(ends, spent, side="right"))
        usable = sum(r[0] in plan[phase.value][1] for r in replay)
        try:
            new = feed.get(timeout=0.02 if usable > 10 else 60)[1:]
            if new[0] not in plan[phase.value][1]:
                continue
            replay.append(new)
        except queue.Empty:
            new = rng.choice([r for r in replay if r[0] in plan[phase.value][1]])
            again += 1
        what, f, rows = new
        features = torch.from_numpy(f)
        share = spent / total
        ease = max(0.0, 1 - share / a.ease) if a.ease else 0.0
        loss, accuracy, guided = forward(net, tok, features.float(), rows, rng, drop=a.drop, ease=ease)
        (loss + (g0 + (g1 - g0) * share) * guided.mean()).backward()
        opt.step(min(1, (step + 1) / a.warm) * max(0.02, min(1, (1 - share) / max(a.decay, 1e-6))))
        step += 1
        with torch.no_grad():
            for n, p in net.named_parameters():
                if n in average:
                    average[n].lerp_(p, max(a.average, 1 / (step + 1)))
        key = f"{what[0][0]}{what[1]}"
        new = np.array([loss.item(), accuracy.item(), *guided.tolist()])
        means[key] = new if key not in means else 0.9 * means[key] + 0.1 * new
        if step % 20 == 0:
            print(
                f"{step} {time.time() - start:.0f}s again {again} |",
                " | ".join(f"{k} loss {v[0]:.3f} acc {v[1]:.3f} guide " + " ".join(f"{x:.2f}" for x in v[2:]) for k, v in sorted(means.items())),
                flush=True,
            )
        if time.time() - saved > 120:
            save(net, average, a.output)
            saved = time.time()
    save(net, average, a.output)
    worker.kill()


def save(net, average, path):
    """Last weights under "last", their running average (which is what gets exported) under "model"."""
    last = net.state_dict()
    torch.save({"model": {**last, **average}, "last": last}, path + ".tmp")
    os.replace(path + ".tmp", path)


if __name__ == "__main__":
    main()
