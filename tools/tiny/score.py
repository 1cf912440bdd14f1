"""Scores what `wnw transcribe --format json` made of the held-out recordings.

    wnw transcribe --language en --format json HELDOUT/en-*.flac > en.json
    python score.py en.json            # truncated word error rate, BLEU, runs that did not end

The reference of X.flac is X.txt beside it. Word errors are `evaluate.py`'s.
"""

import json
import sys
from pathlib import Path

import sacrebleu

from evaluate import errors, normalise


def main():
    for name in sys.argv[1:]:
        recordings = json.loads(Path(name).read_text())
        recordings = recordings if isinstance(recordings, list) else [recordings]
        wrong = words = 0
        hypotheses, references = [], []
        for r in recordings:
            reference = Path(r["file"]).with_suffix(".txt").read_text().strip()
            ref, hyp = normalise(reference), normalise(r["text"])
            kept = int(1.2 * len(ref))
            wrong += errors(ref, hyp[:kept])
            words += len(ref)
            hypotheses.append(r["text"])
            references.append(reference)
        bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
        ended = sum(r["finish_reason"] == "stop" for r in recordings)
        print(f"{name}: {len(hypotheses)} recordings, truncated WER {100 * wrong / words:.1f} %, BLEU {bleu:.1f}, ended {ended}")


if __name__ == "__main__":
    main()
