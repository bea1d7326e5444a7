//! Figures of a report, and of the reference implementation.

use std::fs;

use serde_json::Value;

use crate::data;

/// One metric of a task's result.
pub fn metric(task: &Value, name: &str) -> f64 {
    task["metrics"][name].as_f64().unwrap_or_else(|| panic!("no metric `{name}` in {task:#}"))
}

/// The metrics of every trial and task, as they stand in the report: what must be equal to the
/// last bit however the work was cut.
pub fn task_metrics(report: &Value) -> String {
    let trials = report["trials"].as_array().unwrap();
    let tasks = trials.iter().flat_map(|trial| trial["tasks"].as_array().unwrap());
    tasks.map(Value::to_string).collect::<Vec<_>>().join("\n")
}

/// `metrics.json` of the reference implementation for tiny-clip.
pub fn reference() -> Value {
    let text = fs::read_to_string(data().join("reference/tiny-clip/metrics.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["fluent"].take()
}
