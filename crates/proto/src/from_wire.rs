//! Wire → domain. Refuses what is missing, unknown or malformed, and names the field.

use orchestrator_ledger::Account;
use orchestrator_plan::{
    DatasetSource, Direction, EncodeImages, EncodeTexts, ModelSource, SliceOffer, SourceKind,
    TextSet,
};
use orchestrator_run::{
    AssignedRank, AssignedWork, Assignment, Blob, ExecutorReading, ImageCounts, QuarantinedSample,
    RunState, Timing, UnitResult,
};
use orchestrator_types::{
    AllocatorSettings, ByteCount, Component, Digest, FailureClass, FencingToken, MemoryTerms,
    NodeName, OnOom, Precision, SampleId, Shard, UnitId, wording::one_line,
};

use crate::{Refusal, RefusalCode, v1};

/// A message that is well-formed protobuf and means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {problem}")]
pub struct InvalidMessage {
    field: &'static str,
    problem: String,
}

impl InvalidMessage {
    fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

impl From<InvalidMessage> for Refusal {
    fn from(error: InvalidMessage) -> Self {
        Self::new(RefusalCode::Invalid, format!("invalid message: {error}"))
    }
}

impl From<InvalidMessage> for tonic::Status {
    fn from(error: InvalidMessage) -> Self {
        Refusal::from(error).into()
    }
}

type Parsed<T> = Result<T, InvalidMessage>;

fn present<T>(value: Option<T>, field: &'static str) -> Parsed<T> {
    value.ok_or_else(|| InvalidMessage::new(field, "missing"))
}

fn name<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
    field: &'static str,
) -> Parsed<T> {
    text.parse().map_err(|error: T::Err| InvalidMessage::new(field, error.to_string()))
}

fn digest(bytes: &[u8], field: &'static str) -> Parsed<Digest> {
    bytes
        .try_into()
        .map_err(|_| InvalidMessage::new(field, format!("{} bytes long, not 32", bytes.len())))
}

fn optional_digest(bytes: &[u8], field: &'static str) -> Parsed<Option<Digest>> {
    if bytes.is_empty() { Ok(None) } else { digest(bytes, field).map(Some) }
}

fn known<E: TryFrom<i32>>(value: i32, field: &'static str) -> Parsed<E> {
    value.try_into().map_err(|_| InvalidMessage::new(field, format!("unknown: {value}")))
}

fn unspecified<T>(field: &'static str) -> Parsed<T> {
    Err(InvalidMessage::new(field, "unspecified"))
}

impl TryFrom<v1::Precision> for Precision {
    type Error = InvalidMessage;

    fn try_from(precision: v1::Precision) -> Parsed<Self> {
        match precision {
            v1::Precision::Unspecified => unspecified("precision"),
            v1::Precision::Fp32 => Ok(Self::Fp32),
            v1::Precision::Fp16 => Ok(Self::Fp16),
            v1::Precision::Bf16 => Ok(Self::Bf16),
            v1::Precision::Int8 => Ok(Self::Int8),
        }
    }
}

impl TryFrom<v1::Component> for Component {
    type Error = InvalidMessage;

    fn try_from(component: v1::Component) -> Parsed<Self> {
        match component {
            v1::Component::Unspecified => unspecified("component"),
            v1::Component::Text => Ok(Self::Text),
            v1::Component::Vision => Ok(Self::Vision),
            v1::Component::Score => Ok(Self::Score),
        }
    }
}

impl TryFrom<v1::FailureClass> for FailureClass {
    type Error = InvalidMessage;

    fn try_from(class: v1::FailureClass) -> Parsed<Self> {
        match class {
            v1::FailureClass::Unspecified => unspecified("failure class"),
            v1::FailureClass::Invalid => Ok(Self::Invalid),
            v1::FailureClass::Resource => Ok(Self::Resource),
            v1::FailureClass::Crash => Ok(Self::Crash),
            v1::FailureClass::Infrastructure => Ok(Self::Infrastructure),
            v1::FailureClass::Internal => Ok(Self::Internal),
        }
    }
}

/// The domain's word for a run's state.
///
/// # Errors
/// [`InvalidMessage`] for an unspecified state.
pub fn run_state(state: v1::RunState) -> Parsed<RunState> {
    match state {
        v1::RunState::Unspecified => unspecified("run state"),
        v1::RunState::Running => Ok(RunState::Running),
        v1::RunState::Complete => Ok(RunState::Complete),
        v1::RunState::Incomplete => Ok(RunState::Incomplete),
        v1::RunState::Cancelled => Ok(RunState::Cancelled),
    }
}

impl TryFrom<v1::Shard> for Shard {
    type Error = InvalidMessage;

    fn try_from(v1::Shard { start, end }: v1::Shard) -> Parsed<Self> {
        if start > end {
            return Err(InvalidMessage::new("shard", format!("{start}..{end}, backwards")));
        }
        Ok(Self { start, end })
    }
}

impl TryFrom<v1::TextSet> for TextSet {
    type Error = InvalidMessage;

