//! What is written is read back by the same library's reader.

use arrow_array::{
    Array, BooleanArray, FixedSizeListArray, Float32Array, Int64Array, ListArray, RecordBatch,
    StringArray, TimestampMillisecondArray, UInt32Array, cast::AsArray, types::Float32Type,
};
use orchestrator_ledger::Sample;
use orchestrator_tasks::Direction;
use orchestrator_types::{
    ByteCount, CaptionChoice, DatasetName, DeviceId, Phase, RunId, SampleId, TrialId,
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::*;

fn run() -> RunId {
    "01k0".parse().unwrap()
}

fn fluent() -> DatasetName {
    "fluent".parse().unwrap()
}

fn read(file: std::fs::File) -> (usize, Vec<RecordBatch>) {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let groups = builder.metadata().num_row_groups();
    let reader = builder.with_batch_size(1 << 20).build().unwrap();
    (groups, reader.map(Result::unwrap).collect())
}

fn column<'a, T: Array + 'static>(batch: &'a RecordBatch, name: &str) -> &'a T {
    batch.column_by_name(name).unwrap().as_any().downcast_ref().unwrap()
}

#[test]
fn predictions_are_read_back() {
    let dataset = fluent();
    let caption = caption_id(&SampleId("a/1.jpg".to_owned()), 2);
    let zero_shot = Prediction {
        trial: TrialId(1),
        task: "zero_shot",
        direction: None,
        dataset: &dataset,
        captions: None,
        sample_id: "a/1.jpg",
        label: "cat",
        top: &[("cat", 0.5), ("dog", 0.25)],
        rank: 1,
    };
    let retrieval = Prediction {
        task: "retrieval",
        direction: Some(Direction::TextToImage),
        captions: Some(CaptionChoice::All),
        sample_id: &caption,
        label: "a/1.jpg",
        top: &[],
        rank: 12,
        ..zero_shot
    };
    let mut writer = PredictionWriter::new(tempfile::tempfile().unwrap(), run()).unwrap();
    writer.push(&zero_shot).unwrap();
    writer.push(&retrieval).unwrap();
    let (_, batches) = read(writer.finish().unwrap());
    let batch = &batches[0];
    assert_eq!(batch.num_rows(), 2);
    assert_eq!(column::<StringArray>(batch, "run").value(0), "01k0");
    assert_eq!(column::<UInt32Array>(batch, "trial").value(0), 1);
    assert_eq!(column::<StringArray>(batch, "task").value(1), "retrieval");
    assert!(column::<StringArray>(batch, "direction").is_null(0));
    assert_eq!(column::<StringArray>(batch, "direction").value(1), "text_to_image");
    assert!(column::<StringArray>(batch, "captions").is_null(0));
    assert_eq!(column::<StringArray>(batch, "captions").value(1), "all");
    assert_eq!(column::<StringArray>(batch, "sample_id").value(1), "a/1.jpg#2");
    assert_eq!(column::<StringArray>(batch, "label").value(0), "cat");
    let ids = column::<ListArray>(batch, "top_ids").value(0);
    assert_eq!(ids.as_string::<i32>(), &StringArray::from(vec!["cat", "dog"]));
    let scores = column::<ListArray>(batch, "top_scores").value(0);
    assert_eq!(scores.as_primitive::<Float32Type>(), &Float32Array::from(vec![0.5, 0.25]));
    assert_eq!(column::<ListArray>(batch, "top_ids").value(1).len(), 0);
    assert_eq!(column::<BooleanArray>(batch, "correct"), &BooleanArray::from(vec![true, false]));
    assert_eq!(column::<UInt32Array>(batch, "rank"), &UInt32Array::from(vec![1, 12]));
}

#[test]
fn embeddings_are_read_back_across_row_groups() {
    let dataset = fluent();
    let rows = u16::try_from(ROWS_PER_GROUP).unwrap() + 10;
    let mut writer = EmbeddingWriter::new(tempfile::tempfile().unwrap(), run(), 2).unwrap();
    for row in 0..rows {
        let embedding = Embedding {
            trial: TrialId(0),
            model: "models/a",
            kind: EmbeddingKind::Image,
            dataset: &dataset,
            sample_id: &row.to_string(),
            values: &[f32::from(row), -1.0],
        };
        writer.push(&embedding).unwrap();
    }
    let (groups, batches) = read(writer.finish().unwrap());
    assert_eq!(groups, 2);
    let all: Vec<(String, Vec<f32>)> = batches
        .iter()
        .flat_map(|batch| {
            let ids = column::<StringArray>(batch, "sample_id");
            let lists = column::<FixedSizeListArray>(batch, "embedding");
            (0..batch.num_rows()).map(|row| {
                let values = lists.value(row).as_primitive::<Float32Type>().values().to_vec();
                (ids.value(row).to_owned(), values)
            })
        })
        .collect();
    let expected: Vec<_> =
        (0..rows).map(|row| (row.to_string(), vec![f32::from(row), -1.0])).collect();
    assert_eq!(all, expected);
    assert_eq!(column::<StringArray>(&batches[0], "kind").value(0), "image");
}

#[test]
fn an_embedding_of_another_width_is_refused() {
    let dataset = fluent();
    let mut writer = EmbeddingWriter::new(Vec::new(), run(), 2).unwrap();
    let embedding = Embedding {
        trial: TrialId(0),
        model: "models/a",
        kind: EmbeddingKind::Text,
        dataset: &dataset,
        sample_id: "a.jpg#0",
        values: &[1.0],
    };
    assert_eq!(
        writer.push(&embedding).unwrap_err().to_string(),
        "the embedding of `a.jpg#0` has 1 numbers, the file holds 2; write embeddings of another width to a file of their own"
    );
    assert!(EmbeddingWriter::new(Vec::new(), run(), 0).is_err());
}

#[test]
fn readings_are_read_back() {
    let sample = Sample {
        at_unix_ms: 1_700_000_000_123,
        phase: Phase::WarmUp,
        allocated_bytes: ByteCount::mib(5),
        reserved_bytes: ByteCount::mib(6),
        device_bytes: None,
        leased_bytes: ByteCount::mib(7),
        resident_bytes: ByteCount::mib(8),
        anonymous_bytes: ByteCount::mib(9),
        mapped_bytes: ByteCount::mib(10),
        cgroup_used_bytes: Some(ByteCount::mib(11)),
    };
    let (node, slice) = ("laptop".parse().unwrap(), "laptop.0".parse().unwrap());
    let reading = Reading { node: &node, slice: &slice, device: &DeviceId::Cpu, sample };
    let mut writer = ReadingWriter::new(tempfile::tempfile().unwrap(), run()).unwrap();
    for _ in 0..=ROWS_PER_BATCH {
        writer.push(reading).unwrap();
    }
    let (_, batches) = read(writer.finish().unwrap());
    let batch = &batches[0];
    assert_eq!(batch.num_rows(), ROWS_PER_BATCH + 1);
    for (name, value) in [("run", "01k0"), ("slice", "laptop.0"), ("device", "cpu")] {
        assert_eq!(column::<StringArray>(batch, name).value(0), value);
    }
    assert_eq!(column::<StringArray>(batch, "phase").value(0), "warm_up");
    let at = column::<TimestampMillisecondArray>(batch, "at");
    assert_eq!((at.value(0), at.timezone()), (1_700_000_000_123, Some("UTC")));
    assert!(column::<Int64Array>(batch, "device_used").is_null(0));
    assert_eq!(column::<Int64Array>(batch, "leased").value(ROWS_PER_BATCH), 7 << 20);
    assert_eq!(column::<Int64Array>(batch, "cgroup_used").value(0), 11 << 20);
}
