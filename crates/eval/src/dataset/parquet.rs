//! Parquet files as the Hugging Face hub exports audio data sets: a column `audio` with the bytes of a sound file and its
//! name, a column of text, maybe others.
//!
//! Files are `data/SPLIT-00000-of-00003-HASH.parquet`, or `CONFIG/SPLIT/0000.parquet` where the hub converted them. Opening
//! reads the footers and the columns of text; a row's sound is read when it is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::{Audio, DatasetError, Format, Recording, Task, directory, text};

/// Names that columns of text have, the best first.
const TEXTS: [&str; 5] = ["text", "sentence", "normalized_text", "transcript", "transcription"];
const IDS: [&str; 4] = ["id", "audio_id", "utterance_id", "file"];
const LANGUAGES: [&str; 3] = ["language", "lang", "locale"];

/// One row's sound.
#[derive(Clone, Debug)]
pub struct AudioRow {
    file: Arc<Path>,
    column: usize,
    row_group: usize,
    /// In its row group.
    row: usize,
    /// In the file, from 1.
    number: usize,
}

impl AudioRow {
    /// Where it lies, for messages.
    pub(super) fn describe(&self) -> String {
        format!("{}, row {}", self.file.display(), self.number)
    }

    /// The bytes of its sound file.
    pub(super) fn read(&self) -> Result<Vec<u8>, DatasetError> {
        let found = guarded(&self.file, |reader| {
            let mut column = bytes_reader(reader, self.row_group, self.column)?;
            column.skip_records(self.row)?;
            let mut values: Vec<ByteArray> = Vec::new();
            column.read_records(1, Some(&mut Vec::new()), Some(&mut Vec::new()), &mut values)?;
            Ok(values.pop())
        })?;
        match found {
            Some(bytes) if !bytes.is_empty() => Ok(bytes.data().to_vec()),
            _ => Err(row_error(
                &self.file,
                self.number,
                "has no sound, only a name; export the data set with its audio embedded",
            )),
        }
    }
}

type Reader = SerializedFileReader<File>;

/// Opens a file and works on it. The decoder may panic on damage; that is then an error like any other.
fn guarded<T>(
    path: &Path,
    work: impl FnOnce(&Reader) -> parquet::errors::Result<T>,
) -> Result<T, DatasetError> {
    let file = File::open(path).map_err(DatasetError::io(path))?;
    let worked = catch_unwind(AssertUnwindSafe(|| work(&SerializedFileReader::new(file)?)));
    let reason = match worked {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the decoder failed".to_owned(),
    };
    Err(DatasetError::malformed(path, format!("is not a whole Parquet file ({reason}); fetch it again")))
}

fn bytes_reader(
    reader: &Reader,
    row_group: usize,
    column: usize,
) -> parquet::errors::Result<ColumnReaderImpl<ByteArrayType>> {
    match reader.get_row_group(row_group)?.get_column_reader(column)? {
        ColumnReader::ByteArrayColumnReader(column) => Ok(column),
        _ => Err(parquet::errors::ParquetError::General(format!("column {column} holds no text or bytes"))),
    }
}

fn row_error(path: &Path, row: usize, reason: impl Into<String>) -> DatasetError {
    DatasetError::Row { path: path.to_owned(), row, is_line: false, reason: reason.into() }
}

pub(super) fn read(root: &Path, split: Option<&str>) -> Result<Vec<Recording>, DatasetError> {
    let mut out = Vec::new();
    for path in choose(root, split)? {
        file(&path, &mut out)?;
    }
    Ok(out)
}

