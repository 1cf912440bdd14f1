#!/usr/bin/env python3
"""Fills the table of docs/bench.md: every target beside what was measured, in one run on an otherwise idle machine.

Takes 10 to 15 minutes and 12 GiB of memory with Voxtral Mini's sizes; `--quick` goes through the same commands with the
embedded model's sizes in a minute, to see that they work. The comparison with torch runs when `--python` names an
interpreter that has tools/bench/requirements.txt; both sides then do the same work, the first `--torch-layers` layers.

    python3 tools/bench/table.py --wnw target/release/wnw --python .venv/bin/python --json table.json
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Runner:
    """Runs commands that print JSON, and remembers them."""

    def __init__(self, wnw, threads):
        self.wnw, self.threads, self.log = wnw, threads, []

    def json(self, command):
        clock = time.time()
        print("+ " + " ".join(map(str, command)), file=sys.stderr, flush=True)
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
        out = json.loads(done.stdout)
        self.log.append({"command": list(map(str, command)), "seconds": time.time() - clock, "output": out})
        return out

    def bench(self, *arguments, threads=None):
        return self.json(
            [self.wnw, "bench", *arguments, "--json", "--threads", threads or self.threads]
        )


def row(report, **wanted):
    """The row of a decode report with these values."""
    found = [r for r in report["rows"] if all(r[name] == value for name, value in wanted.items())]
    if len(found) != 1:
        sys.exit(f"{len(found)} rows with {wanted}")
    return found[0]


def measure(run, args):
    """All figures, as (what, target, measured, met); met is None where there is nothing to compare."""
    quick = args.quick
    shape = "tiny" if quick else "voxtral-mini-3b"
    steps = "14" if quick else "28"
    long, middle, hour = ("60s", "30s", "4m") if quick else ("30m", "10m", "60m")
    base = ["decode", "--shape", shape, "--quiet"]
    table = []

    def add(what, target, value, text, at_least=True):
        met = None if value is None else (value >= target if at_least else value <= target)
        sign = "≥" if at_least else "≤"
        table.append((what, f"{sign} {target:g}", text, met))

    limit = run.bench("limit")
    peak = {p["operand"]: p["gflops"] for p in limit["limit"]["peak"] if p["threads"] == int(run.threads)}

    # The length of the audio plays no part in the weights' part; torch has the same.
    layers = ["--layers", args.torch_layers]
    torch = {}
    for dtype in ["bf16", "f32"] if args.python else []:
        command = [args.python, ROOT / "tools/bench/torch_side.py", "--shape", shape, "--dtype", dtype, *layers]
        torch[dtype] = run.json([*command, "--threads", run.threads, "--audio", "30", "--prefill", "30"])
    ours = {}
    for dtype in ["bf16", "q8_0"] if torch else []:
        ours[dtype] = run.bench(*base, *layers, "--dtype", dtype, "--audio", "30s", "--kv", "full", "--steps", "21")

    full = run.bench(*base, "--dtype", "bf16", "--audio", long, "--kv", "full", "--steps", steps)
    bf16 = row(full, kv="full")
    pair = run.bench(
        *base, "--audio", long, "--kv", "full,wnw", "--r-gpu", "0.2", "--recall-cost", "--steps", steps
    )
    q8_full, q8_wnw = row(pair, kv="full"), row(pair, kv="wnw")

    def of_limit(report, share, rate):
        # Each report measures the memory itself, just before its steps.
        read = report["machine"]["read"]["gb_per_s"]
        return f"{share:.2f} ({rate:.1f} of {read:.1f} GB/s)"

    def over_torch(dtype):
        if not torch:
            return None, "not measured: no --python"
        ms = {name: out["decode_ms_median"] for name, out in torch.items()}
        mine = ours[dtype]["rows"][0]["ms_median"]
        others = ", ".join(f"torch {name} {value:.1f} ms" for name, value in ms.items())
        text = f"{ms['bf16'] / mine:.2f} ({mine:.1f} ms, {others}; {ours[dtype]['layers']} layers)"
        return ms["bf16"] / mine, text

    add(
        "decode, weights part, bf16: share of bandwidth",
        0.85,
        bf16["weights_share"],
        of_limit(full, bf16["weights_share"], bf16["weights_gb_per_s"]),
    )
    add("decode, bf16: speed over torch bf16", 1.4, *over_torch("bf16"))
    add(
        "decode, weights part, q8_0: share of bandwidth",
        0.85,
        q8_full["weights_share"],
        of_limit(pair, q8_full["weights_share"], q8_full["weights_gb_per_s"]),
    )
    add("decode, q8_0: speed over torch bf16", 1.8, *over_torch("q8_0"))
    add(
        f"attention over resident KV, bf16, {long}, full cache: share of bandwidth",
        0.80,
        q8_full["kv_share"],
        of_limit(pair, q8_full["kv_share"], q8_full["kv_gb_per_s"]),
    )
    kv = q8_wnw["parts_ms"]["kv"] / q8_full["parts_ms"]["kv"]
    text = f"{kv:.2f} ({q8_wnw['parts_ms']['kv']:.1f} of {q8_full['parts_ms']['kv']:.1f} ms, r_GPU {q8_wnw['r_gpu']:.3f})"
    add(f"wnw 0.2 against full, {long}, q8_0: KV part of the step", 0.30, kv, text, at_least=False)
    added = q8_wnw["recall_added"]
    text = f"{added:+.3f} ({q8_wnw['ms_mean']:.1f} over {q8_wnw['still_ms_mean']:.1f} ms, {q8_wnw['mb_per_step']:.2f} MB/step)"
    add("recall overlapped: added step time", 0.03, added, text, at_least=False)

    batch = run.bench(
        *base, "--audio", middle, "--kv", "full,wnw", "--r-gpu", "0.2", "--batch", "1,8", "--steps", steps
    )
    rate = {(r["kv"], r["batch"]): r["tokens_per_s"] for r in batch["rows"]}
    ratio = rate["wnw", 8] / rate["full", 8]
    text = f"{ratio:.2f} ({rate['wnw', 8]:.1f} over {rate['full', 8]:.1f} tokens/s)"
    add(f"batch 8 × {middle}, q8_0: tokens/s of wnw 0.2 over the full cache", 2.5, ratio, text)
    ratio = rate["wnw", 8] / rate["wnw", 1]
    text = f"{ratio:.2f} ({rate['wnw', 8]:.1f} over {rate['wnw', 1]:.1f} tokens/s)"
    add(f"batch 8 × {middle}, q8_0, wnw 0.2: tokens/s over batch 1", 4.0, ratio, text)

    prefill = run.bench("prefill", "--shape", shape, "--dtype", "bf16", "--audio", "30s", "--quiet")
    encoder = run.bench("encoder", "--shape", shape, "--quiet")
    for name, report in [("prefill", prefill), ("encoder", encoder)]:
        stage = report["rows"][0]
        share = stage["share_of_bf16_peak"] or stage["share_of_f32_peak"]
        text = f"{share:.2f} ({stage['gflops']:.0f} of {peak['bf16'] or peak['f32']:.0f} GFLOP/s, {stage['times_real_time']:.1f}× real time)"
        add(f"{name}, bf16: share of the matrix peak", 0.85, share, text)
        if torch:
            part = run.bench(
                name, "--shape", shape, *layers, "--dtype", "bf16", "--quiet", *(["--audio", "30s"] if name == "prefill" else [])
            )["rows"][0]
            theirs = {dtype: out[f"{name}_seconds"] for dtype, out in torch.items()}
            times = ", ".join(f"torch {dtype} {value:.2f} s" for dtype, value in theirs.items())
            ratio = theirs["bf16"] / part["seconds"]
            add(f"{name}, bf16: speed over torch bf16", 1.0, ratio, f"{ratio:.2f} ({part['seconds']:.2f} s, {times})")
        else:
            add(f"{name}, bf16: speed over torch bf16", 1.0, *over_torch("bf16"))

    audio = run.bench("decode-audio", args.sample, threads=1)
    both = next(r for r in audio["rows"] if r["stage"] == "decode-audio and mel")
    add("decoding audio and mel, one thread: times real time", 200, both["times_real_time"], f"{both['times_real_time']:.0f}")
    first = run.bench("first-token", args.sample, "--quiet")
    seconds = first["first_token_seconds"]
    text = f"{seconds:.2f} s (loading {first['load_seconds']:.2f} s)"
    add("start to first token, embedded model, 4 minutes", 2.0, seconds, text, at_least=False)

    growth = run.bench("growth", "--shape", shape, "--audio", hour, "--quiet")["growth"]
    beyond = growth["growth_beyond_text"]
    moments = [growth[name] for name in ["early", "early_with_late_text", "late"]]
    text = f"{beyond:+.3f} ({', '.join(format(m['ms_median'], '.1f') for m in moments)} ms: early, with the late text, late)"
    add(f"token at the end of {hour} against minute 1, wnw 0.2: growth beyond text", 0.05, beyond, text, at_least=False)

    alone = run.bench(*base, "--audio", long, "--kv", "wnw", "--r-gpu", "0.2", "--steps", "7")
    most = alone["weights_bytes"] + 0.25 * alone["rows"][0]["full_kv_bytes"] + 1e9
    taken = alone["peak_memory_bytes"]
    text = f"{taken / most:.2f} ({taken / 1e9:.2f} of {most / 1e9:.2f} GB)"
    add(f"memory: process peak, q8_0, {long}, wnw 0.2, over weights + 0.25 × full KV + 1 GB", 1.0, taken / most, text, at_least=False)
    return limit, table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wnw", default=str(ROOT / "target/release/wnw"), help="the program")
    parser.add_argument("--threads", default=str(len(os.sched_getaffinity(0))))
    parser.add_argument("--sample", default=str(ROOT / "samples/prompts-en.flac"), help="a recording of four minutes")
    parser.add_argument("--python", help="an interpreter with torch and transformers; without it torch is left out")
    parser.add_argument("--torch-layers", default="4", help="layers of the comparison with torch, on both sides")
    parser.add_argument("--quick", action="store_true", help="the embedded model's sizes: the figures mean nothing")
    parser.add_argument("--json", help="write everything that was run and printed to this file")
    args = parser.parse_args()
    run = Runner(args.wnw, args.threads)
    clock = time.time()
    limit, table = measure(run, args)
    machine = limit["machine"]
    print(f"{machine['processor']}, {machine['threads']} threads; {time.time() - clock:.0f} s")
    for rate in limit["limit"]["read"]:
        print(f"memory read by {rate['threads']} thread(s): {rate['gb_per_s']:.1f} GB/s (median {rate['median_gb_per_s']:.1f})")
    for rate in limit["limit"]["peak"]:
        if rate["gflops"]:
            print(f"{rate['operand']}, {rate['threads']} thread(s): {rate['gflops']:.0f} GFLOP/s")
    print("\n| what | target | measured | met |\n|---|---|---|---|")
    for what, target, text, met in table:
        print(f"| {what} | {target} | {text} | {'–' if met is None else 'yes' if met else 'no'} |")
    if args.json:
        with open(args.json + ".part", "w") as out:
            json.dump({"table": table, "runs": run.log}, out, indent=1)
        os.replace(args.json + ".part", args.json)


if __name__ == "__main__":
    main()
