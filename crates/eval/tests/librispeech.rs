//! LibriSpeech and LibriSpeech-Long: the same recordings from a tree, a tar and a compressed tar, and every way in which such
//! a copy can be less than whole.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use wnw_eval::dataset::{Audio, Dataset, DatasetError, DatasetSpec, open};

type Files<'a> = Vec<(&'a str, Vec<u8>)>;

/// One sample at 16 kHz whose value tells the file.
fn wav(value: i16) -> Vec<u8> {
    let mut out = b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    out.extend_from_slice(&16_000_u32.to_le_bytes());
    out.extend_from_slice(&32_000_u32.to_le_bytes());
    out.extend_from_slice(b"\x02\0\x10\0data\x02\0\0\0");
    out.extend_from_slice(&value.to_le_bytes());
    out
}

fn long() -> Files<'static> {
    vec![
        ("librispeech-long/test-clean/1089/134686/134686_0002.flac", wav(200)),
        ("librispeech-long/test-clean/1089/134686/134686_0002.txt", b"SECOND PART".to_vec()),
        ("librispeech-long/test-clean/1089/134686/134686_0001.flac", wav(100)),
        (
            "librispeech-long/test-clean/1089/134686/134686_0001.txt",
            b"\xef\xbb\xbfFIRST\r\nPART\r\n".to_vec(),
        ),
        ("librispeech-long/test-clean/durations.txt", b"1 2 3".to_vec()),
        ("librispeech-long/dev-other/84/1/1_0.flac", wav(300)),
        ("librispeech-long/dev-other/84/1/1_0.txt", b"OTHER".to_vec()),
        ("README.md", b"about".to_vec()),
    ]
}

fn tree(files: &Files) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    dir
}

fn header(size: usize, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size as u64);
    header.set_mode(0o644);
    header.set_entry_type(kind);
    header
}

fn tar_of(files: &Files) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = header(bytes.len(), tar::EntryType::Regular);
        builder.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy");
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn read(format: &str, path: &Path, split: &str) -> Result<Dataset, DatasetError> {
    let spec: DatasetSpec = format!("{format}:{}{split}", path.display()).parse().unwrap();
    open(&spec)
}

fn rows(set: &Dataset) -> Vec<(String, String, i16)> {
    let sample = |audio: &Audio| (audio.samples().unwrap()[0] * 32_768.0).round() as i16;
    set.recordings.iter().map(|r| (r.id.clone(), r.reference.clone(), sample(&r.audio))).collect()
}

#[test]
fn the_same_from_a_tree_and_from_archives() {
    let dir = tree(&long());
    let set = read("librispeech-long", dir.path(), "").unwrap();
    assert_eq!(set.name, "librispeech-long#test-clean");
    let expected = [("1089-134686_0001", "FIRST PART", 100), ("1089-134686_0002", "SECOND PART", 200)]
        .map(|(id, text, value)| (id.to_owned(), text.to_owned(), value));
    assert_eq!(rows(&set), expected);
    let below = dir.path().join("librispeech-long");
    assert_eq!(rows(&read("librispeech-long", &below, "#test-clean").unwrap()), expected);
    assert_eq!(rows(&read("librispeech-long", &below.join("test-clean"), "").unwrap()), expected);
    assert_eq!(rows(&read("librispeech-long", &below, "#dev-other").unwrap())[0].0, "84-1_0");
    let plain = tar_of(&long());
    for bytes in [plain.clone(), gz(&plain)] {
        let (_dir, path) = file(&bytes);
        let set = read("librispeech-long", &path, "").unwrap();
        // Read against the archive's order, too.
        assert_eq!(rows(&set), expected);
        assert_eq!(set.recordings[1].audio.samples().unwrap().len(), 1);
        assert!(set.recordings[0].audio.describe().contains("134686_0001.flac"));
        assert_eq!(set.recordings[0].language.as_deref(), Some("en"));
    }
}

