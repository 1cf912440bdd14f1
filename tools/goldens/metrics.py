"""Metric goldens by jiwer 4, sacreBLEU 2.6 and whisper-normalizer, for crates/eval/tests/goldens.rs.

    python tools/goldens/metrics.py                                  # writes crates/eval/tests/goldens
    python tools/goldens/metrics.py --out DIR --pairs N --texts N --seed S   # more of them, elsewhere

- pairs.jsonl: [reference, hypothesis, word counts, character counts, word alignment, BLEU, BLEU with effective order, chrF,
  chrF++, counts of the truncated WER]; counts are hits, substitutions, deletions, insertions; an alignment is a run of
  operations with their lengths;
- corpora.jsonl: corpus scores of stretches of these pairs, and BLEU and chrF with two references;
- texts.jsonl: [text, Whisper English, basic, basic without diacritics, basic with marks];
- long.jsonl: counts and a hash of the alignment for long pairs, which both sides make from integers;
- bootstrap.json: intervals and p-values on given resamples.

See README.md beside this file.
"""

import argparse
import json
import random
import unicodedata
from pathlib import Path

import jiwer
import numpy as np
import sacrebleu.significance as significance
from sacrebleu.metrics import BLEU, CHRF
from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

OUT = Path(__file__).resolve().parents[2] / "crates/eval/tests/goldens"
RATIO = 1.2

PLAIN = "the a of and to in it was he that for you on with his as at be she had not but is we they all".split()
WORDS = PLAIN + (
    "don't It's l’eau C'est été Œuvre naïve coöperate straße Ἑλλάς слово 日本語 東京 हिन्दी עברית مرحبا 😀 🇫🇷 e\u0301te\u0301 ﬁn Å "
    "U.S. U.K. 1,000.5 3.14 $5.20 10-20 50% 1st x-ray well-known (aside) [noise] <unk> <skipped> &amp; &lt;b&gt; &quot;q&quot; "
    "&amp;lt; «Oui» — … “quoted” end. stop, what? no! semi; a/b c\\d e|f ~ ^ ` {x} @you #tag a_b - -- .5 5. ,x 7- -7 ' '' ... ., ,. "
    "a\tb x\ny p\u00a0q z\u3000w end-\nof soft\u00adhyphen zero\u200bwidth"
).split(" ")
SPACES = [" "] * 60 + ["  ", "\t", "\n", " \n", "\n\n", "\u00a0", "\u2003 ", "\x1c", "\x85"]


def text_of(r, words):
    out = r.choice(["", "", "", " ", "\n"]) if words else r.choice(["", "", " ", "\n \t"])
    for i, w in enumerate(words):
        out += (r.choice(SPACES) if i else "") + w
    return out + r.choice(["", "", "", " ", "\n"])


def mutate(r, words, vocabulary):
    out = []
    for w in words:
        kind = r.random()
        if kind < 0.08:
            continue
        if kind < 0.16:
            out += [w, w]
        elif kind < 0.26:
            out.append(r.choice(vocabulary))
        elif kind < 0.32:
            out += [r.choice(vocabulary), w]
        elif kind < 0.36:
            out.append(w.upper())
        else:
            out.append(w)
    if len(out) > 2 and r.random() < 0.2:
        i = r.randrange(len(out) - 1)
        out[i], out[i + 1] = out[i + 1], out[i]
    if out and r.random() < 0.05:
        out += [out[-1]] * r.randrange(1, 20)
    return out


def pair(r):
    vocabulary = r.choice([WORDS, WORDS, PLAIN, ["a", "b", "c"], ["x", "y"]])
    n = r.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12])
    if r.random() < 0.01:
        n = 70
    reference = [r.choice(vocabulary) for _ in range(n)]
    if r.random() < 0.7:
        hypothesis = mutate(r, reference, vocabulary)
    else:
        hypothesis = [r.choice(vocabulary) for _ in range(r.randrange(12))]
    return text_of(r, reference), text_of(r, hypothesis)


def counts(o):
    return [o.hits, o.substitutions, o.deletions, o.insertions]


LETTER = {"equal": "=", "substitute": "s", "delete": "d", "insert": "i"}


def alignment(chunks):
    return "".join(
        f"{LETTER[c.type]}{max(c.ref_end_idx - c.ref_start_idx, c.hyp_end_idx - c.hyp_start_idx)}" for c in chunks
    )


def paper(text):
    """The paper's normaliser as this project reads it; compare `Normaliser::Paper`."""
    ascii_punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    kept = [
        c
        for c in text.lower().replace("\u2019", "'")
        if c in "'." or not (c in ascii_punctuation or unicodedata.category(c)[0] == "P")
    ]
    return " ".join("".join(kept).split())


def truncated(reference, hypothesis):
    reference, hypothesis = paper(reference), paper(hypothesis)
    n = int(RATIO * len(reference.split()))
    return counts(jiwer.process_words(reference, " ".join(hypothesis.split()[:n])))


