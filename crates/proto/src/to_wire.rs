//! Domain → wire. Total: every domain value has a message.

use orchestrator_ledger::Account;
use orchestrator_plan::{
    DatasetSource, Direction, EncodeImages, EncodeTexts, ModelSource, SliceOffer, SourceKind,
    TextSet,
};
use orchestrator_run::{
    AssignedRank, AssignedWork, Assignment, ExecutorReading, ImageCounts, QuarantinedSample,
    RunState, Timing, UnitResult,
};
use orchestrator_types::{
    ByteCount, Component, FailureClass, MemoryTerms, OnOom, Precision, Shard,
};

use crate::v1;

impl From<Precision> for v1::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 => Self::Fp32,
            Precision::Fp16 => Self::Fp16,
            Precision::Bf16 => Self::Bf16,
            Precision::Int8 => Self::Int8,
        }
    }
}

impl From<Component> for v1::Component {
    fn from(component: Component) -> Self {
        match component {
            Component::Text => Self::Text,
            Component::Vision => Self::Vision,
            Component::Score => Self::Score,
        }
    }
}

impl From<FailureClass> for v1::FailureClass {
    fn from(class: FailureClass) -> Self {
        match class {
            FailureClass::Invalid => Self::Invalid,
            FailureClass::Resource => Self::Resource,
            FailureClass::Crash => Self::Crash,
            FailureClass::Infrastructure => Self::Infrastructure,
            FailureClass::Internal => Self::Internal,
        }
    }
}

/// The wire's word for a run's state.
pub const fn wire_run_state(state: RunState) -> v1::RunState {
    match state {
        RunState::Running => v1::RunState::Running,
        RunState::Complete => v1::RunState::Complete,
        RunState::Incomplete => v1::RunState::Incomplete,
        RunState::Cancelled => v1::RunState::Cancelled,
    }
}

impl From<Shard> for v1::Shard {
    fn from(Shard { start, end }: Shard) -> Self {
        Self { start, end }
    }
}

impl From<TextSet> for v1::TextSet {
    fn from(texts: TextSet) -> Self {
        match texts {
            TextSet::Prompts => Self::Prompts,
            TextSet::FirstCaptions => Self::FirstCaptions,
            TextSet::AllCaptions => Self::AllCaptions,
        }
    }
}

impl From<Direction> for v1::Direction {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::ImageToClass => Self::ImageToClass,
            Direction::ImageToText => Self::ImageToText,
            Direction::TextToImage => Self::TextToImage,
        }
    }
}