#[test]
fn librispeech_has_a_file_of_texts_for_each_chapter() {
    let files = vec![
        ("LibriSpeech/test-clean/61/70968/61-70968-0000.flac", wav(1)),
        ("LibriSpeech/test-clean/61/70968/61-70968-0001.flac", wav(2)),
        (
            "LibriSpeech/test-clean/61/70968/61-70968.trans.txt",
            b"61-70968-0000 A  B\r\n61-70968-0001 C\r\n\r\n".to_vec(),
        ),
        ("LibriSpeech/SPEAKERS.TXT", b"; id".to_vec()),
    ];
    let expected = [("61-70968-0000", "A  B", 1), ("61-70968-0001", "C", 2)]
        .map(|(id, text, value)| (id.to_owned(), text.to_owned(), value));
    assert_eq!(rows(&read("librispeech", tree(&files).path(), "#test-clean").unwrap()), expected);
    let (_dir, path) = file(&tar_of(&files));
    assert_eq!(rows(&read("librispeech", &path, "#test-clean").unwrap()), expected);
    let error = read("librispeech", tree(&files).path(), "#dev-clean").unwrap_err();
    assert!(error.to_string().contains("no split 'dev-clean'; it has test-clean"), "{error}");

    let mut less = files.clone();
    less[2].1 = b"61-70968-0000 A\n".to_vec();
    assert!(matches!(
        read("librispeech", tree(&less).path(), "#test-clean"),
        Err(DatasetError::MissingText { missing: 1, total: 2, .. })
    ));
    less[2].1 = b"61-70968-0000 A\n61-70968-0001\n".to_vec();
    let error = read("librispeech", tree(&less).path(), "#test-clean").unwrap_err();
    assert!(error.to_string().contains("line 2: '61-70968-0001' has no text"), "{error}");
    less[2].1 = b"61-70968-0000 A\n61-70968-0000 B\n61-70968-0001 C\n".to_vec();
    assert!(matches!(
        read("librispeech", tree(&less).path(), "#test-clean"),
        Err(DatasetError::Malformed { .. })
    ));
    less = files.clone();
    less.remove(1);
    assert!(matches!(
        read("librispeech", tree(&less).path(), "#test-clean"),
        Err(DatasetError::MissingAudio { missing: 1, total: 2, .. })
    ));
}

#[test]
fn what_a_copy_lacks_is_named() {
    let without = |name: &str| long().into_iter().filter(|(n, _)| !n.ends_with(name)).collect::<Vec<_>>();
    let with = |name: &'static str, bytes: &[u8]| {
        let mut files = without(name);
        files.push((long().into_iter().find(|(n, _)| n.ends_with(name)).unwrap().0, bytes.to_vec()));
        files
    };
    for packed in [false, true] {
        let read = |files: &Files| {
            if packed {
                let (_dir, path) = file(&gz(&tar_of(files)));
                read("librispeech-long", &path, "")
            } else {
                read("librispeech-long", tree(files).path(), "")
            }
        };
        let error = read(&without("686_0001.flac")).unwrap_err();
        assert!(
            matches!(&error, DatasetError::MissingAudio { id, .. } if id == "1089-134686_0001"),
            "{error}"
        );
        let error = read(&without("686_0002.txt")).unwrap_err();
        assert!(
            matches!(&error, DatasetError::MissingText { id, .. } if id == "1089-134686_0002"),
            "{error}"
        );
        assert!(matches!(read(&with("686_0001.flac", b"")), Err(DatasetError::EmptyFile { .. })));
        assert!(matches!(read(&with("686_0001.txt", b"\n")), Err(DatasetError::EmptyFile { .. })));
        assert!(matches!(read(&with("686_0001.txt", b"CAF\xc9")), Err(DatasetError::NotUtf8 { at: 3, .. })));
        let mut twice = long();
        twice.push(("librispeech-long/test-clean/1089/134686/134686_0001.wav", wav(1)));
        assert!(matches!(read(&twice), Err(DatasetError::DuplicateId { .. })));
        let only_other: Files = long().into_iter().filter(|(n, _)| n.contains("dev-other")).collect();
        assert!(matches!(read(&only_other), Err(DatasetError::NoSplit { .. })));
        assert!(matches!(read(&vec![("a/b.txt", b"x".to_vec())]), Err(DatasetError::NoRecordings { .. })));
    }
    assert!(matches!(
        read("librispeech-long", Path::new("/nowhere/at/all"), ""),
        Err(DatasetError::NotFound { .. })
    ));
}

