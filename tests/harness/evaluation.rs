//! Evaluations that take seconds.

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::{Home, data};

/// The demo's tasks on the first `images` captions, so that a run takes seconds.
pub fn small_evaluation(home: &Home, images: usize, batch: &str) -> PathBuf {
    home.write("captions.jsonl", captions(images));
    let model = data().join("models/tiny-clip");
    home.write(
        "eval.yaml",
        format!(
            "version: 1\nname: small\nmodels: [{{path: {}}}]\ndatasets:\n  captions: {{format: \
             captions, path: captions.jsonl}}\ntasks:\n  - retrieval: {{dataset: captions}}\n  - \
             retrieval: {{dataset: captions, captions: all}}\nsweep: {{batch: {batch}}}\n",
            model.display()
        ),
    )
}

/// The first captions of the demo's set, with full paths.
pub fn captions(images: usize) -> String {
    let root = data().join("fluent");
    let lines = fs::read_to_string(root.join("captions.jsonl")).unwrap();
    let absolute = |line: &str| {
        let mut object: Value = serde_json::from_str(line).unwrap();
        let image = root.join(object["image"].as_str().unwrap());
        object["image"] = image.to_str().unwrap().into();
        format!("{object}\n")
    };
    lines.lines().take(images).map(absolute).collect()
}
