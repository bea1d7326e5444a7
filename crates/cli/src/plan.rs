//! `orchestrator plan`: a dry run.

use comfy_table::{Table, presets};
use orchestrator_host::host_memory;
use orchestrator_plan::{Claim, Inventory, Placement, Plan, PlanError, SliceOffer};
use orchestrator_types::{ByteCount, Component};

use crate::{
    args,
    check::grouped,
    evaluation,
    exit::{Exit, Failure},
    host, inventory, local, print_line, say, settings,
};

pub(crate) fn plan(arguments: &args::Plan) -> Result<Exit, Failure> {
    let checked = evaluation::load(&arguments.evaluation)?;
    checked.warn();
    let (inventory, offered) = if let Some(file) = &arguments.inventory {
        (inventory::read(file).map_err(Failure::usage)?, Vec::new())
    } else {
        let args::Local { local_slices, device } = &arguments.local;
        let machine = local::machine(*local_slices, &device.device)?;
        host::beside_gpus(&host_memory(), &machine.inventory, &checked)?;
        (machine.inventory, machine.reasons)
    };
    lowered(&inventory, checked.evaluation.memory.quota).iter().for_each(warn);
    let evaluation::Checked { evaluation, facts, base, .. } = &checked;
    let plan = orchestrator_plan::plan(evaluation, facts, &inventory, base, &settings::measured())
        .map_err(|error| refused(error, evaluation.memory.quota))?;
    if arguments.json {
        let json = serde_json::to_string_pretty(&plan).expect("a plan is always valid JSON");
        return print_line(&json);
    }
    print_line(&render(&plan, &inventory, &offered))
}

/// Tells the user what differs from what was asked for.
pub(crate) fn warn(text: &String) {
    say(format_args!("warning: {text}"));
}

/// Where the evaluation's quota is more than there is, so that the device's ceiling holds.
pub(crate) fn lowered(inventory: &Inventory, asked: Option<ByteCount>) -> Vec<String> {
    let Some(asked) = asked else { return Vec::new() };
    let small = inventory.slices.iter().filter(|offer| offer.memory_bytes < asked);
    let line = |SliceOffer { id, device, memory_bytes, .. }: &SliceOffer| {
        format!(
            "`memory.quota` is {asked}, more than slice {id} can have; the ceiling of its device \
             {device} holds: {memory_bytes}"
        )
    };
    small.map(line).collect()
}

fn refused(error: PlanError, asked: Option<ByteCount>) -> Failure {
    let exit = exit_of(&error);
    match (&error, asked) {
        (PlanError::NeverFits { quota, .. }, Some(asked)) if *quota == asked => {
            Failure::new(exit, error).advise(tight(asked))
        }
        _ => Failure::new(exit, error),
    }
}

/// What helps where the evaluation's own ceiling is too low.
pub(crate) fn tight(asked: ByteCount) -> String {
    format!("`memory.quota` is {asked}: raise it, or leave it out to use what the slice offers")
}

/// The exit code that a refusal of the planner stands for.
const fn exit_of(error: &PlanError) -> Exit {
    match error {
        PlanError::NoSlice | PlanError::NeverFits { .. } => Exit::DoesNotFit,
        PlanError::NoFacts { .. } | PlanError::TooManyTexts { .. } => Exit::BadEvaluation,
    }
}

fn render(plan: &Plan, inventory: &Inventory, offered: &[String]) -> String {
    let trials = plan.trials.iter().map(|trial| {
        format!(
            "trial {}: {}, {}, batch {} images, {} texts",
            trial.id, trial.model, trial.precision, trial.batch.vision, trial.batch.text
        )
    });
    let mut parts = vec![placement_table(&plan.placement), quotas(plan, inventory, offered)];
    parts.push(trials.collect::<Vec<_>>().join("\n"));
    parts.push(units_line(plan));
    let reasons = plan.reasons.iter().map(|reason| format!("- {reason}"));
    parts.push(format!("why:\n{}", reasons.collect::<Vec<_>>().join("\n")));
    parts.join("\n\n")
}

