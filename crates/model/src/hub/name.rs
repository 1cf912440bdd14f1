//! Names of models and revisions. They become parts of paths and addresses, so they are checked first.

use super::HubError;

/// Longest name that the hub allows.
const MAX_NAME: usize = 96;

/// A model and one of its revisions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModelName {
    /// `org/name`, or for a few old models `name`.
    pub repo: String,
    /// A branch, tag or commit.
    pub revision: String,
}

impl ModelName {
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let error = |reason| Err(HubError::Name { name: text.to_owned(), reason });
        let (repo, revision) = text.split_once('@').unwrap_or((text, "main"));
        if repo.is_empty() {
            return error("it is empty");
        }
        if repo.len() > MAX_NAME {
            return error("it is too long");
        }
        if repo.split('/').count() > 2 {
            return error("it has more than one '/'");
        }
        for part in repo.split('/') {
            if part.is_empty() {
                return error("a part of it is empty");
            }
            if !part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
                return error("only letters, digits, '-', '_' and '.' are allowed");
            }
            if part.contains("..") || part.contains("--") {
                return error("'..' and '--' are not allowed");
            }
            if part.starts_with(['.', '-']) || part.ends_with(['.', '-']) {
                return error("'.' and '-' are not allowed at its ends");
            }
        }
        if !is_revision(revision) {
            return error("the revision is empty or has characters that no revision has");
        }
        Ok(Self { repo: repo.to_owned(), revision: revision.to_owned() })
    }

    /// Whether the revision names a commit, whose contents never change.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.revision)
    }

    /// The revision as one segment of an address: tags and pull requests may contain '/'.
    pub fn encoded_revision(&self) -> String {
        self.revision.replace('/', "%2F")
    }
}

/// Whether this is the full hash of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn is_revision(text: &str) -> bool {
    text.len() <= 255
        && text.split('/').all(|part| {
            !part.is_empty()
                && !part.starts_with('.')
                && !part.contains("..")
                && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_revisions() {
        let name = ModelName::parse("mistralai/Voxtral-Mini-3B-2507").unwrap();
        assert_eq!((name.repo.as_str(), name.revision.as_str()), ("mistralai/Voxtral-Mini-3B-2507", "main"));
        let name = ModelName::parse("org/name@refs/pr/1").unwrap();
        assert_eq!(name.encoded_revision(), "refs%2Fpr%2F1");
        assert!(ModelName::parse(&format!("org/name@{}", "0a".repeat(20))).unwrap().is_commit());
        assert!(!ModelName::parse("org/name@v1.0").unwrap().is_commit());
    }

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        let bad = [
            "",
            "@main",
            "/",
            "a/",
            "/a",
            "..",
            "../x",
            "a/..",
            "a/b/c",
            "a/b@",
            "a/b@..",
            "a/b@../../x",
            "a/b@x/../y",
            "a/b@/x",
            "a/b@x y",
            "a/b@x?y",
            "a b/c",
            "a\\b",
            "a--b/c",
            "-a/b",
            "a/b.",
            "a/ü",
            "a/b\n",
            "C:\\model",
        ];
        for text in bad {
            assert!(matches!(ModelName::parse(text), Err(HubError::Name { .. })), "{text:?}");
        }
        assert!(ModelName::parse(&"a".repeat(97)).is_err());
    }
}
