# The text of docs/report.md, with what tools/report.sh measured put in. Sourced by it.
# shellcheck shell=bash disable=SC2154

manifest() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" "$work/main.0/manifest.json" | head -n 1; }
# measured DATASET METHOD: measured shares of one method at each target, as table rows.
measured() {
  local column label target
  for column in r_gpu r_gpu_cpu; do
    [ $column = r_gpu ] && label="r_GPU %" || label="r_GPU+CPU %"
    printf '| %s %s |' "$2" "$label"
    for target in ${ratios//,/ }; do
      printf ' %s |' "$(csv main "$1" "$2" "$target" $column | awk '{printf "%.1f", 100 * $1}')"
    done
    echo
  done
}
# verdict DATASET: whether the paper's ordering holds at the smallest target.
verdict() {
  local target=${ratios##*,} method scores=()
  for method in wnw arkvale audiokv adakv; do scores+=("$(csv main "$1" $method "$target" score)"); done
  if [ -z "${scores[2]}" ]; then return; fi
  awk -v t="$target" -v w="${scores[0]}" -v k="${scores[1]}" -v a="${scores[2]}" -v d="${scores[3]}" -v s="$1" 'BEGIN {
    printf "On %s at %s the paper'"'"'s order (WnW, ArkVale, AudioKV, Ada-KV, from best to worst) ", s, t
    if (w <= k && k < a && a < d) print "holds."
    else printf "does not hold in full: WnW %.1f, ArkVale %.1f, AudioKV %.1f, Ada-KV %.1f.\n", w, k, a, d
  }'
}

cat <<EOF
# The paper in miniature

Tables and figures of arXiv 2608.22704 ("WnW: Waxing-and-Waning KV Cache for Long-Form Speech LLMs") as the embedded model \`tiny\` gives them, each beside the
paper's own numbers. Made by \`tools/report.sh $([ $quick = yes ] && echo --quick || echo "--limit $limit")\`; no number of ours in it was typed. The paper's models have 3 billion parameters, 30 or 36 layers and
240 or 72 KV heads; \`tiny\` has 5 million, 8 layers and 32 KV heads, and knows the prompts of three closed sets. What it can show is the mechanism, not the size of effects
on real models.

- program: wnw $(manifest wnw), model \`$(manifest model)\` ($(manifest fingerprint)), weights $(manifest weight_dtype), keys and values $(manifest kv_dtype) unless a table says otherwise
- machine: $(manifest processor), one thread a run, $jobs runs side by side; $minutes minutes in this run
- data: $limit recordings (2 to 4 minutes each) of ${sets[*]}, drawn with seed $(manifest seed); \`docs/datasets.md\` says how they are made
- scores: word error rate (WER) as in the paper: lower case and no punctuation but apostrophes and full stops, hypothesis cut at 1.2 times the reference; BLEU by sacreBLEU's rules. Few recordings: mind the intervals in the
  [whole table](report/table.csv)
- a number in brackets counts runs that did not end by themselves (stopped by the repetition guard, which all methods have alike)

## The mismatch between prefill and decoding (Figure 1, section 2.1)

\`\`\`text
$(cat "$work/mismatch.txt")
\`\`\`

![Attention by position](report/mismatch.svg)

Paper (Voxtral, 50 samples): of the attention to audio, 47.9 % lies on the first 10 % of positions at prefill and 9.8 % while decoding; the top sets have a Jaccard index of
0.187 (K = 100) and 0.240 (K = 500). The small model has the same two halves: what the first token looks at is mostly the beginning, and what the answer looks at is everywhere.

## What methods lose

Share of the answer's attention to audio that falls on rows a method keeps at prefill. Methods that choose by the attention which prefill sees keep far more of *that* than of
what the answer needs; what is not reachable is lost for good. The page methods (ArkVale, FreeKV) keep nothing at prefill itself and fetch pages before each attention.

$(cat "$work/mass.md")

## Word error rate against retention (Figure 3, Table 5; Table 2 for the other tasks)

$(overview main)

$(for set in "${sets[@]}"; do printf '![%s](report/score-%s.svg)\n\n' "$set" "$set"; done)

At the smallest target, best first:

$(for set in "${sets[@]}"; do printf -- '- %s: %s\n' "$set" "$(order main "$set" "${ratios##*,}")"; done)

$(verdict tiny-en)

Measured retention of WnW on tiny-en (targets ${ratios//,/, }):

| | ${ratios//,/ | } |
|---|$(printf -- '---|%.0s' ${ratios//,/ })
$(measured tiny-en wnw)

Paper, Voxtral-Mini-3B, LibriSpeech-Long test-clean (truncated WER; measured r_GPU of WnW 79.79, 59.96, 40.91, 22.25 %, with the host 41.52 % at 0.2):

| method | 0.8 | 0.6 | 0.4 | 0.2 |
|---|---|---|---|---|
| full cache | 6.79 | 6.79 | 6.79 | 6.79 |
| WnW | 6.72 | 6.71 | 6.64 | 6.23 |
| ArkVale | 6.81 | 6.77 | 7.12 | 11.74 |
| AudioKV | 6.79 | 6.31 | 62.51 | 192.58 |
| Ada-KV | 137.46 | 175.85 | 196.01 | 199.24 |
| AffPool (Table 1) | 6.47 | 10.04 | 67.08 | 111.63 |

Qwen2.5-Omni-3B, test-clean: full 13.87; WnW 14.72, 14.90, 14.88, 15.31; ArkVale 14.06, 14.13, 14.12, 16.99; AudioKV 14.24, 14.54, 28.31, 131.30; Ada-KV 47.45, 91.12, 109.49, 116.04.
Voxtral-Mini at 0.2 (Table 2: French WER, English-to-French BLEU, PriMock57 WER): full 20.42, 38.48, 23.47; WnW 22.68, 38.21, 24.23; ArkVale 28.63, 35.40, 32.45;
AudioKV 105.00, 5.22, 103.83; Ada-KV 112.91, 2.99, 106.43.

Where the two agree, it is for the paper's reason: what the methods that choose rows by prefill's attention still have of the answer's attention is little more than a random choice
of as many rows would have (table above), and recall holds the full cache's score at every target. Where they differ: AudioKV, HeadKV and RazorAttention lose far less here than
AudioKV does in the paper. They give rows to heads by the profile's voice scores, and in this model the few heads with high scores do nearly all of the following; a method that keeps
those whole keeps what matters. The page methods see every query before they choose and hold a copy of everything on the host; they move tens of times more per step than WnW
([whole table](report/table.csv)). The model was also trained on answers with audio taken away at random, and its closed world lets it guess the rest of a prompt from a part. A cell that
stands out from its neighbours is mostly one recording in which the model lost its place: a third of one recording's words is ten points here.

## Device memory over decode steps (Figure 4)

![KV bytes](report/kv-tiny-en.svg)

As in the paper, the methods that decide once hold the same at one target, and lines rise with the text, which everybody keeps. WnW's blocks for recalled segments and the page methods' digests come on top.

## At equal bytes: 8- and 4-bit keys and values

The rival that no paper compares with: keep everything, in fewer bits.

$(rows bytes tiny-en)

![Score against bytes](report/bytes-tiny-en.svg)

## Ablations (Table 3, tiny-en)

Voice heads (A1; the paper at 10, 30, 50, 70, 90 of 240: r = 0.1 gives 51.92, 9.78, 8.09, 6.31, 6.76, and r = 0.2 gives 6.53, 6.46, 6.39, 6.20, 6.23):

$(overview voice)

Selection (A2; paper: per segment 9.78 and 6.23, global 13.11 and 6.27 at r = 0.1 and 0.2) and signal (A3; paper at 0.1: VS×HS 9.78, HS only 36.41, VS only 124.66):

$(overview select)

## Sensitivity (Table 7, tiny-en, target 0.2)

Paper: chunks of 0.96, 1.92, 4, 5.76, 7.68 s give 6.45, 6.29, 6.23, 6.26, 6.23; 1, 3, 5, 7, 10, 15, 20 anchors give 6.22, 6.23, 6.18, 6.20, 6.21, 6.23, 6.22.
Five anchors would be more than this target holds here (5 of 32 heads are 16 %).

$(overview sizes)

## Time and traffic against tidal heads (Table 4)

$(cat "$work/runtime.md")

![Runtime](report/runtime.svg)

Paper (Voxtral on a GPU, 35, 75, 115, 155, 195, 235 tidal heads): 27.2, 26.8, 26.7, 27.4, 27.5, 27.8 ms/token; 0.05, 0.20, 0.40, 0.62, 0.82, 1.04 MB/step. Here a step is short and reads all that is
resident, so more recalled rows show in its time; the full cache's row says what recall is to be compared with.

## Heads and tide

![Head map](report/heads.svg)

![Tide](report/tide.svg)
EOF
if [ $quick = no ]; then
  cat <<EOF

## Calibration on another language (Table 8)

The shipped profile (50 English recordings, with references) against one from six French recordings without references:

$(cat "$work/calibration.md")

With the French profile, at 0.2:

$(overview french)

Paper: calibrated on English 6.20 (clean), 22.43 (French); on French 6.24, 23.55; 2 of 5 anchors and 76 of 85 tidal heads stay.
EOF
fi
cat <<EOF

## What is not here

Table 6 (Voxtral-Small-24B) and everything on LibriSpeech-Long, LongSpeech and PriMock57 need released weights and these data sets; the commands are the same, with \`--model\` and \`--dataset\`
(\`wnw data list\`). There is no second backbone among the embedded models.

## The commands

\`tools/report.sh\` runs these, in parts side by side, and puts their tables in here. One cell alone:
\`wnw eval --dataset tiny-en --methods full,wnw --ratios 0.2 --limit $limit --out DIR\`.

| what | command |
|---|---|
| error rates against retention | \`wnw eval $(printf -- '--dataset %s ' "${sets[@]}")--methods $methods --ratios $ratios --limit $limit\` |
| n_voice, selection and signal | \`wnw analyze sweep --dataset tiny-en --methods full,wnw --ratios 0.2,0.1 --over n_voice=4,8,12,20,28\` and \`--over selection=per-segment,global --over signal=product,voice,sensitivity\` |
| sensitivity | \`wnw eval --dataset tiny-en --methods full,wnw:chunk=1:segment=0.5,… --ratios 0.2\`: one method an option |
| equal bytes | \`wnw eval --dataset tiny-en --methods full,full@int8,full@int4,wnw,wnw@int8,… --ratios 0.6,0.4,0.2\` |
| mismatch, mass | \`wnw analyze mismatch --top 100,500,10% FILE…\`, \`wnw analyze mass --methods … --ratios 0.4,0.2 FILE…\` |
| time and traffic | \`wnw --threads 1 analyze runtime --tidal 4,8,… --repeat 3 --r-gpu 0.2 FILE\` |
| heads, tide | \`wnw analyze heads\`, \`wnw analyze tide --kv wnw --r-gpu 0.2 FILE\` |
| another language | \`wnw calibrate --self --language fr --fit-lambda 0.2 FILE…\`, \`wnw analyze calibration A.json B.json\` |
EOF