    fn try_from(texts: v1::TextSet) -> Parsed<Self> {
        match texts {
            v1::TextSet::Unspecified => unspecified("text set"),
            v1::TextSet::Prompts => Ok(Self::Prompts),
            v1::TextSet::FirstCaptions => Ok(Self::FirstCaptions),
            v1::TextSet::AllCaptions => Ok(Self::AllCaptions),
        }
    }
}

impl TryFrom<v1::Direction> for Direction {
    type Error = InvalidMessage;

    fn try_from(direction: v1::Direction) -> Parsed<Self> {
        match direction {
            v1::Direction::Unspecified => unspecified("direction"),
            v1::Direction::ImageToClass => Ok(Self::ImageToClass),
            v1::Direction::ImageToText => Ok(Self::ImageToText),
            v1::Direction::TextToImage => Ok(Self::TextToImage),
        }
    }
}

impl TryFrom<v1::Model> for ModelSource {
    type Error = InvalidMessage;

    fn try_from(model: v1::Model) -> Parsed<Self> {
        let v1::Model { folder, weights_digest, precision } = model;
        Ok(Self {
            folder: folder.into(),
            weights: digest(&weights_digest, "weights digest")?,
            precision: known::<v1::Precision>(precision, "precision")?.try_into()?,
        })
    }
}

impl TryFrom<v1::Dataset> for DatasetSource {
    type Error = InvalidMessage;

    fn try_from(dataset: v1::Dataset) -> Parsed<Self> {
        let v1::Dataset { name: dataset_name, source, manifest_digest } = dataset;
        let source = match present(source, "dataset source")? {
            v1::dataset::Source::ImageFolder(v1::ImageFolder { root, classes }) => {
                SourceKind::ImageFolder { root: root.into(), classes: classes.map(Into::into) }
            }
            v1::dataset::Source::Captions(v1::Captions { file }) => {
                SourceKind::Captions { file: file.into() }
            }
        };
        Ok(Self {
            name: name(&dataset_name, "dataset name")?,
            source,
            manifest: digest(&manifest_digest, "manifest digest")?,
        })
    }
}

impl TryFrom<v1::EncodeTexts> for EncodeTexts {
    type Error = InvalidMessage;

    fn try_from(work: v1::EncodeTexts) -> Parsed<Self> {
        let v1::EncodeTexts { model, dataset, texts, part, parts, batch, tile } = work;
        if part >= parts || batch == 0 || tile == 0 {
            return Err(InvalidMessage::new("text work", "empty or out of range"));
        }
        Ok(Self {
            model: present(model, "model")?.try_into()?,
            dataset: present(dataset, "dataset")?.try_into()?,
            texts: known::<v1::TextSet>(texts, "text set")?.try_into()?,
            part,
            parts,
            batch,
            tile,
        })
    }
}

impl TryFrom<v1::EncodeImages> for EncodeImages {
    type Error = InvalidMessage;

    fn try_from(work: v1::EncodeImages) -> Parsed<Self> {
        let v1::EncodeImages {
            model,
            dataset,
            shard,
            batch,
            quarantine_bad_samples,
            tile,
            recipe_digest,
        } = work;
        if batch == 0 || tile == 0 {
            return Err(InvalidMessage::new("image work", "without a batch or a tile"));
        }
        Ok(Self {
            model: present(model, "model")?.try_into()?,
            dataset: present(dataset, "dataset")?.try_into()?,
            shard: present(shard, "shard")?.try_into()?,
            batch,
            tile,
            quarantine_bad_samples,
            recipe: optional_digest(&recipe_digest, "digest of the recipe")?,
        })
    }
}

impl TryFrom<v1::Rank> for AssignedRank {
    type Error = InvalidMessage;

    fn try_from(work: v1::Rank) -> Parsed<Self> {
        let v1::Rank { dataset, texts, direction, queries, depth, text_blobs, image_blobs } = work;
        let image_blob = |v1::ImageBlob { shard, digest: bytes }: v1::ImageBlob| {
            Ok((present(shard, "image blob's shard")?.try_into()?, digest(&bytes, "image blob")?))
        };
        Ok(Self {
            dataset: present(dataset, "dataset")?.try_into()?,
            texts: known::<v1::TextSet>(texts, "text set")?.try_into()?,
            direction: known::<v1::Direction>(direction, "direction")?.try_into()?,
            queries: present(queries, "queries")?.try_into()?,
            depth,
            text_blobs: text_blobs
                .iter()
                .map(|bytes| digest(bytes, "text blob"))
                .collect::<Parsed<_>>()?,
            image_blobs: image_blobs.into_iter().map(image_blob).collect::<Parsed<_>>()?,
        })
    }
}

impl TryFrom<v1::Assignment> for Assignment {
    type Error = InvalidMessage;

