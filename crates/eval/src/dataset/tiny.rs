//! The embedded model's held-out recordings, made again from recipes.
//!
//! Each is two to four minutes of prompts from Debian's packages of Asterisk sounds, in an order, at speeds and with gaps,
//! gains and noise that training never used; English ones also have rows of digits in synthetic voices. Where the parts
//! stand and what is said was written down when the set was composed (`tools/tiny/recipes.py`); here the sound is put
//! together from the installed packages. All arithmetic is such that every machine makes the same bytes, and these are
//! compared with checksums: other versions of a package would be another test set.

mod g722;
mod voices;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Format;
use voices::{RATE, Voices};

const RECIPES: &[u8] = include_bytes!("../../data/tiny.json.gz");
/// As `sha256sum` writes them.
const CHECKSUMS: &str = include_str!("../../data/tiny.sha256");

/// Where the parts of the recordings are.
#[derive(Clone, Debug)]
pub struct TinySources {
    /// Directory of the Asterisk sounds, by default `/usr/share/asterisk/sounds`.
    pub sounds: PathBuf,
    /// The program `espeak-ng`; English only.
    pub espeak: PathBuf,
    /// The program `flite`; English only.
    pub flite: PathBuf,
}

impl Default for TinySources {
    fn default() -> Self {
        Self {
            sounds: "/usr/share/asterisk/sounds".into(),
            espeak: "espeak-ng".into(),
            flite: "flite".into(),
        }
    }
}

/// Why the recordings cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TinyError {
    /// The packages of prompts are not installed.
    #[error(
        "{path}: no such prompt; install Debian's packages asterisk-core-sounds-{language}-wav and \
         asterisk-core-sounds-{language}-g722 (now {suffix} is missing), or say with --sounds where they are unpacked"
    )]
    NoPrompts {
        /// The file that should be there.
        path: PathBuf,
        /// `en` or `fr`.
        language: String,
        /// `wav` or `g722`.
        suffix: &'static str,
    },
    /// A speech synthesiser is not installed or fails.
    #[error(
        "{program}: cannot speak: {reason}; install Debian's packages espeak-ng and flite (tiny-fr and tiny-en2fr need neither)"
    )]
    Synthesiser {
        /// The program.
        program: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// A prompt that is no mono 16-bit WAV file.
    #[error("{path}: is not a mono 16-bit WAV file; install its package again")]
    Prompt {
        /// The file.
        path: PathBuf,
    },
    /// The result is another one than it was when the set was made.
    #[error(
        "{id}: came out different (SHA-256 {found}, not {expected}), so it is not the test set: the prompts{} are of other \
         versions than asterisk-core-sounds 1.6.1{}",
        if id.starts_with("en-") { ", espeak-ng or flite" } else { "" },
        if id.starts_with("en-") { ", espeak-ng 1.51, flite 2.2" } else { "" }
    )]
    Different {
        /// The recording.
        id: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The recipes in this program.
    #[error("the recipes of the held-out recordings cannot be read: {0}")]
    Recipes(String),
    /// Reading or writing.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Language, key, text, and differences between the words' edges in ms.
#[derive(Deserialize)]
struct Prompt(String, String, String, Vec<i64>);

#[derive(Deserialize)]
struct Recipes {
    prompts: Vec<Prompt>,
    /// Prompt and its translation.
    french: Vec<(usize, String)>,
    recordings: Vec<Recipe>,
}

/// Id, samples, noise level, speed of the prompts, and pieces.
#[derive(Deserialize)]
struct Recipe(String, usize, f64, f64, Vec<Vec<f64>>);

/// A prompt, or a row of digits or letters.
struct Piece {
    gain: f64,
    speed: f64,
    /// Prompt, version, first sample.
    units: Vec<(usize, usize, usize)>,
}

impl Recipe {
    /// A piece is a gain, then prompt, version and samples since the last unit's start for each unit, and at last its own
    /// speed if it has one.
    fn pieces(&self) -> Vec<Piece> {
        let mut at = 0;
        let piece = |row: &Vec<f64>| {
            let (gain, rest) = row.split_first().map_or((0.0, &[][..]), |(gain, rest)| (*gain, rest));
            let units = rest.chunks_exact(3);
            let speed = units.remainder().first().copied().unwrap_or(self.3);
            let units = units.map(|unit| {
                at += unit[2] as usize;
                (unit[0] as usize, unit[1] as usize, at)
            });
            Piece { gain, speed, units: units.collect() }
        };
        self.4.iter().map(piece).collect()
    }
}

/// Makes the recordings of one set in `out`, which is there only once all of them are: sound, text and word times of each.
///
/// # Errors
/// Any [`TinyError`]; then `out` is as it was.
pub fn compose(
    format: Format,
    sources: &TinySources,
    out: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(), TinyError> {
    compose_checked(format, sources, out, progress, Some(CHECKSUMS))
}

fn compose_checked(
    format: Format,
    sources: &TinySources,
    out: &Path,
    progress: &mut dyn FnMut(usize, usize),
    checksums: Option<&str>,
) -> Result<(), TinyError> {
    let recipes = recipes()?;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| TinyError::Io { path, source }
    };
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(io(parent))?;
    let dir = tempfile::Builder::new().prefix(".wnw-data-").tempdir_in(parent).map_err(io(parent))?;
    let prefix = format!("{}-", format.name().trim_start_matches("tiny-"));
    let own: Vec<_> = recipes.recordings.iter().filter(|recipe| recipe.0.starts_with(&prefix)).collect();
    let translates = format == Format::TinyEn2Fr;
    let mut voices = Voices::new(sources);
    for (i, recipe) in own.iter().enumerate() {
        progress(i, own.len());
        let (samples, spans) = mix(recipe, &recipes, &mut voices)?;
        let wav = wav(&samples);
        if let Some(checksums) = checksums {
            check(&recipe.0, &wav, checksums)?;
        }
        let write = |suffix: &str, bytes: &[u8]| {
            let path = dir.path().join(format!("{}.{suffix}", recipe.0));
            std::fs::write(&path, bytes).map_err(io(&path))
        };
        let prompts = rows(recipe, &recipes, &spans, translates);
        let texts: Vec<_> = prompts.iter().filter_map(|row| row["text"].as_str()).collect();
        write("wav", &wav)?;
        write("txt", format!("{}\n", texts.join(" ")).as_bytes())?;
        let words = json!({
            "audio": format!("{}.wav", recipe.0),
            "task": prefix.trim_end_matches('-'),
            "duration": thousandths(samples.len() as f64 / f64::from(RATE)),
            "note": "prompt spans (and the spans of single digits) are exact; word times inside a prompt are CTC forced alignment",
            "prompts": prompts,
        });
        write("words.json", format!("{words:#}\n").as_bytes())?;
    }
    progress(own.len(), own.len());
    // An empty directory may be there already.
    match std::fs::remove_dir(out) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(out)(error)),
        _ => {}
    }
    let made = dir.keep();
    std::fs::rename(&made, out).map_err(|source| {
        let _ = std::fs::remove_dir_all(&made);
        io(out)(source)
    })
}

