//! Settings: what is taken, how refusals read, and that libtorch agrees.

use std::ffi::CString;

use proptest::prelude::*;

use super::*;
use crate::testing::alone;

/// Gives the text to libtorch as it is, and puts the defaults back.
fn libtorch_takes(text: &str) -> bool {
    let raw = CString::new(text).unwrap();
    // SAFETY: the text ends in zero, the message is valid for its capacity, both during the call.
    let taken = done(|message, capacity| unsafe {
        orchestrator_torch_apply_settings(raw.as_ptr(), message, capacity)
    });
    apply(&Settings::default()).unwrap();
    taken.is_ok()
}

#[test]
fn what_parses_reads_back_the_same() {
    for (text, written) in [
        ("", ""),
        (" expandable_segments : True ", "expandable_segments:True"),
        (
            "garbage_collection_threshold:0.80,expandable_segments:False",
            "expandable_segments:False,garbage_collection_threshold:0.8",
        ),
        ("max_split_size_mb:0200,backend:native", "max_split_size_mb:200,backend:native"),
        ("expandable_segments:False,max_split_size_mb:20", ""),
        ("roundup_power2_divisions:[256:1, 512:2, >:8]", ""),
        ("roundup_power2_divisions:8,per_process_memory_fraction:1.0", ""),
        ("large_segment_size_mb:11,max_split_size_mb:11", ""),
        ("max_split_size_mb:40,large_segment_size_mb:40,max_non_split_rounding_mb:41", ""),
        (
            "pinned_use_background_threads:True,pinned_num_register_threads:128,\
             pinned_use_cuda_host_register:True,pinned_reserve_segment_size_mb:1,\
             release_lock_on_cudamalloc:True,graph_capture_record_stream_reuse:False",
            "",
        ),
    ] {
        let settings: Settings = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let again = settings.to_string();
        assert_eq!(again.parse(), Ok(settings), "{text}");
        if !written.is_empty() || text.is_empty() {
            assert_eq!(again, written);
        }
    }
}

#[test]
fn refusals_say_what_to_write() {
    let refused = [
        "expandable_segment:True",
        "Expandable_Segments:True",
        "max_split_size:128",
        "tea:hot",
        "expandable_segments",
        "expandable_segments:",
        "expandable_segments:true",
        "expandable_segments:True,,",
        "expandable_segments:True,expandable_segments:True",
        "expandable_segments:True,max_split_size_mb:128",
        "max_split_size_mb:19",
        "max_split_size_mb:-1",
        "max_split_size_mb:1e3",
        "max_split_size_mb:99999999999999999999",
        "max_non_split_rounding_mb:5",
        "large_segment_size_mb:10",
        "large_segment_size_mb:40,max_split_size_mb:39",
        "max_split_size_mb:\u{1b}[2J",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:NaN",
        "per_process_memory_fraction:1.1",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[256:1,>:3]",
        "roundup_power2_divisions:[>:1,256:2]",
        "roundup_power2_divisions:[256:1",
        "backend:cudaMallocAsync",
        "backend:other",
        "pinned_num_register_threads:256",
        "pinned_reserve_segment_size_mb:0",
    ];
    let messages =
        refused.map(|text| format!("{text}\n  {}", text.parse::<Settings>().unwrap_err()));
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn libtorch_agrees_on_the_bounds_of_what_it_checks_without_cuda() {
    let _turn = alone();
    for text in [
        "large_segment_size_mb:10",
        "large_segment_size_mb:11,max_non_split_rounding_mb:20",
        "max_split_size_mb:19",
        "max_split_size_mb:20",
        "max_non_split_rounding_mb:19",
        "large_segment_size_mb:30,max_split_size_mb:29,max_non_split_rounding_mb:30",
        "large_segment_size_mb:30,max_split_size_mb:30,max_non_split_rounding_mb:30",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:0.001",
        "garbage_collection_threshold:1",
        "expandable_segments:true",
        "expandable_segments:False",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[256:0,>:8]",
        "roundup_power2_divisions:[255:1,>:8]",
        "roundup_power2_divisions:[256:3,>:8]",
        "pinned_use_background_threads:true",
    ] {
        assert_eq!(libtorch_takes(text), text.parse::<Settings>().is_ok(), "{text}");
    }
}

#[test]
fn each_kind_of_device_has_settings_that_parse_and_apply() {
    let _turn = alone();
    let kinds = [DeviceKind::WholeGpu, DeviceKind::SharedOrMig, DeviceKind::Cpu];
    let large = "large_segment_size_mb:64".parse().unwrap();
    for settings in kinds.map(default_for).into_iter().chain([large]) {
        assert_eq!(settings.to_string().parse(), Ok(settings.clone()));
        apply(&settings).unwrap();
    }
    apply(&Settings::default()).unwrap();
    assert_eq!(default_for(DeviceKind::WholeGpu).to_string(), "expandable_segments:True");
    assert_eq!(
        default_for(DeviceKind::SharedOrMig).to_string(),
        "expandable_segments:False,garbage_collection_threshold:0.8"
    );
}

#[test]
fn applied_text_puts_back_what_libtorch_would_keep() {
    insta::assert_snapshot!(
        default_for(DeviceKind::SharedOrMig).complete(),
        @"large_segment_size_mb:20,expandable_segments:False,max_non_split_rounding_mb:20,garbage_collection_threshold:0.8,per_process_memory_fraction:1,pinned_use_background_threads:False,pinned_num_register_threads:1,pinned_use_cuda_host_register:False,release_lock_on_cudamalloc:False,graph_capture_record_stream_reuse:False"
    );
}

proptest! {
    #[test]
    fn no_text_panics_and_what_parses_is_stable(text in "[a-z_:,\\[\\]>0-9. ]{0,40}") {
        if let Ok(settings) = text.parse::<Settings>() {
            prop_assert_eq!(settings.to_string().parse(), Ok(settings));
        }
    }
}
