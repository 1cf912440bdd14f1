#!/usr/bin/env bash
# Makes docs/report.md: the tables and figures of arXiv 2608.22704 on the embedded model, each beside the paper's own numbers.
#
#   tools/report.sh            about an hour on two cores
#   tools/report.sh --quick    a few minutes, one recording of each set and few methods; checks that everything is made
#
# Numbers of ours come from the program's output and from nowhere else. What was measured is kept in --work, so that a run that was
# broken off goes on. Needs bash and awk, and the prompt recordings that `wnw data fetch tiny-en` names.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=no limit=6 jobs=$(nproc) wnw="" work=target/report out=docs data=()
usage() { sed -n '2,8p' "$0" | cut -c3-; exit "$1"; }
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=yes limit=1 work=target/report-quick out=target/report-quick/docs ;;
    --limit) limit=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --wnw) wnw=$2; shift ;;
    --work) work=$2; shift ;;
    --out) out=$2; shift ;;
    --data-dir) data=(--data-dir "$2"); shift ;;
    -h | --help) usage 0 ;;
    *) echo "report.sh: unknown flag $1" >&2; usage 2 ;;
  esac
  shift
done
if [ -z "$wnw" ]; then
  cargo build --release --locked
  wnw=${CARGO_TARGET_DIR:-target}/release/wnw
fi
mkdir -p "$work" "$out/report"
# A part without a recording would have nothing to put together.
jobs=$((jobs < limit ? jobs : limit))
started=$(date +%s)

if [ $quick = yes ]; then
  methods=full,wnw,arkvale,snapkv ratios=0.4,0.2 sets=(tiny-en tiny-en2fr)
else
  methods=full,wnw,wnw-dense,arkvale,quest,freekv,affpool,audiokv,adakv,adakv-safeguard,snapkv,pyramidkv,h2o,tova,headkv,razor-attention,streaming-llm
  ratios=0.8,0.6,0.4,0.2 sets=(tiny-en tiny-fr tiny-en2fr)
fi

for set in "${sets[@]}"; do
  "$wnw" data show "${data[@]}" "$set" >/dev/null 2>&1 || "$wnw" data fetch "${data[@]}" "$set"
done
folder() { "$wnw" data show "${data[@]}" "$1" --json | sed -n 's/^ *"path": "\(.*\)",\{0,1\}$/\1/p'; }

# evaluate NAME COMMAND… : runs `wnw COMMAND` as parts side by side, one thread each, and puts them together in $work/NAME.
evaluate() {
  local name=$1 pids=() i; shift
  for ((i = 0; i < jobs; i++)); do
    "$wnw" --threads 1 "$@" "${data[@]}" --limit "$limit" --shard "$i/$jobs" --out "$work/$name.$i" --quiet >/dev/null &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || [ $? = 1 ]; done
  rm -rf "${work:?}/$name"
  "$wnw" eval merge $(seq -f "$work/$name.%g" 0 $((jobs - 1))) --out "$work/$name" >/dev/null
  echo "report.sh: $name done after $((($(date +%s) - started) / 60)) min" >&2
}
overview() { awk '/^\| data set /{exit} {print}' "$work/$1/table.md"; }
# Rows of a run's full table for a data set.
rows() { awk -v set="$2" '/^\| data set /{on=1; print; getline; print; next} on && index($0, "| " set " |") == 1' "$work/$1/table.md"; }
# csv NAME DATASET METHOD TARGET COLUMN : one number.
csv() {
  awk -F, -v set="$2" -v method="$3" -v target="$4" -v column="$5" '
    NR == 1 {for (i = 1; i <= NF; i++) if ($i == column) c = i; next}
    $1 == set && $2 == method && $3 == target {print $c}' "$work/$1/table.csv"
}
# Methods of a run at a target, best first, with their scores; the full cache too.
order() {
  awk -F, -v set="$2" -v target="$3" '
    NR == 1 {for (i = 1; i <= NF; i++) name[$i] = i; next}
    $1 == set && ($3 == target || $3 == "") {printf "%s %s %.1f\n", ($4 == "bleu" ? -$name["score"] : $name["score"]), $2, $name["score"]}' "$work/$1/table.csv" |
    sort -n | awk '{printf "%s%s %s", (NR > 1 ? " · " : ""), $2, $3} END {print ""}'
}
evaluate main eval --methods $methods --ratios $ratios $(printf -- '--dataset %s ' "${sets[@]}")
if [ $quick = yes ]; then
  evaluate voice analyze sweep --dataset tiny-en --methods wnw --ratios 0.2 --over n_voice=4,12
  evaluate select analyze sweep --dataset tiny-en --methods wnw --ratios 0.2 --over selection=per-segment,global --over signal=product,voice,sensitivity
  evaluate sizes eval --dataset tiny-en --methods wnw:chunk=2:segment=1,wnw --ratios 0.2
  evaluate bytes eval --dataset tiny-en --methods full,full@int8,full@int4,wnw,wnw@int8 --ratios 0.4
  tidal=4,28 repeat=1