def rounded(x):
    return round(x, 11)


BLEU_CORPUS, BLEU_SENTENCE, CHRF_1, CHRF_PP = BLEU(), BLEU(effective_order=True), CHRF(), CHRF(word_order=2)


def pair_row(reference, hypothesis):
    words = jiwer.process_words(reference, hypothesis)
    characters = jiwer.process_characters(reference, hypothesis)
    return [
        reference,
        hypothesis,
        counts(words),
        counts(characters),
        alignment(words.alignments[0]),
        rounded(BLEU_CORPUS.corpus_score([hypothesis], [[reference]]).score),
        rounded(BLEU_SENTENCE.sentence_score(hypothesis, [reference]).score),
        rounded(CHRF_1.sentence_score(hypothesis, [reference]).score),
        rounded(CHRF_PP.sentence_score(hypothesis, [reference]).score),
        truncated(reference, hypothesis),
    ]


def corpus_row(rows, start, end):
    rows = rows[start:end]
    references, hypotheses = [r[0] for r in rows], [r[1] for r in rows]
    words = jiwer.process_words(references, hypotheses)
    bleu = BLEU_CORPUS.corpus_score(hypotheses, [references])
    # The second reference is the next segment's.
    second = references[1:] + references[:1]
    return {
        "start": start,
        "end": end,
        "wer": words.wer,
        "mer": words.mer,
        "wip": words.wip,
        "wil": words.wil,
        "cer": jiwer.process_characters(references, hypotheses).cer,
        "bleu": bleu.score,
        "precisions": bleu.precisions,
        "brevity": bleu.bp,
        "chrf": CHRF_1.corpus_score(hypotheses, [references]).score,
        "chrf++": CHRF_PP.corpus_score(hypotheses, [references]).score,
        "bleu2": BLEU_CORPUS.corpus_score(hypotheses, [references, second]).score,
        "chrf2": CHRF_PP.corpus_score(hypotheses, [references, second]).score,
    }