/// The files of one split, all of them.
fn choose(root: &Path, split: Option<&str>) -> Result<Vec<PathBuf>, DatasetError> {
    if root.is_file() {
        return Ok(vec![root.to_owned()]);
    }
    let mut splits: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let mut shards: BTreeMap<String, (usize, BTreeSet<usize>)> = BTreeMap::new();
    for (name, path) in directory::files(root, "Parquet files")? {
        let Some(stem) = name.strip_suffix(".parquet") else { continue };
        let (folder, base) = stem.rsplit_once('/').unwrap_or(("", stem));
        let split = match shard(base) {
            Some((split, index, count)) => {
                let seen = shards.entry(format!("{folder}/{split}")).or_insert((count, BTreeSet::new()));
                seen.1.insert(index);
                split.to_owned()
            }
            None if base.bytes().all(|b| b.is_ascii_digit()) => {
                folder.rsplit('/').next().unwrap_or("").to_owned()
            }
            None => base.to_owned(),
        };
        splits.entry(split).or_default().push(path);
    }
    if splits.is_empty() {
        return Err(DatasetError::NoRecordings { path: root.to_owned(), expected: Format::Parquet.layout() });
    }
    let chosen = match split {
        Some(split) => split.to_owned(),
        None if splits.len() == 1 => splits.keys().next().cloned().unwrap_or_default(),
        None => {
            let found: Vec<_> = splits.keys().map(String::as_str).collect();
            let reason = format!(
                "has several splits; write parquet:{}#SPLIT with one of {}",
                root.display(),
                found.join(", ")
            );
            return Err(DatasetError::malformed(root, reason));
        }
    };
    let Some(files) = splits.remove(&chosen) else {
        let (path, found) = (root.to_owned(), splits.into_keys().collect());
        return Err(DatasetError::NoSplit { path, split: chosen, found });
    };
    for (name, (count, seen)) in shards.iter().filter(|(name, _)| name.ends_with(&format!("/{chosen}"))) {
        if let Some(first) = (0..*count).find(|index| !seen.contains(index)) {
            return Err(DatasetError::Incomplete {
                path: root.to_owned(),
                what: "files of the split",
                example: format!("{}-{first:05}-of-{count:05}", name.trim_start_matches('/')),
                missing: count - seen.len(),
                total: *count,
            });
        }
    }
    Ok(files)
}

/// `SPLIT-00000-of-00003` and maybe `-HASH`: split, number and count.
fn shard(name: &str) -> Option<(&str, usize, usize)> {
    let (head, tail) = name.split_once("-of-")?;
    let (split, index) = head.rsplit_once('-')?;
    let count = tail.split('-').next()?.parse().ok()?;
    let index = index.parse().ok().filter(|index| *index < count)?;
    Some((split, index, count))
}

/// Which columns of a file are of use, by number.
struct Columns {
    sound: usize,
    name: Option<usize>,
    text: usize,
    id: Option<usize>,
    language: Option<usize>,
}

impl Columns {
    fn find(path: &Path, reader: &Reader) -> Result<Self, String> {
        let schema = reader.metadata().file_metadata().schema_descr();
        let names: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
        let is_bytes = |index: &usize| {
            schema.column(*index).physical_type() == parquet::basic::Type::BYTE_ARRAY
                && schema.column(*index).max_rep_level() == 0
        };
        let find = |wanted: &str| names.iter().position(|name| name == wanted).filter(is_bytes);
        let first = |wanted: &[&str]| wanted.iter().find_map(|name| find(name));
        // The column is called `audio` nearly always.
        let sound =
            find("audio.bytes").or_else(|| names.iter().position(|n| n.ends_with(".bytes")).filter(is_bytes));
        let shown = || names.join(", ");
        let sound = sound.ok_or_else(|| format!("has no column audio with bytes, only {}", shown()))?;
        let name = names[sound].strip_suffix("bytes").and_then(|head| find(&format!("{head}path")));
        let text = first(&TEXTS)
            .ok_or_else(|| format!("has none of the columns {}, only {}", TEXTS.join(", "), shown()))?;
        let _ = path;
        Ok(Self { sound, name, text, id: first(&IDS), language: first(&LANGUAGES) })
    }
}

