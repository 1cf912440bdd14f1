//! What to say when the tensors are not those that the configuration asks for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::{TensorView, shortened};

/// Tensors of each kind that are named.
const SHOWN: usize = 4;

/// Parts of names that only checkpoints of other kinds have, and what these are.
const KINDS: [(&[&str], &str); 2] = [
    (
        &[".lora_A.", ".lora_B.", ".base_layer."],
        "these are weights of a LoRA adapter; merge them into the model and save that",
    ),
    (
        &[
            ".qweight",
            ".qzeros",
            ".scales",
            ".weight_scale",
            ".weight_packed",
            ".absmax",
            ".quant_map",
            ".SCB",
        ],
        "these weights are quantised already, in a form that this program does not read; use the original release, which it quantises itself (--dtype)",
    ),
];
const ONE_RELEASE: &str = "config.json (or params.json) and the weights must come from one release";

/// The canonical name that one of the file's stands for.
pub(super) type Canonical<'a> = &'a dyn for<'n> Fn(&'n str) -> Option<Cow<'n, str>>;

/// The tensors of a checkpoint beside those that are expected.
pub(super) struct Comparison<'a> {
    tensors: &'a BTreeMap<String, TensorView>,
    canonical: Canonical<'a>,
    expected: usize,
    missing: Vec<&'a (String, Vec<usize>)>,
    misshapen: Vec<(&'a TensorView, &'a [usize])>,
    unexpected: Vec<&'a TensorView>,
}

impl<'a> Comparison<'a> {
    pub fn new(
        tensors: &'a BTreeMap<String, TensorView>,
        expected: &'a [(String, Vec<usize>)],
        canonical: Canonical<'a>,
    ) -> Self {
        let known: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
        let found = |(name, shape): &'a (String, Vec<usize>)| Some((tensors.get(name)?, shape.as_slice()));
        Self {
            tensors,
            canonical,
            expected: expected.len(),
            missing: expected.iter().filter(|(name, _)| !tensors.contains_key(name)).collect(),
            misshapen: expected
                .iter()
                .filter_map(found)
                .filter(|(view, shape)| view.shape != *shape)
                .collect(),
            unexpected: tensors.iter().filter(|(n, _)| !known.contains(n.as_str())).map(|(_, v)| v).collect(),
        }
    }

    /// Some of each kind, one a line, in the file's own spelling, and what to do; `None` when everything fits.
    pub fn report(&self) -> Option<String> {
        if self.missing.is_empty() && self.misshapen.is_empty() && self.unexpected.is_empty() {
            return None;
        }
        let missing = |(name, shape): &&(String, Vec<usize>)| {
            format!("missing: {} {shape:?}", shortened(&self.spelling(name)))
        };
        let misshapen = |(view, shape): &(&TensorView, &[usize])| {
            let (name, found) = (shortened(&view.name), &view.shape);
            format!("misshapen: {name} is {found:?}, the configuration needs {shape:?}")
        };
        let unexpected =
            |view: &&TensorView| format!("unexpected: {} {:?}", shortened(&view.name), view.shape);
        let mut lines = Vec::new();
        name_some(&mut lines, &self.missing, "missing", missing);
        name_some(&mut lines, &self.misshapen, "misshapen", misshapen);
        name_some(&mut lines, &self.unexpected, "unexpected", unexpected);
        lines.push(self.advice());
        Some(lines.iter().map(|line| format!("\n  {line}")).collect())
    }