else
  evaluate voice analyze sweep --dataset tiny-en --methods full,wnw --ratios 0.2,0.1 --over n_voice=4,8,12,20,28
  evaluate select analyze sweep --dataset tiny-en --methods full,wnw --ratios 0.2,0.1 --over selection=per-segment,global --over signal=product,voice,sensitivity
  evaluate sizes eval --dataset tiny-en --methods full,wnw:chunk=1:segment=0.5,wnw:chunk=2:segment=1,wnw,wnw:chunk=6:segment=3,wnw:chunk=8:segment=4,wnw:n_anchor=1,wnw:n_anchor=2,wnw:n_anchor=3,wnw:n_anchor=4,wnw:top_chunks=1,wnw:top_chunks=2,wnw:top_chunks=5,wnw:top_chunks=8,wnw:release_after=1,wnw:release_after=6,wnw:release_after=20 --ratios 0.2
  evaluate bytes eval --dataset tiny-en --methods full,full@int8,full@int4,wnw,wnw@int8,wnw@int4,snapkv,snapkv@int8 --ratios 0.6,0.4,0.2
  tidal=4,8,12,16,20,24,28 repeat=3
fi

english=$(folder tiny-en)
mapfile -t recordings < <(find -L "$english" -name '*.wav' -o -name '*.flac' | sort | head -n $((limit < 5 ? limit : 5)))
first=${recordings[0]}
# Merged rows are not rows of the full cache whose attention could be added up.
mass=${methods#full,}
"$wnw" analyze mismatch --quiet --language en --top 100,500,10% -o "$out/report/mismatch.svg" "${recordings[@]}" >"$work/mismatch.txt"
"$wnw" analyze mass --quiet --language en --methods "${mass//affpool,/}" --ratios 0.4,0.2 "${recordings[@]}" >"$work/mass.md"
"$wnw" --threads 1 analyze runtime --quiet --language en --tidal $tidal --repeat $repeat --r-gpu 0.2 -o "$out/report/runtime.svg" "$first" >"$work/runtime.md"
"$wnw" analyze heads models/tiny/profile.json -o "$out/report/heads.svg" 2>/dev/null
"$wnw" analyze tide --quiet --language en --kv wnw --r-gpu 0.2 -o "$out/report/tide.svg" "$first"
if [ $quick = no ]; then
  mapfile -t french < <(find -L "$(folder tiny-fr)" -name '*.wav' -o -name '*.flac' | sort | head -n 6)
  mkdir -p "$work/french"
  if [ ! -e "$work/french/profile.json" ]; then
    "$wnw" calibrate --quiet --self --language fr --fit-lambda 0.2 -o "$work/french/profile.json" "${french[@]}"
  fi
  "$wnw" analyze calibration models/tiny/profile.json "$work/french/profile.json" -o "$out/report/calibration.svg" >"$work/calibration.md"
  evaluate french eval --dataset tiny-en --dataset tiny-fr --methods full,wnw --ratios 0.2 --kv-profile "$work/french/profile.json"
fi

for set in "${sets[@]}"; do cp "$work/main/score-$set.svg" "$out/report/"; done
cp "$work/main/kv-tiny-en.svg" "$work/bytes/bytes-tiny-en.svg" "$out/report/"
minutes=$((($(date +%s) - started) / 60))
. tools/report/text.sh >"$work/report.md"
for part in "$work/report.md" "$out"/report/{mismatch,runtime,heads,tide}.svg; do
  [ -s "$part" ] || { echo "report.sh: $part is missing or empty" >&2; exit 1; }
done
if grep -nE '\| *\| *\||NaN|inf\b' "$work/report.md"; then
  echo "report.sh: a table has an empty or impossible cell" >&2
  exit 1
fi
cp "$work/report.md" "$out/report.md"
cp "$work/main/table.csv" "$out/report/table.csv"
echo "report.sh: $out/report.md after $minutes min" >&2
