//! The settings store: the best batches that profiles found, kept for later plans in
//! `$XDG_CACHE_HOME/orchestrator/settings.json`.
//!
//! Invariants:
//! - A store that cannot be read or written stops nothing: it is told on stderr and left out.
//! - Readers see the whole of what a writer wrote, or nothing of it; of two writers none is lost.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use orchestrator_ledger::{ComponentProfile, Profile};
use orchestrator_plan::{Measured, MeasuredRows};
use orchestrator_types::{ByteCount, Component, DeviceId, Digest, Precision};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::{evaluation::Checked, say, state};

const FILE: &str = "settings.json";
const SCHEMA: &str = "orchestrator.settings/1";
/// What an entry of the processor says of itself.
const FIXED: &str = "for reading only: on the processor tiles are fixed by the model, so that \
                     results do not depend on the batch; plans do not use this";

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    entries: Vec<Entry>,
}

/// The best batch of one component on one device; the first four fields are the key.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    device: DeviceId,
    weights_blake3: Digest,
    precision: Precision,
    component: Component,
    /// As the profiled evaluation named it; for people.
    model: String,
    rows: u32,
    rows_per_second: Option<f64>,
    /// Of the forward passes with so many rows, weights included.
    measured_peak_bytes: Option<ByteCount>,
    measured_unix_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// What was measured on this machine before, for a plan.
pub(crate) fn measured() -> Measured {
    let store = Store::of_user().map(|store| store.read_or_warn());
    let (entries, warning) = store.unwrap_or_else(|error| (Vec::new(), Some(unread(&error))));
    tell(warning);
    usable(&entries).unwrap_or_default()
}

/// Keeps the best batches of `profile` for later plans of the same weights.
pub(crate) fn remember(profile: &Profile, checked: &Checked) {
    match Store::of_user().and_then(|store| store.add(&best(profile, checked))) {
        Ok(warning) => tell(warning),
        Err(error) => say(format_args!("warning: the best batches are not kept: {error:#}")),
    }
}

fn tell(warning: Option<String>) {
    if let Some(warning) = warning {
        say(format_args!("warning: {warning}"));
    }
}

fn unread(error: &anyhow::Error) -> String {
    format!("measured batches are left out: {error:#}")
}

/// What plans can use of it.
fn usable(entries: &[Entry]) -> anyhow::Result<Measured> {
    let gpus = entries.iter().filter(|entry| entry.device != DeviceId::Cpu);
    let rows = gpus.map(|entry| MeasuredRows {
        device: entry.device.clone(),
        weights: entry.weights_blake3,
        precision: entry.precision,
        component: entry.component,
        rows: entry.rows,
    });
    Ok(Measured::new(rows.collect())?)
}

fn best(profile: &Profile, checked: &Checked) -> Vec<Entry> {
    let measured_unix_ms = Timestamp::now().as_millisecond();
    let entry = |part: &ComponentProfile| {
        let mut models = checked.evaluation.models.iter().zip(&checked.facts.models);
        let (_, facts) = models.find(|(model, _)| model.path == part.model)?;
        let point = part.curve.iter().find(|point| point.rows == part.best.rows);
        Some(Entry {
            device: part.device.clone(),
            weights_blake3: facts.as_ref().ok()?.weights_blake3,
            precision: part.precision,
            component: part.component,
            model: part.model.clone(),
            rows: part.best.rows,
            rows_per_second: point.and_then(|point| point.rows_per_second),
            measured_peak_bytes: point.and_then(|point| point.measured_bytes),
            measured_unix_ms,
            note: (part.device == DeviceId::Cpu).then(|| FIXED.to_owned()),
        })
    };
    profile.components.iter().filter_map(entry).collect()
}

/// The store in one folder.
struct Store {
    folder: PathBuf,
}

impl Store {
    fn of_user() -> anyhow::Result<Self> {
        Ok(Self { folder: state::cache_folder()? })
    }

    fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    fn read(&self) -> anyhow::Result<Vec<Entry>> {
        let file = self.file();
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.with_context(|| format!("failed to read {}", file.display()))?,
        };
        parse(&text).with_context(|| {
            format!("{} is damaged; `orchestrator profile` writes it anew", file.display())
        })
    }

    /// The entries, or none and a warning.
    fn read_or_warn(&self) -> (Vec<Entry>, Option<String>) {
        match self.read() {
            Ok(entries) => (entries, None),
            Err(error) => (Vec::new(), Some(unread(&error))),
        }
    }

    /// Puts `new` in place of what has the same keys; returns a warning if the rest was lost.
    fn add(&self, new: &[Entry]) -> anyhow::Result<Option<String>> {
        state::create(&self.folder)?;
        let lock = self.folder.join("settings.lock");
        let locked = File::create(&lock).and_then(|file| file.lock().map(|()| file));
        let _locked = locked.with_context(|| format!("failed to lock {}", lock.display()))?;
        let (mut entries, warning) = self.read_or_warn();
        entries.retain(|entry| new.iter().all(|newer| !newer.replaces(entry)));
        entries.extend_from_slice(new);
        entries.sort_by(|a, b| a.key().cmp(&b.key()));
        self.write(&Document { schema: SCHEMA.to_owned(), entries })?;
        Ok(warning)
    }

    fn write(&self, document: &Document) -> anyhow::Result<()> {
        let file = self.file();
        let written = NamedTempFile::new_in(&self.folder).and_then(|mut partial| {
            serde_json::to_writer_pretty(&mut partial, document)?;
            partial.write_all(b"\n")?;
            Ok(partial.persist(&file)?)
        });
        written.map(drop).with_context(|| format!("failed to write {}", file.display()))
    }
}

