//! Settings: that libtorch agrees on what they are, and takes what is applied.

use std::ffi::CString;

use super::*;
use crate::testing::alone;

/// Gives the text to libtorch as it is, and puts the defaults back.
fn libtorch_takes(text: &str) -> bool {
    let raw = CString::new(text).unwrap();
    // SAFETY: the text ends in zero, the message is valid for its capacity, both during the call.
    let taken = done(|message, capacity| unsafe {
        orchestrator_torch_apply_settings(raw.as_ptr(), message, capacity)
    });
    apply(&AllocatorSettings::default()).unwrap();
    taken.is_ok()
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
        "max_split_size_mb: 64 , expandable_segments : False",
    ] {
        assert_eq!(libtorch_takes(text), text.parse::<AllocatorSettings>().is_ok(), "{text}");
    }
}

#[test]
fn each_kind_of_device_has_settings_that_parse_and_apply() {
    let _turn = alone();
    let kinds = [DeviceKind::WholeGpu, DeviceKind::SharedOrMig, DeviceKind::Cpu];
    let large = "large_segment_size_mb:64".parse::<AllocatorSettings>().unwrap();
    for settings in kinds.map(default_for).into_iter().chain([large]) {
        assert_eq!(settings.to_string().parse(), Ok(settings.clone()));
        apply(&settings).unwrap();
    }
    apply(&AllocatorSettings::default()).unwrap();
    assert_eq!(default_for(DeviceKind::WholeGpu).to_string(), "expandable_segments:True");
    assert_eq!(
        default_for(DeviceKind::SharedOrMig).to_string(),
        "expandable_segments:False,garbage_collection_threshold:0.8"
    );
}

#[test]
fn applied_text_puts_back_what_libtorch_would_keep() {
    insta::assert_snapshot!(
        complete(&default_for(DeviceKind::SharedOrMig)),
        @"large_segment_size_mb:20,expandable_segments:False,max_non_split_rounding_mb:20,per_process_memory_fraction:1,pinned_use_background_threads:False,pinned_num_register_threads:1,pinned_use_cuda_host_register:False,release_lock_on_cudamalloc:False,graph_capture_record_stream_reuse:False,garbage_collection_threshold:0.8"
    );
}
