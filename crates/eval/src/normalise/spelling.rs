//! British spelling to American, word by word, by a list of 1,739 pairs (`data/spelling.tsv`).

use std::collections::HashMap;
use std::sync::LazyLock;

static AMERICAN: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let lines = include_str!("../../data/spelling.tsv").lines().filter(|l| !l.starts_with('#'));
    lines.filter_map(|l| l.split_once('\t')).collect()
});

/// The American spelling, or the word itself.
pub(super) fn american(word: &str) -> &str {
    AMERICAN.get(word).copied().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_whole() {
        assert_eq!(AMERICAN.len(), 1739);
        assert_eq!(
            (american("colour"), american("mobilisation"), american("color")),
            ("color", "mobilization", "color")
        );
    }
}
