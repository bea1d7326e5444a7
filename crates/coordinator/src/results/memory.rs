//! `memory.parquet`: the readings of all executors, by slice and time.

use std::{fs::File, io::BufWriter};

use orchestrator_report::{
    Evidence, NodeEvidence,
    parquet::{Reading, ReadingWriter},
};

use super::{ResultsError, finish};

/// Writes one row for each reading; a file without rows where no executor gave any.
pub(super) fn write(evidence: &Evidence, sink: BufWriter<File>) -> Result<(), ResultsError> {
    let mut writer = ReadingWriter::new(sink, evidence.run.clone())?;
    for NodeEvidence { node, slice, device, memory, .. } in &evidence.nodes {
        for sample in orchestrator_report::samples(&memory.accounts) {
            writer.push(Reading { node, slice, device, sample })?;
        }
    }
    finish(writer.finish()?)
}
