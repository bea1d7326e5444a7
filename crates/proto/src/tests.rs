//! What crosses the wire comes back equal; what is malformed is refused by the field's name.

use orchestrator_ledger::{
    Account, Breach, ForecastReading, Holder, HostReading, Owner, PhaseReading, PhaseReadings,
    Sample,
};
use orchestrator_plan::{
    DatasetSource, Direction, EncodeImages, EncodeTexts, ModelSource, SourceKind, TextSet,
};
use orchestrator_run::{
    AssignedRank, AssignedWork, Assignment, Blob, ExecutorReading, ImageCounts, QuarantinedSample,
    Timing, UnitResult,
};
use orchestrator_types::{
    ByteCount, Component, DeviceId, Digest, FencingToken, MemoryTerms, OnOom, Phase, Precision,
    RunId, SampleId, Shard, UnitId,
};
use proptest::prelude::*;
use tonic::{Code, Status};

use crate::{Refusal, RefusalCode, v1};

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 8]>().prop_map(|bytes| Digest::of(&bytes))
}

fn shard() -> impl Strategy<Value = Shard> {
    (any::<u16>(), any::<u16>()).prop_map(|(start, len)| Shard {
        start: start.into(),
        end: u32::from(start) + u32::from(len),
    })
}

fn model() -> impl Strategy<Value = ModelSource> {
    let precision = prop::sample::select(vec![
        Precision::Fp32,
        Precision::Fp16,
        Precision::Bf16,
        Precision::Int8,
    ]);
    ("[a-zé/ ]{1,20}", digest(), precision).prop_map(|(folder, weights, precision)| ModelSource {
        folder: folder.into(),
        weights,
        precision,
    })
}

fn dataset() -> impl Strategy<Value = DatasetSource> {
    let folder = ("[a-z/]{1,20}", prop::option::of("[a-z/]{1,20}")).prop_map(|(root, classes)| {
        SourceKind::ImageFolder { root: root.into(), classes: classes.map(Into::into) }
    });
    let file = "[a-z/]{1,20}".prop_map(|file| SourceKind::Captions { file: file.into() });
    ("[a-z0-9]{1,12}", prop_oneof![folder, file], digest()).prop_map(|(name, source, manifest)| {
        DatasetSource {
            name: name.parse().expect("the pattern allows names only"),
            source,
            manifest,
        }
    })
}

fn texts() -> impl Strategy<Value = TextSet> {
    prop::sample::select(vec![TextSet::Prompts, TextSet::FirstCaptions, TextSet::AllCaptions])
}

fn work() -> impl Strategy<Value = AssignedWork> {
    let encode_texts = (model(), dataset(), texts(), 0..9_u32, 1..99_u32).prop_map(
        |(model, dataset, texts, part, batch)| {
            let work = EncodeTexts { model, dataset, texts, part, parts: 9, batch, tile: 32 };
            AssignedWork::EncodeTexts(work)
        },
    );
    let encode_images = (model(), dataset(), shard(), 1..99_u32, any::<bool>()).prop_map(
        |(model, dataset, shard, batch, quarantine_bad_samples)| {
            let tile = 4;
            let recipe = quarantine_bad_samples.then_some(dataset.manifest);
            AssignedWork::EncodeImages(EncodeImages {
                model,
                dataset,
                shard,
                batch,
                tile,
                quarantine_bad_samples,
                recipe,
            })
        },
    );
    let direction = prop::sample::select(vec![
        Direction::ImageToClass,
        Direction::ImageToText,
        Direction::TextToImage,
    ]);
    let blobs = prop::collection::vec((shard(), digest()), 0..4);
    let rank = (dataset(), texts(), direction, shard(), any::<u32>(), blobs).prop_map(
        |(dataset, texts, direction, queries, depth, image_blobs)| {
            let text_blobs = image_blobs.iter().map(|(_, digest)| *digest).collect();
            AssignedWork::Rank(AssignedRank {
                dataset,
                texts,
                direction,
                queries,
                depth,
                text_blobs,
                image_blobs,
            })
        },
    );
    prop_oneof![encode_texts, encode_images, rank]
}

fn memory() -> impl Strategy<Value = MemoryTerms> {
    let on_oom = prop::sample::select(vec![OnOom::Fail, OnOom::Split]);
    let settings = prop::sample::select(vec!["", "expandable_segments:True,backend:native"])
        .prop_map(|text| text.parse().unwrap());
    let quota = prop::option::of(any::<u64>().prop_map(ByteCount::bytes));
    (quota, on_oom, prop::option::of(settings)).prop_map(|(quota, on_oom, allocator)| MemoryTerms {
        quota,
        on_oom,
        allocator,
    })
}

