//! Settings: what is taken, how refusals read. That libtorch agrees is tested beside libtorch.

use proptest::prelude::*;

use super::*;

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
        (
            "roundup_power2_divisions:[256:1, 512 : 02, >:8]",
            "roundup_power2_divisions:[256:1,512:2,>:8]",
        ),
        ("roundup_power2_divisions:8", ""),
        ("large_segment_size_mb:11,max_split_size_mb:11", ""),
        ("max_split_size_mb:40,large_segment_size_mb:40,max_non_split_rounding_mb:41", ""),
        (
            "pinned_use_background_threads:True,pinned_num_register_threads:128,\
             pinned_use_cuda_host_register:True,pinned_reserve_segment_size_mb:1,\
             release_lock_on_cudamalloc:True,graph_capture_record_stream_reuse:False",
            "",
        ),
    ] {
        let settings: AllocatorSettings =
            text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let again = settings.to_string();
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(json, format!("\"{again}\""), "text in documents too");
        assert_eq!(serde_json::from_str::<AllocatorSettings>(&json).unwrap(), settings);
        assert_eq!(again.parse(), Ok(settings), "{text}");
        if !written.is_empty() || text.is_empty() {
            assert_eq!(again, written);
        }
    }
    assert!(serde_json::from_str::<AllocatorSettings>("\"tea:hot\"").is_err());
}

#[test]
fn refusals_say_what_to_write() {
    let refused = [
        "expandable_segment:True",
        "Expandable_Segments:True",
        "expandable segments:True",
        "max_split_size:128",
        "tea:hot",
        "expandable_segments",
        "expandable_segments:",
        "expandable_segments:true",
        "expandable_segments:\tTrue",
        "expandable_segments:True,,",
        "expandable_segments:True,expandable_segments:True",
        "expandable_segments:True,max_split_size_mb:128",
        "max_split_size_mb:19",
        "max_split_size_mb:-1",
        "max_split_size_mb:1e3",
        "max_split_size_mb:2147483648",
        "max_non_split_rounding_mb:5",
        "large_segment_size_mb:10",
        "large_segment_size_mb:40,max_split_size_mb:39",
        "max_split_size_mb:\u{1b}[2J",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:1e-1",
        "garbage_collection_threshold:NaN",
        "per_process_memory_fraction:0.5",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[256:1,>:3]",
        "roundup_power2_divisions:[>:1,256:2]",
        "roundup_power2_divisions:[256:1",
        "backend:cudaMallocAsync",
        "backend:other",
        "pinned_num_register_threads:256",
        "pinned_reserve_segment_size_mb:0",
    ];
    let messages = refused
        .map(|text| format!("{text:?}\n  {}", text.parse::<AllocatorSettings>().unwrap_err()));
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn every_mistake_is_told_at_once() {
    let text = "max_split_size_mb:19,max_split_size_mb:21,tea:hot,expandable_segments:True";
    let wrong = AllocatorSettings::examine(text).unwrap_err();
    let messages: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(messages.join("\n"));
}

proptest! {
    #[test]
    fn no_text_panics_and_what_parses_is_stable(text in "[a-z_:,\\[\\]>0-9. ]{0,40}") {
        if let Ok(settings) = text.parse::<AllocatorSettings>() {
            prop_assert_eq!(settings.to_string().parse(), Ok(settings));
        }
    }
}