    /// The likeliest name in this file of a tensor that is not there: that of the same tensor of another layer with the number
    /// changed, or an end of the canonical name after a beginning that other tensors have. A spelling that does not lead back
    /// to the tensor is none.
    fn spelling(&self, missing: &str) -> String {
        let leads_back = |name: &String| (self.canonical)(name).is_some_and(|found| found == missing);
        let other_layer = layer(missing).and_then(|(before, number, after)| {
            self.tensors.iter().find_map(|(canonical, view)| {
                let (first, other, last) = layer(canonical)?;
                let fits = first == before && last == after;
                let (head, found, tail) = layer(&view.name).filter(|_| fits)?;
                (found == other).then(|| format!("{head}{number}{tail}")).filter(leads_back)
            })
        });
        let after_a_beginning = || {
            let names = self.tensors.values().map(|view| view.name.as_str());
            let beginnings: BTreeSet<&str> =
                names.flat_map(|name| name.match_indices('.').take(3).map(|(at, _)| &name[..=at])).collect();
            let mut beginnings: Vec<&str> = beginnings.into_iter().chain([""]).collect();
            beginnings.sort_by_key(|beginning| std::cmp::Reverse(beginning.len()));
            // The shortest end first: names that are canonical as a whole lead back after anything.
            let ends = missing.rmatch_indices('.').map(|(at, _)| &missing[at + 1..]);
            let ends: Vec<&str> = ends.chain([missing]).collect();
            beginnings
                .iter()
                .flat_map(|beginning| ends.iter().map(move |end| format!("{beginning}{end}")))
                .find(leads_back)
        };
        other_layer.or_else(after_a_beginning).unwrap_or_else(|| missing.to_owned())
    }

    fn advice(&self) -> String {
        let has = |part: &&str| self.unexpected.iter().any(|view| view.name.contains(*part));
        if let Some((_, what)) = KINDS.iter().find(|(parts, _)| parts.iter().any(&has)) {
            return (*what).into();
        }
        if let Some(prefix) = self.surplus_prefix() {
            return format!(
                "the names have '{}' before them that releases do not have: rename the tensors, or fetch a release",
                shortened(prefix)
            );
        }
        match (self.missing.len(), self.misshapen.len(), self.unexpected.len()) {
            (_, _, unexpected) if unexpected > 0 && 2 * self.missing.len() > self.expected => {
                format!("these are the weights of another model, or the configuration is: {ONE_RELEASE}")
            }
            (1.., 0, 0) => format!("the weights are not there as a whole: fetch them again; {ONE_RELEASE}"),
            (0, 1.., 0) => format!("the configuration is that of a model of another size: {ONE_RELEASE}"),
            _ => format!("{ONE_RELEASE}: fetch them again"),
        }
    }

