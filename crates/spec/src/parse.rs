//! Text to [`Evaluation`], in three steps: outline and value, shape, meaning.

use indexmap::IndexMap;
use orchestrator_types::{
    AllocatorSettings, ByteCount, DatasetName, MemoryTerms, OnOom, Precision,
    wording::{nearest, shown},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, Error as _},
};
use serde_yaml::Value;

use crate::{
    Axis, Batch, CaptionChoice, Dataset, Evaluation, Model, OnBadSample, Override, Split, Task,
    grammar::ROOT,
    key_path::KeyPath,
    outline::{Node, Refusal, outline},
    problem::{Place, Places, Problem, Problems},
    shape::VERSION,
    walk::walk,
};

/// More trials than anyone means.
const TRIALS_LIMIT: usize = 10_000;

/// Reads the text of an eval.yaml.
///
/// `file_name` is how messages name the file; `overrides` replace values in the order given.
///
/// # Errors
/// Every mistake that can be seen without looking at other files. What makes the text unreadable as
/// a whole (not YAML, aliases, another version of the format) is reported alone.
pub fn parse(file_name: &str, text: &str, overrides: &[Override]) -> Result<Evaluation, Problems> {
    examine(file_name, text, overrides).map_err(|rejected| rejected.problems)
}

/// An evaluation that cannot run.
#[derive(Debug)]
pub struct Rejected {
    /// Every mistake that can be seen without looking at other files.
    pub problems: Problems,
    /// What is sound of it, so that its files can be looked at too: models and tasks up to the
    /// first that is not, and the datasets that are. Nothing where the rules are not known.
    pub sound: Option<Evaluation>,
}

impl From<Problems> for Rejected {
    fn from(problems: Problems) -> Self {
        Self { problems, sound: None }
    }
}

/// As [`parse`], and keeps what is sound of an evaluation with mistakes.
///
/// # Errors
/// As [`parse`].
pub fn examine(
    file_name: &str,
    text: &str,
    overrides: &[Override],
) -> Result<Evaluation, Box<Rejected>> {
    let rejected = |problems: Problems| Box::new(Rejected::from(problems));
    let (root, mut document) = read(file_name, text).map_err(rejected)?;
    let flags = overrides.iter().map(|set| (set.path.clone(), set.to_string())).collect();
    let places = Places::new(file_name, root, flags);

    let mut problems = set(&mut document, overrides);
    problems.extend(walk(&mut document, &ROOT, &places));
    if other_version(&document) {
        // The rest of the file follows rules that are not known here.
        problems.retain(|problem| problem.key == "version");
        return Err(rejected(Problems::sorted(problems)));
    }
    problems.extend(meaning(&document, &places));
    if !problems.is_empty() {
        let (problems, sound) = (Problems::sorted(problems), sound(&document, places));
        return Err(Box::new(Rejected { problems, sound: Some(sound) }));
    }
    typed(document, places).map_err(|error| rejected(unread(file_name, &error)))
}

/// The text's outline and its value.
pub(crate) fn read(file_name: &str, text: &str) -> Result<(Node, Value), Problems> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let root = outline(text).map_err(|refusals| refused(file_name, refusals))?;
    let document = serde_yaml::from_str(text).map_err(|error| unread(file_name, &error))?;
    Ok((root, document))
}

fn refused(file: &str, refusals: Vec<Refusal>) -> Problems {
    let problem = |Refusal { at: (line, column), key, message, hint }| Problem {
        place: Some(Place::File { file: file.to_owned(), line, column }),
        key,
        message,
        hint: hint.map(str::to_owned),
    };
    Problems::sorted(refusals.into_iter().map(problem).collect())
}

pub(crate) fn unread(file: &str, error: &serde_yaml::Error) -> Problems {
    let at = error.location().map_or((1, 1), |location| {
        let from = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (from(location.line()), from(location.column()))
    });
    let message = format!("not valid YAML: {error}");
    refused(file, vec![Refusal { at, key: String::new(), message, hint: None }])
}

