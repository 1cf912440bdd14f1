//! Agreement with jiwer 4, sacreBLEU 2.6 and whisper-normalizer, on what `tools/goldens/metrics.py` wrote. Counts and texts must be
//! equal, scores within 1e-9. `WNW_METRIC_GOLDENS` names another directory of such files, for more of them.

use std::fmt::Debug;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use wnw_eval::Normaliser;
use wnw_eval::alignment::{Chunk, Operation, align};
use wnw_eval::bleu::BleuCounts;
use wnw_eval::bootstrap::{Comparison, Interval, Resamples, compare};
use wnw_eval::chrf::{ChrfCounts, Variant, corpus_chrf};
use wnw_eval::normalise::{Basic, Marks};
use wnw_eval::wer::{
    Edits, PAPER_RATIO, character_edits, corpus_character_edits, corpus_word_edits, truncated_word_edits,
    word_edits, words,
};

/// Reference, hypothesis, words, characters, alignment, BLEU, BLEU effective, chrF, chrF++, truncated.
type Pair = (String, String, [u64; 4], [u64; 4], String, f64, f64, f64, f64, [u64; 4]);

fn read<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let default = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let dir = std::env::var_os("WNW_METRIC_GOLDENS").map_or_else(default, PathBuf::from);
    let text = std::fs::read_to_string(dir.join(name)).expect("the golden file is there");
    text.lines().map(|l| serde_json::from_str(l).expect("the golden file is whole")).collect()
}

/// Collects differences, so that one failure shows how many there are.
#[derive(Default)]
struct Report {
    compared: usize,
    wrong: Vec<String>,
}

impl Report {
    fn equal<T: PartialEq + Debug>(&mut self, what: impl FnOnce() -> String, ours: T, theirs: T) {
        self.compared += 1;
        if ours != theirs {
            self.wrong.push(format!("{}\n  ours   {ours:?}\n  theirs {theirs:?}", what()));
        }
    }

    fn near(&mut self, what: impl FnOnce() -> String, ours: f64, theirs: f64) {
        self.compared += 1;
        // Not the negation: a NaN is wrong too.
        let near = (ours - theirs).abs() < 1e-9;
        if !near {
            self.wrong.push(format!("{}\n  ours   {ours}\n  theirs {theirs}", what()));
        }
    }

    fn finish(self, least: usize) {
        println!("{} compared, {} wrong", self.compared, self.wrong.len());
        let shown = self.wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
        assert!(self.wrong.is_empty(), "{} of {} differ:\n{shown}", self.wrong.len(), self.compared);
        assert!(self.compared >= least, "only {} compared", self.compared);
    }
}

fn counts(e: Edits) -> [u64; 4] {
    [e.hits, e.substitutions, e.deletions, e.insertions]
}

fn letters(chunks: &[Chunk]) -> String {
    let show = |c: &Chunk| {
        let letter = match c.operation {
            Operation::Equal => '=',
            Operation::Substitute => 's',
            Operation::Delete => 'd',
            Operation::Insert => 'i',
        };
        format!("{letter}{}", c.reference.len().max(c.hypothesis.len()))
    };
    chunks.iter().map(show).collect()
}

#[test]
fn pairs() {
    let mut report = Report::default();
    for (r, h, by_word, by_character, alignment, bleu, effective, chrf, chrf_words, truncated) in
        read::<Pair>("pairs.jsonl")
    {
        let at = |metric: &str| format!("{metric} of {r:?} / {h:?}");
        report.equal(|| at("words"), counts(word_edits(&r, &h)), by_word);
        report.equal(|| at("characters"), counts(character_edits(&r, &h)), by_character);
        report.equal(|| at("alignment"), letters(&align(&words(&r), &words(&h))), alignment);
        let counted = BleuCounts::new(&h, &[&r]).expect("there is a reference");
        report.near(|| at("BLEU"), counted.score(false).score, bleu);
        report.near(|| at("BLEU with effective order"), counted.score(true).score, effective);
        let counted = ChrfCounts::new(&h, &r);
        report.near(|| at("chrF"), counted.score(Variant::Characters), chrf);
        report.near(|| at("chrF++"), counted.score(Variant::Words), chrf_words);
        let (r, h) = (Normaliser::Paper.apply(&r), Normaliser::Paper.apply(&h));
        report.equal(|| at("truncated"), counts(truncated_word_edits(&r, &h, PAPER_RATIO)), truncated);
    }
    report.finish(8 * 2000);
}

