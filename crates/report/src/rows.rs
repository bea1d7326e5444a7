//! Figures and phrases that the text and the Markdown rendering share.

use std::collections::BTreeMap;

use orchestrator_ledger::Breach;
use orchestrator_tasks::Metrics;
use orchestrator_types::{ByteCount, DatasetName, DeviceId, NodeName, wording::steers};

use crate::{
    evidence::UnitOutcome,
    report::{Images, Node, Report, Samples, Task, Trial},
};

/// A figure to four places; a dash if there is none.
fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.4}"))
}

/// A median rank without needless places.
fn rank(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value}"))
}

/// The figures for people, by exact name: `CLIP_benchmark`'s second names are left to the JSON.
pub(crate) fn headlines(metrics: &Metrics) -> impl Iterator<Item = (&str, String)> {
    let own = metrics.0.iter().filter(|(name, _)| !name.contains("_retrieval_recall@"));
    own.map(|(name, value)| {
        let text = if name.ends_with("_median_rank") { rank(*value) } else { figure(*value) };
        (name.as_str(), text)
    })
}

/// The trial in two or three lines: the model's last path component (the whole path if two models
/// would read alike), precision, and the batch if it tells trials apart.
pub(crate) fn trial_names(trials: &[Trial]) -> Vec<[String; 2]> {
    let last =
        |path: &str| path.trim_end_matches('/').rsplit('/').next().unwrap_or(path).to_owned();
    let mut paths_of = BTreeMap::<String, Vec<&str>>::new();
    for trial in trials {
        let paths = paths_of.entry(last(&trial.model)).or_default();
        if !paths.contains(&trial.model.as_str()) {
            paths.push(&trial.model);
        }
    }
    let batches_vary = trials.iter().any(|a| {
        trials
            .iter()
            .any(|b| a.batch != b.batch && a.model == b.model && a.precision == b.precision)
    });
    let name = |trial: &Trial| {
        let short = last(&trial.model);
        let model = if paths_of[&short].len() > 1 { trial.model.clone() } else { short };
        let batch = if batches_vary {
            format!(" batch {}/{}", trial.batch.vision, trial.batch.text)
        } else {
            String::new()
        };
        [printable(&model), format!("{}{batch}", trial.precision)]
    };
    trials.iter().map(name).collect()
}

/// `1590 of 1593 evaluated, 3 quarantined`.
pub(crate) fn samples(samples: Samples) -> String {
    let Samples { total, evaluated, quarantined } = samples;
    let quarantined = match quarantined {
        0 => String::new(),
        some => format!(", {some} quarantined"),
    };
    format!("{evaluated} of {total} evaluated{quarantined}")
}

/// The samples of each dataset; where tasks or trials differ, those of the one that got least far.
pub(crate) fn samples_by_dataset(report: &Report) -> BTreeMap<&DatasetName, Samples> {
    let mut least = BTreeMap::<&DatasetName, Samples>::new();
    for Task { dataset, samples, .. } in report.trials.iter().flat_map(|trial| &trial.tasks) {
        let entry = least.entry(dataset).or_insert(*samples);
        if samples.evaluated < entry.evaluated {
            *entry = *samples;
        }
    }
    least
}

/// `12.3 s, 129.5 images/s`.
pub(crate) fn timing(trial: &Trial) -> String {
    let rate = trial.images_per_second.map(|rate| format!(", {rate:.1} images/s"));
    format!("{:.1} s{}", trial.seconds, rate.unwrap_or_default())
}

/// `2 units failed, 1 cancelled`; nothing if all are finished.
pub(crate) fn unfinished(report: &Report) -> Option<String> {
    let outcomes = [UnitOutcome::Failed, UnitOutcome::Quarantined, UnitOutcome::Cancelled];
    let counts = outcomes.map(|outcome| {
        (report.unfinished.iter().filter(|unit| unit.outcome == outcome).count(), outcome.name())
    });
    let parts: Vec<String> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| counted(count, "unit", name))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `1 sample quarantined`, `2 samples quarantined`.
pub(crate) fn counted(count: usize, noun: &str, state: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural} {state}")
}

/// An amount in three digits, to stand in a narrow column; a dash if there is none.
pub(crate) fn short(amount: Option<ByteCount>) -> String {
    let Some(amount) = amount else { return "–".to_owned() };
    let (mut value, mut unit) = (amount.as_u64() as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let places = if unit == "B" || value >= 99.95 { 0 } else { usize::from(value < 9.995) + 1 };
    format!("{value:.places$} {unit}")
}

/// `once`, `3 times`.
pub(crate) fn times(count: usize) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// An amount with its unit; a dash if there is none.
pub(crate) fn bytes(amount: Option<ByteCount>) -> String {
    amount.map_or_else(|| "–".to_owned(), |amount| amount.to_string())
}

/// `+2.31 %`; a dash if nothing was measured.
pub(crate) fn error(percent: Option<f64>) -> String {
    percent.map_or_else(|| "–".to_owned(), |percent| format!("{percent:+.2} %"))
}

/// A GPU by the first digits of its id, which tell those of one machine apart; the CPU by its name.
pub(crate) fn device(device: &DeviceId) -> String {
    let name = device.to_string();
    let short: String = name.chars().take(8).collect();
    printable(if name.len() > 16 { &short } else { &name })
}

/// `2.10 GiB in use where the quota is 2.00 GiB: other processes on the device`.
pub(crate) fn breach(breach: &Breach) -> String {
    let Breach { at_unix_ms: _, quota_bytes, used_bytes, by } = breach;
    printable(&format!("{used_bytes} in use where the quota is {quota_bytes}: {by}"))
}

/// Text of others without characters that could steer a terminal or break a line.
pub(crate) fn printable(text: &str) -> String {
    text.replace(steers, "\u{fffd}")
}

/// A line for each node that read images: how many it decoded, and how often that was not needed,
/// with the cache's peak and limit.
pub(crate) fn images(nodes: &[Node]) -> Vec<String> {
    let mut sums: BTreeMap<&NodeName, Images> = BTreeMap::new();
    for Node { node, images, .. } in nodes {
        let sum = sums.entry(node).or_default();
        sum.decoded += images.decoded;
        sum.from_cache += images.from_cache;
        sum.cache_peak_bytes = sum.cache_peak_bytes.max(images.cache_peak_bytes);
        sum.cache_limit_bytes = sum.cache_limit_bytes.max(images.cache_limit_bytes);
    }
    let read = sums.into_iter().filter(|(_, it)| it.decoded + it.from_cache > 0);
    let line = |(node, it): (&NodeName, Images)| {
        let Images { decoded, from_cache, cache_peak_bytes, cache_limit_bytes } = it;
        let cache = if cache_limit_bytes == ByteCount::ZERO {
            "no cache".to_owned()
        } else {
            let (peak, limit) = (short(Some(cache_peak_bytes)), short(Some(cache_limit_bytes)));
            format!("{peak} of {limit}")
        };
        format!("{node} decoded {decoded}, took {from_cache} from the cache ({cache})")
    };
    read.map(line).collect()
}
