//! From a submission to a planned run. Planning happens here, off the driver's thread; the driver
//! only stores and starts what was planned.

use std::path::PathBuf;

use orchestrator_plan::{Inventory, Measured, Plan, PlanError, check, plan};
use orchestrator_proto::{Refusal, RefusalCode, v1};
use orchestrator_spec::{Evaluation, Facts};
use orchestrator_types::{Digest, RunId};

use crate::{driver::Submitted, store::Submission};

/// What messages call the field.
const MEASURED: &str = "list of measured batches";

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Invalid, message)
}

fn internal(message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Internal, message)
}

/// Plans a submission on the slices of `inventory`, for executors of this `build`.
pub(crate) fn planned(
    request: v1::SubmitRequest,
    inventory: &Inventory,
    build: String,
    owner: Option<String>,
) -> Result<Submitted, Refusal> {
    let v1::SubmitRequest {
        request_id,
        eval_yaml,
        evaluation,
        facts,
        keep_embeddings,
        base,
        measured,
    } = request;
    if request_id.is_empty() {
        return Err(invalid("a submission needs a request id, so that a retry is recognised"));
    }
    let base = PathBuf::from(base);
    if !base.is_absolute() {
        return Err(invalid(format!("base folder `{}` is not absolute", base.display())));
    }
    let (evaluation, facts) = (utf8(evaluation, "evaluation")?, utf8(facts, "facts")?);
    let read_evaluation: Evaluation = read(&evaluation, "evaluation")?;
    let read_facts: Facts = read(&facts, "facts")?;
    let measured = if measured.is_empty() {
        Measured::default()
    } else {
        read(&utf8(measured, MEASURED)?, MEASURED)?
    };
    let plan = plan(&read_evaluation, &read_facts, inventory, &base, &measured)
        .map_err(|error| refusal(&error))?;
    if let Some(violation) = check(&plan).first() {
        return Err(internal(format!("the plan breaks a rule of its own: {violation}")));
    }
    let json = serde_json::to_string(&plan)
        .map_err(|error| internal(format!("the plan cannot be written: {error}")))?;
    let submission = Submission {
        id: run_id(&request_id),
        request_id,
        owner,
        name: read_evaluation.name,
        build,
        units: units(&plan)?,
        keep_embeddings,
        base,
        eval_yaml,
        evaluation,
        facts,
        plan_digest: Digest::of(json.as_bytes()),
        plan: json,
    };
    Ok(Submitted { submission, plan })
}

/// A client may name its run: a request id that is a lower-case ULID becomes the run's id.
fn run_id(request_id: &str) -> RunId {
    let is_ulid = |id: &RunId| {
        let read = ulid::Ulid::from_string(id.as_str());
        read.is_ok_and(|ulid| ulid.to_string().to_lowercase() == id.as_str())
    };
    request_id.parse().ok().filter(is_ulid).unwrap_or_else(crate::fresh_name)
}

fn units(plan: &Plan) -> Result<u32, Refusal> {
    u32::try_from(plan.units.len()).map_err(|_| internal("the plan has too many units"))
}

fn utf8(bytes: Vec<u8>, what: &str) -> Result<String, Refusal> {
    String::from_utf8(bytes).map_err(|_| invalid(format!("the {what} is not UTF-8")))
}

fn read<T: serde::de::DeserializeOwned>(json: &str, what: &str) -> Result<T, Refusal> {
    serde_json::from_str(json)
        .map_err(|error| invalid(format!("the {what} cannot be read: {error}")))
}

fn refusal(error: &PlanError) -> Refusal {
    let code = match error {
        PlanError::NeverFits { .. } => RefusalCode::DoesNotFit,
        PlanError::NoSlice => RefusalCode::Unavailable,
        PlanError::NoFacts { .. } | PlanError::TooManyTexts { .. } => RefusalCode::Invalid,
    };
    Refusal::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use orchestrator_plan::{MeasuredRows, SliceOffer};
    use orchestrator_spec::Batch;
    use orchestrator_types::{ByteCount, Component, DeviceId, Precision};

    use super::*;
    use crate::fixtures;

    /// Images of a batch of the first trial.
    fn images(measured: Vec<u8>) -> u32 {
        let device = DeviceId::Gpu("GPU-a".into());
        let memory_bytes = ByteCount::gib(80);
        let offer = SliceOffer { device, memory_bytes, ..fixtures::offer("n", 0) };
        let evaluation = Evaluation { batches: vec![Batch::Auto], ..fixtures::evaluation() };
        let request = v1::SubmitRequest {
            request_id: "r".into(),
            evaluation: serde_json::to_vec(&evaluation).unwrap(),
            facts: serde_json::to_vec(&fixtures::facts()).unwrap(),
            base: "/base".into(),
            measured,
            ..Default::default()
        };
        let submitted = planned(request, &Inventory { slices: vec![offer] }, "1".into(), None);
        let submitted = submitted.unwrap();
        submitted.plan.trials[0].batch.vision
    }

    #[test]
    fn batches_that_the_client_measured_are_planned_with() {
        let entry = MeasuredRows {
            device: DeviceId::Gpu("GPU-a".into()),
            weights: fixtures::facts().models[0].as_ref().unwrap().weights_blake3,
            precision: Precision::Fp32,
            component: Component::Vision,
            rows: 96,
        };
        let measured = Measured::new(vec![entry]).unwrap();
        assert_eq!(images(serde_json::to_vec(&measured).unwrap()), 96);
        assert_ne!(images(Vec::new()), 96);
    }
}
