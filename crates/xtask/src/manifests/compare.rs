//! Are the objects of two tools the same, but for what the tools themselves add?

use super::named;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Labels that Helm's charts carry by custom, and that nothing selects by.
const HELM_LABELS: [&str; 3] =
    ["app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"];

/// One line a difference. Namespaces are left out: Helm makes none, and leaves the name to `kubectl`.
pub(super) fn differences(kustomize: &[Value], helm: &[Value]) -> Vec<String> {
    let (left, right) = (normal(kustomize), normal(helm));
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        match (left.get(name), right.get(name)) {
            (Some(left), Some(right)) => compare(name, left, right, &mut found),
            (Some(_), None) => found.push(format!("{name}: Kustomize has it, Helm does not")),
            _ => found.push(format!("{name}: Helm has it, Kustomize does not")),
        }
    }
    found
}

fn normal(objects: &[Value]) -> BTreeMap<String, Value> {
    let kept = objects.iter().filter(|object| object["kind"] != "Namespace");
    kept.map(|object| {
        let mut object = object.clone();
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(metadata) = metadata {
            metadata.remove("namespace");
            if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
                labels.retain(|name, _| !HELM_LABELS.contains(&name.as_str()));
            }
        }
        (named(&object), object)
    })
    .collect()
}

fn compare(place: &str, kustomize: &Value, helm: &Value, found: &mut Vec<String>) {
    match (kustomize, helm) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let none = &Value::Null;
                let (left, right) = (left.get(key).unwrap_or(none), right.get(key).unwrap_or(none));
                compare(&format!("{place}.{key}"), left, right, found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{place}[{index}]"), left, right, found);
            }
        }
        _ if kustomize == helm => {}
        _ => found.push(format!("{place}: Kustomize {kustomize}, Helm {helm}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(port: u32, labels: &Value) -> Value {
        let metadata = json!({"name": "a", "labels": labels});
        json!({"kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": port}]}})
    }

    #[test]
    fn what_the_tools_add_is_no_difference() {
        let kustomize = [
            json!({"kind": "Namespace", "metadata": {"name": "n"}}),
            json!({"kind": "Service", "metadata": {"name": "a", "namespace": "n", "labels": {"x": "y"}},
                   "spec": {"ports": [{"port": 1}]}}),
        ];
        let helm = [service(1, &json!({"x": "y", "helm.sh/chart": "c-1"}))];
        assert_eq!(differences(&kustomize, &helm), Vec::<String>::new());
    }

    #[test]
    fn any_other_difference_is_told_with_its_place() {
        let none = json!({});
        let found = differences(&[service(1, &none)], &[service(2, &none)]);
        assert_eq!(found, ["Service a.spec.ports[0].port: Kustomize 1, Helm 2"]);
        let found = differences(&[service(1, &none)], &[service(1, &json!({"x": "y"}))]);
        assert_eq!(found, [r#"Service a.metadata.labels.x: Kustomize null, Helm "y""#]);
        assert_eq!(differences(&[service(1, &none)], &[]).len(), 1);
        assert_eq!(differences(&[], &[service(1, &none)]).len(), 1);
    }
}
