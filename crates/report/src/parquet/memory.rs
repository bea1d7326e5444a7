//! `memory.parquet`: what was in use, over time.

use std::{io::Write, sync::Arc};

use arrow_array::{
    ArrayRef,
    builder::{Int64Builder, StringBuilder, TimestampMillisecondBuilder},
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use orchestrator_ledger::Sample;
use orchestrator_types::{ByteCount, DeviceId, NodeName, Phase, RunId, SliceId};

use super::{File, ROWS_PER_BATCH, WriteError};

/// One row: one reading of one slice. Columns: `run`, `node`, `slice`, `device`, `at` (UTC,
/// milliseconds), `phase`, then bytes: `allocated`, `reserved`, `device_used`, `leased`, `resident`,
/// `anonymous`, `mapped`, `cgroup_used`; null where the device does not tell.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// The host.
    pub node: &'a NodeName,
    /// The slice.
    pub slice: &'a SliceId,
    /// Its device.
    pub device: &'a DeviceId,
    /// What was read.
    pub sample: Sample,
}

/// Columns of bytes, in the order of the file.
const AMOUNTS: [&str; 8] = [
    "allocated",
    "reserved",
    "device_used",
    "leased",
    "resident",
    "anonymous",
    "mapped",
    "cgroup_used",
];

/// Writes [`Reading`]s of one run.
pub struct ReadingWriter<W: Write + Send> {
    run: RunId,
    file: File<W>,
    names: [StringBuilder; 4],
    at: TimestampMillisecondBuilder,
    phase: StringBuilder,
    amounts: [Int64Builder; AMOUNTS.len()],
    count: usize,
}

impl<W: Write + Send> ReadingWriter<W> {
    /// Starts a file in `sink`.
    pub fn new(sink: W, run: RunId) -> Result<Self, WriteError> {
        Ok(Self {
            run,
            file: File::new(sink, schema())?,
            names: std::array::from_fn(|_| StringBuilder::new()),
            at: TimestampMillisecondBuilder::new().with_timezone("UTC"),
            phase: StringBuilder::new(),
            amounts: std::array::from_fn(|_| Int64Builder::new()),
            count: 0,
        })
    }

    /// Adds a row.
    pub fn push(&mut self, reading: Reading<'_>) -> Result<(), WriteError> {
        let Reading { node, slice, device, sample } = reading;
        let device = device.to_string();
        let names = [self.run.as_str(), node.as_str(), slice.as_str(), &device];
        for (column, name) in self.names.iter_mut().zip(names) {
            column.append_value(name);
        }
        self.at.append_value(sample.at_unix_ms);
        self.phase.append_value(name_of(sample.phase));
        for (column, amount) in self.amounts.iter_mut().zip(amounts(&sample)) {
            column.append_option(amount.and_then(|bytes| i64::try_from(bytes.as_u64()).ok()));
        }
        self.count += 1;
        if self.count < ROWS_PER_BATCH { Ok(()) } else { self.flush() }
    }

    /// Ends the file and gives the sink back. Without this the file is unreadable.
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.flush()?;
        self.file.finish()
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        self.count = 0;
        let names = self.names.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef);
        let mut columns: Vec<ArrayRef> = names.collect();
        columns.push(Arc::new(self.at.finish()));
        columns.push(Arc::new(self.phase.finish()));
        columns.extend(self.amounts.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        self.file.append(columns)
    }
}

fn schema() -> SchemaRef {
    let text = |name: &str| Field::new(name, DataType::Utf8, false);
    let at = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let mut fields: Vec<Field> = ["run", "node", "slice", "device"].map(text).into();
    fields.extend([Field::new("at", at, false), text("phase")]);
    fields.extend(AMOUNTS.map(|name| Field::new(name, DataType::Int64, true)));
    Arc::new(Schema::new(fields))
}

const fn amounts(sample: &Sample) -> [Option<ByteCount>; AMOUNTS.len()] {
    [
        Some(sample.allocated_bytes),
        Some(sample.reserved_bytes),
        sample.device_bytes,
        Some(sample.leased_bytes),
        Some(sample.resident_bytes),
        Some(sample.anonymous_bytes),
        Some(sample.mapped_bytes),
        sample.cgroup_used_bytes,
    ]
}

const fn name_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Load => "load",
        Phase::WarmUp => "warm_up",
        Phase::Run => "run",
    }
}