NUMBER_WORDS = (
    "o oh zero one two three four five six seven eight nine ten eleven twelve thirteen fifteen nineteen ones fives sixes zeroth first second "
    "third fifth ninth nineth twelfth sixth twenty thirty forty ninety twenties twentieth nineties hundred thousand million billion "
    "trillion decillion hundreds thousands hundredth millionth minus negative plus positive pound pounds euro euros dollar dollars "
    "cent cents per percent and and double triple point point and@a@half and@a@half"
).split()
DIGITS = "1 1s 10 20 100 007 0 0.5 1.0 2.50 3.14159 1,000 12,345,678 1960s 274th 32nd 4s $5 $0.05 $2.00 £13.60 €7 ¢7 5% 1.2.3 2020 99999999999999999999999999 a1 b2c3 3rd 1 st ٣ ٣.٥ ½ ² Ⅷ ①".split()
SPEECH = (
    "Mr. mrs Dr. st Prof col. won't can't let's ain't y'all wanna kinda gotta I'ma imma cause 'cause ma'am he'd been she's gone it's got "
    "n't isn't we're they'd I'll 't 'tis I've I'm um uh hmm mm mhm mmm umm [noise] (laughs) (a <unk> [x) ( ) colour theatre realise "
    "organisation flavour centre travelled grey colour's café naïve Œuvre straße Łódź þing Đà हिन्दी தமிழ் 日本語 한국어 がぎ e\u0301 i\u0307 İ ΣΑΣ ǅ ﬁ "
    "U.S. e.g. end. ... . $ % ¢ € £ $x 5$ x% - — “q” ’ l’eau don’t 's _ a_b #1 @ & + = ~ \u200d \u200b \u00ad \u0301"
).split(" ")
ANY = [chr(c) for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def normaliser_text(r):
    kind = r.random()
    out = []
    for _ in range(r.choice([1, 2, 3, 4, 5, 6, 8, 10])):
        pick = r.random()
        if kind < 0.4:
            pick = 0.3 * pick
        elif kind < 0.45:
            pick = 0.95 + 0.05 * pick
        if pick < 0.25:
            out.append(r.choice(NUMBER_WORDS).replace("@", r.choice([" ", " ", "  "])))
        elif pick < 0.45:
            out.append(r.choice(DIGITS))
        elif pick < 0.95:
            out.append(r.choice(SPEECH if r.random() < 0.8 else WORDS))
        else:
            out.append("".join(r.choice(ANY) for _ in range(r.randrange(1, 4))))
    separators = [" "] * 30 + ["-", ", ", ". ", "\n", "  ", ""]
    text = "".join(w + r.choice(separators) for w in out)
    if r.random() < 0.1:
        text = text.upper()
    elif r.random() < 0.1:
        text = text.title()
    return text


ENGLISH = EnglishTextNormalizer()
BASIC = [
    BasicTextNormalizer(),
    BasicTextNormalizer(remove_diacritics=True),
    BasicTextNormalizer(preserve_marks=True),
]


def text_row(text):
    return [text, ENGLISH(text), *[basic(text) for basic in BASIC]]


class Lcg:
    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def long_pair(length, vocabulary, percent, loop, seed):
    """A reference and a hypothesis with `percent` edits (above 100: unrelated) that ends in `loop` repeated words."""
    g = Lcg(seed)
    reference = [g.below(vocabulary) for _ in range(length)]
    hypothesis = []
    for word in reference:
        if g.below(100) >= percent:
            hypothesis.append(word)
            continue
        kind = g.below(3)
        if kind > 0:
            hypothesis.append(g.below(vocabulary))
        if kind > 1:
            hypothesis.append(word)
    if percent > 100:
        hypothesis = [g.below(vocabulary) for _ in range(length)]
    for i in range(loop):
        hypothesis.append(hypothesis[len(hypothesis) - 1 - i % 5])
    return reference, hypothesis


LONG = [
    # words, vocabulary, percent, loop, seed
    (30000, 4000, 10, 0, 1),
    (30000, 4000, 60, 0, 2),
    (30000, 4000, 101, 0, 3),
    (5000, 20, 101, 0, 4),
    (3000, 500, 15, 20000, 5),
    (20000, 500, 30, 300, 6),
    (8000, 30, 40, 0, 7),
    (200, 50, 20, 60000, 8),
    (40000, 26, 3, 0, 9),
    (66, 2, 50, 70000, 10),
]


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def long_row(case):
    reference, hypothesis = (" ".join(f"w{i}" for i in side) for side in long_pair(*case))
    o = jiwer.process_words(reference, hypothesis)
    return {"case": case, "counts": counts(o), "hash": f"{fnv(alignment(o.alignments[0])):016x}"}


def bootstrap_rows(rows):
    """sacreBLEU's paired bootstrap with resamples that the Rust side is given too."""
    segments, samples = 25, 120
    picked = [r for r in rows if r[0].split() and r[1].split()][: 2 * segments]
    references = [r[0] for r in picked[:segments]]
    system_a = [r[1] for r in picked[:segments]]
    # The second system is right every third time.
    system_b = [r if i % 3 == 0 else h for i, (r, h) in enumerate(zip(references, system_a))]
    indices = np.random.default_rng(12345).choice(segments, size=(samples, segments), replace=True)

    def wer(stats):
        h, s, d, i = (int(x) for x in stats)
        return (s + d + i) / (h + s + d)

    def bleu(stats):
        return BLEU_CORPUS._compute_score_from_stats([int(x) for x in stats]).score

    def word_stats(hypotheses):
        return [counts(jiwer.process_words(r, h)) for r, h in zip(references, hypotheses)]

    def bleu_stats(hypotheses):
        return BLEU_CORPUS._extract_corpus_statistics(hypotheses, [references])

    out = {"references": references, "baseline": system_a, "system": system_b, "indices": indices.ravel().tolist()}
    for name, stats, score in [("wer", word_stats, wer), ("bleu", bleu_stats, bleu)]:
        a, b = np.array(stats(system_a)), np.array(stats(system_b))
        scores_a = np.array([score(x.sum(0)) for x in a[indices]])
        scores_b = np.array([score(x.sum(0)) for x in b[indices]])
        distances = np.abs(scores_b - scores_a)
        observed = abs(score(a.sum(0)) - score(b.sum(0)))

        def summary(s):
            s = np.sort(s)
            return [s.mean(), s[samples // 40], s[samples - samples // 40 - 1]]

        # The half width is sacreBLEU's own figure.
        _, half = significance.estimate_ci(scores_b)
        out[name] = {
            "baseline": summary(scores_a),
            "system": summary(scores_b),
            "difference": summary(scores_b - scores_a),
            "half": half,
            "p": significance._compute_p_value(distances - distances.mean(), observed),
        }
    return out


def write_lines(path, rows):
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--texts", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    r = random.Random(args.seed)
    pairs = [pair_row(*pair(r)) for _ in range(args.pairs)]
    write_lines(args.out / "pairs.jsonl", pairs)
    empty = [i for i, p in enumerate(pairs) if not p[0].strip()]
    stretches = [(0, args.pairs), *[(i, i + 40) for i in range(0, 400, 40)], *[(i, i + 1) for i in empty[:10]]]
    write_lines(args.out / "corpora.jsonl", [corpus_row(pairs, *s) for s in stretches])
    write_lines(args.out / "texts.jsonl", [text_row(normaliser_text(r)) for _ in range(args.texts)])
    write_lines(args.out / "long.jsonl", [long_row(c) for c in LONG])
    write_lines(args.out / "bootstrap.json", [bootstrap_rows(pairs)])


main()
