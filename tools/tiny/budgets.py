"""Runs `wnw transcribe` on the held-out recordings at several KV budgets and prints one table in Markdown.

    python budgets.py HELDOUT --wnw target/release/wnw --profile labelled=models/tiny/profile.json --profile self=self.json

Rows are methods and targets, columns what `score.py` counts and what the JSON reports. Results are kept in --work, so
that a broken-off run goes on.
"""

import argparse
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sacrebleu

from evaluate import errors, normalise

TASKS = {"en": ["--language", "en"], "fr": ["--language", "fr"], "en2fr": ["--task", "translate", "--to", "fr"]}


def score(recordings):
    """Truncated WER (%), BLEU, and the number of runs that ended."""
    wrong = words = 0
    hypotheses, references = [], []
    for r in recordings:
        reference = Path(r["file"]).with_suffix(".txt").read_text().strip()
        ref, hyp = normalise(reference), normalise(r["text"])
        wrong += errors(ref, hyp[: int(1.2 * len(ref))])
        words += len(ref)
        hypotheses.append(r["text"])
        references.append(reference)
    bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
    return 100 * wrong / words, bleu, sum(r["finish_reason"] == "stop" for r in recordings)


def mean(recordings, key):
    """Mean over decode steps."""
    steps = sum(r["statistics"]["new_tokens"] for r in recordings)
    return sum(key(r) * r["statistics"]["new_tokens"] for r in recordings) / max(1, steps)


def row(name, task, recordings):
    wer, bleu, ended = score(recordings)
    s = lambda k: mean(recordings, lambda r: r["statistics"][k])
    return "| {} | {} | {} | {} of {} | {:.1f} | {:.1f} | {:.2f} | {:.3f} | {:.1f} |".format(
        name, task, f"BLEU {bleu:.1f}" if task == "en2fr" else f"WER {wer:.1f}", ended, len(recordings), 100 * s("r_gpu"), 100 * s("r_gpu_cpu"),
        s("kv_bytes") / 2**20, s("recalled_bytes_per_step") / 1e6, mean(recordings, lambda r: r["timing"]["median_step_ms"]),
    )


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("heldout", type=Path)
    a.add_argument("--wnw", default="target/release/wnw")
    a.add_argument("--model", default="tiny")
    a.add_argument("--profile", action="append", default=[], help="NAME=FILE")
    a.add_argument("--targets", default="0.8,0.6,0.4,0.2,0.1")
    a.add_argument("--tasks", default="en,fr,en2fr")
    a.add_argument("--count", type=int, default=20, help="recordings of each task")
    a.add_argument("--extra", default="", help="more flags for every WnW run")
    a.add_argument("--recovery", action="store_true", help="begin again where the model loses its place: measures the program; without it, the method")
    a.add_argument("--work", type=Path, default=Path("/tmp/wnw-budgets"))
    a.add_argument("--jobs", type=int, default=1)
    a = a.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    runs = [("full", [])]
    for profile in a.profile:
        name, _, path = profile.partition("=")
        runs += [(f"wnw {name} {t}", ["--kv", "wnw", "--r-gpu", t, "--kv-profile", path, *a.extra.split()]) for t in a.targets.split(",")]

    def one(job):
        (name, flags), task = job
        out = a.work / f"{name.replace(' ', '-')}-{task}.json"
        if not out.exists():
            files = sorted(a.heldout.glob(f"{task}-*.flac"))[: a.count]
            command = [a.wnw, "--threads", "1", "transcribe", "-q", "--timings", "--format", "json", "--model", a.model, *TASKS[task], *flags, *([] if a.recovery else ["--no-recovery"]), *files]
            # exit code 1 says that some recording failed; its error stands in the JSON
            result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, check=False)
            if result.returncode not in (0, 1):
                raise SystemExit(f"{name} {task}: exit code {result.returncode}")
            out.write_bytes(result.stdout)
        return name, task, json.loads(out.read_text())

    print("| method, target r_GPU | task | score | ended | r_GPU % | r_GPU+CPU % | device MiB | MB/step | ms/token |")
    print("|---|---|---|---|---|---|---|---|---|")
    with ThreadPoolExecutor(a.jobs) as pool:
        for name, task, recordings in pool.map(one, [(r, t) for t in a.tasks.split(",") for r in runs]):
            print(row(name, task, recordings), flush=True)


if __name__ == "__main__":
    main()