/// An account in which every field says something, made from a few numbers.
fn account() -> impl Strategy<Value = Account> {
    (any::<[u64; 4]>(), prop::option::of(any::<u64>()), any::<i64>()).prop_map(
        |(numbers, maybe, at)| {
            let [one, two, three, four] = numbers.map(ByteCount::bytes);
            let maybe = maybe.map(ByteCount::bytes);
            let phase = PhaseReading {
                seconds: 0.25,
                allocated_peak_bytes: one,
                reserved_peak_bytes: two,
                device_peak_bytes: maybe,
                host_peak_bytes: three,
            };
            Account {
                started_at_unix_ms: at,
                device: DeviceId::Gpu("GPU-1".into()),
                driver: maybe.map(|_| "550.90".into()),
                quota_bytes: four,
                allocator: "native, expandable_segments:True".into(),
                baseline_bytes: maybe,
                weights_bytes: one,
                predicted_peak_bytes: two,
                allocated_peak_bytes: three,
                reserved_peak_bytes: four,
                device_peak_bytes: maybe,
                outside_allocator_bytes: maybe,
                host: HostReading {
                    resident_bytes: one,
                    pinned_bytes: two,
                    cgroup_limit_bytes: maybe,
                    ..HostReading::default()
                },
                fragmentation: maybe.map(|_| 0.125),
                ooms: one.as_u64(),
                retries: two.as_u64(),
                splits: three.as_u64(),
                phases: PhaseReadings { load: phase, warm_up: phase, run: phase },
                forecasts: vec![ForecastReading {
                    component: Component::Vision,
                    model: "tiny".into(),
                    precision: Precision::Bf16,
                    rows: 32,
                    tokens: 50,
                    predicted_bytes: one,
                    measured_bytes: maybe,
                    probes: 3,
                    reason: "the knee".into(),
                }],
                holders: vec![Holder { owner: Owner::ScoreTiles, bytes: two }],
                peak_holders: Vec::new(),
                breaches: vec![Breach {
                    at_unix_ms: at,
                    quota_bytes: one,
                    used_bytes: two,
                    by: "others".into(),
                }],
                samples: vec![Sample {
                    at_unix_ms: at,
                    phase: Phase::WarmUp,
                    allocated_bytes: one,
                    reserved_bytes: two,
                    device_bytes: maybe,
                    leased_bytes: three,
                    resident_bytes: four,
                    anonymous_bytes: one,
                    mapped_bytes: two,
                    cgroup_used_bytes: maybe,
                }],
            }
        },
    )
}

fn run_id() -> RunId {
    "01jdzs2v6m0000000000000000".parse().expect("a legal run id")
}

proptest! {
    #[test]
    fn assignments_cross_the_wire(work in work(), memory in memory(), unit: u32, token: u64) {
        let (unit, token) = (UnitId(unit), FencingToken(token));
        let sent = Assignment {
            run: run_id(),
            unit,
            token,
            work,
            memory,
            alone: unit.0 % 2 == 0,
            set_aside: vec![Shard { start: 3, end: 5 }],
            set_aside_reason: "why".into(),
        };
        let received = Assignment::try_from(v1::Assignment::from(sent.clone()));
        prop_assert_eq!(received, Ok(sent));
    }

    #[test]
    fn results_cross_the_wire(
        digests in (digest(), prop::option::of(digest())),
        numbers in any::<[u64; 8]>(),
        partial in ".{0,40}",
        samples in prop::collection::vec((any::<u32>(), ".{0,9}", "[ -~é→]{0,9}"), 0..3),
        cached: bool,
        account in prop::option::of(account()),
        rows_per_dispatch: u32,
        inline in prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
        images in any::<[u64; 4]>(),
    ) {
        let quarantined = samples
            .into_iter()
            .map(|(position, sample, reason)| {
                QuarantinedSample { position, sample: SampleId(sample), reason }
            })
            .collect();
        let [rows, size, load_ms, total_ms, decode_us, forward_us, host, weights] = numbers;
        let sent = UnitResult {
            rows,
            blob: Blob { digest: digests.0, size_bytes: ByteCount::bytes(size) },
            partial,
            quarantined,
            timing: Timing { load_ms, total_ms, decode_us, forward_us },
            cached,
            reading: ExecutorReading {
                host_peak_bytes: ByteCount::bytes(host),
                weights_bytes: ByteCount::bytes(weights),
            },
            samples: digests.1,
            account,
            rows_per_dispatch,
            inline,
            images: ImageCounts {
                decoded: images[0],
                from_cache: images[1],
                cache_peak_bytes: ByteCount::bytes(images[2]),
                cache_limit_bytes: ByteCount::bytes(images[3]),
            },
        };
        let received = UnitResult::try_from(v1::UnitResult::from(sent.clone()));
        prop_assert_eq!(received, Ok(sent));
    }
}