fn placement_table(placement: &[Placement]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "slice",
        "device",
        "component",
        "weights",
        "activations",
        "staging",
        "predicted",
        "at least",
        "quota",
    ]);
    for slice in placement {
        for claim in &slice.claims {
            let Claim {
                component,
                model: _,
                weights_bytes,
                activations_bytes,
                staging_bytes,
                least_bytes,
            } = claim;
            table.add_row([
                slice.slice.to_string(),
                format!("{} × {}", slice.device, slice.threads),
                component.to_string(),
                weights_bytes.to_string(),
                activations_bytes.to_string(),
                staging_bytes.to_string(),
                claim.peak().to_string(),
                least_bytes.to_string(),
                slice.quota_bytes.to_string(),
            ]);
        }
        if slice.runtime_bytes > ByteCount::ZERO {
            let runtime = slice.runtime_bytes.to_string();
            let (slice_id, device) = (slice.slice.to_string(), slice.device.to_string());
            let none = String::new;
            table.add_row([
                slice_id,
                device,
                "device runtime".to_owned(),
                none(),
                none(),
                none(),
                runtime.clone(),
                runtime,
                slice.quota_bytes.to_string(),
            ]);
        }
    }
    table.trim_fmt()
}

/// What each slice may use at most, and which ceiling decided.
fn quotas(plan: &Plan, inventory: &Inventory, offered: &[String]) -> String {
    let line = |slice: &Placement| {
        let offer = inventory.slices.iter().find(|offer| offer.id == slice.slice);
        let offered = offer.map_or(slice.quota_bytes, |offer| offer.memory_bytes);
        format!("quota of {}: {}", slice.slice, decided(slice, offered, plan.memory.quota))
    };
    plan.placement.iter().map(line).chain(offered.iter().cloned()).collect::<Vec<_>>().join("\n")
}

fn decided(slice: &Placement, offered: ByteCount, asked: Option<ByteCount>) -> String {
    let (quota, planned) = (slice.quota_bytes, slice.predicted_peak());
    let why = match asked {
        None => "what the slice offers; `memory.quota` is not set".to_owned(),
        Some(asked) if quota < offered => {
            format!("`memory.quota` decides: {asked}, and the slice offers {offered}")
        }
        Some(asked) => format!("what the slice offers decides; `memory.quota` allows {asked}"),
    };
    format!("{quota}, of which {planned} are predicted ({why})")
}

fn units_line(plan: &Plan) -> String {
    let count = |component: Component| {
        let blocks = plan.units.blocks().iter().filter(|block| block.component() == component);
        let (units, rows) = blocks
            .fold((0, 0), |(units, rows), block| (units + block.count, rows + block.total_rows()));
        format!("{units} {component} units over {} rows", grouped(rows))
    };
    let parts = [Component::Text, Component::Vision, Component::Score].map(count);
    format!("units: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_above_the_device_is_told_with_the_ceiling_that_holds() {
        let offer = |number: u32, gib| SliceOffer {
            id: format!("big.{number}").parse().unwrap(),
            node: "big".parse().unwrap(),
            device: format!("GPU-{number}").parse().unwrap(),
            threads: 1,
            memory_bytes: ByteCount::gib(gib),
        };
        let inventory = Inventory { slices: vec![offer(0, 80), offer(1, 200)] };
        let told = |asked| lowered(&inventory, asked).join("\n");
        insta::assert_snapshot!(told(Some(ByteCount::gib(200))), @"`memory.quota` is 200.00 GiB, more than slice big.0 can have; the ceiling of its device GPU-0 holds: 80.00 GiB");
        assert_eq!(told(Some(ByteCount::gib(80))), "");
        assert_eq!(told(None), "");
    }
}