fn recipes() -> Result<Recipes, TinyError> {
    let mut text = String::new();
    let bad = |error: String| TinyError::Recipes(error);
    GzDecoder::new(RECIPES).read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
    let recipes: Recipes = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let known = |recipe: &Recipe| {
        recipe.pieces().iter().flat_map(|p| &p.units).all(|unit| unit.0 < recipes.prompts.len())
    };
    if !recipes.recordings.iter().all(known) {
        return Err(bad("a piece names a prompt that is not there".into()));
    }
    Ok(recipes)
}

/// A recording's samples, full scale ±1, and the first and last sample of every unit.
type Mixed = (Vec<f32>, Vec<(usize, usize)>);

/// Makes a recording.
fn mix(recipe: &Recipe, recipes: &Recipes, voices: &mut Voices) -> Result<Mixed, TinyError> {
    let mut out = vec![0.0_f32; recipe.1];
    let mut spans = Vec::new();
    for piece in recipe.pieces() {
        for (prompt, version, start) in piece.units {
            let Prompt(language, key, ..) = &recipes.prompts[prompt];
            let clip = voices::at_speed(voices.unit(language, key, version)?, piece.speed);
            spans.push((start, start + clip.len()));
            let room = out.get_mut(start..).unwrap_or(&mut []);
            room.iter_mut().zip(&clip).for_each(|(sum, x)| *sum += (f64::from(*x) * piece.gain) as f32);
        }
    }
    noise(&mut out, recipe.2, &recipe.0);
    let peak = out.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    if peak > 0.99 {
        out.iter_mut().for_each(|x| *x *= 0.99 / peak);
    }
    Ok((out, spans))
}