#[derive(Deserialize)]
struct Corpus {
    start: usize,
    end: usize,
    wer: f64,
    mer: f64,
    wip: f64,
    wil: f64,
    cer: f64,
    bleu: f64,
    precisions: [f64; 4],
    brevity: f64,
    chrf: f64,
    #[serde(rename = "chrf++")]
    chrf_words: f64,
    bleu2: f64,
    chrf2: f64,
}

#[test]
fn corpora() {
    let pairs = read::<Pair>("pairs.jsonl");
    let mut report = Report::default();
    for c in read::<Corpus>("corpora.jsonl") {
        let at = |metric: &str| format!("{metric} of pairs {}..{}", c.start, c.end);
        let references: Vec<&str> = pairs[c.start..c.end].iter().map(|p| p.0.as_str()).collect();
        let hypotheses: Vec<&str> = pairs[c.start..c.end].iter().map(|p| p.1.as_str()).collect();
        let edits = corpus_word_edits(&references, &hypotheses).expect("as many hypotheses as references");
        report.near(|| at("WER"), edits.rate(), c.wer);
        report.near(|| at("MER"), edits.match_error_rate(), c.mer);
        report.near(|| at("WIP"), edits.information_preserved(), c.wip);
        report.near(|| at("WIL"), edits.information_lost(), c.wil);
        let cer = corpus_character_edits(&references, &hypotheses).map_or(f64::NAN, |e| e.rate());
        report.near(|| at("CER"), cer, c.cer);

        let bleu = BleuCounts::corpus(&hypotheses, &references).expect("as many hypotheses as references");
        let bleu = bleu.score(false);
        report.near(|| at("BLEU"), bleu.score, c.bleu);
        report.near(|| at("brevity penalty"), bleu.brevity_penalty, c.brevity);
        for (ours, theirs) in bleu.precisions.into_iter().zip(c.precisions) {
            report.near(|| at("precision"), ours, theirs);
        }
        let chrf = |variant| corpus_chrf(&hypotheses, &references, variant).unwrap_or(f64::NAN);
        report.near(|| at("chrF"), chrf(Variant::Characters), c.chrf);
        report.near(|| at("chrF++"), chrf(Variant::Words), c.chrf_words);

        let (mut bleu, mut chrf) = (BleuCounts::default(), ChrfCounts::default());
        for (i, hypothesis) in hypotheses.iter().enumerate() {
            let two = [references[i], references[(i + 1) % references.len()]];
            bleu += &BleuCounts::new(hypothesis, &two).expect("there is a reference");
            chrf += &ChrfCounts::best(hypothesis, &two, Variant::Words).expect("there is a reference");
        }
        report.near(|| at("BLEU with two references"), bleu.score(false).score, c.bleu2);
        report.near(|| at("chrF++ with two references"), chrf.score(Variant::Words), c.chrf2);
    }
    report.finish(15 * 11);
}

#[test]
fn texts() {
    let mut report = Report::default();
    for [text, english, basic, plain, marks] in read::<[String; 5]>("texts.jsonl") {
        let at = |which: &str| format!("{which} of {text:?}");
        let basic_with = |marks| Basic { marks, split_letters: false }.apply(&text);
        report.equal(|| at("English"), Normaliser::WhisperEn.apply(&text), english);
        report.equal(|| at("basic"), Normaliser::WhisperBasic.apply(&text), basic);
        report.equal(|| at("basic, plain"), basic_with(Marks::Plain), plain);
        report.equal(|| at("basic, marks"), basic_with(Marks::Keep), marks);
    }
    report.finish(4 * 1500);
}

