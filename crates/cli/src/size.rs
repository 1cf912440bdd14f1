//! Amounts of memory on the command line.

/// Units and their bytes. A letter alone means the binary unit, as for `ulimit` and containers.
const UNITS: [(&str, u64); 13] = [
    ("B", 1),
    ("K", 1 << 10),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("T", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

/// Bytes of a size such as `8GiB`, `24 GB` or `1.5G`; the unit's case does not matter, but it must be there.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let number: f64 =
        number.parse().map_err(|_| "write a number and a unit, such as 8GiB or 24GB".to_owned())?;
    if unit.is_empty() {
        return Err(format!("{number} of what? Add a unit, such as {number}GiB or {number}MB"));
    }
    let Some((_, bytes)) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err(format!("'{unit}' is no unit; use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB"));
    };
    let size = number * *bytes as f64;
    // Beyond 2^60 no machine goes, and far below it f64 still counts every byte.
    if !(1.0..=(1u64 << 60) as f64).contains(&size) {
        return Err("must be at least one byte and at most 1048576TiB".into());
    }
    Ok(size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("24GB", 24_000_000_000),
            ("24 gb", 24_000_000_000),
            ("1.5G", 3 << 29),
            ("512m", 512 << 20),
            ("1b", 1),
            (" 3 TiB ", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_told() {
        for (text, says) in [
            ("", "such as 8GiB"),
            ("GiB", "such as 8GiB"),
            ("-1GiB", "such as 8GiB"),
            ("1.2.3GiB", "such as 8GiB"),
            ("8", "8GiB"),
            ("8 gigs", "'gigs' is no unit"),
            ("8e3", "'e3' is no unit"),
            ("0GiB", "at least one byte"),
            ("0.1B", "at least one byte"),
            ("99999999999TiB", "at most"),
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
