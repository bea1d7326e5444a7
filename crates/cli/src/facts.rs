//! Gathers what `spec::check` judges: model folders and datasets, as they are on this machine.

use std::{
    error::Error,
    path::{Path, PathBuf},
};

use orchestrator_data::{
    dataset::{CaptionChoice, DatasetErrors, Manifest, Problem, Source},
    preprocess::Recipe,
    tokenizer::Tokenizer,
};
use orchestrator_model::{Blocks, ModelFolder};
use orchestrator_spec::{
    Dataset, DatasetFacts, DatasetKey, DatasetProblem, Evaluation, Facts, ModelFacts, TowerFacts,
};
use orchestrator_types::{ByteCount, Component, below_data_root};
use orchestrator_worker::DataAccess;

/// Facts about every model and dataset of `evaluation`; relative paths start at `base`, others at
/// data roots.
pub(crate) fn gather(evaluation: &Evaluation, base: &Path, data: &DataAccess) -> Facts {
    let place = |path: &str| place(path, base, data);
    let model = |path: &str| place(path).map_err(|error| vec![error]).and_then(|p| model_facts(&p));
    let models = evaluation.models.iter().map(|named| model(&named.path)).collect();
    let datasets = evaluation
        .datasets
        .iter()
        .map(|(name, dataset)| (name.clone(), dataset_facts(dataset, place)))
        .collect();
    Facts { models, datasets }
}

/// Where a path of an evaluation lies on this machine.
pub(crate) fn place(path: &str, base: &Path, data: &DataAccess) -> Result<PathBuf, String> {
    match below_data_root(path) {
        Some(_) => data.resolve(Path::new(path)).map_err(|error| chain(&error)),
        None => Ok(base.join(path)),
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(reason) = cause {
        text.push_str(": ");
        text.push_str(&reason.to_string());
        cause = reason.source();
    }
    text
}

fn model_facts(path: &Path) -> Result<ModelFacts, Vec<String>> {
    let folder = ModelFolder::open(path).map_err(|error| vec![chain(&error)])?;
    // Both are read even if the first fails, so that both problems are told.
    let recipe = Recipe::open(path);
    let tokenizer = Tokenizer::open(path);
    let (recipe, tokenizer) = match (recipe, tokenizer) {
        (Ok(recipe), Ok(tokenizer)) => (recipe, tokenizer),
        (recipe, tokenizer) => {
            let problems = [
                recipe.err().map(|error| chain(&error)),
                tokenizer.err().map(|error| chain(&error)),
            ];
            return Err(problems.into_iter().flatten().collect());
        }
    };
    describe(&folder, &recipe, &tokenizer)
}

fn describe(
    folder: &ModelFolder,
    recipe: &Recipe,
    tokenizer: &Tokenizer,
) -> Result<ModelFacts, Vec<String>> {
    let config = folder.config();
    let image_size = config.vision.image_size;
    if recipe.size() != (image_size, image_size) {
        let (width, height) = recipe.size();
        return Err(vec![format!(
            "preprocessor_config.json makes images of {width} × {height} pixels and config.json \
             wants {image_size} × {image_size}; they must agree"
        )]);
    }
    let weights_blake3 = folder.weights_digest().map_err(|error| vec![chain(&error)])?;
    let total = [Component::Text, Component::Vision];
    let bytes = |component| folder.stored_bytes(component);
    Ok(ModelFacts {
        architecture: "CLIPModel".to_owned(),
        weights_bytes: ByteCount::bytes(total.iter().map(|c| bytes(*c).as_u64()).sum()),
        parameters: total.iter().map(|component| folder.parameters(*component)).sum(),
        weights_blake3,
        tokenizer_blake3: tokenizer.digest(),
        preprocess: recipe.describe(),
        crop: recipe.describe_crop(),
        image_size,
        context: config.text.context,
        embedding_width: config.embedding_width,
        vision: tower(config.vision.blocks, config.vision.tokens(), bytes(Component::Vision)),
        text: tower(config.text.blocks, config.text.context, bytes(Component::Text)),
    })
}

const fn tower(blocks: Blocks, tokens: u32, weights_bytes: ByteCount) -> TowerFacts {
    let Blocks { count, width, heads, mlp, activation: _, epsilon: _ } = blocks;
    TowerFacts { layers: count, width, heads, mlp, tokens, weights_bytes }
}

fn dataset_facts(
    dataset: &Dataset,
    place: impl Fn(&str) -> Result<PathBuf, String>,
) -> Result<DatasetFacts, Vec<DatasetProblem>> {
    let at = |key, path: &str| place(path).map_err(|message| vec![DatasetProblem { key, message }]);
    let (source, classes) = match dataset {
        Dataset::ImageFolder { path, classes } => {
            let classes = classes.as_deref().map(|classes| at(DatasetKey::Classes, classes));
            let classes = classes.transpose()?;
            let root = at(DatasetKey::Path, path)?;
            (Source::ImageFolder { root, classes: classes.clone() }, classes)
        }
        Dataset::Captions { path } => {
            (Source::Captions { file: at(DatasetKey::Path, path)? }, None)
        }
    };
    let manifest =
        Manifest::open(&source).map_err(|errors| problems(&errors, classes.as_deref()))?;
    let labelled = !manifest.classes().is_empty();
    Ok(DatasetFacts {
        samples: count(manifest.samples().len())?,
        labelled,
        classes: count(manifest.classes().len())?,
        templates: count(manifest.templates().len())?,
        captions_first: count(manifest.captions(CaptionChoice::First).texts.len())?,
        captions_all: count(manifest.captions(CaptionChoice::All).texts.len())?,
        manifest_digest: manifest.digest(),
        templates_digest: labelled.then(|| manifest.templates_digest()),
        warnings: manifest.warnings().iter().map(ToString::to_string).collect(),
    })
}

/// What is wrong with a dataset whose class list is the file `classes`.
fn problems(errors: &DatasetErrors, classes: Option<&Path>) -> Vec<DatasetProblem> {
    let blamed = |problem: &Problem| match problem {
        Problem::ClassList { .. } => DatasetKey::Classes,
        Problem::Unreadable { path, .. } | Problem::WrongKind { path, .. }
            if Some(path.as_path()) == classes =>
        {
            DatasetKey::Classes
        }
        _ => DatasetKey::Path,
    };
    let told = errors.problems().iter();
    let mut problems: Vec<_> = told
        .map(|problem| DatasetProblem { key: blamed(problem), message: chain(problem) })
        .collect();
    let hidden = errors.total() - problems.len() as u64;
    if hidden > 0 {
        let message = format!("and {hidden} more problems of this dataset");
        problems.push(DatasetProblem { key: DatasetKey::Path, message });
    }
    problems
}

fn count(length: usize) -> Result<u32, Vec<DatasetProblem>> {
    u32::try_from(length).map_err(|_| {
        let message = format!("{length} entries; at most {} are counted", u32::MAX);
        vec![DatasetProblem { key: DatasetKey::Path, message }]
    })
}