/// Puts the values in; each override that has no place is a problem.
pub(crate) fn set(document: &mut Value, overrides: &[Override]) -> Vec<Problem> {
    let problem = |set: &Override, message| Problem {
        place: Some(Place::Flag(set.to_string())),
        key: set.path.to_string(),
        message,
        hint: None,
    };
    overrides
        .iter()
        .filter_map(|set| set.apply(document).err().map(|message| problem(set, message)))
        .collect()
}

fn other_version(document: &Value) -> bool {
    let version = document.get("version").filter(|version| version.is_number());
    version.is_some_and(|version| version.as_u64() != Some(VERSION))
}

/// What no shape can say: names that must exist, and the size of the sweep.
fn meaning(document: &Value, places: &Places) -> Vec<Problem> {
    let mut problems = missing_datasets(document, places);
    let length = |list: Option<&Value>| list.and_then(Value::as_sequence).map_or(1, Vec::len);
    let axis = |name| length(document.get("sweep").and_then(|sweep| sweep.get(name)));
    let trials = [length(document.get("models")), axis("precision"), axis("batch")]
        .into_iter()
        .fold(1, usize::saturating_mul);
    if trials > TRIALS_LIMIT {
        let message = format!("the sweep makes {trials} trials; at most {TRIALS_LIMIT} are run");
        problems.push(places.key(&KeyPath::default().key("sweep"), message, None));
    }
    problems
}

fn missing_datasets(document: &Value, places: &Places) -> Vec<Problem> {
    let Some(datasets) = document.get("datasets").and_then(Value::as_mapping) else {
        return Vec::new();
    };
    let names: Vec<&str> = datasets.keys().filter_map(Value::as_str).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let tasks = document.get("tasks").and_then(Value::as_sequence).into_iter().flatten();
    let bodies = tasks.enumerate().flat_map(|(index, task)| {
        let entries = task.as_mapping().into_iter().flatten();
        entries.filter_map(move |(kind, body)| Some((index, kind.as_str()?, body)))
    });
    bodies
        .filter_map(|(index, kind, body)| {
            let name = body.get("dataset")?.as_str().filter(|name| !names.contains(name))?;
            let path = KeyPath::default().key("tasks").index(index).key(kind).key("dataset");
            let hint = match nearest(name, &names) {
                Some(guess) => format!("did you mean `{guess}`?"),
                None => format!("`datasets` declares {}", shown(&names.join(", "))),
            };
            Some(places.value(&path, format!("no dataset `{}`", shown(name)), Some(hint)))
        })
        .collect()
}

#[derive(Deserialize)]
struct Document {
    name: String,
    models: Vec<Model>,
    datasets: IndexMap<DatasetName, RawDataset>,
    tasks: Vec<RawTask>,
    /// In file order, which is the order of the axes.
    sweep: IndexMap<Axis, Vec<Value>>,
    memory: RawMemory,
    placement: RawPlacement,
    on_bad_sample: OnBadSample,
}

#[derive(Deserialize)]
struct RawMemory {
    quota: Option<String>,
    on_oom: OnOom,
    allocator: Option<AllocatorSettings>,
}

#[derive(Deserialize)]
struct RawPlacement {
    split: Split,
}

#[derive(Deserialize)]
struct RawDataset {
    format: Format,
    path: String,
    classes: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    ImageFolder,
    Captions,
}

/// One of the two is there.
#[derive(Deserialize)]
struct RawTask {
    zero_shot: Option<RawZeroShot>,
    retrieval: Option<RawRetrieval>,
}

#[derive(Deserialize)]
struct RawZeroShot {
    dataset: DatasetName,
    top_k: Vec<u32>,
}

#[derive(Deserialize)]
struct RawRetrieval {
    dataset: DatasetName,
    recall_at: Vec<u32>,
    captions: CaptionChoice,
}