    /// A beginning without which most of the unexpected tensors would be missing ones.
    fn surplus_prefix(&self) -> Option<&str> {
        let missing: BTreeMap<&str, &[usize]> =
            self.missing.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for view in &self.unexpected {
            let cut = view.name.match_indices('.').take(3).map(|(at, _)| view.name.split_at(at + 1));
            let fits = |rest: &str| {
                (self.canonical)(rest).and_then(|name| missing.get(&*name)).is_some_and(|s| *s == view.shape)
            };
            if let Some((prefix, _)) = cut.into_iter().find(|(_, rest)| fits(rest)) {
                *counts.entry(prefix).or_default() += 1;
            }
        }
        let (prefix, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        (2 * count > self.unexpected.len()).then_some(prefix)
    }
}

fn name_some<T>(lines: &mut Vec<String>, found: &[T], kind: &str, line: impl Fn(&T) -> String) {
    lines.extend(found.iter().take(SHOWN).map(line));
    if found.len() > SHOWN {
        lines.push(format!("… and {} more {kind}", found.len() - SHOWN));
    }
}

/// A name with a layer's number: what is before it, the number, what is after it.
fn layer(name: &str) -> Option<(&str, &str, &str)> {
    let start = name.find("layers.")? + "layers.".len();
    let end = start + name[start..].find('.')?;
    let number = &name[start..end];
    number.bytes().all(|b| b.is_ascii_digit()).then(|| (&name[..start], number, &name[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Bytes, thinker_name};
    use safetensors::Dtype;
    use std::path::Path;
    use std::sync::Arc;

    fn expected(layers: usize) -> Vec<(String, Vec<usize>)> {
        let mut names = vec![
            "audio_tower.conv1.weight".to_owned(),
            "audio_tower.conv1.bias".to_owned(),
            "language_model.model.norm.weight".to_owned(),
            "language_model.lm_head.weight".to_owned(),
        ];
        names.extend((0..layers).map(|l| format!("language_model.model.layers.{l}.mlp.up_proj.weight")));
        names.into_iter().map(|name| (name, vec![2])).collect()
    }

    fn release(canonical: &str) -> String {
        let name =
            canonical.replace("language_model.lm_head", "lm_head").replace("language_model.model", "model");
        format!("thinker.{name}")
    }

    /// The report on a file with these names, for `layers` layers.
    fn report(names: &[String], layers: usize) -> Option<String> {
        let bytes = Bytes::Owned(Arc::new(vec![0; 4]));
        let view = |name: &String| {
            let (file, name) = (Path::new("a").into(), name.clone());
            TensorView {
                file,
                name,
                dtype: Dtype::BF16,
                shape: vec![2],
                bytes: bytes.clone(),
                start: 0,
                len: 4,
            }
        };
        let tensors: BTreeMap<_, _> =
            names.iter().map(|name| (thinker_name(name).into_owned(), view(name))).collect();
        let expected = expected(layers);
        Comparison::new(&tensors, &expected, &|name| Some(thinker_name(name))).report()
    }

    fn released(layers: usize) -> Vec<String> {
        expected(layers).iter().map(|(name, _)| release(name)).collect()
    }

    #[test]
    fn each_kind_is_named_in_the_spelling_of_the_file() {
        assert_eq!(report(&released(3), 3), None);
        let without = |part: &str| -> Vec<String> {
            released(30).into_iter().filter(|name| !name.contains(part)).collect()
        };
        for name in ["thinker.lm_head.weight", "thinker.audio_tower.conv1.bias", "thinker.model.norm.weight"]
        {
            let report = report(&without(name), 30).unwrap();
            assert!(
                report.starts_with(&format!("\n  missing: {name} [2]\n  the weights are not")),
                "{report}"
            );
        }
        let mut names = without("mlp.up_proj");
        names.extend((0..9).map(|i| format!("thinker.model.layers.{i}.foo")));
        names.push(released(1).pop().unwrap());
        let text = report(&names, 30).unwrap();
        assert_eq!(text.matches("\n  missing: thinker.model.layers.").count(), SHOWN, "{text}");
        assert_eq!(text.matches("\n  unexpected: thinker.model.layers.").count(), SHOWN, "{text}");
        assert!(text.contains("… and 25 more missing") && text.contains("… and 5 more unexpected"), "{text}");
    }

    #[test]
    fn known_patterns_come_with_advice() {
        let twice: Vec<String> = released(9).iter().map(|name| format!("thinker.{name}")).collect();
        let text = report(&twice, 9).unwrap();
        assert!(text.contains("have 'thinker.' before them that releases do not have"), "{text}");
        let module: Vec<String> = released(9).iter().map(|name| format!("module.{name}")).collect();
        assert!(report(&module, 9).unwrap().contains("have 'module.' before them"));
        let others: Vec<String> = (0..20).map(|i| format!("encoder.blocks.{i}.weight")).collect();
        assert!(report(&others, 9).unwrap().contains("of another model"));
        for (part, says) in
            [("mlp.up_proj.qweight", "quantised already"), ("q.lora_A.weight", "LoRA adapter")]
        {
            let mut names = released(9);
            names.push(format!("thinker.model.layers.0.{part}"));
            assert!(report(&names, 9).unwrap().contains(says));
        }
        let long: Vec<String> = released(9).into_iter().chain(["é".repeat(5000)]).collect();
        let text = report(&long, 9).unwrap();
        assert!(text.len() < 600 && text.contains("(4880 characters)"), "{text}");
    }
}
