//! Profiles of a made-up tower.

use orchestrator_ledger::{
    BestBatch, ComponentProfile, Consumer, CurvePoint, PROFILE_SCHEMA, PhaseReading, PhaseReadings,
    Profile, TimelinePoint,
};
use orchestrator_types::{ByteCount, Component, DeviceId, Precision};

use super::*;

fn consumer(name: &str, calls: u64, outputs: u64, temporaries: u64) -> Consumer {
    Consumer {
        name: name.to_owned(),
        calls,
        allocated_bytes: ByteCount::kib(outputs + temporaries),
        temporary_bytes: ByteCount::kib(temporaries),
        output_bytes: ByteCount::kib(outputs),
        largest_bytes: ByteCount::kib((outputs + temporaries) / calls),
        at_peak_bytes: ByteCount::kib(outputs / 2),
    }
}

/// Four allocations and three releases in each of three blocks, between embeddings and head.
fn timeline() -> Vec<TimelinePoint> {
    let (mut points, mut at_us, mut live) = (Vec::new(), 0, 0_i64);
    let mut step = |module: &str, operator: &str, us: u64, kib: i64| {
        at_us += us;
        live += kib;
        points.push(TimelinePoint {
            at_us,
            live_bytes: ByteCount::kib(u64::try_from(live).unwrap()),
            operator: operator.to_owned(),
            module: module.to_owned(),
        });
    };
    step("embeddings", "aten::conv2d", 0, 12_000);
    step("embeddings", "aten::cat", 2_400, 9_600);
    step("embeddings", "aten::cat", 300, -12_000);
    for block in 0..3 {
        let module = format!("block {block}");
        step(&module, "aten::layer_norm", 200, 9_600);
        step(&module, "aten::linear", 500, 28_800);
        step(&module, "aten::scaled_dot_product_attention", 2_900, 9_600);
        step(&module, "aten::linear", 1_700, -38_400);
        step(&module, "aten::linear", 900, 38_400 + block * 10);
        step(&module, "aten::linear", 2_600, -38_400 - block * 10);
        step(&module, "aten::add_", 200, -9_600);
    }
    step("head", "aten::matmul", 150, 130);
    step("head", "aten::matmul", 90, -9_600);
    points
}

fn component(component: Component, quota: ByteCount) -> ComponentProfile {
    let phase = |seconds, mib| PhaseReading {
        seconds,
        allocated_peak_bytes: ByteCount::mib(mib),
        reserved_peak_bytes: ByteCount::mib(mib),
        device_peak_bytes: None,
        host_peak_bytes: ByteCount::mib(150 + mib),
    };
    let point = |rows, predicted, measured: Option<u64>, rows_per_second| CurvePoint {
        rows,
        predicted_bytes: ByteCount::kib(predicted),
        measured_bytes: measured.map(ByteCount::kib),
        rows_per_second,
    };
    ComponentProfile {
        component,
        model: "models/tiny-clip".to_owned(),
        precision: Precision::Fp32,
        device: DeviceId::Cpu,
        quota_bytes: quota,
        allocator: "counting".to_owned(),
        rows: 64,
        tokens: 50,
        weights_bytes: ByteCount::mib(15),
        peak_bytes: ByteCount::kib(15 * 1024 + 57_600),
        predicted_bytes: ByteCount::kib(15 * 1024 + 58_200),
        operators: vec![
            consumer("aten::linear", 18, 201_600, 300),
            consumer("aten::layer_norm", 7, 67_200, 0),
            consumer("aten::scaled_dot_product_attention", 3, 28_800, 1_200),
        ],
        modules: vec![
            consumer("embeddings", 1, 9_600, 12_000),
            consumer("block 0", 1, 9_600, 96_000),
            consumer("head", 1, 130, 0),
        ],
        phases: PhaseReadings {
            load: phase(0.0421, 15),
            warm_up: phase(0.3, 40),
            run: phase(1.25, 71),
        },
        curve: vec![
            point(1, 16_000, Some(16_100), Some(90.0)),
            point(64, 73_560, Some(72_960), Some(1_410.5)),
            point(1024, 950_000, None, None),
        ],
        best: BestBatch { rows: 64, reason: "the smallest within 2 % of the best rate".to_owned() },
        fragmentation: Some(0.0),
        math_attention_peak_bytes: ByteCount::kib(15 * 1024 + 120_000),
        math_attention_bytes: ByteCount::kib(62_400),
        timeline: timeline(),
    }
}

fn profile() -> Profile {
    Profile {
        schema: PROFILE_SCHEMA.to_owned(),
        name: "tiny-clip on emoji".to_owned(),
        components: vec![
            component(Component::Text, ByteCount::gib(2)),
            component(Component::Vision, ByteCount::mib(80)),
        ],
    }
}

#[test]
fn renderings_of_a_profile() {
    let profile = profile();
    insta::assert_snapshot!("profile_text", profile_text(&profile));
    insta::assert_snapshot!("profile_svg", profile_svg(&profile));
}

#[test]
fn a_profile_is_read_back() {
    assert_eq!(read_profile(&profile_json(&profile())).unwrap(), profile());
    let other = read_profile(r#"{"schema": "orchestrator.profile/9"}"#).unwrap_err();
    insta::assert_snapshot!(other, @"the profile has the schema `orchestrator.profile/9`; this version reads `orchestrator.profile/1`");
}

#[test]
fn tables_fit_a_terminal() {
    let text = profile_text(&profile());
    let tables = text.lines().filter(|line| line.starts_with("  ") || line.starts_with(' '));
    let widest = tables.map(|line| line.chars().count()).max();
    assert!(widest.unwrap() <= 84, "{text}");
}

#[test]
fn names_from_outside_stay_text() {
    let mut profile = profile();
    profile.name = "a\u{1b}[2J\"><script>".to_owned();
    profile.components[0].model = "m</text><script>alert(1)</script>".to_owned();
    profile.components[0].timeline[5].operator = "<b>&".to_owned();
    profile.components[0].timeline[1].module = "<i>".to_owned();
    let svg = profile_svg(&profile);
    for forbidden in ["<script", "<b>", "<i>", "\u{1b}"] {
        assert!(!svg.contains(forbidden), "{forbidden}");
    }
    assert!(!profile_text(&profile).contains('\u{1b}'));
}

#[test]
fn odd_profiles_have_a_picture() {
    let mut profile = profile();
    profile.components[0].timeline.clear();
    profile.components[1].timeline.truncate(1);
    let svg = profile_svg(&profile);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    profile.components[0].operators.clear();
    assert_eq!(profile_text(&profile).matches(" operator ").count(), 1, "no table without rows");
    profile.components.clear();
    assert!(profile_svg(&profile).contains("nothing was profiled"));
}

/// The quota hides nothing where it is far away, and is there where it is near.
#[test]
fn a_quota_within_reach_is_drawn() {
    let svg = profile_svg(&profile());
    assert_eq!(svg.matches("quota less weights").count(), 1);
    assert!(svg.contains("quota less weights 65.00 MiB"));
    assert!(svg.contains("peak 56.27 MiB"), "the block with the largest product");
}