/// Cannot fail on a document without problems: the walk checked every shape and wrote the defaults
/// in.
fn typed(document: Value, places: Places) -> Result<Evaluation, serde_yaml::Error> {
    let document: Document = serde_yaml::from_value(document)?;
    let axis = |axis| document.sweep.get(&axis).cloned().unwrap_or_default();
    let precisions: Vec<Precision> =
        serde_yaml::from_value(Value::Sequence(axis(Axis::Precision)))?;
    let precision_first =
        document.sweep.get_index_of(&Axis::Precision) < document.sweep.get_index_of(&Axis::Batch);
    Ok(Evaluation {
        name: document.name,
        models: document.models,
        precisions,
        batches: axis(Axis::Batch).iter().map(batch).collect::<Result<_, _>>()?,
        axes: if precision_first {
            [Axis::Precision, Axis::Batch]
        } else {
            [Axis::Batch, Axis::Precision]
        },
        datasets: document.datasets.into_iter().map(|(name, raw)| (name, raw.into())).collect(),
        tasks: document.tasks.into_iter().flat_map(RawTask::tasks).collect(),
        memory: document.memory.terms()?,
        split: document.placement.split,
        on_bad_sample: document.on_bad_sample,
        places,
    })
}

/// What can be read of a document with mistakes. Lists are cut, because places count their entries.
fn sound(document: &Value, places: Places) -> Evaluation {
    let datasets = document.get("datasets").and_then(Value::as_mapping).into_iter().flatten();
    let datasets = datasets.filter_map(|(name, dataset)| {
        let name = name.as_str()?.parse().ok()?;
        Some((name, Dataset::from(serde_yaml::from_value::<RawDataset>(dataset.clone()).ok()?)))
    });
    let tasks: Vec<RawTask> = prefix(document.get("tasks"), |task: &RawTask| {
        // An entry of another shape reads as no task at all.
        task.zero_shot.is_some() != task.retrieval.is_some()
    });
    Evaluation {
        name: String::new(),
        models: prefix(document.get("models"), |_| true),
        datasets: datasets.collect(),
        tasks: tasks.into_iter().flat_map(RawTask::tasks).collect(),
        precisions: Vec::new(),
        batches: Vec::new(),
        axes: [Axis::Precision, Axis::Batch],
        memory: MemoryTerms::default(),
        split: Split::Auto,
        on_bad_sample: OnBadSample::Quarantine,
        places,
    }
}

/// The entries of a list up to the first that cannot be read or is not `good`.
fn prefix<T: DeserializeOwned>(list: Option<&Value>, good: impl Fn(&T) -> bool) -> Vec<T> {
    let entries = list.and_then(Value::as_sequence).into_iter().flatten();
    entries.map_while(|entry| serde_yaml::from_value(entry.clone()).ok().filter(&good)).collect()
}

fn batch(value: &Value) -> Result<Batch, serde_yaml::Error> {
    if value.is_string() {
        return Ok(Batch::Auto);
    }
    serde_yaml::from_value(value.clone()).map(Batch::Fixed)
}

impl RawMemory {
    fn terms(self) -> Result<MemoryTerms, serde_yaml::Error> {
        let Self { quota, on_oom, allocator } = self;
        let quota = quota.map(|text| text.parse::<ByteCount>()).transpose();
        Ok(MemoryTerms { quota: quota.map_err(serde_yaml::Error::custom)?, on_oom, allocator })
    }
}

impl From<RawDataset> for Dataset {
    fn from(RawDataset { format, path, classes }: RawDataset) -> Self {
        match format {
            Format::ImageFolder => Self::ImageFolder { path, classes },
            Format::Captions => Self::Captions { path },
        }
    }
}

impl RawTask {
    fn tasks(self) -> impl Iterator<Item = Task> {
        let zero_shot =
            self.zero_shot.map(|RawZeroShot { dataset, top_k }| Task::ZeroShot { dataset, top_k });
        let retrieval = self.retrieval.map(|RawRetrieval { dataset, recall_at, captions }| {
            Task::Retrieval { dataset, recall_at, captions }
        });
        zero_shot.into_iter().chain(retrieval)
    }
}