    fn try_from(assignment: v1::Assignment) -> Parsed<Self> {
        let v1::Assignment { run, unit, token, work, memory, alone, set_aside, set_aside_reason } =
            assignment;
        let work = match present(work, "work")? {
            v1::assignment::Work::EncodeTexts(work) => AssignedWork::EncodeTexts(work.try_into()?),
            v1::assignment::Work::EncodeImages(work) => {
                AssignedWork::EncodeImages(work.try_into()?)
            }
            v1::assignment::Work::Rank(work) => AssignedWork::Rank(work.try_into()?),
        };
        Ok(Self {
            run: name(&run, "run id")?,
            unit: UnitId(unit),
            token: FencingToken(token),
            work,
            memory: present(memory, "memory")?.try_into()?,
            alone,
            set_aside: set_aside.into_iter().map(Shard::try_from).collect::<Parsed<_>>()?,
            set_aside_reason,
        })
    }
}

impl TryFrom<v1::OnOom> for OnOom {
    type Error = InvalidMessage;

    fn try_from(on_oom: v1::OnOom) -> Parsed<Self> {
        match on_oom {
            v1::OnOom::Unspecified => unspecified("on_oom"),
            v1::OnOom::Fail => Ok(Self::Fail),
            v1::OnOom::Split => Ok(Self::Split),
        }
    }
}

impl TryFrom<v1::MemoryTerms> for MemoryTerms {
    type Error = InvalidMessage;

    fn try_from(terms: v1::MemoryTerms) -> Parsed<Self> {
        let v1::MemoryTerms { quota_bytes, on_oom, allocator } = terms;
        Ok(Self {
            quota: quota_bytes.map(ByteCount::bytes),
            on_oom: known::<v1::OnOom>(on_oom, "on_oom")?.try_into()?,
            allocator: allocator.as_deref().map(settings).transpose()?,
        })
    }
}

fn settings(text: &str) -> Parsed<AllocatorSettings> {
    let wrong = |error| InvalidMessage::new("allocator", format!("wrong: {error}"));
    text.parse().map_err(wrong)
}

fn account(json: &[u8]) -> Parsed<Option<Account>> {
    if json.is_empty() {
        return Ok(None);
    }
    let read = serde_json::from_slice(json).map(Some);
    read.map_err(|error| InvalidMessage::new("account", format!("unreadable: {error}")))
}

impl TryFrom<v1::UnitResult> for UnitResult {
    type Error = InvalidMessage;

    fn try_from(result: v1::UnitResult) -> Parsed<Self> {
        let v1::UnitResult {
            rows,
            blob_digest,
            blob_bytes,
            partial,
            quarantined,
            timing,
            cached,
            reading,
            inputs,
            account_json,
            rows_per_dispatch,
            inline_blob,
            images,
        } = result;
        let v1::InputDigests { samples } = inputs.unwrap_or_default();
        let blob = Blob {
            digest: digest(&blob_digest, "blob digest")?,
            size_bytes: ByteCount::bytes(blob_bytes),
        };
        Ok(Self {
            rows,
            blob,
            partial: String::from_utf8(partial)
                .map_err(|_| InvalidMessage::new("partial result", "not UTF-8"))?,
            quarantined: quarantined.into_iter().map(Into::into).collect(),
            timing: timing.unwrap_or_default().into(),
            cached,
            reading: reading.unwrap_or_default().into(),
            samples: optional_digest(&samples, "digest of the samples")?,
            account: account(&account_json)?,
            rows_per_dispatch,
            inline: inline_blob,
            images: images.unwrap_or_default().into(),
        })
    }
}

impl From<v1::ImageCounts> for ImageCounts {
    fn from(counts: v1::ImageCounts) -> Self {
        let v1::ImageCounts { decoded, from_cache, cache_peak_bytes, cache_limit_bytes } = counts;
        Self {
            decoded,
            from_cache,
            cache_peak_bytes: ByteCount::bytes(cache_peak_bytes),
            cache_limit_bytes: ByteCount::bytes(cache_limit_bytes),
        }
    }
}

impl From<v1::QuarantinedSample> for QuarantinedSample {
    fn from(sample: v1::QuarantinedSample) -> Self {
        let v1::QuarantinedSample { position, sample, reason } = sample;
        Self { position, sample: SampleId(sample), reason: one_line(&reason) }
    }
}

impl From<v1::Timing> for Timing {
    fn from(timing: v1::Timing) -> Self {
        let v1::Timing { load_ms, total_ms, decode_us, forward_us } = timing;
        Self { load_ms, total_ms, decode_us, forward_us }
    }
}

impl From<v1::ExecutorReading> for ExecutorReading {
    fn from(reading: v1::ExecutorReading) -> Self {
        let v1::ExecutorReading { host_peak_bytes, weights_bytes } = reading;
        Self {
            host_peak_bytes: ByteCount::bytes(host_peak_bytes),
            weights_bytes: ByteCount::bytes(weights_bytes),
        }
    }
}

impl v1::Slice {
    /// The slice as an offer of `node`.
    ///
    /// # Errors
    /// [`InvalidMessage`] for a malformed id or device.
    pub fn offer(self, node: NodeName) -> Result<SliceOffer, InvalidMessage> {
        let Self { id, device, threads, memory_bytes } = self;
        Ok(SliceOffer {
            id: name(&id, "slice id")?,
            node,
            device: name(&device, "device")?,
            threads,
            memory_bytes: ByteCount::bytes(memory_bytes),
        })
    }
}