impl Entry {
    const fn key(&self) -> (&DeviceId, &Digest, Precision, Component) {
        (&self.device, &self.weights_blake3, self.precision, self.component)
    }

    fn replaces(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Entry>> {
    let Document { schema, entries } = serde_json::from_str(text)?;
    ensure!(schema == SCHEMA, "its schema is `{schema}`; this version reads `{SCHEMA}`");
    usable(&entries)?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use orchestrator_ledger::CurvePoint;
    use tempfile::TempDir;

    use super::*;
    use crate::{executor::tests::stand_in, profile};

    fn store() -> (TempDir, Store) {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("orchestrator");
        (home, Store { folder })
    }

    fn entry(device: &str, component: Component, rows: u32) -> Entry {
        Entry {
            device: device.parse().unwrap(),
            weights_blake3: Digest::of(b"weights"),
            precision: Precision::Bf16,
            component,
            model: "models/tiny-clip".to_owned(),
            rows,
            rows_per_second: Some(1234.5),
            measured_peak_bytes: Some(ByteCount::mib(700)),
            measured_unix_ms: 1_700_000_000_000,
            note: None,
        }
    }

    fn point(rows: u32) -> CurvePoint {
        CurvePoint {
            rows,
            predicted_bytes: ByteCount::mib(1),
            measured_bytes: Some(ByteCount::mib(rows.into())),
            rows_per_second: Some(f64::from(rows)),
        }
    }

    #[test]
    fn what_is_written_is_read_and_the_newest_of_a_key_counts() {
        let (_home, store) = store();
        assert_eq!(store.read_or_warn(), (Vec::new(), None), "no store is no mistake");
        let [old, new] = [64, 128].map(|rows| entry("GPU-a", Component::Vision, rows));
        let [other, cpu] = ["GPU-b", "cpu"].map(|device| entry(device, Component::Vision, 32));
        store.add(&[old, other.clone()]).unwrap();
        store.add(&[new.clone(), cpu.clone()]).unwrap();
        assert_eq!(store.read_or_warn(), (vec![cpu, new, other], None));
        let measured: Vec<MeasuredRows> = usable(&store.read().unwrap()).unwrap().into();
        let rows: Vec<_> =
            measured.iter().map(|entry| (entry.device.to_string(), entry.rows)).collect();
        assert_eq!(rows, [("GPU-a".to_owned(), 128), ("GPU-b".to_owned(), 32)], "no processor");
        let left = fs::read_dir(&store.folder).unwrap().count();
        assert_eq!(left, 2, "the store and its lock");
    }

    #[test]
    fn a_damaged_store_is_told_left_out_and_written_anew() {
        let (_home, store) = store();
        let right = entry("GPU-a", Component::Text, 7);
        store.add(&[entry("GPU-b", Component::Text, 7)]).unwrap();
        let text = fs::read_to_string(store.file()).unwrap();
        let damaged = [
            text[..40].to_owned(),
            text.replace("settings/1", "settings/9"),
            text.replace("\"rows\": 7", "\"rows\": 0"),
            text.replace("GPU-b", "gpu 0"),
            String::new(),
        ];
        let warnings = damaged.map(|text| {
            fs::write(store.file(), text).unwrap();
            let (entries, warning) = store.read_or_warn();
            assert!(entries.is_empty());
            assert_eq!(
                store.add(std::slice::from_ref(&right)).unwrap(),
                warning,
                "told when it is replaced too"
            );
            assert_eq!(store.read_or_warn(), (vec![right.clone()], None));
            warning.unwrap().replace(&store.file().display().to_string(), "settings.json")
        });
        insta::assert_snapshot!(warnings.join("\n"));
    }

    #[test]
    fn an_entry_tells_the_best_point_of_the_curve_and_what_the_processor_does_with_it() {
        let checked = profile::tests::checked(&[]);
        let inventory = profile::tests::inventory();
        let measured = profile::measure(&stand_in(), &checked, &inventory);
        let mut measured = measured.map_err(|_| ()).unwrap();
        measured.components[0].curve = [32, 64, 128].map(point).to_vec();
        let on_cpu = best(&measured, &checked).remove(0);
        let part = &measured.components[0];
        let point = point(64);
        let weights = checked.facts.models[0].as_ref().unwrap().weights_blake3;
        assert_eq!(on_cpu.key(), (&DeviceId::Cpu, &weights, part.precision, part.component));
        assert_eq!((on_cpu.rows, on_cpu.rows_per_second), (point.rows, point.rows_per_second));
        assert_eq!(on_cpu.measured_peak_bytes, point.measured_bytes);
        assert_eq!(on_cpu.note.as_deref(), Some(FIXED));
        let gpu = ComponentProfile { device: "GPU-a".parse().unwrap(), ..part.clone() };
        let elsewhere = best(&Profile { components: vec![gpu], ..measured.clone() }, &checked);
        assert_eq!(elsewhere[0].note, None);
    }

    #[test]
    fn two_writers_lose_nothing() {
        let (_home, store) = store();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let entry = entry(&format!("GPU-{number}"), Component::Vision, 32);
                let store = &store;
                scope.spawn(move || store.add(&[entry]).unwrap());
            }
        });
        assert_eq!(store.read().unwrap().len(), 8);
    }
}