/// Adds noise. Each deviate is the sum of twelve even ones, which is near enough to normal and needs no logarithm, whose
/// last bits differ between systems.
fn noise(samples: &mut [f32], level: f64, id: &str) {
    let mut seed = [0; 32];
    seed[..id.len().min(32)].copy_from_slice(&id.as_bytes()[..id.len().min(32)]);
    let mut random = ChaCha8Rng::from_seed(seed);
    for x in samples {
        let sum: u32 = (0..6).map(|_| random.next_u32()).map(|word| (word & 0xffff) + (word >> 16)).sum();
        *x += ((f64::from(sum) - 6.0 * 65_535.0) / 65_536.0 * level) as f32;
    }
}

/// The prompts with their times, and the words' where the text is what is spoken.
fn rows(recipe: &Recipe, recipes: &Recipes, spans: &[(usize, usize)], translates: bool) -> Vec<Value> {
    let seconds = |sample: usize| sample as f64 / f64::from(RATE);
    let french: BTreeMap<usize, &str> =
        recipes.french.iter().map(|(prompt, text)| (*prompt, text.as_str())).collect();
    let mut spans = spans.iter();
    let row = |piece: Piece| {
        let spans: Vec<_> = spans.by_ref().take(piece.units.len()).collect();
        let (first, last) = (spans.first().map_or(0, |s| s.0), spans.last().map_or(0, |s| s.1));
        let (start, end) = (thousandths(seconds(first)), thousandths(seconds(last)));
        let texts: Vec<&str> = piece.units.iter().map(|unit| recipes.prompts[unit.0].2.as_str()).collect();
        if translates {
            let text = piece.units.first().and_then(|unit| french.get(&unit.0)).unwrap_or(&"");
            return json!({"text": text, "start": start, "end": end, "spoken": texts.first().unwrap_or(&"")});
        }
        let is_row = piece.units.len() > 1;
        let text = if is_row { spelled(recipes, &piece) } else { texts.concat() };
        let mut words = Vec::new();
        for (unit, span) in piece.units.iter().zip(&spans) {
            let prompt = &recipes.prompts[unit.0];
            let edges: Vec<f64> = prompt
                .3
                .iter()
                .scan(0, |at, delta| {
                    *at += delta;
                    Some(seconds(span.0) + *at as f64 / 1000.0 / piece.speed)
                })
                .collect();
            let mut at = 0;
            for word in prompt.2.split(' ').take(if is_row { 1 } else { usize::MAX }) {
                let spoken = plain_words(word);
                if spoken > 0 && edges.len() >= 2 * (at + spoken) {
                    words.push((word.to_owned(), edges[2 * at], edges[2 * (at + spoken) - 1]));
                }
                at += spoken;
            }
        }
        if is_row {
            words.iter_mut().zip(text.split(' ')).for_each(|(word, shown)| word.0 = shown.to_owned());
        }
        let words: Vec<_> = words
            .into_iter()
            .map(|(word, start, end)| json!({"word": word, "start": thousandths(start), "end": thousandths(end)}))
            .collect();
        json!({"text": text, "start": start, "end": end, "words": words})
    };
    recipe.pieces().into_iter().map(row).collect()
}

/// A row of digits and letters as the reference writes it: `Three one B.`.
fn spelled(recipes: &Recipes, piece: &Piece) -> String {
    const DIGITS: [&str; 10] =
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    let name = |key: &str| {
        let last = key.rsplit('/').next().unwrap_or(key);
        match last.parse::<usize>().ok().and_then(|digit| DIGITS.get(digit)) {
            Some(digit) => (*digit).to_owned(),
            None if last.len() == 1 => last.to_uppercase(),
            None => last.to_owned(),
        }
    };
    let names: Vec<_> = piece.units.iter().map(|unit| name(&recipes.prompts[unit.0].1)).collect();
    let text = names.join(" ");
    let first = text.chars().next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", text.get(first.len()..).unwrap_or(""))
}

/// How many words a word of a text is spoken as: `week-end` is two, a dash none.
fn plain_words(word: &str) -> usize {
    let is_letter = |c: char| (c.is_alphanumeric() && !c.is_ascii_digit()) || matches!(c, '\'' | '’');
    word.split(|c| !is_letter(c)).filter(|part| !part.is_empty()).count()
}

