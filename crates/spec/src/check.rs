//! Judges an evaluation against what was found at its paths.
//!
//! Invariant: pure; everything that is known about files comes in as [`Facts`].

use crate::{
    CaptionChoice, DatasetFacts, DatasetProblem, Evaluation, Facts, Problem, Problems, Task,
    key_path::KeyPath,
};

/// What is wrong with an evaluation, and what is only odd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Why it cannot run.
    pub errors: Problems,
    /// What its author may want to know.
    pub warnings: Vec<Problem>,
}

/// Compares `evaluation` with `facts`, which hold an entry for each of its models and datasets.
pub fn check(evaluation: &Evaluation, facts: &Facts) -> Findings {
    let mut check = Check { evaluation, errors: Vec::new(), warnings: Vec::new() };
    check.models(facts);
    check.datasets(facts);
    for (index, task) in evaluation.tasks.iter().enumerate() {
        // What is unusable or absent was reported above.
        if let Some(Ok(found)) = facts.datasets.get(task.dataset()) {
            check.task(&root("tasks").index(index).key(task.name()), task, found);
        }
    }
    Findings {
        errors: Problems::sorted(check.errors),
        warnings: Problems::sorted(check.warnings).into(),
    }
}

fn root(key: &str) -> KeyPath {
    KeyPath::default().key(key)
}

struct Check<'a> {
    evaluation: &'a Evaluation,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Check<'_> {
    fn error(&mut self, path: &KeyPath, message: String, hint: Option<&str>) {
        let hint = hint.map(str::to_owned);
        self.errors.push(self.evaluation.places.value(path, message, hint));
    }

    fn warning(&mut self, path: &KeyPath, message: String, hint: Option<&str>) {
        let hint = hint.map(str::to_owned);
        self.warnings.push(self.evaluation.places.value(path, message, hint));
    }

    fn models(&mut self, facts: &Facts) {
        for index in 0..self.evaluation.models.len() {
            let path = root("models").index(index).key("path");
            match facts.models.get(index) {
                Some(Ok(_)) => {}
                Some(Err(reasons)) => {
                    for reason in reasons {
                        self.error(&path, reason.clone(), None);
                    }
                }
                None => self.error(&path, "nobody looked at this model".to_owned(), None),
            }
        }
    }

    fn datasets(&mut self, facts: &Facts) {
        for name in self.evaluation.datasets.keys() {
            let path = root("datasets").key(name.as_str());
            let files = path.key("path");
            match facts.datasets.get(name) {
                Some(Ok(found)) => self.dataset(&files, found),
                Some(Err(problems)) => {
                    for DatasetProblem { key, message } in problems {
                        self.error(&path.key(key.name()), message.clone(), None);
                    }
                }
                None => self.error(&files, "nobody looked at this dataset".to_owned(), None),
            }
            if !self.evaluation.tasks.iter().any(|task| task.dataset() == name) {
                let problem = self.evaluation.places.key(
                    &path,
                    "no task uses this dataset".to_owned(),
                    Some("add a task, or remove it".to_owned()),
                );
                self.warnings.push(problem);
            }
        }
    }

    fn dataset(&mut self, files: &KeyPath, found: &DatasetFacts) {
        if found.samples == 0 {
            self.error(files, "there are no images".to_owned(), None);
        }
        for warning in &found.warnings {
            self.warning(files, warning.clone(), None);
        }
    }

    fn task(&mut self, path: &KeyPath, task: &Task, found: &DatasetFacts) {
        match task {
            Task::ZeroShot { top_k, .. } => self.zero_shot(path, top_k, found),
            Task::Retrieval { recall_at, captions, .. } => {
                self.retrieval(path, recall_at, *captions, found);
            }
        }
    }

    fn zero_shot(&mut self, path: &KeyPath, top_k: &[u32], found: &DatasetFacts) {
        let dataset = path.key("dataset");
        if !found.labelled {
            let hint = Some("zero_shot needs classes: a dataset of format imagefolder");
            return self.error(&dataset, "this dataset has no labels".to_owned(), hint);
        }
        if found.templates == 0 {
            let hint = Some("add `templates` to its class file");
            self.error(&dataset, "this dataset has no prompt templates".to_owned(), hint);
        }
        let key = path.key("top_k");
        if !self.evaluation.places.wrote(&key) {
            return self.default_top_k(path, top_k, found.classes);
        }
        for (index, k) in top_k.iter().enumerate().filter(|(_, k)| **k > found.classes) {
            let message = format!("the first {k} of {} classes", found.classes);
            let hint = Some("k is at most the number of classes");
            self.error(&key.index(index), message, hint);
        }
    }

    /// The author never wrote `top_k`: the message must not be about a key that is not there.
    fn default_top_k(&mut self, path: &KeyPath, top_k: &[u32], classes: u32) {
        let fit: Vec<u32> = top_k.iter().copied().filter(|k| *k <= classes).collect();
        if fit.len() < top_k.len() {
            let message =
                format!("`top_k` is {top_k:?} by default, and there are only {classes} classes");
            let hint = format!("write `top_k: {fit:?}`");
            self.error(path, message, Some(&hint).filter(|_| !fit.is_empty()).map(String::as_str));
        }
    }

    fn retrieval(
        &mut self,
        path: &KeyPath,
        recall_at: &[u32],
        captions: CaptionChoice,
        found: &DatasetFacts,
    ) {
        let texts = match captions {
            CaptionChoice::First => found.captions_first,
            CaptionChoice::All => found.captions_all,
        };
        if texts == 0 {
            let hint = Some("retrieval needs a dataset of format captions");
            let message = "this dataset has no captions".to_owned();
            return self.error(&path.key("dataset"), message, hint);
        }
        let fewest = found.samples.min(texts);
        for (index, k) in recall_at.iter().enumerate().filter(|(_, k)| **k >= fewest) {
            let message = format!("recall@{k} among {fewest} candidates is always 1");
            self.warning(&path.key("recall_at").index(index), message, None);
        }
    }
}
