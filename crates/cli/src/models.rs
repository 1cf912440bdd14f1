//! Finding the model that a name means.

use std::path::{Path, PathBuf};

use wnw_model::hub::{HubOptions, resolve};
use wnw_model::{EmbeddedModel, ModelFiles};

use crate::error::CliError;
use crate::progress::Bar;

/// The embedded model's name.
pub const TINY: &str = "tiny";

/// Opens `tiny`, a directory, or a hub name (fetching what is not in the cache).
pub fn open(model: &str, quiet: bool) -> Result<ModelFiles, CliError> {
    if model == TINY {
        let files = EmbeddedModel {
            name: TINY,
            config: wnw_tiny::CONFIG,
            tekken: wnw_tiny::TEKKEN,
            weights: wnw_tiny::WEIGHTS,
        };
        return Ok(ModelFiles::embedded(&files)?);
    }
    Ok(ModelFiles::open(&directory(model, quiet)?)?)
}

fn directory(model: &str, quiet: bool) -> Result<PathBuf, CliError> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.into());
    }
    // A hub name is ORG/NAME or ORG/NAME@REVISION; anything that looks like a path was meant as one.
    let name = model.split('@').next().unwrap_or(model);
    let looks_like_name = name.split('/').count() == 2 && !model.starts_with(['.', '/', '~']);
    if !looks_like_name {
        return Err(CliError::Usage(format!(
            "--model {model}: no such directory; give '{TINY}', a checkpoint directory, or a hub name such as mistralai/Voxtral-Mini-3B-2507"
        )));
    }
    let options = HubOptions::from_lookup(|name| std::env::var(name).ok());
    let bar = Bar::new(quiet);
    let result = resolve(model, &options, &mut |file, done, total| bar.download(file, done, total));
    bar.clear();
    Ok(result?)
}