#[derive(Deserialize)]
struct Long {
    case: [u64; 5],
    counts: [u64; 4],
    hash: String,
}

/// As in the script.
fn long_pair([length, vocabulary, percent, repeats, seed]: [u64; 5]) -> (Vec<u64>, Vec<u64>) {
    let mut state = seed;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let reference: Vec<u64> = (0..length).map(|_| below(vocabulary)).collect();
    let mut hypothesis = Vec::new();
    for word in &reference {
        if below(100) >= percent {
            hypothesis.push(*word);
            continue;
        }
        let kind = below(3);
        if kind > 0 {
            hypothesis.push(below(vocabulary));
        }
        if kind > 1 {
            hypothesis.push(*word);
        }
    }
    if percent > 100 {
        hypothesis = (0..length).map(|_| below(vocabulary)).collect();
    }
    for i in 0..repeats as usize {
        hypothesis.push(hypothesis[hypothesis.len() - 1 - i % 5]);
    }
    (reference, hypothesis)
}

#[test]
fn long_pairs() {
    let mut report = Report::default();
    for long in read::<Long>("long.jsonl") {
        let (reference, hypothesis) = long_pair(long.case);
        let start = std::time::Instant::now();
        let chunks = align(&reference, &hypothesis);
        println!("{:?}: {:.3} s", long.case, start.elapsed().as_secs_f64());
        report.equal(|| format!("counts of {:?}", long.case), counts(Edits::of(&chunks)), long.counts);
        let hash = letters(&chunks).bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        report.equal(|| format!("alignment of {:?}", long.case), format!("{hash:016x}"), long.hash);
    }
    report.finish(2 * 10);
}

#[derive(Deserialize)]
struct Bootstrap {
    references: Vec<String>,
    baseline: Vec<String>,
    system: Vec<String>,
    indices: Vec<usize>,
    wer: Summary,
    bleu: Summary,
}

/// Mean, low and high; half the width of the system's interval; the p-value.
#[derive(Deserialize)]
struct Summary {
    baseline: [f64; 3],
    system: [f64; 3],
    difference: [f64; 3],
    half: f64,
    p: f64,
}

#[test]
fn bootstrap() {
    let mut report = Report::default();
    for b in read::<Bootstrap>("bootstrap.json") {
        let resamples = Resamples::from_indices(b.references.len(), b.indices).expect("indices are in range");
        let edits = |side: &[String]| -> Vec<Edits> {
            b.references.iter().zip(side).map(|(r, h)| word_edits(r, h)).collect()
        };
        let counts = |side: &[String]| -> Vec<BleuCounts> {
            let count = |(r, h): (&String, &String)| BleuCounts::new(h, &[r]).expect("there is a reference");
            b.references.iter().zip(side).map(count).collect()
        };
        let wer = compare(&edits(&b.baseline), &edits(&b.system), &resamples, Edits::rate);
        let bleu = |c: &BleuCounts| c.score(false).score;
        let bleu = compare(&counts(&b.baseline), &counts(&b.system), &resamples, bleu);
        for (name, ours, theirs) in [("WER", wer, b.wer), ("BLEU", bleu, b.bleu)] {
            let ours: Comparison = ours.expect("as many segments as the resamples have");
            let sides = [
                (ours.baseline, theirs.baseline),
                (ours.system, theirs.system),
                (ours.difference, theirs.difference),
            ];
            for (Interval { mean, low, high, .. }, [their_mean, their_low, their_high]) in sides {
                report.near(|| format!("{name} mean"), mean, their_mean);
                report.near(|| format!("{name} low"), low, their_low);
                report.near(|| format!("{name} high"), high, their_high);
            }
            let half = (ours.system.high - ours.system.low) / 2.0;
            report.near(|| format!("{name} half width"), half, theirs.half);
            report.near(|| format!("{name} p-value"), ours.p_value, theirs.p);
        }
    }
    report.finish(22);
}
