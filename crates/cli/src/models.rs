//! Finding the model that a name means.

use std::path::{Path, PathBuf};

use wnw_model::hub::{HubError, HubOptions, resolve};
use wnw_model::{EmbeddedModel, ModelFiles};

use crate::error::CliError;
use crate::progress::Bar;

/// The embedded model's name.
pub const TINY: &str = "tiny";

const CHOICES: &str =
    "give 'tiny', a checkpoint directory, or a hub name such as mistralai/Voxtral-Mini-3B-2507";

/// Opens `tiny`, a directory, or a hub name (fetching what is not in the cache). `argument` is the flag or argument that
/// named it, for messages.
pub fn open(argument: &str, model: &str, quiet: bool) -> Result<ModelFiles, CliError> {
    if model == TINY {
        let files = EmbeddedModel {
            name: TINY,
            config: wnw_tiny::CONFIG,
            tekken: wnw_tiny::TEKKEN,
            weights: wnw_tiny::WEIGHTS,
        };
        return Ok(ModelFiles::embedded(&files)?);
    }
    Ok(ModelFiles::open(&directory(argument, model, quiet)?)?)
}

fn directory(argument: &str, model: &str, quiet: bool) -> Result<PathBuf, CliError> {
    let path = Path::new(model);
    // A link that points nowhere is named as what it is when it is opened.
    if path.exists() || path.is_symlink() {
        return Ok(path.into());
    }
    // A hub name is ORG/NAME or ORG/NAME@REVISION; anything that looks like a path was meant as one.
    let name = model.split('@').next().unwrap_or(model);
    let looks_like_name = name.split('/').count() == 2 && !model.starts_with(['.', '/', '~']);
    if !looks_like_name {
        return Err(CliError::Usage(format!("{argument} {model}: no such directory; {CHOICES}")));
    }
    let options = HubOptions::from_lookup(|name| std::env::var(name).ok());
    let bar = Bar::new(quiet);
    let result = resolve(model, &options, &mut |file, done, total| bar.download(file, done, total));
    bar.clear();
    result.map_err(|error| CliError::Hub(explain(argument, model, &error)))
}

/// The hub's message, with the flag that named the model, and what to do.
fn explain(argument: &str, model: &str, error: &HubError) -> String {
    let message = error.to_string();
    // Some messages start with the name, with or without the revision.
    let name = model.split('@').next().unwrap_or(model);
    let message =
        [model, name].iter().find_map(|n| message.strip_prefix(n)?.strip_prefix(": ")).unwrap_or(&message);
    let advice = match error {
        HubError::Name { .. } | HubError::NotFound { .. } | HubError::NotAModel { .. } => {
            format!("; {CHOICES}")
        }
        HubError::Offline { .. } => {
            "; unset it once to fetch the model, or give 'tiny' or a checkpoint directory".into()
        }
        e if e.is_outage() => {
            "; the cache does not have the model: try again with a connection, or give 'tiny' or a checkpoint directory"
                .into()
        }
        _ => String::new(),
    };
    format!("{argument} {model}: {message}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_hub_name_the_argument_once_and_say_what_to_do() {
        let connection = HubError::Connection { url: "https://hub/x".into(), reason: "refused".into() };
        let text = explain("--model", "org/name@v1", &connection);
        assert!(text.starts_with("--model org/name@v1: https://hub/x: no connection: refused; "), "{text}");
        assert!(text.contains("'tiny' or a checkpoint directory"), "{text}");
        let absent = HubError::NotFound { model: "org/name".into(), revision: "v1".into() };
        let text = explain("MODEL", "org/name@v1", &absent);
        assert!(text.starts_with("MODEL org/name@v1: the hub has no such model"), "{text}");
        assert!(text.ends_with(CHOICES), "{text}");
    }
}
