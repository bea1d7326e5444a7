//! The JSON Schema (2020-12) of eval.yaml, made from the same shapes that the walk checks.

use orchestrator_types::{AllocatorSettings, wording::SHOWN_LIMIT};
use serde_json::{Map, Value, json};

use crate::{
    grammar::{NOT_BUILT, ROOT},
    shape::{COUNT_LIMIT, Field, LIST_LIMIT, Need, Shape, TEXT_LIMIT, Topic, VERSION, Variant},
};

/// The schema that editors use to complete and check an eval.yaml. It accepts what
/// [`crate::parse`] accepts, except that it cannot see whether a task's dataset exists, whether two
/// tasks are the same by their defaults, how many trials a sweep makes, and whether an amount of
/// memory or a setting of the allocator is in range.
pub fn schema() -> Value {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "orchestrator evaluation",
        "description": "What to evaluate, on what, and how.",
    });
    merge(&mut schema, of_shape(&ROOT));
    schema
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

fn of_shape(shape: &Shape) -> Value {
    match shape {
        Shape::Version => json!({ "type": "integer", "const": VERSION }),
        Shape::Text => of_text(),
        Shape::Path { endings } => {
            let mut schema = of_text();
            merge(&mut schema, json!({ "not": { "pattern": refused_paths(*endings) } }));
            schema
        }
        Shape::DatasetName => {
            json!({ "type": "string", "pattern": DATASET_NAME })
        }
        Shape::Bytes => json!({ "type": "string", "maxLength": SHOWN_LIMIT, "pattern": BYTES }),
        Shape::Allocator => {
            let mut schema = of_text();
            merge(&mut schema, json!({ "pattern": AllocatorSettings::pattern() }));
            schema
        }
        Shape::Count => json!({ "type": "integer", "minimum": 1, "maximum": COUNT_LIMIT }),
        Shape::Word { words, or_count: false, .. } => json!({ "enum": words }),
        Shape::Word { words, or_count: true, .. } => {
            json!({ "anyOf": [{ "enum": words }, of_shape(&Shape::Count)] })
        }
        Shape::List(of) => json!({
            "type": "array", "items": of_shape(of),
            "minItems": 1, "maxItems": LIST_LIMIT, "uniqueItems": true,
        }),
        Shape::Record(fields) => of_record(fields, None),
        Shape::Datasets(of) => json!({
            "type": "object", "minProperties": 1,
            "propertyNames": { "pattern": DATASET_NAME },
            "additionalProperties": of_shape(of),
        }),
        Shape::Format(variants) => {
            let forms: Vec<_> = variants
                .iter()
                .map(|variant| described(variant, of_record(variant.fields, Some(variant.name))))
                .collect();
            json!({ "type": "object", "oneOf": forms })
        }
        Shape::Task(variants) => of_task(variants),
    }
}

/// The rule of [`DatasetName`]; a test keeps them equal.
pub(crate) const DATASET_NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";

/// What [`orchestrator_types::ByteCount`] reads, and some digit is not zero.
const BYTES: &str = "^ *0*\\.?0*[1-9][0-9]*\\.?[0-9]* *(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB) *$";

fn of_text() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": TEXT_LIMIT,
        "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
    })
}

fn refused_paths(endings: Option<Topic>) -> String {
    let url = "^[A-Za-z][A-Za-z0-9+.-]*://".to_owned();
    let refused = NOT_BUILT
        .iter()
        .filter(|row| Some(row.topic) == endings)
        .map(|row| format!("\\{}$", row.word));
    [url].into_iter().chain(refused).collect::<Vec<_>>().join("|")
}

fn of_record(fields: &[Field], format: Option<&str>) -> Value {
    let tag = format.map(|name| ("format", json!({ "const": name })));
    let properties: Map<_, _> = tag
        .into_iter()
        .chain(fields.iter().map(|field| (field.key, of_field(field))))
        .map(|(key, schema)| (key.to_owned(), schema))
        .collect();
    let needed = fields.iter().filter(|field| matches!(field.need, Need::Required));
    let required: Vec<_> =
        format.map(|_| "format").into_iter().chain(needed.map(|field| field.key)).collect();
    json!({
        "type": "object", "properties": properties,
        "required": required, "additionalProperties": false,
    })
}

fn of_task(variants: &[Variant]) -> Value {
    let properties: Map<_, _> = variants
        .iter()
        .map(|variant| {
            (variant.name.to_owned(), described(variant, of_record(variant.fields, None)))
        })
        .collect();
    json!({
        "type": "object", "properties": properties,
        "minProperties": 1, "maxProperties": 1, "additionalProperties": false,
    })
}

fn described(variant: &Variant, form: Value) -> Value {
    let mut schema = json!({ "title": variant.name, "description": variant.about });
    merge(&mut schema, form);
    schema
}

fn of_field(field: &Field) -> Value {
    let mut schema = json!({ "title": field.key.replace('_', " "), "description": field.about });
    merge(&mut schema, of_shape(&field.shape));
    let mut notes = json!({ "examples": [literal(field.example)] });
    if let Need::Default(default) = field.need {
        merge(&mut notes, json!({ "default": literal(default) }));
    }
    merge(&mut schema, notes);
    schema
}

fn literal(yaml: &str) -> Value {
    serde_yaml::from_str(yaml).expect("examples and defaults of the grammar are YAML")
}