#[test]
fn an_archive_that_was_cut_off_is_an_error_wherever() {
    // Whole blocks of what is between the entries count, too.
    let plain = tar_of(&long());
    let end = plain.len() - 1024;
    for cut in (0..=end).step_by(256) {
        let (_dir, path) = file(&plain[..cut]);
        let error = read("librispeech-long", &path, "").unwrap_err();
        let told = matches!(
            error,
            DatasetError::Truncated { .. } | DatasetError::Malformed { .. } | DatasetError::EmptyFile { .. }
        );
        assert!(told, "{cut}: {error}");
    }
    let packed = gz(&plain);
    for cut in (0..packed.len()).step_by(7) {
        let (_dir, path) = file(&packed[..cut]);
        assert!(read("librispeech-long", &path, "").is_err(), "{cut}");
    }
    let mut damaged = packed.clone();
    let checksum = packed.len() - 6;
    damaged[checksum] ^= 1;
    let (_dir, path) = file(&damaged);
    assert!(matches!(read("librispeech-long", &path, ""), Err(DatasetError::Malformed { .. })));
    let (_dir, path) = file(b"no archive at all, but long enough to be looked at");
    assert!(matches!(
        read("librispeech-long", &path, ""),
        Err(DatasetError::Malformed { .. } | DatasetError::Truncated { .. })
    ));
}

#[test]
fn an_archive_that_shrinks_after_opening_is_an_error() {
    for bytes in [tar_of(&long()), gz(&tar_of(&long()))] {
        let (_dir, path) = file(&bytes);
        let set = read("librispeech-long", &path, "").unwrap();
        fs::write(&path, &bytes[..60]).unwrap();
        assert!(matches!(set.recordings[1].audio.samples(), Err(DatasetError::Truncated { .. })));
    }
}

#[test]
fn names_that_lead_out_and_links_are_refused() {
    let entry = |name: &[u8], kind: tar::EntryType| {
        let mut header = header(0, kind);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        if kind == tar::EntryType::Symlink {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        let mut builder = tar::Builder::new(Vec::new());
        builder.append(&header, &[][..]).unwrap();
        let mut bytes = builder.into_inner().unwrap();
        let start = bytes.len() - 1024;
        bytes.splice(start.., tar_of(&long()));
        bytes
    };
    for (name, kind, expected) in [
        (&b"../outside.txt"[..], tar::EntryType::Regular, "leads out of"),
        (b"/etc/passwd", tar::EntryType::Regular, "leads out of"),
        (b"a/../../b", tar::EntryType::Regular, "leads out of"),
        (b"librispeech-long/test-clean/1/2/2_1.flac", tar::EntryType::Symlink, "not a regular file"),
        (b"librispeech-long/test-clean/1/2/2_1.flac", tar::EntryType::Link, "not a regular file"),
        (b"caf\xe9.txt", tar::EntryType::Regular, "is not UTF-8"),
    ] {
        let (_dir, path) = file(&entry(name, kind));
        let error = read("librispeech-long", &path, "").unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn a_tree_may_be_made_of_links() {
    let dir = tree(&long());
    let other = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(
        dir.path().join("librispeech-long/test-clean"),
        other.path().join("test-clean"),
    )
    .unwrap();
    assert_eq!(read("librispeech-long", other.path(), "").unwrap().recordings.len(), 2);
}
