#!/bin/sh
# Trains the second small model, in the layout of Qwen2.5-Omni; its encoder starts from models/tiny's. PYTHON: the interpreter
# of the virtual environment; OUT: where the model goes; WNW: the program, for the calibration and the comparison.
set -eu
cd "$(dirname "$0")"
PYTHON=$(command -v "${PYTHON:-python3}")
WNW=${WNW:-../../target/release/wnw}
export TINY_WORK="${TINY_WORK:-/tmp/tiny-omni}" OMP_NUM_THREADS=1
OUT=${OUT:-$TINY_WORK/model}
mkdir -p "$TINY_WORK"
pin=""; [ "$(nproc)" -gt 1 ] && command -v taskset >/dev/null && pin="taskset -c 1"

"$PYTHON" data.py
# word times, from a CTC head on the first model's encoder
"$PYTHON" resume.py ../../models/tiny --minutes 3 --encoder "$TINY_WORK/encoder-tiny.pt" --output "$TINY_WORK/model-tiny.pt"
"$PYTHON" align.py "$TINY_WORK/encoder-tiny.pt"
export TINY_LAYOUT=qwen2_5_omni
"$PYTHON" tokenizer.py "$TINY_WORK/tokenizer.json"
$pin "$PYTHON" encoder.py --voxtral ../../models/tiny --minutes 13 --final 0.02 --lr 2.5e-3 --seconds 8 --batch 10 \
    --times "$TINY_WORK/times.pkl" --output "$TINY_WORK/encoder.pt"
$pin "$PYTHON" train.py --tasks en:0.65,fr:0.35 --lr 2.4e-3 --decay 0.5 --guide 1.0,0.3 \
    --plan "32:s10x12 25:s10x8+s20x4+30x3 33:30x4+s10x8" --output "$TINY_WORK/model.pt"
# decoder again: heads lose audio, so that the model works on a part of its cache
$pin "$PYTHON" train.py --tasks en:0.65,fr:0.35 --lr 1e-3 --decay 0.95 --warm 20 --guide 0.5,0.3 --drop 0.6 --ease 0.3 --seed 41 \
    --plan "${DROP_MINUTES:-75}:30x4+s10x8" --input "$TINY_WORK/model.pt" --output "$TINY_WORK/model-2.pt"
"$PYTHON" export.py "$TINY_WORK/model-2.pt" "$OUT" --seconds 30
"$PYTHON" check_omni.py "$OUT"
# recordings as long as those that it was trained on; head roles; full cache and WnW
"$PYTHON" heldout.py "$TINY_WORK/calibration" --calibration 24 --longest 30
"$PYTHON" heldout.py "$TINY_WORK/en" --longest 30 --tasks en
"$PYTHON" heldout.py "$TINY_WORK/fr" --longest 30 --tasks fr
"$WNW" calibrate --model "$OUT" --recursive --language en --n-anchor 2 --fit-lambda 0.8,0.6,0.4,0.2 -o "$OUT/wnw-profile.json" "$TINY_WORK/calibration"
for language in en fr; do
  "$WNW" eval --model "$OUT" --dataset "$TINY_WORK/$language/manifest.jsonl" --methods full,wnw,snapkv --ratios 0.8,0.6,0.4,0.2 --out "$TINY_WORK/eval-$language"
done
