#!/bin/sh
# Repeats the whole training of models/tiny. PYTHON: the interpreter of the virtual environment; OUT: where the model goes.
set -eu
cd "$(dirname "$0")"
PYTHON=$(command -v "${PYTHON:-python3}")
export TINY_WORK="${TINY_WORK:-/tmp/tiny-voxtral}" OMP_NUM_THREADS=1
OUT=${OUT:-../../models/tiny}
mkdir -p "$TINY_WORK" "$OUT"
pin=""; [ "$(nproc)" -gt 1 ] && command -v taskset >/dev/null && pin="taskset -c 1"

"$PYTHON" data.py
"$PYTHON" tokenizer.py "$TINY_WORK/tekken.json"
# encoder: CTC alone for a first alignment, then afresh with frame and word labels, first on 8 s, then on 30 s windows
$pin "$PYTHON" encoder.py --minutes 9 --final 0.25 --lr 3e-3 --output "$TINY_WORK/encoder-1.pt"
"$PYTHON" align.py "$TINY_WORK/encoder-1.pt"
$pin "$PYTHON" encoder.py --minutes 9 --final 0.3 --lr 3e-3 --seed 3 --times "$TINY_WORK/times.pkl" --output "$TINY_WORK/encoder-2.pt"
$pin "$PYTHON" encoder.py --seconds 30 --batch 2 --minutes 9 --final 0.01 --lr 2e-3 --seed 4 --input "$TINY_WORK/encoder-2.pt" \
    --times "$TINY_WORK/times.pkl" --output "$TINY_WORK/encoder.pt"
"$PYTHON" align.py "$TINY_WORK/encoder.pt"
# projector and decoder
$pin "$PYTHON" train.py --lr 2.4e-3 --decay 0.45 --guide 1.0,0.3 \
    --plan "5:s10x16 12:30x7+s10x16 12:60x3+30x7+s16x10 16:120x2+60x3+30x7 50:240x1+240x1+180x1+120x2+60x3" --output "$TINY_WORK/model.pt"
# decoder again: heads lose audio, more and more of it, so that the model works on a part of its cache; then the mean of two runs' ends
$pin "$PYTHON" train.py --plan "74:240x1+180x1+120x2+60x3" --lr 1e-3 --decay 0.95 --warm 20 --guide 0.5,0.3 --drop 0.6 --ease 0.3 --seed 41 \
    --input "$TINY_WORK/model.pt" --output "$TINY_WORK/model-2.pt"
$pin "$PYTHON" train.py --plan "19:240x1+240x1+180x1+120x2+60x3" --lr 6e-4 --decay 0.95 --warm 20 --guide 0.3,0.3 --drop 0.55 --seed 43 \
    --input "$TINY_WORK/model-2.pt" --output "$TINY_WORK/model-3.pt"
"$PYTHON" mean.py "$TINY_WORK/model-2.pt:model" "$TINY_WORK/model-3.pt:last" --output "$TINY_WORK/mean.pt"
"$PYTHON" export.py "$TINY_WORK/mean.pt" "$OUT" --tokenizer "$TINY_WORK/tekken.json"
"$PYTHON" check_transformers.py "$OUT"
"$PYTHON" heldout.py "$TINY_WORK/heldout"
"$PYTHON" evaluate.py "$OUT" "$TINY_WORK/heldout" --output "$TINY_WORK/results.json"
