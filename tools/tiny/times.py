"""Scores the word times in `wnw transcribe --format json` results against the held-out recordings' exact ones.

    wnw transcribe --language en --timestamps word --format json HELDOUT/en-*.flac > en.json
    python times.py en.json fr.json HELDOUT

Words are aligned by their normalised text, and only equal ones are compared. All figures are in milliseconds; signed
ones are result minus truth, so a positive one is late. A translation has no word times: what is compared there is
each sentence that came out as in the reference, from its first word's start to its last word's end.
"""

import argparse
import json
import re
import statistics
from collections import defaultdict
from difflib import SequenceMatcher
from pathlib import Path


def normalise(word):
    """Letters and digits in lower case."""
    return re.sub(r"[\W_]+", "", word.lower())


def equal(truth, found):
    """Pairs of equal words, by (text, …) rows."""
    matcher = SequenceMatcher(None, [t[0] for t in truth], [f[0] for f in found], autojunk=False)
    for block in matcher.get_matching_blocks():
        yield from zip(truth[block.a : block.a + block.size], found[block.b : block.b + block.size])


def rows(words):
    return [(normalise(w["word"]), w["start"], w["end"]) for w in words if normalise(w["word"])]


def word_errors(prompts, found):
    """(start error, end error) of every equal word, and the number of words that could be."""
    truth = rows(w for p in prompts for w in p["words"])
    return [(f[1] - t[1], f[2] - t[2]) for t, f in equal(truth, found)], len(truth)


def sentence_errors(prompts, found):
    """The same of every sentence that came out whole."""
    truth = [(normalise(w), n) for n, p in enumerate(prompts) for w in p["text"].split() if normalise(w)]
    length, seen = defaultdict(int), defaultdict(list)
    for _, n in truth:
        length[n] += 1
    for t, f in equal(truth, found):
        seen[t[1]].append(f)
    whole = [n for n in seen if len(seen[n]) == length[n]]
    errors = [(seen[n][0][1] - prompts[n]["start"], seen[n][-1][2] - prompts[n]["end"]) for n in whole]
    return errors, len(prompts)


def describe(errors):
    """Of errors in seconds: mean, median and 90th percentile of their size, and their signed mean."""
    sizes = sorted(abs(e) for e in errors)
    ninth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    row = (statistics.fmean(sizes), statistics.median(sizes), ninth, statistics.fmean(errors))
    return "mean {:4.0f}, median {:4.0f}, 90 % {:4.0f}, signed {:+4.0f}".format(*(1000 * x for x in row))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("results", type=Path, nargs="+", help="JSON: one transcript, or an array")
    a.add_argument("heldout", type=Path, help="folder with NAME.words.json")
    a = a.parse_args()
    errors, counts = defaultdict(list), defaultdict(lambda: [0, 0])
    for name in a.results:
        recordings = json.loads(name.read_text(encoding="utf-8"))
        for r in recordings if isinstance(recordings, list) else [recordings]:
            if "words" not in r:
                print(f"{name}: {r.get('file')}: no words ({r.get('error', 'were times asked for?')})")
                continue
            truth = json.loads((a.heldout / f"{Path(r['file']).stem}.words.json").read_text(encoding="utf-8"))
            found, task = rows(r["words"]), truth["task"]
            whole = all("words" in p for p in truth["prompts"])
            new, total = (word_errors if whole else sentence_errors)(truth["prompts"], found)
            errors[task] += new
            counts[task][0] += 1
            counts[task][1] += total
    for task, (recordings, total) in counts.items():
        print(f"{task}: {recordings} recordings, {len(errors[task])} of {total} compared")
        if errors[task]:
            starts, ends = zip(*errors[task])
            print(f"  |start error| ms: {describe(starts)}")
            print(f"  |end error|   ms: {describe(ends)}")


if __name__ == "__main__":
    main()
