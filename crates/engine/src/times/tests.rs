//! What holds for every attention and every text.

use proptest::prelude::*;
use wnw_model::tekken::Tekken;

use super::*;

const STEP: f64 = 0.08;

fn peak(n: usize, at: f64, width: f64) -> Vec<f32> {
    (0..n).map(|i| (-((i as f64 + 0.5 - at) / width).powi(2)).exp() as f32).collect()
}

fn bare(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

fn tokenizer() -> Tekken {
    Tekken::from_bytes(wnw_tiny::TEKKEN, "tiny").unwrap()
}

#[test]
fn clear_attention_gives_exact_times() {
    let tokenizer = tokenizer();
    let text = "To reset your speaking volume, press two.";
    let tokens = tokenizer.encode(text).unwrap();
    let groups = grouping::group(&grouping::pieces(&tokens, &tokenizer));
    let n = 200;
    let mut trace = AttentionTrace::new();
    let mut centres = vec![None; tokens.len()];
    for (w, group) in groups.iter().enumerate() {
        group.tokens.iter().for_each(|&t| centres[t] = Some(10.0 + 20.0 * w as f64));
    }
    for centre in &centres {
        match centre {
            Some(at) => trace.push(&peak(n, *at, 3.0)),
            None => trace.push_unknown(),
        }
    }
    let symmetric = TimeOptions { onset: 0.1, offset: 0.9, ..TimeOptions::default() };
    let words = words(&trace, &tokens, &tokenizer, &symmetric, STEP, 100.0, 116.0);
    let found: Vec<&str> = words.iter().map(|w| w.word.as_str()).collect();
    assert_eq!(found, ["To", "reset", "your", "speaking", "volume,", "press", "two."]);
    for (w, word) in words.iter().enumerate() {
        let centre = 100.0 + STEP * (10.0 + 20.0 * w as f64);
        assert!(word.confidence > 0.9, "{word:?}");
        assert!((f64::midpoint(word.start, word.end) - centre).abs() < 0.02, "{word:?}");
        assert!((0.2..0.6).contains(&(word.end - word.start)), "{word:?}");
    }
    let json = serde_json::to_value(&words[0]).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 4, "{keys:?}");
}

#[test]
fn without_attention_words_fill_the_window() {
    let tokenizer = tokenizer();
    let tokens = tokenizer.encode("one two six").unwrap();
    let words = words(&AttentionTrace::new(), &tokens, &tokenizer, &TimeOptions::default(), STEP, 3.0, 12.0);
    let times: Vec<(f64, f64, f64)> = words.iter().map(|w| (w.start, w.end, w.confidence)).collect();
    assert_eq!(times, [(3.0, 6.0, 0.0), (6.0, 9.0, 0.0), (9.0, 12.0, 0.0)]);
}

#[test]
fn padding_is_not_speech() {
    let tokenizer = tokenizer();
    let tokens = tokenizer.encode("six").unwrap();
    let mut trace = AttentionTrace::new();
    for _ in &tokens {
        trace.push(&peak(375, 300.0, 2.0));
    }
    let words = words(&trace, &tokens, &tokenizer, &TimeOptions::default(), STEP, 0.0, 1.5);
    assert_eq!((words[0].start, words[0].end, words[0].confidence), (0.0, 1.5, 0.0));
}

/// Attention of one token: none, on one position, or anything at all.
fn attention(n: usize) -> impl Strategy<Value = Option<Vec<f32>>> {
    let anything = prop_oneof![
        4 => 0f32..2.0,
        2 => Just(0f32),
        1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, -1.0, f32::MIN_POSITIVE, f32::MAX]),
    ];
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(vec![0.0; n])),
        4 => (0..n).prop_map(move |p| Some((0..n).map(|i| if i == p { 1.0 } else { 0.0 }).collect())),
        4 => (0f64..1.0, 0.3f64..9.0).prop_map(move |(at, width)| Some(peak(n, at * n as f64, width))),
        3 => prop::collection::vec(anything, n).prop_map(Some),
    ]
}

fn case() -> impl Strategy<Value = (Vec<String>, Vec<Option<Vec<f32>>>, usize)> {
    let size = prop_oneof![Just(0usize), Just(1), 2..60usize];
    (size, prop_oneof![Just(1usize), 2..200usize]).prop_flat_map(|(tokens, n)| {
        let texts = prop::collection::vec("( |\\n)?[a-cA-C1.,!«—我んเ]{0,3}( b)?", tokens);
        (texts, prop::collection::vec(attention(n), tokens), Just(n))
    })
}

fn options() -> impl Strategy<Value = TimeOptions> {
    let any = || prop_oneof![4 => -0.2f64..1.2, 1 => prop::num::f64::ANY];
    prop_oneof![
        Just(TimeOptions::default()),
        (any(), any(), any(), any(), any(), any(), any()).prop_map(
            |(onset, offset, neighbourhood, bias, least_share, free_jump, jump_penalty)| TimeOptions {
                onset,
                offset,
                neighbourhood,
                bias,
                least_share,
                free_jump,
                jump_penalty
            }
        )
    ]
}

proptest! {
    #[test]
    fn times_are_in_order_inside_the_window_and_text_is_kept(
        (pieces, attention, n) in case(),
        options in options(),
        start in 0f64..5000.0,
        padded in 0.3f64..1.1,
    ) {
        let mut trace = AttentionTrace::new();
        for a in &attention {
            match a {
                Some(a) => trace.push(a),
                None => trace.push_unknown(),
            }
        }
        let end = start + n as f64 * STEP * padded;
        let window = spans::Window::new(start, end, STEP);
        let words = timed(&trace, grouping::group(&pieces), pieces.len(), &options, window);
        let mut last = start;
        for word in &words {
            prop_assert!(last <= word.start && word.start <= word.end && word.end <= end, "{last} {end} {word:?}");
            prop_assert!((0.0..=1.0).contains(&word.confidence));
            last = word.end;
        }
        let all: String = words.iter().map(|w| w.word.as_str()).collect();
        prop_assert_eq!(bare(&all), bare(&pieces.concat()));

        let limits = CueLimits::default();
        let cues = segments(&words);
        let mut last = start;
        for cue in &cues {
            prop_assert!(last <= cue.start && cue.start <= cue.end && cue.end <= end, "{cue:?}");
            prop_assert!((0.0..=1.0).contains(&cue.confidence));
            prop_assert!(!cue.text.is_empty() && cue.text.trim() == cue.text);
            let one = words.iter().any(|w| w.word == cue.text);
            prop_assert!(one || (cue.end - cue.start <= limits.seconds && columns(&cue.text) <= limits.columns));
            last = cue.end;
        }
        let all: String = cues.iter().map(|c| c.text.as_str()).collect();
        prop_assert_eq!(bare(&all), bare(&pieces.concat()));
    }

    #[test]
    fn bounds_that_cannot_be_do_no_harm(start in prop::num::f64::ANY, end in prop::num::f64::ANY, step in prop::num::f64::ANY) {
        let window = spans::Window::new(start, end, step);
        let mut trace = AttentionTrace::new();
        trace.push(&[0.5, 0.5]);
        let words = timed(&trace, grouping::group(&["a b".into()]), 1, &TimeOptions::default(), window);
        prop_assert!(words.iter().all(|w| w.start <= w.end));
    }
}
