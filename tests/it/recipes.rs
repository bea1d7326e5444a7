//! Sweeps share what is decoded: each image once per node, however many trials and slices.

use orchestrator_tests::{Home, small_evaluation};
use serde_json::Value;

/// One shard, so that two slices have the same images in work.
const IMAGES: u64 = 160;

/// Sum of a counter over the slices of the one node.
fn sum(report: &Value, counter: &str) -> u64 {
    let nodes = report["nodes"].as_array().unwrap();
    nodes.iter().map(|slice| slice["images"][counter].as_u64().unwrap()).sum()
}

#[test]
fn a_sweep_of_four_trials_decodes_each_image_once_per_node() {
    let home = Home::default();
    let images = usize::try_from(IMAGES).unwrap();
    let evaluation = small_evaluation(&home, images, "[4, 64]");
    let sweep = ["--set", "sweep.precision=[fp32, bf16]", "--set", "placement.split=always"];
    let mut tasks = Vec::new();
    for slices in ["1", "2"] {
        let arguments = [&sweep[..], &["--local-slices", slices]].concat();
        let document = home.submit(&evaluation, &arguments, 0);
        let report = &document["report"];
        assert_eq!(report["trials"].as_array().unwrap().len(), 4);
        assert_eq!(report["nodes"].as_array().unwrap().len().to_string(), slices);
        assert_eq!(sum(report, "decoded"), IMAGES, "{slices} slices");
        assert_eq!(sum(report, "from_cache"), 3 * IMAGES, "{slices} slices");
        for slice in report["nodes"].as_array().unwrap() {
            let bytes = |name: &str| slice["images"][name].as_u64().unwrap();
            assert!(bytes("cache_peak_bytes") <= bytes("cache_limit_bytes"), "{slice:#}");
        }
        tasks.push(
            report["trials"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it["tasks"].clone())
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(tasks[0], tasks[1]);
    let text = home.run(&["report", "last"]).stdout;
    assert!(
        text.contains(&format!("decoded {IMAGES}, took {} from the cache", 3 * IMAGES)),
        "{text}"
    );
}
