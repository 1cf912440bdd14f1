"""Free greedy decoding of held-out recordings with transformers: truncated WER, BLEU, runs that do not end."""

import argparse
import json
import re
import time
from pathlib import Path

import sacrebleu
import soundfile as sf
import torch
from safetensors.torch import load_file

from data import log_mel
from model import Config, Voxtral
from tokenizer import EOS, Tekken


def normalise(text):
    """Lower-case words without punctuation except ' and ."""
    return re.sub(r"[^\w'. ]+", " ", text.lower().replace("_", " ")).split()


def errors(ref, hyp):
    """Word edit distance."""
    row = list(range(len(hyp) + 1))
    for i, r in enumerate(ref, 1):
        last, row[0] = row[0], i
        for j, h in enumerate(hyp, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (r != h))
    return row[-1]


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("model", type=Path)
    a.add_argument("folder", type=Path, help="recordings of heldout.py")
    a.add_argument("--tasks", default="en,fr,en2fr")
    a.add_argument("--names", help="only these recordings (comma separated)")
    a.add_argument("--auto", action="store_true", help="transcription without a language tag")
    a.add_argument("--output", type=Path, help="JSON with every hypothesis")
    a.add_argument("--fast", action="store_true", help="decode with model.py instead of transformers (same numbers, faster)")
    a.add_argument("--show", action="store_true")
    a = a.parse_args()
    torch.set_num_threads(1)
    if a.fast:
        model = Voxtral(Config()).eval()
        model.load_state_dict({n: t.float() for n, t in load_file(a.model / "model.safetensors").items()})
    else:
        from transformers import VoxtralForConditionalGeneration

        model = VoxtralForConditionalGeneration.from_pretrained(a.model, dtype=torch.float32).eval()
    tok = Tekken(a.model / "tekken.json")
    rows, report = [], {}
    for task in a.tasks.split(","):
        wrong = total = unended = 0
        refs, hyps, start = [], [], time.time()
        for path in sorted(a.folder.glob(f"{task}-??.flac")):
            if a.names and path.stem not in a.names.split(","):
                continue
            x, sr = sf.read(path, dtype="float32")
            assert sr == 16000
            mel = log_mel(x)
            prompt = tok.prompt("auto" if a.auto and task != "en2fr" else task, 375 * len(mel))
            limit = int(8 * len(x) / sr) + 50
            if a.fast:
                out = model.greedy(mel, prompt, limit)
            else:
                ids = torch.tensor([prompt])
                with torch.no_grad():
                    out = model.generate(
                        input_ids=ids,
                        attention_mask=torch.ones_like(ids),
                        input_features=mel,
                        do_sample=False,
                        max_new_tokens=limit,
                    )[0, len(prompt) :].tolist()
            ended = out[-1] == EOS
            text, want = tok.decode(out), path.with_suffix(".txt").read_text(encoding="utf-8").strip()
            ref, hyp = normalise(want), normalise(text)
            e = errors(ref, hyp[: int(1.2 * len(ref))])
            wrong, total, unended = wrong + e, total + len(ref), unended + (not ended)
            refs.append(want)
            hyps.append(text)
            bleu = sacrebleu.corpus_bleu([text], [[want]]).score
            rows.append({"name": path.stem, "wer": e / len(ref), "bleu": bleu, "ended": ended, "hypothesis": text, "reference": want})
            print(f"{path.stem} {len(x) / sr:.0f} s: WER {100 * e / len(ref):.1f} BLEU {bleu:.1f} ended {ended} tokens {len(out)}", flush=True)
            if a.show:
                print("   ", text[:600])
        if refs:
            bleu = sacrebleu.corpus_bleu(hyps, [refs]).score
            report[task] = {"n": len(refs), "truncated_wer": 100 * wrong / total, "bleu": bleu, "not_ended": unended}
            print(f"== {task}: n {len(refs)} truncated WER {100 * wrong / total:.2f} BLEU {bleu:.2f} not ended {unended} ({time.time() - start:.0f} s)", flush=True)
    if a.output:
        a.output.write_text(json.dumps({"summary": report, "recordings": rows}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