fn file(path: &Path, out: &mut Vec<Recording>) -> Result<(), DatasetError> {
    type Column = Vec<Option<Vec<u8>>>;
    struct Group {
        texts: Column,
        ids: Option<Column>,
        names: Option<Column>,
        languages: Option<Column>,
    }
    let (columns, groups) = guarded(path, |reader| {
        let columns = match Columns::find(path, reader) {
            Ok(columns) => columns,
            Err(reason) => return Ok((Err(reason), Vec::new())),
        };
        let mut groups = Vec::new();
        for group in 0..reader.num_row_groups() {
            let rows = usize::try_from(reader.metadata().row_group(group).num_rows()).unwrap_or(0);
            let column = |index| column(reader, group, index, rows);
            groups.push(Group {
                texts: column(columns.text)?,
                ids: columns.id.map(column).transpose()?,
                names: columns.name.map(column).transpose()?,
                languages: columns.language.map(column).transpose()?,
            });
        }
        Ok((Ok(columns), groups))
    })?;
    let columns = columns.map_err(|reason| DatasetError::malformed(path, reason))?;
    let file: Arc<Path> = path.into();
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let mut number = 0;
    for (row_group, group) in groups.into_iter().enumerate() {
        for (row, said) in group.texts.iter().enumerate() {
            number += 1;
            let string = |bytes: &[u8]| match std::str::from_utf8(bytes) {
                Ok(text) => Ok(text.to_owned()),
                Err(_) => Err(row_error(path, number, "has a text that is not UTF-8")),
            };
            let optional = |column: &Option<Column>| -> Result<Option<String>, DatasetError> {
                let value =
                    column.as_ref().and_then(|values| values.get(row)).and_then(|value| value.as_deref());
                Ok(value.map(string).transpose()?.filter(|text| !text.is_empty()))
            };
            let said = said.as_deref().ok_or_else(|| row_error(path, number, "has no text"))?;
            let id = match optional(&group.ids)? {
                Some(id) => id,
                None => optional(&group.names)?.unwrap_or_else(|| format!("{stem}-{number:06}")),
            };
            let base = id.rsplit('/').next().unwrap_or(&id);
            out.push(Recording {
                id: base.rsplit_once('.').map_or(base, |(head, _)| head).to_owned(),
                audio: Audio::Row(AudioRow {
                    file: file.clone(),
                    column: columns.sound,
                    row_group,
                    row,
                    number,
                }),
                reference: text::flatten(&string(said)?),
                task: Task::Transcribe,
                language: optional(&group.languages)?,
                seconds: None,
                words: None,
            });
        }
    }
    Ok(())
}

