//! Reads an eval.yaml and what it names; used by `check`, `plan` and `submit` alike.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use orchestrator_files::read_up_to;
use orchestrator_spec::{Evaluation, Facts, Problems, Rejected};
use orchestrator_types::ByteCount;
use orchestrator_worker::DataAccess;

use crate::{
    args::{Data, EvaluationFile},
    exit::{Exit, Failure},
    facts, say,
};

/// An evaluation that may run: parsed, and checked against its files.
pub(crate) struct Checked {
    /// The file's text, with what the command line set in it.
    pub(crate) text: String,
    pub(crate) evaluation: Evaluation,
    pub(crate) facts: Facts,
    /// Absolute folder that relative paths start at.
    pub(crate) base: PathBuf,
    /// What paths below data roots mean here.
    pub(crate) data: DataAccess,
    pub(crate) warnings: Vec<orchestrator_spec::Problem>,
}

/// Reads, validates and checks; reports every problem at once.
pub(crate) fn load(file: &EvaluationFile) -> Result<Checked, Failure> {
    let path = &file.file;
    let text = read(path).map_err(|error| Failure::new(Exit::BadEvaluation, error))?;
    let shown = path.display().to_string();
    let base = base_of(path)?;
    let data = data_access(&file.data)?;
    let evaluation = orchestrator_spec::examine(&shown, &text, &file.overrides)
        .map_err(|rejected| refuse(path, &with_files(*rejected, &base, &data)))?;
    let facts = facts::gather(&evaluation, &base, &data);
    let findings = orchestrator_spec::check(&evaluation, &facts);
    if !findings.errors.is_empty() {
        return Err(refuse(path, &findings.errors));
    }
    let text = orchestrator_spec::as_run(&shown, &text, &file.overrides, &base.to_string_lossy())
        .map_err(|problems| refuse(path, &problems))?;
    Ok(Checked { text, evaluation, facts, base, data, warnings: findings.warnings })
}

/// Any path that the user can read, and the data roots that the command line names.
pub(crate) fn data_access(data: &Data) -> Result<DataAccess, Failure> {
    DataAccess::anywhere(data.data_roots.clone()).map_err(Failure::usage)
}

/// Every problem of a file with mistakes, those of the files that it names included.
fn with_files(rejected: Rejected, base: &Path, data: &DataAccess) -> Problems {
    let Rejected { problems, sound } = rejected;
    match sound {
        None => problems,
        Some(sound) => {
            let facts = facts::gather(&sound, base, data);
            problems.and(orchestrator_spec::check(&sound, &facts).errors)
        }
    }
}

impl Checked {
    /// Prints the warnings to stderr.
    pub(crate) fn warn(&self) {
        for warning in &self.warnings {
            say(format_args!("warning: {warning}"));
        }
    }
}

fn refuse(path: &Path, problems: &Problems) -> Failure {
    let count = problems.iter().count();
    let plural = if count == 1 { "" } else { "s" };
    let title = format!("{} has {count} problem{plural}\n{problems}", path.display());
    Failure::new(Exit::BadEvaluation, anyhow!(title))
}

/// Far more than `spec` reads, which says so in its own words; far less than harms.
const SIZE_LIMIT: ByteCount = ByteCount::mib(1);

fn read(path: &Path) -> anyhow::Result<String> {
    // A pipe is as good as a file, and ends.
    let opened = File::open(path).and_then(|file| read_up_to(file, SIZE_LIMIT));
    let bytes = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!(
            "there is no file {}; name an evaluation, for example `orchestrator submit eval.yaml`",
            path.display()
        ),
        _ => anyhow::Error::new(error).context(format!("failed to read {}", path.display())),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow!("{} is not UTF-8 text: byte {at} is not part of a character", path.display())
    })
}

fn base_of(path: &Path) -> anyhow::Result<PathBuf> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    parent
        .canonicalize()
        .with_context(|| format!("failed to find the folder of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_run_is_the_evaluation_that_runs() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/eval.yaml");
        let load = |overrides: &[&str]| {
            let overrides = overrides.iter().map(|set| set.parse().unwrap()).collect();
            load(&EvaluationFile { file: file.clone(), overrides, data: Data::default() })
                .map_err(|_| ())
                .unwrap()
        };
        assert_eq!(load(&[]).text, std::fs::read_to_string(&file).unwrap());
        let checked = load(&["sweep.batch=[7]", "tasks=[{retrieval: {dataset: captions}}]"]);
        let again = orchestrator_spec::parse("eval.yaml", &checked.text, &[]).unwrap();
        let placeless = |evaluation| serde_json::to_value::<Evaluation>(evaluation).unwrap();
        assert_eq!(placeless(again), placeless(checked.evaluation));
        let folder = checked.base.to_str().unwrap();
        assert!(checked.text.contains(&format!("# relative paths start at {folder:?}\n")));
    }
}