fn thousandths(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

/// A 16-bit WAV file.
fn wav(samples: &[f32]) -> Vec<u8> {
    let data = (samples.len() * 2) as u32;
    let mut out = Vec::with_capacity(44 + samples.len() * 2);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&(data + 36).to_le_bytes());
    out.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    out.extend_from_slice(&RATE.to_le_bytes());
    out.extend_from_slice(&(RATE * 2).to_le_bytes());
    out.extend_from_slice(b"\x02\0\x10\0data");
    out.extend_from_slice(&data.to_le_bytes());
    samples.iter().for_each(|x| out.extend_from_slice(&((x * 32767.0) as i16).to_le_bytes()));
    out
}

fn check(id: &str, wav: &[u8], checksums: &str) -> Result<(), TinyError> {
    let found: String = digest(&SHA256, wav).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{id}.wav");
    let line = checksums.lines().find_map(|line| line.split_once("  ").filter(|(_, n)| *n == name));
    let expected = line.ok_or_else(|| TinyError::Recipes(format!("{name} has no checksum")))?.0;
    if expected != found {
        return Err(TinyError::Different { id: id.to_owned(), expected: expected.to_owned(), found });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_fit_their_recordings() {
        let recipes = recipes().unwrap();
        assert_eq!(recipes.recordings.len(), 60);
        for recipe in &recipes.recordings {
            let seconds = recipe.1 as f64 / f64::from(RATE);
            assert!((100.0..=240.0).contains(&seconds), "{}: {seconds}", recipe.0);
            let pieces = recipe.pieces();
            let starts: Vec<_> = pieces.iter().flat_map(|piece| &piece.units).map(|unit| unit.2).collect();
            assert!(starts.is_sorted() && starts.last().is_some_and(|last| *last < recipe.1));
            assert!(
                pieces
                    .iter()
                    .all(|piece| (0.5..1.5).contains(&piece.gain) && (0.89..1.16).contains(&piece.speed))
            );
            let checksum = format!("  {}.wav", recipe.0);
            assert_eq!(CHECKSUMS.lines().filter(|line| line.ends_with(&checksum)).count(), 1, "{checksum}");
        }
    }

    #[test]
    fn texts_and_times_of_a_recording() {
        let recipes = Recipes {
            prompts: vec![
                Prompt("en".into(), "digits/3".into(), "Three.".into(), vec![0, 500]),
                Prompt("en".into(), "letters/b".into(), "B.".into(), vec![10, 300]),
                Prompt(
                    "en".into(),
                    "x".into(),
                    "Week-end – l'été, ok?".into(),
                    vec![0, 200, 50, 250, 0, 400, 100, 200],
                ),
            ],
            french: vec![(2, "Fin de semaine.".into())],
            recordings: Vec::new(),
        };
        let recipe = Recipe(
            "en-00".into(),
            100_000,
            0.0,
            2.0,
            vec![vec![1.0, 0.0, 0.0, 16_000.0, 1.0, 1.0, 16_000.0, 1.0], vec![0.5, 2.0, 0.0, 16_000.0]],
        );
        let spans = [(16_000, 24_000), (32_000, 40_000), (48_000, 64_000)];
        let made = Value::Array(rows(&recipe, &recipes, &spans, false));
        let expected = json!([
            {"text": "Three B.", "start": 1.0, "end": 2.5, "words": [
                {"word": "Three", "start": 1.0, "end": 1.5},
                {"word": "B.", "start": 2.01, "end": 2.31},
            ]},
            {"text": "Week-end – l'été, ok?", "start": 3.0, "end": 4.0, "words": [
                {"word": "Week-end", "start": 3.0, "end": 3.25},
                {"word": "l'été,", "start": 3.25, "end": 3.45},
                {"word": "ok?", "start": 3.5, "end": 3.6},
            ]},
        ]);
        assert_eq!(made, expected);
        let translated = &rows(&recipe, &recipes, &spans, true)[1];
        assert_eq!(
            translated,
            &json!({"text": "Fin de semaine.", "spoken": "Week-end – l'été, ok?", "start": 3.0, "end": 4.0})
        );
    }

    #[test]
    fn noise_is_normal_and_the_same_again() {
        let mut a = vec![0.0; 100_000];
        noise(&mut a, 0.5, "en-00");
        let mean = a.iter().sum::<f32>() / a.len() as f32;
        let deviation = (a.iter().map(|x| x * x).sum::<f32>() / a.len() as f32).sqrt();
        assert!(mean.abs() < 0.01 && (deviation - 0.5).abs() < 0.01, "{mean} {deviation}");
        let mut b = vec![0.0; 100];
        noise(&mut b, 0.5, "en-00");
        assert_eq!(a[..100], b);
        noise(&mut b, 0.5, "en-01");
        assert_ne!(a[..100], b);
    }

    /// A world of three prompts, all made here.
    fn sounds() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let recipes = recipes().unwrap();
        let french = recipes.prompts.iter().filter(|prompt| prompt.0 == "fr");
        for (i, Prompt(_, key, ..)) in french.enumerate() {
            let path = dir.path().join("fr_CA_f_June").join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let tone: Vec<f32> = (0..4_000).map(|t| (t * (i % 40 + 1)) as f32 % 100.0 / 200.0).collect();
            std::fs::write(path.with_extension("wav"), wav(&tone)).unwrap();
            let coded: Vec<u8> = (0..2_000).map(|t| (t * (i + 3)) as u8).collect();
            std::fs::write(path.with_extension("g722"), coded).unwrap();
        }
        dir
    }

    #[test]
    fn a_set_is_made_whole_or_not_at_all() {
        let sounds = sounds();
        let sources = TinySources { sounds: sounds.path().to_owned(), ..TinySources::default() };
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, checksums| {
            let out = dir.path().join(name);
            compose_checked(Format::TinyFr, &sources, &out, &mut |_, _| (), checksums).map(|()| out)
        };
        let (a, b) = (make("a", None).unwrap(), make("b", None).unwrap());
        let names = |dir: &Path| {
            let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&a).len(), 60);
        for name in names(&a) {
            assert!(
                std::fs::read(a.join(&name)).unwrap() == std::fs::read(b.join(&name)).unwrap(),
                "{name:?} differs"
            );
        }
        let spec: super::super::DatasetSpec = format!("tiny-fr:{}", a.display()).parse().unwrap();
        let set = super::super::open(&spec).unwrap();
        assert_eq!((set.recordings.len(), set.recordings[3].id.as_str()), (20, "fr-03"));
        assert!(set.recordings.iter().all(|r| r.words.is_some() && r.reference.len() > 500));
        // These are not the packages' prompts.
        assert!(matches!(make("c", Some(CHECKSUMS)), Err(TinyError::Different { .. })));
        // What is there is not written over.
        assert!(matches!(make("a", None), Err(TinyError::Io { .. })));
        let gone = std::fs::read_dir(sounds.path().join("fr_CA_f_June")).unwrap().find_map(|e| {
            Some(e.unwrap().path()).filter(|path| path.extension().is_some_and(|x| x == "wav"))
        });
        std::fs::write(gone.as_ref().unwrap(), b"RIFF").unwrap();
        let error = make("d", None).unwrap_err();
        assert!(matches!(error, TinyError::Prompt { .. }), "{error}");
        assert_eq!(names(dir.path()), ["a", "b"], "nothing half made");
    }

    /// Run by hand after `tools/tiny/recipes.py` has written other recipes, with the packages that it used:
    /// `cargo test --release -p wnw-eval -- --ignored checksums_of_new_recipes`. Leaves the recordings in the temporary
    /// directory, for `recipes.py --compare`.
    #[test]
    #[ignore = "writes crates/eval/data/tiny.sha256; needs the packages of prompts and the synthesisers"]
    fn checksums_of_new_recipes() {
        let dir = std::env::temp_dir().join("wnw-tiny");
        let mut lines = Vec::new();
        for format in [Format::TinyEn, Format::TinyFr, Format::TinyEn2Fr] {
            let out = dir.join(format.name());
            compose_checked(format, &TinySources::default(), &out, &mut |_, _| (), None).unwrap();
            for entry in std::fs::read_dir(&out).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|suffix| suffix == "wav") {
                    let hash = digest(&SHA256, &std::fs::read(&path).unwrap());
                    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
                    lines.push((path.file_name().unwrap().to_string_lossy().into_owned(), hash));
                }
            }
        }
        lines.sort();
        let text: String = lines.into_iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect();
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/data/tiny.sha256"), text).unwrap();
    }

    #[test]
    fn synthesisers_that_are_not_there_are_named() {
        let sources = TinySources {
            espeak: "/nowhere/espeak-ng".into(),
            flite: "/nowhere/flite".into(),
            ..TinySources::default()
        };
        let mut voices = Voices::new(&sources);
        for (key, program) in [("synth/slt/five", "flite"), ("synth/en-us+f2/b", "espeak-ng")] {
            let error = voices.unit("en", key, 0).unwrap_err().to_string();
            assert!(error.contains(&format!("/nowhere/{program}")), "{error}");
        }
    }
}
