//! `orchestrator check`.

use crate::{
    args, evaluation,
    exit::{Exit, Failure},
    print_line,
};

pub(crate) fn check(arguments: &args::Check) -> Result<Exit, Failure> {
    let checked = evaluation::load(&arguments.evaluation)?;
    checked.warn();
    for (model, facts) in checked.evaluation.models.iter().zip(&checked.facts.models) {
        let Ok(facts) = facts else { continue };
        let side = facts.image_size;
        print_line(&format!(
            "model {}: {}, {} parameters, {} weights, images {side} × {side}, {} tokens of text",
            model.path,
            facts.architecture,
            grouped(facts.parameters),
            facts.weights_bytes,
            facts.context,
        ))?;
    }
    for (name, facts) in &checked.facts.datasets {
        let Ok(facts) = facts else { continue };
        let mut parts = vec![format!("{} images", grouped(facts.samples.into()))];
        if facts.labelled {
            parts.push(format!("{} classes, {} templates", facts.classes, facts.templates));
        }
        if facts.captions_all > 0 {
            parts.push(format!("{} captions", grouped(facts.captions_all.into())));
        }
        print_line(&format!("dataset {name}: {}", parts.join(", ")))?;
    }
    let trials = checked.evaluation.trials().len();
    let tasks = checked.evaluation.tasks.len();
    print_line(&format!(
        "{} is good: {trials} trial{}, {tasks} task{} each",
        arguments.evaluation.file.display(),
        plural(trials),
        plural(tasks),
    ))
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1593, "1,593"), (7_640_000, "7,640,000")] {
            assert_eq!(grouped(number), text);
        }
    }
}