// Paths come from a YAML or JSON document, so they are UTF-8 already; a lossy copy of anything else
// would be refused by the file system with the path in the message.
fn path_text(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

impl From<ModelSource> for v1::Model {
    fn from(ModelSource { folder, weights, precision }: ModelSource) -> Self {
        Self {
            folder: path_text(&folder),
            weights_digest: weights.as_bytes().to_vec(),
            precision: v1::Precision::from(precision).into(),
        }
    }
}

impl From<DatasetSource> for v1::Dataset {
    fn from(DatasetSource { name, source, manifest }: DatasetSource) -> Self {
        let source = match source {
            SourceKind::ImageFolder { root, classes } => {
                v1::dataset::Source::ImageFolder(v1::ImageFolder {
                    root: path_text(&root),
                    classes: classes.as_deref().map(path_text),
                })
            }
            SourceKind::Captions { file } => {
                v1::dataset::Source::Captions(v1::Captions { file: path_text(&file) })
            }
        };
        Self {
            name: name.into(),
            source: Some(source),
            manifest_digest: manifest.as_bytes().to_vec(),
        }
    }
}

impl From<EncodeTexts> for v1::EncodeTexts {
    fn from(work: EncodeTexts) -> Self {
        let EncodeTexts { model, dataset, texts, part, parts, batch, tile } = work;
        Self {
            model: Some(model.into()),
            dataset: Some(dataset.into()),
            texts: v1::TextSet::from(texts).into(),
            part,
            parts,
            batch,
            tile,
        }
    }
}

impl From<EncodeImages> for v1::EncodeImages {
    fn from(work: EncodeImages) -> Self {
        let EncodeImages { model, dataset, shard, batch, tile, quarantine_bad_samples, recipe } =
            work;
        Self {
            model: Some(model.into()),
            dataset: Some(dataset.into()),
            shard: Some(shard.into()),
            batch,
            quarantine_bad_samples,
            tile,
            recipe_digest: recipe.map_or_else(Vec::new, |digest| digest.as_bytes().to_vec()),
        }
    }
}

impl From<AssignedRank> for v1::Rank {
    fn from(work: AssignedRank) -> Self {
        let AssignedRank { dataset, texts, direction, queries, depth, text_blobs, image_blobs } =
            work;
        let image_blob = |(shard, digest): (Shard, orchestrator_types::Digest)| v1::ImageBlob {
            shard: Some(shard.into()),
            digest: digest.as_bytes().to_vec(),
        };
        Self {
            dataset: Some(dataset.into()),
            texts: v1::TextSet::from(texts).into(),
            direction: v1::Direction::from(direction).into(),
            queries: Some(queries.into()),
            depth,
            text_blobs: text_blobs.iter().map(|digest| digest.as_bytes().to_vec()).collect(),
            image_blobs: image_blobs.into_iter().map(image_blob).collect(),
        }
    }
}

impl From<Assignment> for v1::Assignment {
    fn from(assignment: Assignment) -> Self {
        let Assignment { run, unit, token, work, memory, alone, set_aside, set_aside_reason } =
            assignment;
        let work = match work {
            AssignedWork::EncodeTexts(work) => v1::assignment::Work::EncodeTexts(work.into()),
            AssignedWork::EncodeImages(work) => v1::assignment::Work::EncodeImages(work.into()),
            AssignedWork::Rank(work) => v1::assignment::Work::Rank(work.into()),
        };
        Self {
            run: run.into(),
            unit: unit.0,
            token: token.0,
            work: Some(work),
            memory: Some(memory.into()),
            alone,
            set_aside: set_aside.into_iter().map(Into::into).collect(),
            set_aside_reason,
        }
    }
}

impl From<OnOom> for v1::OnOom {
    fn from(on_oom: OnOom) -> Self {
        match on_oom {
            OnOom::Fail => Self::Fail,
            OnOom::Split => Self::Split,
        }
    }
}

impl From<MemoryTerms> for v1::MemoryTerms {
    fn from(MemoryTerms { quota, on_oom, allocator }: MemoryTerms) -> Self {
        Self {
            quota_bytes: quota.map(ByteCount::as_u64),
            on_oom: v1::OnOom::from(on_oom).into(),
            allocator: allocator.map(Into::into),
        }
    }
}

impl From<UnitResult> for v1::UnitResult {
    fn from(result: UnitResult) -> Self {
        let UnitResult {
            rows,
            blob,
            partial,
            quarantined,
            timing,
            cached,
            reading,
            samples,
            account,
            rows_per_dispatch,
            inline,
            images,
        } = result;
        let json = |account: Account| {
            serde_json::to_vec(&account).expect("an account is always valid JSON")
        };
        Self {
            rows,
            blob_digest: blob.digest.as_bytes().to_vec(),
            blob_bytes: blob.size_bytes.as_u64(),
            partial: partial.into_bytes(),
            quarantined: quarantined.into_iter().map(Into::into).collect(),
            timing: Some(timing.into()),
            cached,
            reading: Some(reading.into()),
            inputs: Some(v1::InputDigests {
                samples: samples.map_or_else(Vec::new, |digest| digest.as_bytes().to_vec()),
            }),
            account_json: account.map_or_else(Vec::new, json),
            rows_per_dispatch,
            inline_blob: inline,
            images: Some(images.into()),
        }
    }
}

impl From<ImageCounts> for v1::ImageCounts {
    fn from(counts: ImageCounts) -> Self {
        let ImageCounts { decoded, from_cache, cache_peak_bytes, cache_limit_bytes } = counts;
        Self {
            decoded,
            from_cache,
            cache_peak_bytes: cache_peak_bytes.as_u64(),
            cache_limit_bytes: cache_limit_bytes.as_u64(),
        }
    }
}

impl From<QuarantinedSample> for v1::QuarantinedSample {
    fn from(QuarantinedSample { position, sample, reason }: QuarantinedSample) -> Self {
        Self { position, sample: sample.0, reason }
    }
}

impl From<Timing> for v1::Timing {
    fn from(Timing { load_ms, total_ms, decode_us, forward_us }: Timing) -> Self {
        Self { load_ms, total_ms, decode_us, forward_us }
    }
}

impl From<ExecutorReading> for v1::ExecutorReading {
    fn from(ExecutorReading { host_peak_bytes, weights_bytes }: ExecutorReading) -> Self {
        Self { host_peak_bytes: host_peak_bytes.as_u64(), weights_bytes: weights_bytes.as_u64() }
    }
}

impl From<SliceOffer> for v1::Slice {
    fn from(SliceOffer { id, node: _, device, threads, memory_bytes }: SliceOffer) -> Self {
        Self {
            id: id.into(),
            device: device.to_string(),
            threads,
            memory_bytes: memory_bytes.as_u64(),
        }
    }
}