/// A column of a row group, with none for nulls.
fn column(
    reader: &Reader,
    group: usize,
    index: usize,
    rows: usize,
) -> parquet::errors::Result<Vec<Option<Vec<u8>>>> {
    let defined = reader.metadata().file_metadata().schema_descr().column(index).max_def_level();
    let mut column = bytes_reader(reader, group, index)?;
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let (read, _, _) = column.read_records(rows, Some(&mut levels), Some(&mut Vec::new()), &mut values)?;
    if read != rows {
        return Err(parquet::errors::ParquetError::EOF(format!("{rows} rows expected, {read} there")));
    }
    let mut values = values.into_iter().map(|value: ByteArray| value.data().to_vec());
    if defined == 0 {
        return Ok(values.map(Some).collect());
    }
    Ok(levels.into_iter().map(|level| if level == defined { values.next() } else { None }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use parquet::data_type::Int32Type;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    const SCHEMA: &str = "message m { optional group audio { optional binary bytes; optional binary path (UTF8); } \
        optional binary sentence (UTF8); optional int32 n; optional binary locale (UTF8); }";

    /// Rows of (bytes, name, text, language), each as much as there is; a row group for every two rows.
    type Row<'a> = (Option<&'a [u8]>, Option<&'a str>, Option<&'a [u8]>, Option<&'a str>);

    fn write(path: &Path, schema: &str, rows: &[Row]) {
        let properties =
            WriterProperties::builder().set_compression(parquet::basic::Compression::SNAPPY).build();
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut writer =
            SerializedFileWriter::new(File::create(path).unwrap(), schema, properties.into()).unwrap();
        for rows in rows.chunks(2) {
            let mut group = writer.next_row_group().unwrap();
            let mut index = 0;
            while let Some(mut column) = group.next_column().unwrap() {
                if index == 3 {
                    let levels = vec![0; rows.len()];
                    column.typed::<Int32Type>().write_batch(&[], Some(&levels), None).unwrap();
                } else {
                    let cells: Vec<Option<&[u8]>> = rows
                        .iter()
                        .map(|row| match index {
                            0 => row.0,
                            1 => row.1.map(str::as_bytes),
                            2 => row.2,
                            _ => row.3.map(str::as_bytes),
                        })
                        .collect();
                    let full = if index < 2 { 2 } else { 1 };
                    let levels: Vec<i16> =
                        cells.iter().map(|cell| if cell.is_some() { full } else { full - 1 }).collect();
                    let values: Vec<ByteArray> =
                        cells.iter().flatten().map(|cell| ByteArray::from(cell.to_vec())).collect();
                    column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
                }
                column.close().unwrap();
                index += 1;
            }
            group.close().unwrap();
        }
        writer.close().unwrap();
    }

    const ROWS: [Row<'static>; 3] = [
        (Some(b"one"), Some("x/a.flac"), Some(b"A\nb"), Some("en")),
        (Some(b"two"), None, Some(b""), None),
        (None, Some("c.flac"), Some(b"C"), Some("fr")),
    ];

    #[test]
    fn rows_with_their_sound_on_demand() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all.parquet");
        write(&path, SCHEMA, &ROWS);
        let found = read(&path, None).unwrap();
        let rows: Vec<_> =
            found.iter().map(|r| (r.id.as_str(), r.reference.as_str(), r.language.as_deref())).collect();
        assert_eq!(rows, [("a", "A b", Some("en")), ("all-000002", "", None), ("c", "C", Some("fr"))]);
        let sound = |i: usize| match &found[i].audio {
            Audio::Row(row) => row.read(),
            other => panic!("{other:?}"),
        };
        // In any order.
        assert_eq!(sound(1).unwrap(), b"two");
        assert_eq!(sound(0).unwrap(), b"one");
        let error = sound(2).unwrap_err().to_string();
        assert!(error.contains("all.parquet, row 3: has no sound"), "{error}");
    }

    #[test]
    fn splits_and_shards() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("data")).unwrap();
        let at = |name: &str| dir.path().join("data").join(name);
        write(&at("test-00000-of-00002-0a1b.parquet"), SCHEMA, &ROWS[..1]);
        let error = read(dir.path(), None).unwrap_err();
        assert!(matches!(&error, DatasetError::Incomplete { missing: 1, total: 2, .. }), "{error}");
        assert!(error.to_string().contains("data/test-00001-of-00002"), "{error}");
        write(&at("test-00001-of-00002-0a1b.parquet"), SCHEMA, &ROWS[1..]);
        assert_eq!(read(dir.path(), None).unwrap().len(), 3);
        write(&at("train-00000-of-00001.parquet"), SCHEMA, &ROWS);
        let error = read(dir.path(), None).unwrap_err().to_string();
        assert!(error.contains("one of test, train"), "{error}");
        assert_eq!(read(dir.path(), Some("test")).unwrap().len(), 3);
        assert!(matches!(read(dir.path(), Some("dev")), Err(DatasetError::NoSplit { .. })));
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("clean/test")).unwrap();
        assert!(matches!(read(dir.path(), None), Err(DatasetError::NoRecordings { .. })));
        write(&dir.path().join("clean/test/0000.parquet"), SCHEMA, &ROWS);
        assert_eq!(read(dir.path(), Some("test")).unwrap().len(), 3);
    }

    #[test]
    fn columns_and_texts_that_are_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let error = |schema: &str, rows: &[Row]| {
            write(&path, schema, rows);
            read(&path, None).unwrap_err().to_string()
        };
        assert!(
            error(&SCHEMA.replace("sentence", "words"), &ROWS).contains("none of the columns text, sentence")
        );
        assert!(error(&SCHEMA.replace("binary bytes", "binary data"), &ROWS).contains("no column audio"));
        assert!(error(SCHEMA, &[(Some(b"x"), None, None, None)]).contains("row 1: has no text"));
        assert!(
            error(SCHEMA, &[ROWS[0], (Some(b"x"), None, Some(b"\xff"), None)])
                .contains("row 2: has a text that is not UTF-8")
        );
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        write(&path, SCHEMA, &ROWS);
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            let error = read(&path, None).unwrap_err();
            assert!(matches!(error, DatasetError::Malformed { .. }), "{end}: {error}");
        }
        // A changed byte may leave the file readable; it must not bring anything down.
        for at in (0..whole.len()).step_by(3) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            fs::write(&path, &damaged).unwrap();
            for row in read(&path, None).unwrap_or_default() {
                let _ = row.audio.source();
            }
        }
    }
}