#[test]
fn malformed_messages_are_refused_by_field() {
    let refused = |message: v1::Assignment| Assignment::try_from(message).unwrap_err().to_string();
    let empty = v1::Assignment { run: "r".into(), ..Default::default() };
    assert_eq!(refused(empty.clone()), "work is missing");
    let images = |work| v1::Assignment {
        work: Some(v1::assignment::Work::EncodeImages(work)),
        ..empty.clone()
    };
    let no_tile = v1::EncodeImages::default();
    assert_eq!(refused(images(no_tile.clone())), "image work is without a batch or a tile");
    let model = v1::Model { weights_digest: vec![1; 31], ..Default::default() };
    let bad_digest = v1::EncodeImages { batch: 1, tile: 1, model: Some(model), ..no_tile };
    assert_eq!(refused(images(bad_digest)), "weights digest is 31 bytes long, not 32");
    let rank = v1::Rank {
        dataset: Some(v1::Dataset {
            name: "set".into(),
            source: Some(v1::dataset::Source::Captions(v1::Captions { file: "f".into() })),
            manifest_digest: vec![1; 32],
        }),
        texts: 1,
        direction: 1,
        queries: Some(v1::Shard::default()),
        ..Default::default()
    };
    let ranking = v1::Assignment { work: Some(v1::assignment::Work::Rank(rank)), ..empty.clone() };
    assert_eq!(refused(ranking.clone()), "memory is missing");
    let memory = Some(v1::MemoryTerms::default());
    assert_eq!(refused(v1::Assignment { memory, ..ranking.clone() }), "on_oom is unspecified");
    let allocator = Some("backend:other".into());
    let memory = Some(v1::MemoryTerms { on_oom: 1, allocator, ..Default::default() });
    assert_eq!(
        refused(v1::Assignment { memory, ..ranking }),
        "allocator is wrong: `backend` takes native, not `other`"
    );
    let path = v1::Assignment { run: "../etc".into(), ..images(v1::EncodeImages::default()) };
    assert!(Assignment::try_from(path).is_err());
}

#[test]
fn an_account_that_cannot_be_read_is_refused() {
    let result = v1::UnitResult {
        blob_digest: vec![1; 32],
        account_json: b"{}".to_vec(),
        ..Default::default()
    };
    let message = UnitResult::try_from(result).unwrap_err().to_string();
    assert!(message.starts_with("account is unreadable: missing field"), "{message}");
}

#[test]
fn every_refusal_keeps_its_kind_across_the_wire() {
    for code in [
        RefusalCode::Invalid,
        RefusalCode::NotFound,
        RefusalCode::Stale,
        RefusalCode::DoesNotFit,
        RefusalCode::Unavailable,
        RefusalCode::Overloaded,
        RefusalCode::TooSlow,
        RefusalCode::Internal,
    ] {
        let sent = Refusal::new(code, "why");
        assert_eq!(Refusal::from(Status::from(sent.clone())), sent);
    }
}

/// A status travels in a header, and headers of more than 16 KiB break the connection's stream.
#[test]
fn a_long_refusal_is_cut_so_that_it_arrives() {
    for letter in ["x", "é", "\n"] {
        let sent = Refusal::new(RefusalCode::Invalid, letter.repeat(100_000));
        let cut = Status::from(sent).message().to_owned();
        let header: usize =
            cut.bytes().map(|byte| if byte.is_ascii_graphic() { 1 } else { 3 }).sum();
        assert!(header < 13 << 10, "{header}");
        let (text, rest) = cut.split_once("… (").unwrap();
        let more: usize = rest.strip_suffix(" more bytes)").unwrap().parse().unwrap();
        assert_eq!(text.len() + more, 100_000 * letter.len());
    }
}

#[test]
fn a_code_without_a_kind_is_read_as_what_it_says() {
    let read = |code| Refusal::from(Status::new(code, "why")).code;
    assert_eq!(read(Code::Unavailable), RefusalCode::Unavailable);
    assert_eq!(read(Code::Cancelled), RefusalCode::Unavailable, "the connection broke");
    assert_eq!(read(Code::OutOfRange), RefusalCode::Invalid, "the message is too large");
    assert_eq!(read(Code::Unimplemented), RefusalCode::Internal);
    let mut foreign = Status::from(Refusal::new(RefusalCode::Overloaded, "why"));
    foreign.metadata_mut().insert("orchestrator-refusal", "of-a-later-release".parse().unwrap());
    assert_eq!(Refusal::from(foreign).code, RefusalCode::Unavailable);
}
